"""The tables of a study."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from qdhuac.studies import statistics
from qdhuac.studies.results import KEPT, MEASURES, NAMES, PROBES, Results, Rows, Table


def final(results: Results, measures: Mapping[str, str]) -> Table:
    """Mean and standard deviation of the measures at the last step, for every task and setting."""
    rows = []
    for task in results.tasks:
        for label in results.labels:
            values = {m: results.final(task, label, m) for m in measures}
            if seeds := len(next(iter(values.values()))):
                cells = [f"{np.mean(v):.0f}" if m == "generation" else _spread(v) for m, v in values.items()]
                rows.append([NAMES[task], label, str(seeds), *cells])
    return ["task", "setting", "seeds", *measures.values()], rows


summary = functools.partial(final, measures={"generation": "generations", **MEASURES})
kept = functools.partial(final, measures=KEPT)


def aggregate(results: Results) -> Table:
    """IQM over tasks of normalised scores, and the probability that the reference is better."""
    rows = []
    for measure, title in MEASURES.items() if len(results.labels) > 1 and results.common_seeds else ():
        scores = statistics.normalised(results.scores(measure))
        for label, values in scores.items():
            pair = scores[results.labels[0]], values
            better = "" if pair[0] is values else _with_interval(statistics.probability_of_improvement, *pair)
            rows.append([title, label, str(len(values)), _with_interval(statistics.iqm, values), better])
    return ["measure", "setting", "seeds", "IQM [95 %]", f"P({results.labels[0]} is better) [95 %]"], rows


def efficiency(results: Results) -> Table:
    """Environment steps to the final mean of each other setting: its own steps and the reference's."""
    rows = []
    first = results.labels[0]
    for task in results.tasks:
        for label in results.labels[1:]:
            for measure in ("max_fitness", "qd_score"):
                if (found := steps_needed(results, task, label, measure)) is None:
                    continue
                goal, own, ours = found
                seeds = results.curve(task, first, measure)[1]
                reached = f"{(seeds >= goal).any(axis=1).sum()} of {len(seeds)}"
                cells = (f"{ours:,.0f}", reached, f"{own / ours:.2g}") if ours else ("not reached", reached, "")
                rows.append([NAMES[task], label, MEASURES[measure], short(goal), f"{own:,.0f}", *cells])
    head = ["task", "setting", "measure", "its final mean", "its own steps", f"{first}'s steps"]
    return [*head, f"{first}'s seeds that get there", "times fewer"], rows


def steps_needed(results: Results, task: str, label: str, measure: str) -> tuple[float, float, float | None] | None:
    """The final mean of a setting, and the steps at which its mean and the reference's mean reach it."""
    steps, values = results.curve(task, results.labels[0], measure)
    theirs, others = results.curve(task, label, measure)
    if not len(others) or not len(values):
        return None
    mean = others.mean(axis=0)
    own = statistics.steps_to_reach(theirs, mean, mean[-1])
    assert own is not None
    return float(mean[-1]), own, statistics.steps_to_reach(steps, values.mean(axis=0), mean[-1])


def false_negatives(results: Results) -> Table:
    """How often critic and shadow value an agent above the archive's 90th percentile below it, over all runs."""
    rows = []
    lines = [row for seeds in results.curves.values() for rows_ in seeds.values() for row in probed(rows_)]
    for at, name in PROBES.items():
        high, missed, shadow = (sum(row[at + k] for row in lines) for k in ("high", "missed", "missed_shadow"))
        rates = [f"{100 * n / high:.1f} %" if high else "" for n in (missed, shadow)]
        gap = f"{np.mean([row[f'{at}gap'] for row in lines]):.2f}" if lines else ""
        rows.append([name, f"{high:,}", *rates, gap])
    return ["where", "above the threshold", "missed by the critic", "missed by the shadow", "mean gap"], rows


def probed(rows: Rows) -> Rows:
    """Generations with a threshold: not the first, which has no archive yet, nor the row that `cut` adds."""
    return [row for row in rows if row.get("probe_threshold") is not None]


def provenance(results: Results) -> Table:
    """Configuration, versions and duration of each run."""
    rows = []
    for (task, label, seed), origin in results.origins.items():
        wall = f"{results.curves[task, label][seed][-1]['wall_s']:.0f}"
        rows.append([task, label, str(seed), origin.config_sha256[:12], origin.versions, wall])
    return ["task", "setting", "seed", "configuration", "versions", "seconds"], rows


# The tables that a study can have, and their titles.
TABLES: dict[str, tuple[Callable[[Results], Table], str]] = {
    "summary": (summary, "At the last step: mean and standard deviation over seeds"),
    "aggregate": (aggregate, "Over all tasks: scores from 0 (the lowest run of a task) to 1 (the highest)"),
    "efficiency": (efficiency, "Steps to the final mean of each other setting: its own, and the reference's"),
    "kept": (kept, "The archives that the algorithms keep, at the last step"),
    "false_negatives": (false_negatives, "Agents above the archive's 90th percentile that a critic values below it"),
}


def tables(results: Results) -> dict[str, Table]:
    """The tables of a study by name, without empty ones."""
    made = {name: TABLES[name][0](results) for name in results.study.tables}
    return {name: table for name, table in made.items() if table[1]}


def short(value: float) -> str:
    """A number of at most about four digits."""
    for size, letter in ((1e9, " G"), (1e6, " M"), (1e4, " k")):
        if abs(value) >= size:
            return f"{value / (1e3 if letter == ' k' else size):.4g}{letter}"
    return f"{value:.4g}"


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table as Markdown, without a newline at the end."""
    lines = [" | ".join(cells) for cells in (head, ["---"] * len(head), *rows)]
    return "\n".join(f"| {line} |" for line in lines)


def _with_interval(statistic: Callable[..., np.ndarray], *scores: np.ndarray) -> str:
    """A statistic, with its interval if there are several seeds."""
    value = f"{statistic(*scores):.2f}"
    if min(map(len, scores)) < 2:
        return value
    low, high = statistics.interval(statistic, *scores)
    return f"{value} [{low:.2f}, {high:.2f}]"


def _spread(values: np.ndarray) -> str:
    mean = short(float(np.mean(values)))
    return f"{mean} ± {short(float(statistics.spread(values)))}" if len(values) > 1 else mean
