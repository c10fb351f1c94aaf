"""How quickly Intelligent Trial and Error finds an individual that still works, compared with two simpler methods.

    python benchmarks/adaptation.py measure OUT.jsonl RUN_DIR... [--damage NAME=FACTOR[,NAME=FACTOR] ...]
    python benchmarks/adaptation.py draw results/adaptation docs/img/adaptation.png

`measure` evaluates every individual of each archive after each damage and writes one line per run and damage. `draw`
reads all files of a folder and compares three methods on these measurements: the search of `qdhuac adapt`, a random
order, and the archive's best. A trial shows one episode, which depends on the seed. The value of a choice is the mean
of the other episodes. It prints the table of `docs/adaptation.md`.
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
from qdhuac.adaptation.damage import parse
from qdhuac.adaptation.search import search
from qdhuac.environment import prepare_jax
from qdhuac.report import run_figures as figures
from qdhuac.store import repertoire

EPISODES, TRIALS, ORDERS = 8, 20, 200  # ORDERS: random ones for each seed
WAYS = {"ite": "Intelligent Trial and Error", "random": "random choice", "best": "the archive's best"}
COLOURS = {"ite": "#0072b2", "random": "#d55e00", "best": "#009e73", "possible": "#7a7f87"}  # safe for the colour-blind
DAMAGES = {
    "halfcheetah": ("bthigh=0", "fthigh=0", "back_leg=0.5", "bshin=blocked", "friction=0.3", "mass:torso=2"),
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
    """Write one line per run and damage, with the fitness of every individual before and after."""
    prepare_jax()
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("w") as file:
        for path in runs:
            run = qdhuac.load(path)
            robot = run.config.task.name.removesuffix("_omni")
            for damage in damages or DAMAGES[robot]:
                fitness = evaluate(run, damage)
                line = {
                    "robot": robot,
                    "algorithm": run.config.algorithm,
                    "seed": run.config.run.seed,
                    "damage": damage,
                    "descriptor": unit_descriptors(run).round(4).tolist(),
                    "before": run.fitness.astype(float).round(1).tolist(),
                    "after": fitness.round(1).tolist(),
                }
                file.write(json.dumps(line, allow_nan=False) + "\n")
                file.flush()
                print(path.name, damage, "best", round(float(fitness.mean(0).max())), flush=True)


def evaluate(run: Any, damage: str) -> np.ndarray:
    """Fitness after the damage [EPISODES, N]. A failed episode counts as the lowest fitness of the archive."""
    task, genotypes = damaged_task(run.config, parse(damage.split(","))), repertoire.genotypes(run.archive)
    keys = jax.random.split(jax.random.key(0), EPISODES)
    fitness = np.stack([np.asarray(task.evaluate(genotypes, key).fitness, float) for key in keys])
    return np.where(np.isfinite(fitness), fitness, run.fitness.min())


def compare(line: dict[str, Any]) -> dict[str, Any]:
    """The value of the best of 1, 2, ... trials by method [EPISODES, TRIALS], ITE's trials, and the best possible."""
    descriptor, before, after = (np.array(line[name]) for name in ("descriptor", "before", "after"))
    trials = min(TRIALS, len(before))
    found: dict[str, Any] = {"ite": [], "random": [], "best": [], "used": [], "possible": []}
    for seed in range(len(after)):
        shown, worth = after[seed], np.delete(after, seed, 0).mean(0)

        def curve(order: list[int], shown: np.ndarray = shown, worth: np.ndarray = worth) -> np.ndarray:
            chosen = [order[int(np.argmax(shown[order[: t + 1]]))] for t in range(len(order))]
            return worth[chosen + chosen[-1:] * (trials - len(chosen))]  # the value stays after the last trial

        tried = [trial.index for trial in search(descriptor, before, lambda i, s=shown: s[i], trials)[0]]
        rng = np.random.default_rng(seed)
        orders = [curve(rng.permutation(len(before))[:trials].tolist()) for _ in range(ORDERS)]
        found["ite"].append(curve(tried))
        found["random"].append(np.mean(orders, 0))
        found["best"].append(curve([int(before.argmax())]))
        found["used"].append(len(tried))
        found["possible"].append(after.mean(0).max())
    return found


def draw(source: Path, target: Path) -> None:
    """Draw one panel per robot and damage, and print the table."""
    lines = [json.loads(line) for path in sorted(source.glob("*.jsonl")) for line in path.read_text().splitlines()]
    panels = list(dict.fromkeys((line["robot"], line["damage"]) for line in lines))
    columns = 3
    height = -(-len(panels) // columns)
    figure = Figure(figsize=(9.5, 2.6 * height + 0.6), layout="constrained")
    grid = figure.subplots(height, columns, squeeze=False)
    print("| robot | damage | archives | archive's best | random, 5 trials | ITE | its trials | best there is |")
    print("|---" * 8 + "|")
    for axes, (robot, damage) in zip(grid.flat, panels, strict=False):
        here = [compare(line) for line in lines if (line["robot"], line["damage"]) == (robot, damage)]
        curves = {way: np.concatenate([found[way] for found in here]) for way in WAYS}  # [archives x seeds, trials]
        for way, label in WAYS.items():
            x = np.arange(1, curves[way].shape[1] + 1)
            style = {"linestyle": "--", "linewidth": 1.2} if way == "best" else {"linewidth": 2.4}  # they often agree
            axes.plot(x, curves[way].mean(0), color=COLOURS[way], label=label, **style)
        possible = float(np.mean([found["possible"] for found in here]))
        axes.axhline(possible, color=COLOURS["possible"], linewidth=1.0, linestyle=":", label="best there is")
        axes.set_title(f"{robot}, {damage}", loc="left", fontsize=9)
        axes.set_ylim(bottom=min(0.0, *(values.mean(0).min() for values in curves.values())))
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
        figures.tidy(axes)
        ends = [curves["best"][:, 0], curves["random"][:, 4], curves["ite"][:, -1]]
        used = np.concatenate([found["used"] for found in here])
        numbers = " | ".join(f"{values.mean():,.0f}".replace(",", " ") for values in ends)
        trials = f"{used.mean():.1f} ({used.min()} to {used.max()})"
        print(f"| {robot} | `{damage}` | {len(here)} | {numbers} | {trials} | {possible:,.0f} |".replace(",", " "))
    for axes in grid.flat[len(panels) :]:
        axes.set_axis_off()
    handles, labels = grid[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, frameon=False, loc="outside upper center", ncols=len(labels))
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
