"""What a gradient mutation gives, by its number of steps, its rate and the states it climbs on.

    python benchmarks/operator_gain.py RUN_DIR [--parents 20] [--seed 0]

Takes the last checkpoint of a QDHUAC run, mutates the same parents in several ways, evaluates parents and children
from the same starts, and prints one JSON object per way: the gain in true fitness is what counts.
"""

from __future__ import annotations

import argparse
import functools
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from qdhuac.emitters.gradient import gradient_mutation
from qdhuac.running.build import build
from qdhuac.running.jax_setup import prepare_jax
from qdhuac.running.rundir import RunDir
from qdhuac.running.runner import Runner

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
    key_slots, key_states, key_starts = jax.random.split(jax.random.key(arguments.seed), 3)

    occupied = jnp.flatnonzero(jnp.isfinite(state.archive.fitness))
    slots = jax.random.choice(key_slots, occupied, (min(arguments.parents, len(occupied)),), replace=False)
    parents = jax.tree.map(lambda x: x[slots], state.archive.genotypes)
    before = evaluate(task, parents, key_starts)
    print(json.dumps({"parents": len(slots), "fitness": round(float(before.mean()), 1)}), flush=True)

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
        gain = evaluate(task, jax.jit(mutate)(key_states, parents), key_starts) - before
        record = {
            "states": states,
            "steps": steps,
            "learning_rate": rate,
            "mean_gain": round(float(gain.mean()), 1),
            "median_gain": round(float(np.median(gain)), 1),
            "improved": round(float(np.mean(gain > 0)), 2),
        }
        print(json.dumps(record), flush=True)


def evaluate(task, genotypes, key, batch: int = 10) -> np.ndarray:
    """True fitness, in batches of one compiled size (the last one is filled up with copies)."""
    count = len(jax.tree.leaves(genotypes)[0])
    fitness = []
    for start in range(0, count, batch):
        index = np.minimum(np.arange(start, start + batch), count - 1)
        part = jax.tree.map(lambda x, index=index: x[index], genotypes)
        fitness.append(np.asarray(task.evaluate(part, jax.random.fold_in(key, start)).fitness))
    return np.concatenate(fitness)[:count]


if __name__ == "__main__":
    main()
