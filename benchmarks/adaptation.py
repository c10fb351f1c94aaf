"""How quickly Intelligent Trial and Error finds an individual that still works, beside two simpler ways.

    python benchmarks/adaptation.py measure OUT.jsonl RUN_DIR... [--damage NAME=FACTOR[,NAME=FACTOR] ...]
    python benchmarks/adaptation.py draw results/adaptation docs/img/adaptation.png

`measure` evaluates every individual of each archive after each damage, some episodes each, and lets three ways choose:
the search of `qdhuac adapt`, a random order, and the archive's best. A trial shows one episode; what a choice is worth
is the mean of all episodes but that one. One line per run, damage, way and seed: the worth of what is the best after
1, 2, ... trials by the trials themselves. `draw` reads all files of a folder, one per robot, and prints the table.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
from matplotlib.figure import Figure

import qdhuac
from qdhuac.adaptation.adapt import damaged_task, unit_descriptors
from qdhuac.adaptation.damage import LIMBS, parse
from qdhuac.adaptation.search import search
from qdhuac.analysis import figures
from qdhuac.running import repertoire
from qdhuac.running.jax_setup import prepare_jax
from qdhuac.tasks.locomotion import SPECS

TRIALS, EPISODES, ORDERS = 20, 6, 100  # ORDERS: random ones for each seed
WAYS = {"ite": "Intelligent Trial and Error", "random": "random choice", "best": "the archive's best"}
COLOURS = {"ite": "#0072b2", "random": "#d55e00", "best": "#009e73", "possible": "#7a7f87"}  # safe for the colour-blind
DAMAGES = {
    "halfcheetah": ("bthigh=0", "bfoot=0", "fthigh=0", "fshin=0.3", "bshin=blocked", "friction=0.3", "mass:torso=2"),
    "walker2d": ("foot_joint=0", "leg_left_joint=0.3", "foot_joint=blocked", "friction=0.3", "mass:torso=1.5"),
    "ant": (
        "left_hind_leg=0",
        "right_front_leg=0",
        "hip_1=0",
        "left_front_leg=blocked",
        "friction=0.3",
        "mass:torso=3",
    ),
}


def measure(target: Path, runs: list[Path], damages: list[str]) -> None:
    prepare_jax()
    with target.open("w") as file:
        for path in runs:
            run = qdhuac.load(path)
            robot = SPECS[run.config.task.name].robot
            for damage in damages or DAMAGES[robot]:
                fitness = evaluate(run, damage)
                for line in compare(run, fitness):
                    names = {"robot": robot, "run": path.name, "seed_of_run": run.config.run.seed, "damage": damage}
                    file.write(json.dumps(names | line, allow_nan=False) + "\n")
                file.flush()
                print(path.name, damage, "best possible", round(float(fitness.mean(0).max())), flush=True)


def evaluate(run: Any, damage: str) -> np.ndarray:
    """Fitness after the damage [EPISODES, N]; a failed episode has the lowest of the archive."""
    task, genotypes = damaged_task(run.config, parse(damage.split(","))), repertoire.genotypes(run.archive)
    keys = jax.random.split(jax.random.key(0), EPISODES)
    fitness = np.stack([np.asarray(task.evaluate(genotypes, key).fitness, float) for key in keys])
    return np.where(np.isfinite(fitness), fitness, run.fitness.min())


def compare(run: Any, fitness: np.ndarray) -> list[dict[str, Any]]:
    """What each way has found after each trial, once for every episode as the one that the trials show."""
    lines, descriptor, size = [], unit_descriptors(run), len(run)
    trials = min(TRIALS, size)
    for seed in range(EPISODES):
        shown, worth = fitness[seed], np.delete(fitness, seed, 0).mean(0)

        def curve(order: list[int], shown: np.ndarray = shown, worth: np.ndarray = worth) -> list[float]:
            chosen = [order[int(np.argmax(shown[order[: t + 1]]))] for t in range(len(order))]
            return [float(worth[i]) for i in chosen]

        tried = [trial.index for trial in search(descriptor, run.fitness, lambda i, s=shown: s[i], trials)]
        found = curve(tried)
        rng = np.random.default_rng(seed)
        orders = [curve(rng.permutation(size)[:trials].tolist()) for _ in range(ORDERS)]
        common = {"seed": seed, "before": float(run.fitness.max()), "possible": float(worth.max())}
        curves = {
            "ite": found + found[-1:] * (trials - len(found)),  # it has stopped
            "random": np.mean(orders, 0).tolist(),
            "best": [float(worth[run.fitness.argmax()])] * trials,
        }
        for way, values in curves.items():
            used = {"ite": len(tried), "random": trials, "best": 1}[way]
            lines.append(common | {"way": way, "trials": used, "curve": [round(v, 1) for v in values]})
    return lines


def draw(source: Path, target: Path) -> None:
    """One row of panels per robot, one panel per damage; prints the table."""
    rows = [json.loads(line) for path in sorted(source.glob("*.jsonl")) for line in path.read_text().splitlines()]
    robots = [robot for robot in LIMBS if any(row["robot"] == robot for row in rows)]
    panels = [(r, d) for r in robots for d in dict.fromkeys(row["damage"] for row in rows if row["robot"] == r)]
    columns = 4
    height = -(-len(panels) // columns)
    figure = Figure(figsize=(11.0, 2.6 * height + 0.5), layout="constrained")
    grid = figure.subplots(height, columns, squeeze=False)
    print(
        "| robot | damage | archive's best | random, 5 trials | ITE, 5 trials | ITE | trials of ITE | best possible |"
    )
    print("|---" * 8 + "|")
    for axes, (robot, damage) in zip(grid.flat, panels, strict=False):
        here = [row for row in rows if (row["robot"], row["damage"]) == (robot, damage)]
        means = {}
        for way, label in WAYS.items():
            curves = np.array([row["curve"] for row in here if row["way"] == way])  # [runs x seeds, trials]
            x, means[way] = np.arange(1, curves.shape[1] + 1), curves.mean(0)
            axes.plot(x, means[way], color=COLOURS[way], linewidth=1.8, label=label)
            if way == "ite":
                low, high = np.quantile(curves, (0.25, 0.75), axis=0)
                axes.fill_between(x, low, high, color=COLOURS[way], alpha=0.15, linewidth=0)
        possible = float(np.mean([row["possible"] for row in here]))
        axes.axhline(possible, color=COLOURS["possible"], linewidth=1.0, linestyle=":", label="best that there is")
        axes.set_title(f"{robot}, {damage}", loc="left", fontsize=9)
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
        figures.tidy(axes)
        used = [row["trials"] for row in here if row["way"] == "ite"]
        values = [means["best"][0], means["random"][4], means["ite"][4], means["ite"][-1]]
        numbers = " | ".join(f"{v:,.0f}".replace(",", " ") for v in values)
        print(f"| {robot} | `{damage}` | {numbers} | {np.mean(used):.1f} | {possible:,.0f} |".replace(",", " "))
    for axes in grid.flat[len(panels) :]:
        axes.set_axis_off()
    lines, labels = grid[0][0].get_legend_handles_labels()
    figure.legend(lines, labels, frameon=False, loc="outside upper right", ncols=len(labels))
    figure.supxlabel("trials", fontsize=9)
    figure.supylabel("fitness after the damage", fontsize=9)
    figure.savefig(target, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True, dest="command")
    sub = commands.add_parser("measure")
    sub.add_argument("target", type=Path)
    sub.add_argument("runs", type=Path, nargs="+")
    sub.add_argument("--damage", nargs="+", default=[], help="several at once are joined by a comma")
    sub = commands.add_parser("draw")
    sub.add_argument("source", type=Path)
    sub.add_argument("target", type=Path)
    arguments = parser.parse_args()
    if arguments.command == "measure":
        measure(arguments.target, arguments.runs, arguments.damage)
    else:
        draw(arguments.source, arguments.target)


if __name__ == "__main__":
    main()
