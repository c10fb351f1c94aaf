"""Figures of a study, for print: dark on white, distinguishable without colour vision and in grey."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import mode
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from qdhuac.errors import UserError
from qdhuac.report.run_figures import BASE, tidy
from qdhuac.store import history, repertoire
from qdhuac.store.run_folder import REPERTOIRE, RunDir
from qdhuac.studies import statistics
from qdhuac.studies.results import KEPT, MEASURES, NAMES, PROBES, Results

Archive = tuple[np.ndarray, np.ndarray, Sequence[Sequence[float]]]  # descriptor [N, D], fitness [N], bounds
# Okabe and Ito's colours, and a dash and a marker for each, so that no two means differ in colour alone.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
DASHES: tuple[Any, ...] = ("-", "--", (0, (4, 1, 1, 1)), "-.", ":", (0, (6, 2)), (0, (1, 1)))
MARKERS = "osD^vPX*<>h"
STYLE = BASE | {
    "font.size": 8,
    "axes.titlesize": 9,
    "grid.color": "#d0d0d0",
    "grid.linewidth": 0.5,
    "legend.frameon": False,
    "lines.linewidth": 1.6,
    "pdf.fonttype": 42,
}
# Metadata of each format: without a date, the same figure is the same file.
FORMATS: dict[str, dict[str, Any]] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": {}}
BINS = 5  # per foot, in the picture of a four-footed robot's archive
SMALL = 0.1  # of its last value: below that, nothing is drawn relative to a reference
FINEST = 80  # points of a line: its axes are some 140 points wide in print, and runs have hundreds of generations


def save(figure: Figure, folder: Path, name: str, kinds: Sequence[str] = tuple(FORMATS)) -> None:
    """Save a figure in some formats."""
    with matplotlib.rc_context(STYLE):
        figure.draw_without_rendering()
        figure.set_layout_engine("none")  # keep the layout for all formats
        for kind in kinds:
            figure.savefig(folder / f"{name}.{kind}", dpi=200, metadata=FORMATS[kind])


def curves(
    results: Results, labels: Sequence[str], relative: bool = False, measures: Mapping[str, str] = MEASURES
) -> Figure:
    """Tasks as columns, measures as rows: mean, standard deviation, and every seed as a thin line."""
    tasks = results.tasks
    figure = Figure(figsize=(2.3 * len(tasks) + 0.9, 1.65 * len(measures) + 0.7), layout="constrained")
    grid = figure.subplots(len(measures), len(tasks), squeeze=False, sharex="col")
    for column, task in enumerate(tasks):
        for row, (measure, title) in enumerate(measures.items()):
            axes, ends = grid[row][column], [2.0]
            for i, label in enumerate(labels):
                steps, values = results.curve(task, label, measure)
                if not len(values):
                    continue
                if relative:
                    base = results.mean_at(task, labels[0], measure, steps)
                    # Relative to a reference near 0, as fitness can be early on, a value has no meaning.
                    values = values / np.where(base > max(0.0, SMALL * base[-1]), base, np.nan)
                    ends += values[:, -1].tolist()
                _lines(axes, steps, values, i, label)
            tidy(axes)
            if relative:  # early values, relative to a small reference, would flatten the later ones
                low, high = axes.get_ylim()
                axes.set_ylim(max(low, 0.0), min(high, 1.05 * np.nanmax(ends)))
            if row == 0:
                axes.set_title(NAMES[task])
            if column == 0:
                axes.set_ylabel(f"{_bare(title)},\nrelative" if relative else title)
            if row == len(measures) - 1:
                axes.set_xlabel("environment steps")
    figure.align_ylabels(grid[:, 0])
    _legend(figure, grid)
    return figure


def over(results: Results) -> Figure:
    """Measures at the horizon over what the study varies; every seed is a point."""
    groups: dict[str, list[tuple[float, str]]] = {}
    for setting in results.study.settings:
        if setting.label in results.labels:
            groups.setdefault(setting.group, []).append((setting.x, setting.label))
    figure = Figure(figsize=(2.3 * len(MEASURES) + 0.4, 2.7), layout="constrained")
    grid = figure.subplots(1, len(MEASURES), squeeze=False)
    for axes, (measure, title) in zip(grid[0], MEASURES.items(), strict=True):
        for i, (kind, points) in enumerate(groups.items()):
            x = np.array([value for value, _ in points])
            values = [results.final(results.tasks[0], label, measure) for _, label in points]
            means = np.array([v.mean() for v in values])
            spread = np.array([statistics.spread(v) for v in values])
            colour = COLOURS[i]
            axes.fill_between(x, means - spread, means + spread, color=colour, alpha=0.15, linewidth=0)
            for place, every in zip(x, values, strict=True):
                axes.plot(np.full(len(every), place), every, MARKERS[i], color=colour, markersize=2.5, alpha=0.6)
            axes.plot(x, means, color=colour, linestyle=DASHES[i], marker=MARKERS[i], markersize=4.5, label=kind)
        tidy(axes)
        axes.set_xscale("log")
        ticks = sorted({value for points in groups.values() for value, _ in points})
        axes.xaxis.set_major_locator(FixedLocator(ticks))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:g}"))
        axes.set_title(title)
        axes.set_xlabel(results.study.varied)
    _legend(figure, grid)
    return figure


def probe(results: Results) -> Figure:
    """Predictions of critic and shadow target, the true return, their gap, and how often each misses a good agent."""
    task, label = results.tasks[0], results.labels[0]
    figure = Figure(figsize=(8.2, 4.4), layout="constrained")
    grid = figure.subplots(2, 3, squeeze=False, sharex=True)
    for row, (where, prefix) in enumerate(zip(("start states", "along the way"), PROBES, strict=True)):
        predictions, gap, missed = grid[row]
        for i, (key, name) in enumerate(
            (("q", "critic"), ("q_shadow", "shadow target"), ("return", "true discounted return"))
        ):
            steps, values = results.curve(task, label, prefix + key)
            _lines(predictions, steps, values, i, name)
        predictions.set_ylabel(where)
        steps, values = results.curve(task, label, prefix + "gap")
        _lines(gap, steps, values, 3, "pessimism gap E[Q] - E[Q shadow]")
        gap.axhline(0.0, color="black", linewidth=0.8)
        # Pooled over generations: each has few agents above the threshold.
        _, seen = results.curve(task, label, prefix + "high", summed=True)
        for i, key in enumerate(("missed", "missed_shadow")):
            _, wrong = results.curve(task, label, prefix + key, summed=True)
            _lines(missed, steps, 100 * wrong / np.where(seen > 0, seen, np.nan), i, "")
        missed.set_ylim(-3, 103)
        for axes in grid[row]:
            tidy(axes)
    for axes, title in zip(grid[0], ("value, raw units", "pessimism gap", "false negatives so far (%)"), strict=True):
        axes.set_title(title)
    for axes in grid[1]:
        axes.set_xlabel("environment steps")
    _legend(figure, grid)
    return figure


def aggregate(results: Results) -> Figure:
    """IQM over tasks with 95 % intervals for each measure, and the chance that the reference is better."""
    labels = results.labels
    figure = Figure(figsize=(9.2, 0.34 * len(labels) * 2 + 1.6), layout="constrained")
    grid = figure.subplots(2, len(MEASURES), squeeze=False, sharey="row")
    for column, (measure, title) in enumerate(MEASURES.items()):
        scores = statistics.normalised(results.scores(measure))
        above, below = grid[0][column], grid[1][column]
        for i, label in enumerate(labels):
            _interval(above, i, statistics.iqm, scores[label])
            if i:
                _interval(below, i, statistics.probability_of_improvement, scores[labels[0]], scores[label])
        below.axvline(0.5, color="black", linewidth=0.8, linestyle=":")
        above.set_title(_bare(title))
        above.set_xlabel("IQM of normalised scores")
        below.set_xlabel(f"P({labels[0]} is better)")
        below.set_xlim(-0.05, 1.05)
    for axes, names in ((grid[0][0], labels), (grid[1][0], labels[1:])):
        start = len(labels) - len(names)
        axes.set_yticks(range(start, len(labels)), names)
        axes.invert_yaxis()
    return figure


def profiles(results: Results) -> Figure:
    """Share of runs above each normalised score, with 95 % bands."""
    thresholds = np.linspace(0.0, 1.0, 51)
    figure = Figure(figsize=(2.3 * len(MEASURES) + 0.4, 2.7), layout="constrained")
    grid = figure.subplots(1, len(MEASURES), squeeze=False, sharey=True)
    for axes, (measure, title) in zip(grid[0], MEASURES.items(), strict=True):
        scores = statistics.normalised(results.scores(measure))
        for i, label in enumerate(results.labels):
            values = scores[label]
            colour, dash = COLOURS[i % len(COLOURS)], DASHES[i % len(DASHES)]
            if len(values) > 1:  # one seed has no interval
                low, high = statistics.interval(lambda s: statistics.profile(s, thresholds), values, repetitions=300)
                axes.fill_between(thresholds, low, high, step="post", alpha=0.12, linewidth=0, color=colour)
            marks = {"marker": MARKERS[i % len(MARKERS)], "markersize": 3, "markevery": (2 * i, 10)}
            share = statistics.profile(values, thresholds)
            axes.step(
                thresholds, share, where="post", linestyle=dash, label=label, linewidth=1.4, color=colour, **marks
            )
        axes.set_title(_bare(title))
        axes.set_xlabel("normalised score")
    grid[0][0].set_ylabel("share of runs above")
    _legend(figure, grid)
    return figure


def final(results: Results) -> Figure:
    """Every setting at the horizon relative to the reference's mean: a point per seed, a bar at their mean."""
    tasks, labels = results.tasks, results.labels
    height = 0.27 * len(labels) * len(tasks) + 0.5 * len(tasks) + 0.5
    figure = Figure(figsize=(9.2, height), layout="constrained")
    grid = figure.subplots(len(tasks), len(MEASURES), squeeze=False, sharey=True)
    for row, task in enumerate(tasks):
        for column, (measure, title) in enumerate(MEASURES.items()):
            axes = grid[row][column]
            reference = results.final(task, labels[0], measure)
            base = reference.mean() if len(reference) else np.nan
            for i, label in enumerate(labels):
                values = results.final(task, label, measure) / base
                if not len(values) or not base > 0:
                    continue
                colour = COLOURS[0] if i == 0 else COLOURS[1]
                axes.plot(values, np.full(len(values), i), "o", color=colour, markersize=3.5, alpha=0.6)
                axes.plot(values.mean(), i, "|", color=colour, markersize=11, markeredgewidth=2.2)
            axes.axvline(1.0, color=COLOURS[0], linewidth=0.9)
            axes.grid(axis="y", visible=False)
            if row == 0:
                axes.set_title(_bare(title))
            if row == len(tasks) - 1:
                axes.set_xlabel(f"relative to {labels[0]}")
        grid[row][0].set_yticks(range(len(labels)), labels)
        if len(tasks) > 1:
            grid[row][0].set_ylabel(NAMES[task])
    grid[0][0].invert_yaxis()
    return figure


