"""The task and the algorithm that a configuration describes."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import jax

from qdhuac.algorithms import specs
from qdhuac.config import OWN, Config
from qdhuac.errors import UserError
from qdhuac.tasks.base import Task
from qdhuac.tasks.bundle import facts
from qdhuac.types import Algorithm

if TYPE_CHECKING:
    from qdhuac.tasks.native import NativeTask


def build(config: Config, task: Task | None = None) -> tuple[Task, Algorithm]:
    """Return the task and the algorithm of a run. `task` is the user's own; None: the one of the configuration."""
    task = build_task(config) if task is None else task
    return task, specs.build(config, task)


def choose_backend(config: Config) -> Config:
    """Replace `task.backend = "auto"` by MuJoCo in C on a CPU, or by MJX on an accelerator."""
    if config.task.backend != "auto" or config.task.name == OWN:
        return config
    backend = "native" if jax.default_backend() == "cpu" else "mjx"
    return specs.validate(dataclasses.replace(config, task=dataclasses.replace(config.task, backend=backend)))


def build_task(config: Config) -> Task:
    """Return the task of a configuration, with what the algorithm needs of it.

    Raises:
        UserError: the task is the user's own, which no configuration describes.
    """
    t = choose_backend(config).task
    if t.name == OWN:
        raise UserError("task.name='own': is not part of qdhuac; give it to qdhuac.train or qdhuac.resume in Python")
    spec = specs.ALGORITHMS.get(config.algorithm)
    options = task_options(config) | {"store_contacts": spec is not None and "contacts" in spec.needs}
    if t.backend == "native":
        from qdhuac.tasks.native import NativeTask

        return NativeTask(**options)
    from qdhuac.tasks.mjx import MjxTask  # importing MJX takes seconds

    return MjxTask(**options)


def native_task(config: Config, **options: Any) -> NativeTask:
    """The task of a run on the C engine, whichever engine it was trained on, for episodes that are looked at.

    Args:
        config: the configuration of the run.
        options: other arguments of `NativeTask`.
    """
    from qdhuac.tasks.native import NativeTask

    return NativeTask(**{**task_options(config), "after_termination": "stop", **options})


def task_options(config: Config) -> dict[str, Any]:
    """The arguments of a `MujocoTask` that a configuration says."""
    t = config.task
    return {
        "task": facts(config),
        "descriptor": t.descriptor,
        "episode_length": t.episode_length,
        "after_termination": t.after_termination,
        "hidden": config.policy.hidden,
        "vary": t.vary,
    }
