"""Compact results that are kept in the repository, and the pictures drawn from them.

    python benchmarks/results.py collect RUN_DIR results/learning/NAME
    python benchmarks/results.py draw results/learning docs/img

`collect` keeps the configuration, the metrics and the archive as a table (fitness and descriptor), with the versions
and the hash of the repertoire that the table came from. `draw` needs nothing but those.
"""

from __future__ import annotations

import csv
import hashlib
import json
import shutil
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from qdhuac.analysis import figures
from qdhuac.running import repertoire
from qdhuac.running.rundir import CONFIG, METRICS, REPERTOIRE

COLOURS = {"qdhuac": "#0072b2", "dns": "#d55e00", "map_elites": "#009e73"}  # safe for the colour-blind
CURVES = {
    "max_fitness": "max fitness",
    "qd_score": "QD score",
    "coverage": "coverage",
    "archive_mean_fitness": "archive mean",
}


def collect(run: Path, target: Path) -> None:
    """Copy what is worth keeping of a run."""
    target.mkdir(parents=True, exist_ok=True)
    for name in (CONFIG, METRICS):
        shutil.copy(run / name, target / name)
    arrays, metadata = repertoire.read(run / REPERTOIRE)
    digest = hashlib.sha256((run / REPERTOIRE).read_bytes()).hexdigest()
    (target / "origin.json").write_text(
        json.dumps({"repertoire_sha256": digest, "versions": metadata["versions"]}, indent=1) + "\n"
    )
    with (target / "archive.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["fitness", *(f"descriptor_{i}" for i in range(arrays["descriptor"].shape[1]))])
        for fitness, descriptor in zip(arrays["fitness"], arrays["descriptor"], strict=True):
            writer.writerow([f"{fitness:.2f}", *(f"{d:.4f}" for d in descriptor)])


def draw(source: Path, target: Path) -> None:
    """The learning curves of all runs called `<algorithm>-...`, and the archive of the first QDHUAC run."""
    runs = defaultdict(list)
    for path in sorted(source.glob("*/metrics.jsonl")):
        algorithm = path.parent.name.split("-")[0]
        if algorithm in COLOURS:
            runs[algorithm].append([json.loads(line) for line in path.read_text().splitlines()])
    figure = Figure(figsize=(9.5, 5.4), layout="constrained")
    for axes, (name, title) in zip(figure.subplots(2, 2).flat, CURVES.items(), strict=True):
        for algorithm, seeds in runs.items():
            for i, rows in enumerate(seeds):
                x, y = [r["env_steps"] for r in rows], [np.nan if r[name] is None else r[name] for r in rows]
                label = f"{algorithm} ({len(seeds)} seed{'s' * (len(seeds) > 1)})" if i == 0 else None
                axes.plot(x, y, color=COLOURS[algorithm], linewidth=1.6, alpha=0.85, label=label)
        axes.set_title(title, loc="left", fontsize=10)
        axes.set_xlabel("environment steps")
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
        figures.tidy(axes)
    lines, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(lines, labels, frameon=False, loc="outside upper right", ncols=len(labels))
    figure.savefig(target / "learning.png", dpi=150)

    first = next(p for p in sorted(source.glob("qdhuac-*")))
    table = np.loadtxt(first / "archive.csv", delimiter=",", skiprows=1)
    picture = figures.archive(
        table[:, 1:], table[:, 0], [[0, 0], [1, 1]], ["back foot on the ground", "front foot on the ground"]
    )
    picture.savefig(target / "archive.png", dpi=150, facecolor="white")


if __name__ == "__main__":
    {"collect": collect, "draw": draw}[sys.argv[1]](Path(sys.argv[2]), Path(sys.argv[3]))
