"""Figures of a study, for print: dark on white, readable in grey and without colour vision."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from qdhuac.files import replace_file
from qdhuac.report.run_figures import BASE, panels, tidy
from qdhuac.report.study_archives import archive_maps, kept_archives
from qdhuac.studies import statistics
from qdhuac.studies.catalogue import Setting
from qdhuac.studies.results import KEPT, MEASURES, NAMES, PROBES, Results

# Okabe and Ito's colours, with a dash and a marker for each: no two means differ in colour alone.
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
# Metadata of each format. Without a date, the same figure is the same file.
FORMATS: dict[str, dict[str, Any]] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": {}}
SMALL = 0.1  # a reference below this share of its last value is too small to divide by
FINEST = 80  # most points of a line: axes are about 140 points wide in print


def save(figure: Figure, folder: Path, name: str, kinds: Sequence[str] = tuple(FORMATS)) -> None:
    """Save a figure in some formats, as `folder/name.kind`."""
    with matplotlib.rc_context(STYLE):
        figure.draw_without_rendering()
        figure.set_layout_engine("none")  # keep the layout for all formats
        for kind in kinds:
            picture = io.BytesIO()
            figure.savefig(picture, format=kind, dpi=200, metadata=FORMATS[kind])
            replace_file(folder / f"{name}.{kind}", picture.getvalue())


def curves(
    results: Results, labels: Sequence[str], relative: bool = False, measures: Mapping[str, str] = MEASURES
) -> Figure:
    """Learning curves, with tasks as columns and measures as rows: mean, standard deviation and every seed.

    Args:
        results: the study.
        labels: settings to draw; the first one is the reference.
        relative: divide by the reference's mean at the same step.
        measures: names of metrics and their titles.
    """
    tasks = results.tasks
    size = 2.3 * len(tasks) + 0.9, 1.65 * len(measures) + 0.7
    figure, grid = panels(len(measures), len(tasks), size, sharex="col")
    for axes_row, measure in zip(grid, measures, strict=True):
        for axes, task in zip(axes_row, tasks, strict=True):
            ends = [2.0]
            for i, label in enumerate(labels):
                steps, values = results.curve(task, label, measure)
                if not len(values):
                    continue
                if relative:
                    base = results.mean_at(task, labels[0], measure, steps)
                    # A reference near 0, as fitness can be early on, makes the quotient meaningless.
                    values = values / np.where(base > max(0.0, SMALL * base[-1]), base, np.nan)
                    ends += values[:, -1].tolist()
                _lines(axes, steps, values, i, label)
            tidy(axes)
            if relative:  # large early values would flatten the later ones
                low, high = axes.get_ylim()
                axes.set_ylim(max(low, 0.0), min(high, 1.05 * np.nanmax(ends)))
    for axes, task in zip(grid[0], tasks, strict=True):
        axes.set_title(NAMES[task])
    for axes, title in zip(grid[:, 0], measures.values(), strict=True):
        axes.set_ylabel(f"{_bare(title)},\nrelative" if relative else title)
    for axes in grid[-1]:
        axes.set_xlabel("environment steps")
    figure.align_ylabels(grid[:, 0])
    _legend(figure, grid)
    return figure


def over(results: Results) -> Figure:
    """Measures at the last step over the quantity that the study varies, with a line for each group of settings."""
    groups: dict[str, list[Setting]] = {}
    for setting in results.study.settings:
        if setting.label in results.labels:
            groups.setdefault(setting.group, []).append(setting)
    figure, grid = panels(1, len(MEASURES), (2.3 * len(MEASURES) + 0.4, 2.7))
    for axes, (measure, title) in zip(grid[0], MEASURES.items(), strict=True):
        for i, (group, settings) in enumerate(groups.items()):
            x = np.array([setting.x for setting in settings])
            values = [results.final(results.tasks[0], setting.label, measure) for setting in settings]
            means = np.array([v.mean() for v in values])
            spread = np.array([statistics.spread(v) for v in values])
            look = _look(i)
            axes.fill_between(x, means - spread, means + spread, color=look["color"], alpha=0.15, linewidth=0)
            for place, seeds in zip(x, values, strict=True):
                points = np.full(len(seeds), place), seeds
                axes.plot(*points, look["marker"], color=look["color"], markersize=2.5, alpha=0.6)
            axes.plot(x, means, **look, markersize=4.5, label=group)
        tidy(axes)
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(FixedLocator(sorted({s.x for settings in groups.values() for s in settings})))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:g}"))
        axes.set(title=title, xlabel=results.study.varied)
    _legend(figure, grid)
    return figure


def probe(results: Results) -> Figure:
    """Predictions of critic and shadow target, the true return, the gap, and how often each misses a good agent."""
    task, label = results.tasks[0], results.labels[0]
    figure, grid = panels(2, 3, (8.2, 4.4), sharex=True)
    lines = {"q": "critic", "q_shadow": "shadow target", "return": "true discounted return"}
    for row, where, prefix in zip(grid, ("start states", "along the way"), PROBES, strict=True):
        predictions, gap, missed = row
        for i, (key, name) in enumerate(lines.items()):
            _lines(predictions, *results.curve(task, label, prefix + key), i, name)
        predictions.set_ylabel(where)
        _lines(gap, *results.curve(task, label, prefix + "gap"), 3, "pessimism gap E[Q] - E[Q shadow]")
        gap.axhline(0.0, color="black", linewidth=0.8)
        # Summed over generations, as each has few agents above the threshold.
        steps, seen = results.curve(task, label, prefix + "high", summed=True)
        for i, key in enumerate(("missed", "missed_shadow")):
            _, wrong = results.curve(task, label, prefix + key, summed=True)
            _lines(missed, steps, 100 * wrong / np.where(seen > 0, seen, np.nan), i, "")
        missed.set_ylim(-3, 103)
        for axes in row:
            tidy(axes)
    for axes, title in zip(grid[0], ("value, raw units", "pessimism gap", "false negatives so far (%)"), strict=True):
        axes.set_title(title)
    for axes in grid[1]:
        axes.set_xlabel("environment steps")
    _legend(figure, grid)
    return figure


def aggregate(results: Results) -> Figure:
    """IQM over tasks of each measure, and the probability that the reference is better, with 95 % intervals."""
    labels = results.labels
    figure, grid = panels(2, len(MEASURES), (9.2, 0.34 * len(labels) * 2 + 1.6), sharey="row")
    for (above, below), (measure, title) in zip(grid.T, MEASURES.items(), strict=True):
        scores = statistics.normalised(results.scores(measure))
        for i, label in enumerate(labels):
            _interval(above, i, statistics.iqm, scores[label])
            if i:
                _interval(below, i, statistics.probability_of_improvement, scores[labels[0]], scores[label])
        below.axvline(0.5, color="black", linewidth=0.8, linestyle=":")
        above.set(title=_bare(title), xlabel="IQM of normalised scores")
        below.set(xlabel=f"P({labels[0]} is better)", xlim=(-0.05, 1.05))
    for start, axes in enumerate(grid[:, 0]):
        axes.set_yticks(range(start, len(labels)), labels[start:])
        axes.invert_yaxis()
    return figure


def profiles(results: Results) -> Figure:
    """Share of runs above each normalised score, with 95 % bands."""
    thresholds = np.linspace(0.0, 1.0, 51)
    figure, grid = panels(1, len(MEASURES), (2.3 * len(MEASURES) + 0.4, 2.7), sharey=True)
    for axes, (measure, title) in zip(grid[0], MEASURES.items(), strict=True):
        scores = statistics.normalised(results.scores(measure))
        for i, (label, values) in enumerate(scores.items()):
            look = _look(i) | {"markersize": 3, "markevery": (2 * i, 10), "linewidth": 1.4}
            if len(values) > 1:  # one seed has no interval
                low, high = statistics.interval(lambda s: statistics.profile(s, thresholds), values, repetitions=300)
                axes.fill_between(thresholds, low, high, step="post", alpha=0.12, linewidth=0, color=look["color"])
            axes.step(thresholds, statistics.profile(values, thresholds), where="post", label=label, **look)
        axes.set(title=_bare(title), xlabel="normalised score")
    grid[0][0].set_ylabel("share of runs above")
    _legend(figure, grid)
    return figure


def final(results: Results) -> Figure:
    """Every setting at the last step relative to the reference's mean: a point per seed, a bar at their mean."""
    tasks, labels = results.tasks, results.labels
    height = 0.27 * len(labels) * len(tasks) + 0.5 * len(tasks) + 0.5
    figure, grid = panels(len(tasks), len(MEASURES), (9.2, height), sharey=True)
    for row, task in zip(grid, tasks, strict=True):
        for axes, measure in zip(row, MEASURES, strict=True):
            reference = results.final(task, labels[0], measure)
            base = reference.mean() if len(reference) else 0.0
            for i, label in enumerate(labels if base > 0 else ()):
                if len(values := results.final(task, label, measure) / base):
                    colour = COLOURS[min(i, 1)]
                    axes.plot(values, np.full(len(values), i), "o", color=colour, markersize=3.5, alpha=0.6)
                    axes.plot(values.mean(), i, "|", color=colour, markersize=11, markeredgewidth=2.2)
            axes.axvline(1.0, color=COLOURS[0], linewidth=0.9)
            axes.grid(axis="y", visible=False)
        row[0].set_yticks(range(len(labels)), labels)
        if len(tasks) > 1:
            row[0].set_ylabel(NAMES[task])
    for axes, title in zip(grid[0], MEASURES.values(), strict=True):
        axes.set_title(_bare(title))
    for axes in grid[-1]:
        axes.set_xlabel(f"relative to {labels[0]}")
    grid[0][0].invert_yaxis()
    return figure


