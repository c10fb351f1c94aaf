"""Figures of a run, for light and dark pages."""

from __future__ import annotations

import io
import itertools
import re
from collections.abc import Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, FuncFormatter, MaxNLocator

from qdhuac.tasks.robots import TASKS, robot

ACCENT = "#2f7ed8"
_INK = "#7a7f87"  # readable on white and on black; replaced by the page's text colour in SVG
BASE: dict[str, Any] = {  # of all figures
    "font.family": "sans-serif",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "text.parse_math": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "qdhuac",
}
_STYLE = BASE | {
    "font.size": 9,
    "axes.edgecolor": _INK,
    "axes.labelcolor": _INK,
    "axes.titlecolor": _INK,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "grid.color": _INK,
    "grid.alpha": 0.2,
    "grid.linewidth": 0.6,
    "text.color": _INK,
    "xtick.color": _INK,
    "ytick.color": _INK,
}


def curve(x: Sequence[float], y: Sequence[float | None], title: str) -> Figure:
    """Draw a learning curve, with gaps where there is no value."""
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(4.6, 2.7), layout="constrained")
        axes = figure.subplots()
        values = np.array([np.nan if v is None else v for v in y], float)
        axes.plot(x, values, color=ACCENT, linewidth=1.8, marker="o" if len(values) < 25 else None, markersize=3)
        axes.set_title(title)
        axes.set_xlabel("environment steps")
        tidy(axes)
        return figure


def archive(
    descriptor: np.ndarray, fitness: np.ndarray, bounds: Sequence[Sequence[float]], labels: list[str]
) -> Figure:
    """Draw an archive by its descriptors [N, D] and fitness [N]: fitness over one dimension, or a map for each pair."""
    dimensions = descriptor.shape[1]
    order = np.argsort(fitness)  # draws the best last
    descriptor, fitness = descriptor[order], fitness[order]
    with matplotlib.rc_context(_STYLE):
        if dimensions == 1:
            figure = Figure(figsize=(7.2, 3.2), layout="constrained")
            axes = figure.subplots()
            axes.scatter(descriptor[:, 0], fitness, c=fitness, cmap="viridis", s=24, linewidths=0)
            axes.set_xlabel(labels[0])
            axes.set_ylabel("fitness")
            axes.set_xlim(*_widened(bounds[0][0], bounds[1][0]))
            tidy(axes)
            return figure
        pairs = list(itertools.combinations(range(min(dimensions, 4)), 2))
        columns = min(3, len(pairs))
        rows = -(-len(pairs) // columns)
        size, dot = ((5.2, 4.3), 26) if len(pairs) == 1 else ((3.0 * columns + 0.8, 2.9 * rows), 14)
        figure = Figure(figsize=size, layout="constrained")
        grid = figure.subplots(rows, columns, squeeze=False)
        for axes, (a, b) in zip(grid.flat, pairs, strict=False):
            dots = axes.scatter(descriptor[:, a], descriptor[:, b], c=fitness, cmap="viridis", s=dot, linewidths=0)
            axes.set(xlabel=labels[a], ylabel=labels[b])
            axes.set_xlim(*_widened(bounds[0][a], bounds[1][a]))
            axes.set_ylim(*_widened(bounds[0][b], bounds[1][b]))
            axes.xaxis.set_major_locator(MaxNLocator(5))
            axes.yaxis.set_major_locator(MaxNLocator(5))
        bar = figure.colorbar(dots, ax=grid.ravel().tolist(), label="fitness", shrink=0.9, pad=0.02)
        bar.outline.set_visible(False)
        return figure


def svg(figure: Figure) -> str:
    """Return a figure as an SVG element, in the text colour and font of the page."""
    buffer = io.StringIO()
    with matplotlib.rc_context(_STYLE):
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r'(<svg [^>]*?)width="[\d.]+pt" height="[\d.]+pt"', r"\1", text, count=1, flags=re.DOTALL)
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    return text.replace(_INK, "currentColor").replace("'DejaVu Sans'", "system-ui, 'DejaVu Sans'")


def tidy(axes: Any) -> None:
    """Set few ticks with short numbers."""
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(_tick))
        axis.set_major_locator(MaxNLocator(5))


def _tick(value: float, _: int) -> str:
    """Thousands as k and M; numbers below one without a prefix."""
    return EngFormatter(sep="")(value) if abs(value) >= 1000 else f"{value:.3g}"


def _widened(low: float, high: float) -> tuple[float, float]:
    """The bounds with a margin, so that points on them are whole."""
    margin = 0.03 * (high - low)
    return low - margin, high + margin


def descriptor_labels(task: str, size: int) -> list[str]:
    """Names of the dimensions of a task's descriptor."""
    if task not in TASKS:
        return [f"descriptor {i + 1}" for i in range(size)]
    if robot(task).omni and size == 2:
        return ["final x (m)", "final y (m)"]
    return ["share of steps on the foot"] if size == 1 else [f"foot {i + 1} on the ground" for i in range(size)]
