"""Make the tables and figures of the documentation from the CSV files in results/studies.

    qdhuac report studies/benchmark-laptop
    cp studies/benchmark-laptop/results.csv results/studies/benchmark.csv    # once per study
    python benchmarks/results.py page docs/results.md                        # and README.md
    python benchmarks/results.py figures docs/results.md

`page` writes the tables into a page, below each line like `<!-- table: benchmark summary -->`. `figures` draws what
the page links as `img/studies/benchmark-laptop-curves.svg`. Pictures of archives need the runs.
"""

from __future__ import annotations

import functools
import math
import re
import sys
from collections.abc import Callable
from pathlib import Path

import claims
import numpy as np

from qdhuac.report import study_figures
from qdhuac.report.study_tables import markdown, short, tables
from qdhuac.studies.results import MEASURES, NAMES, Results, Table, number, read_csv

SOURCE = Path(__file__).parents[1] / "results" / "studies"
TABLE = re.compile(r"(<!-- table: (\S+) (\S+) -->\n).*?(<!-- /table -->)", re.DOTALL)


@functools.cache
def stored() -> dict[str, Results]:
    """The stored studies by name."""
    return {path.stem: read_csv(path) for path in sorted(SOURCE.glob("*.csv"))}


def filled(text: str) -> str:
    """Return the text of a page with its tables filled from the stored studies."""

    def fill(match: re.Match[str]) -> str:
        name, kind = match[2], match[3]
        table = TABLES[kind]() if name == "studies" else tables(stored()[name])[kind]
        return f"{match[1]}\n{markdown(*table)}\n\n{match[4]}"

    return TABLE.sub(fill, text)


def page(target: Path) -> None:
    """Rewrite the tables of a page."""
    target.write_text(filled(target.read_text()))


def figures(page: Path) -> None:
    """Draw the figures of studies that a page links."""
    for results in stored().values():
        for name, figure, _ in study_figures.draw(results):
            file = f"{results.study.name}-{results.scale}-{name}"
            if f"(img/studies/{file}.svg)" in page.read_text():
                study_figures.save(figure, page.parent / "img" / "studies", file, kinds=("svg",))
                print(file)


# Tables over several studies, or over a part of one


def cost() -> Table:
    """Head and rows: the cost of each study. The last row counts runs that studies share once."""
    every: dict[str, list[float]] = {}
    rows = []
    for name, results in stored().items():
        mine = {}
        for (task, label, seed), origin in results.origins.items():
            last = results.curves[task, label][seed][-1]
            mine[origin.config_sha256] = [last["env_steps"], last["gradient_updates"], last["wall_s"]]
        rows.append([name, *_sums(mine)])
        for mark, numbers in mine.items():  # the longest of the studies that share a run
            every[mark] = max(numbers, every.get(mark, numbers))
    return ["study", "runs", "steps", "updates", "hours of one core"], [*rows, ["together", *_sums(every)]]


def _sums(runs: dict[str, list[float]]) -> list[str]:
    steps, updates, seconds = map(sum, zip(*runs.values(), strict=True))
    return [str(len(runs)), f"{steps:,}", f"{updates:,}", f"{seconds / 3600:.1f}"]


def equally_many() -> Table:
    """Head and rows: the policies that each algorithm tried in the same steps, and its scores after equally many."""
    results = stored()["benchmark"]
    rows = []
    for task in results.tasks:
        size = {s: round(results.curves[task, s][results.common_seeds[0]][0]["policies"]) for s in results.labels}
        last = {label: results.final(task, label, "policies") for label in results.labels}
        whole = math.lcm(*size.values())  # all algorithms end a generation there
        many = min(values.min() for values in last.values()) // whole * whole
        for label, in_all in last.items():
            seeds = results.curves[task, label].values()
            then = [next(row for row in rows_ if row["policies"] == many) for rows_ in seeds]
            means = [np.mean([number(row, m) for row in then]) for m in ("qd_score", "coverage", "max_fitness")]
            steps = np.mean([row["env_steps"] for row in then])
            counts = f"{in_all.mean():.0f}", f"{many:.0f}", f"{steps:,.0f}"
            rows.append([NAMES[task], label, *counts, *map(short, means)])
    head = ["task", "setting", "tried in all", "compared after", "steps by then"]
    return [*head, "QD score", "coverage (%)", "max fitness"], rows


def by_robot(measure: str) -> Table:
    """Head and rows: means of a measure of the benchmark, with robots as columns and the highest of each in bold."""
    results = stored()["benchmark"]
    means = np.array([[results.final(task, s, measure).mean() for task in results.tasks] for s in results.labels])
    rows = [
        [label, *(f"**{short(m)}**" if m == best else short(m) for m, best in zip(row, means.max(axis=0), strict=True))]
        for label, row in zip(results.labels, means, strict=True)
    ]
    return [MEASURES[measure], *(NAMES[task] for task in results.tasks)], rows


TABLES: dict[str, Callable[[], Table]] = {
    "claims": lambda: claims.table(stored()),
    "cost": cost,
    "tried": equally_many,
    "fitness": functools.partial(by_robot, "max_fitness"),
    "qd_score": functools.partial(by_robot, "qd_score"),
}


if __name__ == "__main__":
    {"page": page, "figures": figures}[sys.argv[1]](Path(sys.argv[2]))
