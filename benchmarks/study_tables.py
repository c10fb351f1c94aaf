"""Tables over the stored runs of the studies that no report of a single study has.

`benchmarks/results.py page` writes them wherever a page has a line like `<!-- table: studies cost -->`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from pathlib import Path

import claims
import numpy as np

from qdhuac.studies.folder import FINISHED, STUDY, look, read
from qdhuac.studies.results import MEASURES, NAMES, collect, number, short

Table = tuple[list[str], list[list[str]]]


def cost(source: Path) -> Table:
    """Head and rows: what the stored runs of each study took; a run that studies share counts once in the last row."""
    every: dict[str, tuple[int, int, float]] = {}
    rows = []
    for record in sorted(source.glob(f"*/{STUDY}")):
        found = [(run, look(source, run)) for run in read(record.parent)[2]]
        mine = {
            run.folder: tuple(there.rows[-1][k] for k in ("env_steps", "gradient_updates", "wall_s"))
            for run, there in found
            if there.state == FINISHED
        }
        every |= mine
        rows.append([record.parent.name.removesuffix("-laptop"), *_sums(mine)])
    return ["study", "runs", "steps", "updates", "hours of one core"], [*rows, ["together", *_sums(every)]]


def _sums(runs: dict[str, tuple[int, int, float]]) -> list[str]:
    steps, updates, seconds = map(sum, zip(*runs.values(), strict=True))
    return [str(len(runs)), f"{steps:,}", f"{updates:,}", f"{seconds / 3600:.1f}"]


def tried(source: Path) -> Table:
    """Head and rows: how many policies each algorithm tried in the same steps, and how it fared after equally many."""
    results = collect(source / "benchmark-laptop")
    size = {}  # policies per generation; exploring rollouts are data, not policies
    for run in results.runs:
        emitter = run.config.emitter
        size[run.label] = emitter.batch_size - emitter.exploration_rollouts * (run.config.algorithm == "qdhuac")
    rows = []
    for task in results.tasks:
        last = {label: results.final(task, label, "generation") * size[label] for label in results.labels}
        whole = math.lcm(*size.values())  # generations of all end there
        many = min(values.min() for values in last.values() if len(values)) // whole * whole
        for label, in_all in last.items():
            if not len(in_all):
                continue
            seeds = results.curves[task, label].values()
            then = [next(row for row in rows_ if row["generation"] * size[label] == many) for rows_ in seeds]
            means = [np.mean([number(row, m) for row in then]) for m in ("qd_score", "coverage", "max_fitness")]
            steps = np.mean([row["env_steps"] for row in then])
            counts = f"{in_all.mean():.0f}", f"{many:.0f}", f"{steps:,.0f}"
            rows.append([NAMES[task], label, *counts, *map(short, means)])
    head = ["task", "setting", "tried in all", "compared after", "steps by then"]
    return [*head, "QD score", "coverage (%)", "max fitness"], rows


def by_robot(measure: str, source: Path) -> Table:
    """Head and rows: the means of a measure of the benchmark, robots as columns, the highest of each bold."""
    results = collect(source / "benchmark-laptop")
    means = np.array([[results.final(task, s, measure).mean() for task in results.tasks] for s in results.labels])
    rows = [
        [label, *(f"**{short(m)}**" if m == best else short(m) for m, best in zip(row, means.max(axis=0), strict=True))]
        for label, row in zip(results.labels, means, strict=True)
    ]
    return [MEASURES[measure], *(NAMES[task] for task in results.tasks)], rows


TABLES: dict[str, Callable[[Path], Table]] = {
    "claims": claims.table,
    "cost": cost,
    "tried": tried,
    "fitness": functools.partial(by_robot, "max_fitness"),
    "qd_score": functools.partial(by_robot, "qd_score"),
}
