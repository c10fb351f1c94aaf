"""Our PGA-ME and QD-PG compared with QDax's: stored curves, a figure and a table.

    python benchmarks/baselines.py collect OUT.jsonl RUN_DIR...
    python benchmarks/baselines.py draw results/baselines docs/img/baselines.png

`collect` writes the same lines about our runs as `peers/qdax_curves.py` about QDax's. `draw` reads the files
`<ours|qdax>-<algorithm>-<task>.jsonl` and prints the table.
"""

from __future__ import annotations

import json
import sys
import tomllib
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from qdhuac.algorithms import specs
from qdhuac.report import run_figures as figures
from qdhuac.store.run_folder import CONFIG, METRICS
from qdhuac.tasks.task_file import builtin

COLOURS = {"ours": "#0072b2", "qdax": "#d55e00"}  # safe for the colour-blind
ALGORITHMS = {name: specs.algorithm(name).title for name in ("pga_me", "qd_pg")}
TASKS = {name: builtin(name).title for name in ("halfcheetah", "walker2d")}
WHOSE = {"ours": "ours", "qdax": "QDax"}
SETTINGS = [(a, t) for a in ALGORITHMS for t in TASKS]
CURVES = {"max_fitness": "max fitness", "qd_score": "QD score", "coverage": "coverage"}
KEPT = ("generation", "env_steps", *CURVES, "wall_s")


def collect(target: Path, *runs: Path) -> None:
    """One line per generation and run, in the order of the runs."""
    lines = []
    for run in runs:
        seed = tomllib.loads((run / CONFIG).read_text())["run"]["seed"]
        for row in map(json.loads, (run / METRICS).read_text().splitlines()):
            lines.append(json.dumps({"seed": seed} | {name: row[name] for name in KEPT}) + "\n")
    target.write_text("".join(lines))


def draw(source: Path, target: Path) -> None:
    """Draw one row per algorithm and task, one line per seed. Print the ends of the curves as a table."""
    figure = Figure(figsize=(9.5, 9.0), layout="constrained")
    grid = figure.subplots(len(SETTINGS), len(CURVES))
    print("| algorithm | task | whose | seeds | " + " | ".join(CURVES.values()) + " |\n" + "|---" * 7 + "|")
    for axes_row, (algorithm, task) in zip(grid, SETTINGS, strict=True):
        for who, colour in COLOURS.items():
            path = source / f"{who}-{algorithm}-{task}.jsonl"
            rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
            seeds = sorted({r["seed"] for r in rows})
            ends = []
            for axes, name in zip(axes_row, CURVES, strict=True):
                curves = [[r for r in rows if r["seed"] == seed] for seed in seeds]
                for i, curve in enumerate(curves):
                    x, y = [r["env_steps"] for r in curve], [r[name] for r in curve]
                    axes.plot(x, y, color=colour, linewidth=1.5, alpha=0.8, label=None if i else WHOSE[who])
                ends.append([curve[-1][name] for curve in curves])
            if seeds:
                names = f"| {ALGORITHMS[algorithm]} | {TASKS[task]} | {WHOSE[who]} | {len(seeds)} | "
                print(names + " | ".join(map(_spread, ends)) + " |")
        for axes, title in zip(axes_row, CURVES.values(), strict=True):
            axes.set_title(f"{ALGORITHMS[algorithm]}, {TASKS[task]}: {title}", loc="left", fontsize=9)
            axes.grid(alpha=0.25)
            axes.spines[["top", "right"]].set_visible(False)
            figures.tidy(axes)
    lines, labels = grid[0][0].get_legend_handles_labels()
    figure.legend(lines, labels, frameon=False, loc="outside upper right", ncols=len(labels))
    figure.supxlabel("environment steps", fontsize=9)
    figure.savefig(target, dpi=110)


def _spread(values: list[float]) -> str:
    """Mean over seeds, with the lowest and the highest."""
    if max(values) <= 1:  # coverage
        low, mean, high = (100 * f(values) for f in (min, np.mean, max))
        return f"{mean:.1f} % ({low:.1f} to {high:.1f})"
    return f"{np.mean(values):,.0f} ({min(values):,.0f} to {max(values):,.0f})".replace(",", " ")


if __name__ == "__main__":
    {"collect": collect, "draw": draw}[sys.argv[1]](*map(Path, sys.argv[2:]))
