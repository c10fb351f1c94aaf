"""Environment steps per second of closed-loop rollouts, for each task and physics backend, beside bare stepping.

A robot that falls starts again, so that both backends simulate every step. The steps are counted, not assumed.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator

import jax
import numpy as np

from qdhuac.algorithms import specs
from qdhuac.bench.timing import Result, best_times
from qdhuac.tasks.base import policy_of
from qdhuac.tasks.native import NativeTask
from qdhuac.training.build import build_task
from qdhuac.types import Array

TASKS = ("ant", "halfcheetah", "hopper", "humanoid", "walker2d")
BACKENDS = ("mjx", "native")  # ratios are to the first
BARE = "bare"  # MuJoCo's batch engine, the ceiling of the native backend
BATCH = 10
STEPS = 300
REPEATS = 3


def measure(tasks: tuple[str, ...] = TASKS) -> Iterator[Result]:
    """Steps per second of a batch of random policies. The backends of a task take turns."""
    key = jax.random.key(0)
    for name in tasks:
        calls: dict[str, Callable[[], object]] = {}
        simulated: dict[str, int] = {}
        for backend in BACKENDS:
            changes = {"name": name, "backend": backend, "episode_length": STEPS, "after_termination": "reset"}
            task = build_task(
                specs.make("dns", "laptop", {f"task.{option}": value for option, value in changes.items()})
            )
            genotypes = jax.vmap(policy_of(task).init)(jax.random.split(key, BATCH))
            evaluate = functools.partial(task.evaluate, genotypes, key)
            calls[backend] = evaluate
            simulated[backend] = int(evaluate().steps.sum())
        calls[BARE], simulated[BARE] = bare(name, key)
        times = best_times(calls, REPEATS)
        speed = {backend: simulated[backend] / seconds for backend, seconds in times.items()}
        for backend in BACKENDS:
            ratio = speed[backend] / speed[BACKENDS[0]]
            yield Result("rollout", f"{name}/{backend}", speed[backend], "steps/s", ratio, BACKENDS[0])
        share = speed["native"] / speed[BARE]
        yield Result("rollout", f"{name}/{BARE}", speed[BARE], "steps/s", share, "bare stepping")


def bare(name: str, key: Array) -> tuple[Callable[[], object], int]:
    """A call that steps as many robots by MuJoCo's own batch engine, and its number of steps.

    They are told what random policies told them, and start again where the first of these fell: no policy, observation
    or reward is computed.
    """
    import mujoco.batch

    task = NativeTask(name, episode_length=STEPS)
    rows = task.evaluate(jax.vmap(task.policy.init)(jax.random.split(key, BATCH)), key).transitions
    assert rows is not None
    fell = np.asarray(rows.terminal).any(axis=0)
    length = int(fell.argmax()) + 1 if fell.any() else STEPS
    starts = jax.vmap(task.start)(jax.random.split(key, BATCH))
    qpos, qvel, frames, times = np.asarray(starts.qpos), np.asarray(starts.qvel), task.tables.frames, STEPS // length
    controls = np.repeat(task.control(np.asarray(rows.action, float)[:, :length]), frames, axis=1)
    batch = mujoco.batch.Batch(task.model, nsim=BATCH, nthread=task.threads)

    def step() -> None:
        for _ in range(times):
            batch.reset(stage=mujoco.mjtStage.mjSTAGE_NONE)
            batch.qpos, batch.qvel = qpos, qvel
            batch.rollout(length * frames, controls, record=())

    return step, BATCH * length * times