def archive_maps(task: str, found: Mapping[str, Archive]) -> Figure:
    """The archives of the settings side by side."""
    columns = 3 if len(found) in (5, 6) else min(4, len(found))
    rows = -(-len(found) // columns)
    figure = Figure(figsize=(2.2 * columns + 0.9, 2.1 * rows + 0.4), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
    every = np.concatenate([fitness for _, fitness, _ in found.values()])
    scale = {"vmin": float(every.min()), "vmax": float(every.max()), "cmap": "viridis"}
    seen = None
    for axes, (label, (descriptor, fitness, bounds)) in zip(grid.flat, found.items(), strict=False):
        seen = _archive(axes, descriptor, fitness, np.asarray(bounds, float), scale)
        axes.set_title(label)
    for axes in list(grid.flat)[len(found) :]:
        axes.set_visible(False)
    size = next(iter(found.values()))[0].shape[1]
    words = {
        1: ("share of steps on the foot", "fitness"),
        2: ("foot 1 on the ground", "foot 2 on the ground"),
    }.get(size, ("foot 1, and within it foot 2", "foot 3, and within it foot 4"))
    figure.supxlabel(words[0], fontsize=8)
    figure.supylabel(words[1], fontsize=8)
    figure.suptitle(NAMES[task], fontsize=9)
    if seen is not None:
        bar = figure.colorbar(seen, ax=grid.ravel().tolist(), label="fitness", pad=0.02)
        bar.outline.set_visible(False)
    return figure


def _parts(results: Results) -> Iterator[tuple[str, list[str]]]:
    """Settings that share a figure of curves, with the ending of its name."""
    there = [setting for setting in results.study.settings if setting.label in results.labels]
    if groups := list(dict.fromkeys(setting.group for setting in there if setting.group)):
        for group in groups:
            yield f"-{group}", [setting.label for setting in there if setting.group == group]
        return
    first, *others = results.labels
    parts = np.array_split(others, max(1, math.ceil(len(others) / 6)))
    for i, part in enumerate(parts, 1):
        yield f"-{i}" * (len(parts) > 1), [first, *part.tolist()]


def kept_archives(results: Results) -> dict[str, dict[str, Archive]]:
    """Per task the archives of the settings at the study's horizon, all of the seed that most of them have."""
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
                # The history, as the run may have gone beyond the horizon.
                past = history.rebuild(RunDir.open(there[key]).read_history(), len(bounds[0]))
            except UserError as error:
                results.notes.append(str(error))
                continue
            alive = past.at(int(results.curves[task, label][key[2]][-1]["generation"]))
            if len(alive):
                found.setdefault(task, {})[label] = past.descriptor[alive], past.fitness[alive], bounds
    return found


# The figures that a study can have: what draws them, by the endings of their names, and their captions.
FIGURES: dict[str, tuple[Callable[[Results], Mapping[str, Figure]], str]] = {
    "curves": (
        lambda r: {ending: curves(r, labels) for ending, labels in _parts(r)},
        "Thick: mean over seeds. Band: one standard deviation. Thin: every seed.",
    ),
    "relative": (
        lambda r: {ending: curves(r, labels, relative=True) for ending, labels in _parts(r)},
        "Each seed divided by the reference's mean at the same step, once that is a tenth of its last value.",
    ),
    "kept": (
        lambda r: {"": curves(r, r.labels, measures=KEPT)},
        "The archives that the algorithms keep, not the grid that records every policy.",
    ),
    "final": (
        lambda r: {"": final(r)},
        "At the last step, divided by the reference's mean. A point is a seed, the bar their mean.",
    ),
    "over": (
        lambda r: {"": over(r)},
        "At the last step. Small points: seeds. Line: mean. Band: one standard deviation.",
    ),
    "probe": (
        lambda r: {"": probe(r)},
        "A positive gap means that the shadow target is the more pessimistic of the two.",
    ),
    "aggregate": (
        lambda r: {"": aggregate(r)} if r.common_seeds else {},
        "Interquartile mean and probability of improvement with 95 % stratified bootstrap intervals.",
    ),
    "profiles": (
        lambda r: {"": profiles(r)} if r.common_seeds else {},
        "Share of runs above each normalised score, with 95 % stratified bootstrap bands.",
    ),
    "archives": (
        lambda r: {f"-{task}": archive_maps(task, found) for task, found in kept_archives(r).items()},
        "The first seed that most settings have an archive of, at the last step of the study.",
    ),
}


def draw(results: Results) -> Iterator[tuple[str, Figure, str]]:
    """Name, figure and caption of each figure of a study."""
    with matplotlib.rc_context(STYLE):
        for kind in results.study.figures:
            make, caption = FIGURES[kind]
            for ending, figure in make(results).items():
                yield kind + ending, figure, caption


def _archive(axes: Any, descriptor: np.ndarray, fitness: np.ndarray, bounds: np.ndarray, scale: dict[str, Any]) -> Any:
    order = np.argsort(fitness)  # the best on top
    place = (descriptor[order] - bounds[0]) / (bounds[1] - bounds[0])
    fitness = fitness[order]
    if place.shape[1] < 4:
        y = fitness if place.shape[1] == 1 else descriptor[order][:, 1]
        dots = axes.scatter(descriptor[order][:, 0], y, c=fitness, s=9, linewidths=0, **scale)
        margin = 0.04 * (bounds[1] - bounds[0])
        axes.set_xlim(bounds[0][0] - margin[0], bounds[1][0] + margin[0])
        if place.shape[1] > 1:
            axes.set_ylim(bounds[0][1] - margin[1], bounds[1][1] + margin[1])
        tidy(axes)
        return dots
    # Four feet: a grid of grids. Each cell is the best of its bin.
    cells = np.clip((place * BINS).astype(int), 0, BINS - 1)
    picture = np.full((BINS**2, BINS**2), np.nan)
    picture[cells[:, 2] * BINS + cells[:, 3], cells[:, 0] * BINS + cells[:, 1]] = fitness
    image = axes.pcolormesh(np.arange(BINS**2 + 1) / BINS**2, np.arange(BINS**2 + 1) / BINS**2, picture, **scale)
    for edge in range(1, BINS):
        axes.axvline(edge / BINS, color="#808080", linewidth=0.5)
        axes.axhline(edge / BINS, color="#808080", linewidth=0.5)
    axes.grid(visible=False)
    axes.set(xlim=(0, 1), ylim=(0, 1))
    tidy(axes)
    return image


def _lines(axes: Any, steps: np.ndarray, values: np.ndarray, index: int, label: str) -> None:
    """Mean, standard deviation and every seed. [seeds, T]"""
    colour, dash = COLOURS[index % len(COLOURS)], DASHES[index % len(DASHES)]
    there = np.isfinite(values).any(axis=0)
    steps, values = steps[there], values[:, there]
    if not len(steps):
        return
    shown = np.unique(np.linspace(0, len(steps) - 1, FINEST).round().astype(int))  # the first and the last among them
    steps, values = steps[shown], values[:, shown]
    mean, spread = np.nanmean(values, axis=0), statistics.spread(values)
    axes.fill_between(steps, mean - spread, mean + spread, color=colour, alpha=0.13, linewidth=0)
    for seed in values:
        axes.plot(steps, seed, color=colour, linewidth=0.5, alpha=0.6)
    marks = {"marker": MARKERS[index % len(MARKERS)], "markersize": 3, "markevery": max(1, len(steps) // 10)}
    axes.plot(steps, mean, color=colour, linestyle=dash, label=label or None, **marks)


def _interval(axes: Any, row: int, statistic: Callable[..., np.ndarray], *scores: np.ndarray) -> None:
    colour = COLOURS[row % len(COLOURS)]
    if min(map(len, scores)) > 1:  # one seed has no interval
        low, high = statistics.interval(statistic, *scores)
        axes.plot([low, high], [row, row], color=colour, linewidth=5, alpha=0.35, solid_capstyle="butt")
    axes.plot(statistic(*scores), row, MARKERS[row % len(MARKERS)], color=colour, markersize=5)


def _legend(figure: Figure, grid: Any) -> None:
    handles: dict[str, Any] = {}
    for axes in np.asarray(grid).flat:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    room = figure.get_size_inches()[0]
    rows = -(-sum(0.75 + 0.065 * len(name) for name in handles) // room)  # inches, roughly
    columns = max(1, int(-(-len(handles) // max(1, rows))))
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=columns, handlelength=3)


def _bare(title: str) -> str:
    """The name of a measure without its unit."""
    return title.removesuffix(" (%)")
