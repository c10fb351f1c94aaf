"""Environment steps per second of closed-loop rollouts, for each task and physics backend.

A robot that falls starts again, so that both backends simulate every step. The steps are counted, not assumed.
"""

from __future__ import annotations

from collections.abc import Iterator

import jax
import jax.numpy as jnp

from qdhuac.algorithms import specs
from qdhuac.bench.timing import Result, best_times
from qdhuac.tasks.base import policy_of
from qdhuac.training.build import build_task

TASKS = ("ant", "halfcheetah", "hopper", "humanoid", "walker2d")
BACKENDS = ("mjx", "native")  # ratios are to the first
BATCH = 10
STEPS = 300
REPEATS = 3


def measure(tasks: tuple[str, ...] = TASKS) -> Iterator[Result]:
    """Steps per second of a batch of random policies. The backends of a task take turns."""
    key = jax.random.key(0)
    for name in tasks:
        calls, simulated = {}, {}
        for backend in BACKENDS:
            changes = {"name": name, "backend": backend, "episode_length": STEPS, "after_termination": "reset"}
            task = build_task(
                specs.make("dns", "laptop", {f"task.{option}": value for option, value in changes.items()})
            )
            genotypes = jax.vmap(policy_of(task).init)(jax.random.split(key, BATCH))
            calls[backend] = lambda task=task, genotypes=genotypes: jnp.asarray(task.evaluate(genotypes, key).steps)
            simulated[backend] = int(calls[backend]().sum())
        times = best_times(calls, REPEATS)
        speed = {backend: simulated[backend] / seconds for backend, seconds in times.items()}
        for backend in BACKENDS:
            ratio = speed[backend] / speed[BACKENDS[0]]
            yield Result("rollout", f"{name}/{backend}", speed[backend], "steps/s", ratio, BACKENDS[0])