def _parts(results: Results) -> Iterator[tuple[str, list[str]]]:
    """The settings that share a figure of curves, with the ending of its name."""
    there = [setting for setting in results.study.settings if setting.label in results.labels]
    if groups := list(dict.fromkeys(setting.group for setting in there if setting.group)):
        for group in groups:
            yield f"-{group}", [setting.label for setting in there if setting.group == group]
        return
    first, *others = results.labels
    parts = np.array_split(others, max(1, math.ceil(len(others) / 6)))
    for i, part in enumerate(parts, 1):
        yield f"-{i}" * (len(parts) > 1), [first, *part.tolist()]


# The figures that a study can have: functions that give them by the endings of their names.
FIGURES: dict[str, Callable[[Results], Mapping[str, Figure]]] = {
    "curves": lambda r: {ending: curves(r, labels) for ending, labels in _parts(r)},
    "relative": lambda r: {ending: curves(r, labels, relative=True) for ending, labels in _parts(r)},
    "kept": lambda r: {"": curves(r, r.labels, measures=KEPT)},
    "final": lambda r: {"": final(r)},
    "over": lambda r: {"": over(r)},
    "probe": lambda r: {"": probe(r)},
    "aggregate": lambda r: {"": aggregate(r)} if r.common_seeds else {},
    "profiles": lambda r: {"": profiles(r)} if r.common_seeds else {},
    "archives": lambda r: {f"-{task}": archive_maps(task, found) for task, found in kept_archives(r).items()},
}
CAPTIONS = {
    "curves": "Thick: mean over seeds. Band: one standard deviation. Thin: every seed.",
    "relative": "Each seed divided by the reference's mean at the same step, once that is a tenth of its last value.",
    "kept": "The archives that the algorithms keep, not the grid that records every policy.",
    "final": "At the last step, divided by the reference's mean. A point is a seed, the bar their mean.",
    "over": "At the last step. Small points: seeds. Line: mean. Band: one standard deviation.",
    "probe": "A positive gap means that the shadow target is the more pessimistic of the two.",
    "aggregate": "Interquartile mean and probability of improvement with 95 % stratified bootstrap intervals.",
    "profiles": "Share of runs above each normalised score, with 95 % stratified bootstrap bands.",
    "archives": "The first seed that most settings have an archive of, at the last step of the study.",
}


