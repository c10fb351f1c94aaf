"""What the operators give to an archive, by their settings.

    python benchmarks/operator_gain.py RUN_DIR [--parents 20] [--seed 0]

Takes the last checkpoint of a QDHUAC run, makes children in several ways, evaluates parents and children from the same
starts, and prints one JSON object per way: the gain in true fitness over the parents, how many new cells of the shared
grid the children would fill, and by how much they would raise the sum of all positive fitness in it. Gradient children
have the same parents in each way; Iso+Line has parents that won tournaments of the given size.
"""

from __future__ import annotations

import argparse
import functools
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from qdhuac.archives.common import sample
from qdhuac.emitters.gradient import gradient_mutation
from qdhuac.emitters.isoline import isoline
from qdhuac.environment import prepare_jax
from qdhuac.metrics import PassiveGrid
from qdhuac.store.run_folder import RunDir
from qdhuac.training.build import build
from qdhuac.training.loop import Runner

WAYS = [
    ("uniform", 10, 5e-3),
    ("uniform", 100, 1e-3),
    ("uniform", 300, 1e-3),
    ("uniform", 300, 3e-4),
    ("uniform", 1000, 1e-3),
    ("recent", 100, 1e-3),
    ("recent", 1000, 1e-3),
]
RECENT = 20_000  # transitions
LINES = [(1, 0.005, 0.1), (1, 0.02, 0.2), (3, 0.005, 0.1), (3, 0.02, 0.2)]  # tournament, sigma_iso, sigma_line


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("--parents", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    prepare_jax()

    with RunDir.open(arguments.run_dir) as folder:
        folder.lock()
        config = folder.read_config()
        task, algorithm = build(config)
        runner = Runner(config, task, algorithm, folder)
        runner.restore()
    state = runner.state.algorithm
    learner, buffer = algorithm.learner, state.replay
    measured = PassiveGrid.over(*task.descriptor_bounds)
    key_slots, key_states, key_starts = jax.random.split(jax.random.key(arguments.seed), 3)

    occupied = jnp.flatnonzero(jnp.isfinite(state.archive.fitness))
    slots = jax.random.choice(key_slots, occupied, (min(arguments.parents, len(occupied)),), replace=False)
    parents = jax.tree.map(lambda x: x[slots], state.archive.genotypes)
    before, _ = evaluate(task, parents, key_starts)
    print(json.dumps({"parents": len(slots), "fitness": round(float(before.mean()), 1)}), flush=True)

    def report(children, before, **way):
        fitness, descriptor = evaluate(task, children, key_starts)
        grid = np.asarray(runner.state.grid)
        cells = grid.copy()
        np.maximum.at(cells, np.asarray(measured.grid.cells(jnp.asarray(descriptor))), fitness)
        gain = fitness - before
        record = {
            **way,
            "fitness": round(float(fitness.mean()), 1),
            "mean_gain": round(float(gain.mean()), 1),
            "median_gain": round(float(np.median(gain)), 1),
            "improved": round(float(np.mean(gain > 0)), 2),
            "new_cells": int(np.isfinite(cells).sum() - np.isfinite(grid).sum()),
            "positive_fitness_added": round(float(np.maximum(cells, 0).sum() - np.maximum(grid, 0).sum()), 1),
        }
        print(json.dumps(record), flush=True)

    for tournament, iso, line in LINES:
        pairs = sample(state.archive, key_slots, (len(slots), 2), tournament)
        children = isoline(key_states, state.archive.genotypes, pairs, sigma_iso=iso, sigma_line=line)
        first = jax.tree.map(lambda x, pairs=pairs: x[pairs[:, 0]], state.archive.genotypes)
        first_fitness, _ = evaluate(task, first, key_starts)
        report(children, first_fitness, operator="isoline", tournament=tournament, sigma_iso=iso, sigma_line=line)

    def value(genotype, obs):
        return jnp.mean(learner.value(state.learner, obs, learner.policy.act(genotype, obs)))

    for states, steps, rate in WAYS:
        size = int(buffer.size)
        first = max(0, size - RECENT) if states == "recent" else 0

        def observe(key, first=first, size=size):
            # The newest row is the one before `position`; before the ring wraps, that is the last filled one.
            rows = jax.random.randint(key, (config.learner.batch_size,), first, size)
            return buffer.rows[(rows + buffer.position) % size, : task.obs_size]

        mutate = jax.jit(
            functools.partial(gradient_mutation, observe=observe, value=value, steps=steps, learning_rate=rate)
        )
        report(mutate(key_states, parents), before, operator="gradient", states=states, steps=steps, learning_rate=rate)


def evaluate(task, genotypes, key, batch: int = 10) -> tuple[np.ndarray, np.ndarray]:
    """True fitness and descriptor, in batches of one compiled size (the last one is filled up with copies)."""
    count = len(jax.tree.leaves(genotypes)[0])
    fitness, descriptor = [], []
    for start in range(0, count, batch):
        index = np.minimum(np.arange(start, start + batch), count - 1)
        part = jax.tree.map(lambda x, index=index: x[index], genotypes)
        result = task.evaluate(part, jax.random.fold_in(key, start))
        fitness.append(np.asarray(result.fitness))
        descriptor.append(np.asarray(result.descriptor))
    return np.concatenate(fitness)[:count], np.concatenate(descriptor)[:count]


if __name__ == "__main__":
    main()
