"""Compact results that are kept in the repository, and the pictures drawn from them.

    python benchmarks/results.py collect RUN_DIR results/learning/NAME
    python benchmarks/results.py draw results/learning docs/img
    python benchmarks/results.py study ROOT results/studies
    python benchmarks/results.py page results/studies docs/results.md     # and README.md
    python benchmarks/results.py figures ROOT docs/results.md

`collect` keeps the configuration, the metrics and the archive as a table (fitness and descriptor), with the versions
and the hash of the repertoire that the table came from. `draw` needs nothing but those. `study` does the same with
every finished run of a root of studies, with fewer columns of metrics; `qdhuac report results/studies/NAME` reads it.
`page` writes their tables into a page, wherever it has a line like `<!-- table: benchmark-laptop summary -->`.
`figures` draws what the page links as `img/studies/benchmark-laptop-curves.svg`; pictures of archives need whole runs.
"""

from __future__ import annotations

import csv
import functools
import json
import re
import shutil
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np
import study_tables
from matplotlib.figure import Figure

from qdhuac.report import run_figures as figures
from qdhuac.report import study_figures
from qdhuac.report.study_page import kept_archives, markdown_table, shown_tables
from qdhuac.store import repertoire
from qdhuac.store.files import sha256
from qdhuac.store.run_folder import CONFIG, METRICS, REPERTOIRE, RunDir
from qdhuac.studies.folder import FINISHED, RUNS, STUDY, look, read
from qdhuac.studies.folder import write as write_study
from qdhuac.studies.results import ORIGIN
from qdhuac.studies.results import collect as collect_study

KEPT = (
    *("generation", "env_steps", "gradient_updates", "qd_score", "coverage", "max_fitness", "qd_score_auc", "wall_s"),
    *("time_ask", "time_evaluate", "time_tell", "time_learn"),
    *("archive_size", "archive_qd_score", "archive_mean_fitness"),
    *("q_mean", "critic_loss", "actor/fitness", "gradient/gain", "isoline/gain"),
)
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
    hashes = {"repertoire_sha256": sha256(run / REPERTOIRE), "metrics_sha256": sha256(run / METRICS)}
    (target / ORIGIN).write_text(json.dumps({**hashes, "versions": metadata["versions"]}, indent=1) + "\n")
    with (target / "archive.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["fitness", *(f"descriptor_{i}" for i in range(arrays["descriptor"].shape[1]))])
        for fitness, descriptor in zip(arrays["fitness"], arrays["descriptor"], strict=True):
            writer.writerow([f"{fitness:.2f}", *(f"{d:.4f}" for d in descriptor)])


def study(root: Path, target: Path) -> None:
    """What is worth keeping of all studies of a root: their records, and their finished runs."""
    for record in sorted(root.glob(f"*/{STUDY}")):
        name, scale, runs, _ = read(record.parent)
        finished = [run for run in runs if look(root, run).state == FINISHED]
        if finished:
            write_study(target, name, scale, runs)
        for run in finished:
            source, kept = root / RUNS / run.folder, target / RUNS / run.folder
            if kept.exists():
                continue
            half = kept.with_name(f"{kept.name}.half")  # a copy that is interrupted is made anew
            shutil.rmtree(half, ignore_errors=True)
            collect(source, half)
            (half / METRICS).unlink()
            smaller = RunDir.open(half)
            for row in RunDir.open(source).read_metrics():
                few = {k: v for k, v in row.items() if k in KEPT or "probe" in k}
                smaller.append_metrics({k: float(f"{v:.7g}") if isinstance(v, float) else v for k, v in few.items()})
            half.rename(kept)
            print(run.name)


TABLE = re.compile(r"(<!-- table: (\S+) (\S+) -->\n).*?(<!-- /table -->)", re.DOTALL)


def filled(source: Path, text: str) -> str:
    """A page with its tables made from the stored runs."""

    @functools.cache
    def tables(name: str) -> dict[str, tuple[list[str], list[list[str]]]]:
        return shown_tables(collect_study(source / name)) if (source / name).exists() else {}

    def fill(match: re.Match[str]) -> str:
        found = study_tables.TABLES[match[3]](source) if match[2] == "studies" else tables(match[2]).get(match[3])
        return f"{match[1]}\n{markdown_table(*found) if found else 'No run has come that far yet.'}\n\n{match[4]}"

    return TABLE.sub(fill, text)


def page(source: Path, target: Path) -> None:
    """Write the tables of a page anew."""
    target.write_text(filled(source, target.read_text()))


def draw_studies(source: Path, page: Path) -> None:
    """Draw the figures of studies that a page links, as far as there are runs for them."""
    folder, text = page.parent / "img" / "studies", page.read_text()
    folder.mkdir(parents=True, exist_ok=True)
    for record in sorted(source.glob(f"*/{STUDY}")):
        results = collect_study(record.parent)
        for name, figure in study_figures.draw(results, kept_archives(results)):
            file = f"{record.parent.name}-{name}.svg"
            if f"(img/studies/{file})" in text:
                study_figures.save(figure, folder, Path(file).stem, kinds=("svg",))
                print(file)


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
    commands = {"collect": collect, "draw": draw, "study": study, "page": page, "figures": draw_studies}
    commands[sys.argv[1]](Path(sys.argv[2]), Path(sys.argv[3]))