def draw(results: Results) -> Iterator[tuple[str, Figure, str]]:
    """Name, figure and caption of each figure of a study."""
    with matplotlib.rc_context(STYLE):
        for kind in results.study.figures:
            for ending, figure in FIGURES[kind](results).items():
                yield kind + ending, figure, CAPTIONS[kind]


def _look(index: int) -> dict[str, Any]:
    """Colour, dash and marker of a setting's mean."""
    looks = {"color": COLOURS, "linestyle": DASHES, "marker": MARKERS}
    return {name: choices[index % len(choices)] for name, choices in looks.items()}


def _lines(axes: Any, steps: np.ndarray, values: np.ndarray, index: int, label: str) -> None:
    """Draw the mean, the standard deviation and every seed of values [seeds, T]."""
    there = np.isfinite(values).any(axis=0)
    steps, values = steps[there], values[:, there]
    if not len(steps):
        return
    shown = np.unique(np.linspace(0, len(steps) - 1, FINEST).round().astype(int))  # including the first and the last
    steps, values = steps[shown], values[:, shown]
    mean, spread, look = np.nanmean(values, axis=0), statistics.spread(values), _look(index)
    axes.fill_between(steps, mean - spread, mean + spread, color=look["color"], alpha=0.13, linewidth=0)
    for seed in values:
        axes.plot(steps, seed, color=look["color"], linewidth=0.5, alpha=0.6)
    axes.plot(steps, mean, **look, markersize=3, markevery=max(1, len(steps) // 10), label=label or None)


def _interval(axes: Any, row: int, statistic: Callable[..., np.ndarray], *scores: np.ndarray) -> None:
    """Draw a statistic as a marker in a row, with its interval."""
    look = _look(row)
    if min(map(len, scores)) > 1:  # one seed has no interval
        low, high = statistics.interval(statistic, *scores)
        axes.plot([low, high], [row, row], color=look["color"], linewidth=5, alpha=0.35, solid_capstyle="butt")
    axes.plot(statistic(*scores), row, look["marker"], color=look["color"], markersize=5)


def _legend(figure: Figure, grid: np.ndarray) -> None:
    """Draw one legend for all axes below the figure."""
    found = [zip(*axes.get_legend_handles_labels(), strict=True) for axes in grid.flat]
    handles = {label: handle for pairs in found for handle, label in pairs}
    room = figure.get_size_inches()[0]
    rows = -(-sum(0.75 + 0.065 * len(name) for name in handles) // room)  # inches, roughly
    columns = max(1, int(-(-len(handles) // max(1, rows))))
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=columns, handlelength=3)


def _bare(title: str) -> str:
    """The name of a measure without its unit."""
    return title.removesuffix(" (%)")
