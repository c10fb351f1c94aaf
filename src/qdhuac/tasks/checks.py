"""What is checked of an environment of your own, whichever library it is from."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from qdhuac.errors import UserError, shown
from qdhuac.learning.policy import Policy
from qdhuac.tasks.base import Bounds, Task, TaskSpec
from qdhuac.types import Array, Evaluation, Exploration, Genotype


def check_shape(name: str, shape: tuple[int, ...], bounds: Bounds) -> None:
    """Refuse a descriptor with another shape than its bounds; `name` says which one it is."""
    if shape != (len(bounds[0]),):
        raise UserError(f"{name}: expected {len(bounds[0])} numbers, as descriptor_bounds has, got shape {shape}")


def check_contacts(features: int, bounds: Bounds) -> None:
    """Refuse to store features that are not one for each dimension of the descriptor."""
    if features != len(bounds[0]):
        raise UserError(
            f"store_contacts: expected one feature for each of {len(bounds[0])} dimensions, got {features} features"
        )


def check_inside(descriptors: np.ndarray, bounds: Bounds) -> None:
    """Refuse descriptors [B, D] that leave their bounds by more than rounding."""
    low, high = np.asarray(bounds)
    slack = 1e-5 * (high - low)
    # One that is not finite is a failed evaluation, which is rejected and counted, not a mistake in the bounds.
    outside = np.isfinite(descriptors).all(1) & np.any((descriptors < low - slack) | (descriptors > high + slack), 1)
    if outside.any():
        i = int(outside.argmax())
        found = descriptors[i].tolist()
        raise UserError(f"descriptor of individual {i}: {found} is outside of its bounds {bounds[0]} to {bounds[1]}")


def check_results(descriptor_size: int, size: int, evaluation: Evaluation) -> None:
    """Raise UserError for results of a wrong shape, before anything is computed."""
    if not isinstance(evaluation, Evaluation):
        raise UserError(f"evaluate: expected an Evaluation, got {shown(evaluation)}")
    for name, rest in {"fitness": (), "steps": (), "descriptor": (descriptor_size,)}.items():
        check_array(name, getattr(evaluation, name), (size, *rest))
    if evaluation.transitions is not None and evaluation.valid is None:
        raise UserError("valid: missing; expected which steps of each episode were simulated [B, T]")


def check_array(name: str, array: Array | None, wanted: tuple[int, ...]) -> None:
    """Refuse what is not an array of that shape."""
    shape = None if array is None or isinstance(array, str) else jnp.shape(array)
    if shape != wanted:
        raise UserError(f"{name}: expected shape {wanted}, got {shape}")


def check_task(task: Any) -> None:
    """Refuse what is not a task."""
    if isinstance(task, type) or not (isinstance(task, Task) and isinstance(task.spec, TaskSpec)):
        raise UserError(
            f"task: expected an object with a `spec` (a TaskSpec), a `policy` and `evaluate`, got {shown(task)}"
        )
    if not (task.policy is None or isinstance(task.policy, Policy)):
        raise UserError(f"task.policy: expected a Policy or None, got {shown(task.policy)}")


class Watched:
    """A task whose descriptors are checked: one outside of its bounds would end up in the archive."""

    def __init__(self, task: Task) -> None:
        self._task, self.spec, self.policy = task, task.spec, task.policy

    def evaluate(self, genotypes: Genotype, key: Array, exploration: Exploration | None = None) -> Evaluation:
        """As the task does, or a refusal."""
        found = self._task.evaluate(genotypes, key, exploration)
        check_results(self.spec.descriptor_size, len(jax.tree.leaves(genotypes)[0]), found)
        check_inside(np.asarray(found.descriptor), self.spec.descriptor_bounds)
        return found


@contextlib.contextmanager
def watched(task: Any) -> Iterator[Watched]:
    """The user's task with its descriptors checked; what it holds is given back at the end if it is a context."""
    check_task(task)
    with task if isinstance(task, contextlib.AbstractContextManager) else contextlib.nullcontext():
        yield Watched(task)
