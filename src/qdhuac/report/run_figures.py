"""Figures of a run, for light and dark pages."""

from __future__ import annotations

import io
import itertools
import re
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, FuncFormatter, MaxNLocator

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
        figure, ((axes,),) = panels(1, 1, (4.6, 2.7))
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
    pairs = list(itertools.combinations(range(min(dimensions, 4)), 2)) or [(0, 0)]
    columns = min(3, len(pairs))
    rows = -(-len(pairs) // columns)
    size, dot = (3.0 * columns + 0.8, 2.9 * rows), 14
    if dimensions < 3:
        size, dot = ((7.2, 3.2), 24) if dimensions == 1 else ((5.2, 4.3), 26)
    with matplotlib.rc_context(_STYLE):
        figure, grid = panels(rows, columns, size)
        for axes, (a, b) in zip(grid.flat, pairs, strict=False):
            dots = scatter(axes, descriptor, fitness, bounds, (a, b), s=dot)
            axes.set(xlabel=labels[a], ylabel="fitness" if dimensions == 1 else labels[b])
        if dimensions > 1:
            bar = figure.colorbar(dots, ax=grid.ravel().tolist(), label="fitness", shrink=0.9, pad=0.02)
            bar.outline.set_visible(False)
        return figure


def scatter(
    axes: Any,
    descriptor: np.ndarray,
    fitness: np.ndarray,
    bounds: Sequence[Sequence[float]] | np.ndarray,
    pair: tuple[int, int] = (0, 1),
    **style: Any,
) -> Any:
    """Draw an archive over a pair of dimensions, or its fitness over the only one. Return what a colour bar needs."""
    order = np.argsort(fitness)  # the best on top
    descriptor, fitness, size = descriptor[order], fitness[order], descriptor.shape[1]
    (a, b), (low, high) = pair, np.asarray(bounds, float)
    low, high = low - 0.03 * (high - low), high + 0.03 * (high - low)  # so that points on the bounds are whole
    y = fitness if size == 1 else descriptor[:, b]
    dots = axes.scatter(descriptor[:, a], y, c=fitness, cmap="viridis", linewidths=0, **style)
    axes.set_xlim(low[a], high[a])
    if size > 1:
        axes.set_ylim(low[b], high[b])
    tidy(axes)
    return dots


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


def panels(rows: int, columns: int, size: tuple[float, float], **shared: Any) -> tuple[Figure, np.ndarray]:
    """A figure of that size, in inches, and its axes [rows, columns]."""
    figure = Figure(figsize=size, layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False, **shared)


def tidy(axes: Any) -> None:
    """Set few ticks with short numbers."""
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(_tick))
        axis.set_major_locator(MaxNLocator(5))


def _tick(value: float, _: int) -> str:
    """Thousands as k and M; numbers below one without a prefix."""
    return EngFormatter(sep="")(value) if abs(value) >= 1000 else f"{value:.3g}"


def descriptor_labels(metadata: Mapping[str, Any], size: int) -> list[str]:
    """Names of the dimensions of a descriptor, of which the metadata of a repertoire may have its own."""
    found = metadata.get("labels") or []
    # Neither markup of the page nor mathematics of the figure.
    plain = [re.sub(r"[^\w .,:/()\[\]²-]", "", label) for label in found]
    return plain if len(plain) == size else [f"descriptor {i + 1}" for i in range(size)]
