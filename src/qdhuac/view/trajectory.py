"""Episodes of individuals, for videos and for the explorer."""

from __future__ import annotations

import jax

from qdhuac.errors import UserError
from qdhuac.tasks.base import Trajectory, Viewable
from qdhuac.types import Genotype


def viewable(task: object) -> Viewable:
    """Return the task. Raise UserError if it cannot show an individual."""
    if not isinstance(task, Viewable):
        raise UserError("task: cannot be viewed; it needs a `model` of MuJoCo and a method `episode(genotype, key)`")
    return task


def simulate(task: Viewable, genotypes: Genotype, index: int, seed: int = 0) -> Trajectory:
    """One episode of the individual at `index` of genotypes with leaves [N, ...]. The seed decides its start."""
    return task.episode(jax.tree.map(lambda x: x[index], genotypes), jax.random.key(seed))
