"""Environment steps per second of whole closed-loop rollouts, per task and physics backend."""

from __future__ import annotations

from collections.abc import Iterator

import jax
import jax.numpy as jnp

from qdhuac import presets
from qdhuac.bench.timing import Result, best_times
from qdhuac.running.build import build_task

TASKS = ("hopper", "walker2d", "halfcheetah", "ant", "humanoid")
# The first one is what the others are measured against.
BACKENDS = ("mjx", "native")
BATCH = 10
STEPS = 300
REPEATS = 3


def measure(tasks: tuple[str, ...] = TASKS) -> Iterator[Result]:
    """Steps per second of a batch of random policies; the backends of a task take turns."""
    key = jax.random.key(0)
    for name in tasks:
        calls = {}
        for backend in BACKENDS:
            changes = {"task.name": name, "task.backend": backend, "task.episode_length": STEPS}
            task = build_task(presets.make("dns", "laptop", changes))
            genotypes = jax.vmap(task.policy.init)(jax.random.split(key, BATCH))
            calls[backend] = lambda task=task, genotypes=genotypes: jnp.asarray(task.evaluate(genotypes, key).fitness)
        times = best_times(calls, REPEATS)
        for backend, seconds in times.items():
            speed, ratio = BATCH * STEPS / seconds, times[BACKENDS[0]] / seconds
            yield Result("rollout", f"{name}/{backend}", speed, "steps/s", ratio, BACKENDS[0])
