"""Individuals to look at: the task that shows them, and their episodes."""

from __future__ import annotations

import jax

from qdhuac.config import Config
from qdhuac.errors import UserError
from qdhuac.tasks.base import Trajectory, Viewable
from qdhuac.tasks.native import NativeLocomotion
from qdhuac.types import Genotype


def viewing_task(settings: Config) -> NativeLocomotion:
    """The run's task on the C engine, whatever engine it was trained on."""
    t = settings.task
    return NativeLocomotion(
        t.name, episode_length=t.episode_length, after_termination="stop", hidden=settings.policy.hidden, threads=1
    )


def viewable(task: object) -> Viewable:
    """The task, if it can show an individual."""
    if not isinstance(task, Viewable):
        raise UserError("task: cannot be viewed; it needs a `model` of MuJoCo and a method `episode(genotype, key)`")
    return task


def simulate(task: Viewable, genotypes: Genotype, index: int, seed: int = 0) -> Trajectory:
    """The individual at `index` of genotypes with leaves [N, ...]; a seed always gives the same start."""
    return task.episode(jax.tree.map(lambda x: x[index], genotypes), jax.random.key(seed))
