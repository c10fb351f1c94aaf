"""Pictures of the archives that the runs of a study end with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import mode
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from qdhuac.errors import UserError
from qdhuac.report.run_figures import panels, scatter, tidy
from qdhuac.store import history, repertoire
from qdhuac.store.run_folder import REPERTOIRE, RunDir
from qdhuac.studies.results import NAMES, Results
from qdhuac.tasks.task_file import builtin

Archive = tuple[np.ndarray, np.ndarray, Sequence[Sequence[float]]]  # descriptor [N, D], fitness [N], bounds
BINS = 5  # per foot, in the picture of a four-footed robot's archive


def kept_archives(results: Results) -> dict[str, dict[str, Archive]]:
    """The archives of the settings at the horizon, by task, all of the seed that most settings have."""
    found: dict[str, dict[str, Archive]] = {}
    there = {key: o.folder for key, o in results.origins.items() if o.folder and (o.folder / REPERTOIRE).exists()}
    for task in results.tasks:
        seeds = [seed for t, _, seed in there if t == task]
        for label in results.labels:
            key = task, label, mode(seeds) if seeds else -1
            if key not in there:
                continue
            try:
                bounds = repertoire.read(there[key] / REPERTOIRE)[1]["descriptor_bounds"]
                # From the history, as the run may have gone beyond the horizon.
                past = history.rebuild(RunDir.open(there[key]).read_history(), len(bounds[0]))
            except UserError as error:
                results.notes.append(str(error))
                continue
            alive = past.at(int(results.curves[task, label][key[2]][-1]["generation"]))
            if len(alive):
                found.setdefault(task, {})[label] = past.descriptor[alive], past.fitness[alive], bounds
    return found


def archive_maps(task: str, found: Mapping[str, Archive]) -> Figure:
    """The archives of the settings side by side."""
    columns = 3 if len(found) in (5, 6) else min(4, len(found))
    rows = -(-len(found) // columns)
    figure, grid = panels(rows, columns, (2.2 * columns + 0.9, 2.1 * rows + 0.4), sharex=True, sharey=True)
    every = np.concatenate([fitness for _, fitness, _ in found.values()])
    scale: dict[str, Any] = {"vmin": float(every.min()), "vmax": float(every.max())}
    for axes, (label, (descriptor, fitness, bounds)) in zip(grid.flat, found.items(), strict=False):
        if descriptor.shape[1] == 4:
            coloured = _feet(axes, descriptor, fitness, np.asarray(bounds, float), **scale)
        else:
            coloured = scatter(axes, descriptor, fitness, bounds, s=9, **scale)
        axes.set_title(label)
    for axes in grid.flat[len(found) :]:
        axes.set_visible(False)
    size = descriptor.shape[1]
    x, y = "foot 1, and within it foot 2", "foot 3, and within it foot 4"
    if size < 4:
        x, y = (*(one.title for one in builtin(task).dimensions()), "fitness")[:2]
    figure.supxlabel(x, fontsize=8)
    figure.supylabel(y, fontsize=8)
    figure.suptitle(NAMES[task], fontsize=9)
    bar = figure.colorbar(coloured, ax=grid.ravel().tolist(), label="fitness", pad=0.02)
    bar.outline.set_visible(False)
    return figure


def _feet(axes: Any, descriptor: np.ndarray, fitness: np.ndarray, bounds: np.ndarray, **scale: float) -> Any:
    """Draw the archive of a robot with four feet as a grid of grids. Return what a colour bar needs."""
    order = np.argsort(fitness)
    descriptor, fitness, (low, high) = descriptor[order], fitness[order], bounds
    cells = np.clip(((descriptor - low) / (high - low) * BINS).astype(int), 0, BINS - 1)
    picture = np.full((BINS**2, BINS**2), np.nan)  # each cell is the best of its bin
    picture[cells[:, 2] * BINS + cells[:, 3], cells[:, 0] * BINS + cells[:, 1]] = fitness
    borders = np.arange(BINS**2 + 1) / BINS**2
    image = axes.pcolormesh(borders, borders, picture, cmap="viridis", **scale)
    for edge in range(1, BINS):
        axes.axvline(edge / BINS, color="#808080", linewidth=0.5)
        axes.axhline(edge / BINS, color="#808080", linewidth=0.5)
    axes.grid(visible=False)
    axes.set(xlim=(0, 1), ylim=(0, 1))
    tidy(axes)
    return image
