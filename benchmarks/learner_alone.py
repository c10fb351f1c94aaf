"""The learner alone: mean return of its deterministic actor every 5000 steps, as rows of a CSV.

python benchmarks/learner_alone.py TASK SEED [section.key=value ...] >> results/learning/alone.csv
"""

import csv
import sys

import jax
import jax.numpy as jnp

import qdhuac
from qdhuac import config
from qdhuac.algorithms import specs
from qdhuac.training.build import build

STEPS, EVERY, EPISODES, CHUNK = 40_000, 5_000, 5, 500


def main(task_name: str, seed: str, *changes: str) -> None:
    values = {"task.name": task_name, "replay.capacity": 1 << 17, **config.parse_assignments(changes)}
    settings = specs.make("actor", "laptop", values)
    task, algorithm = build(settings)
    tell, learn = (jax.jit(f, donate_argnums=0) for f in (algorithm.tell, algorithm.learn))
    ask = jax.jit(lambda s: (algorithm.ask(s), jax.random.fold_in(s.key, 1)))
    several = jax.jit(
        lambda s: jax.tree.map(lambda x: jnp.stack([x] * EPISODES), algorithm.learner.injected(s.learner))
    )
    state, steps, due = jax.jit(algorithm.init)(jax.random.key(int(seed))), 0, EVERY
    writer = csv.writer(sys.stdout)
    while steps < STEPS:
        emission, key = ask(state)
        evaluation = task.evaluate(emission.genotypes, key, emission.exploration)
        state, _ = tell(state, emission, evaluation)
        before, steps = steps, steps + int(evaluation.steps.sum())
        owed = int(steps * algorithm.updates_per_step) - int(before * algorithm.updates_per_step)
        for start in range(0, owed, CHUNK):
            state, _ = learn(state, jnp.int32(min(CHUNK, owed - start)))
        if steps >= due:
            fitness = task.evaluate(several(state), jax.random.key(12345)).fitness
            writer.writerow(
                [qdhuac.__version__, " ".join(changes), task_name, seed, steps, round(float(fitness.mean()))]
            )
            due += EVERY


if __name__ == "__main__":
    main(*sys.argv[1:])
