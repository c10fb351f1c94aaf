"""What is checked of an environment of your own, whichever library it is from."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from qdhuac.config import check_choice
from qdhuac.errors import UserError
from qdhuac.tasks.base import Bounds, Task, TaskSpec
from qdhuac.tasks.rollout import AFTER_TERMINATION
from qdhuac.types import Array, Evaluation, Exploration, Genotype


def check_options(
    descriptor_bounds: tuple[Sequence[float], Sequence[float]],
    episode_length: int,
    after_termination: str,
    support: tuple[float, float],
    hidden: Sequence[int],
) -> Bounds:
    """The bounds as numbers, if these options make sense."""
    check_choice("after_termination", after_termination, AFTER_TERMINATION)
    low, high = _pair("descriptor_bounds", descriptor_bounds, "(lowest, highest), each with a number per dimension")
    if low.ndim != 1 or not low.size or not np.all(low < high):
        raise UserError(f"descriptor_bounds={descriptor_bounds}: expected a low below a high for each dimension")
    worst, best = _pair("support", support, "(lowest, highest)")
    if worst.ndim or not worst < best:
        raise UserError(f"support={support}: expected a low below a high")
    if type(episode_length) is not int or episode_length < 1:
        raise UserError(f"episode_length={episode_length!r}: must be a whole number from 1")
    if not isinstance(hidden, Sequence) or not hidden or not all(type(n) is int and n > 0 for n in hidden):
        raise UserError(f"hidden={hidden!r}: expected the widths of the hidden layers, such as (256, 256)")
    return tuple(low.tolist()), tuple(high.tolist())


def _pair(name: str, value: Any, expected: str) -> tuple[np.ndarray, np.ndarray]:
    """Two arrays of finite numbers, of the same shape."""
    try:
        low, high = (np.asarray(part, float) for part in value)
    except (TypeError, ValueError):
        raise UserError(f"{name}={value!r}: expected {expected}") from None
    if low.shape != high.shape or not (np.isfinite(low).all() and np.isfinite(high).all()):
        raise UserError(f"{name}={value!r}: expected {expected}, all of them finite")
    return low, high


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


class Watched:
    """A task whose descriptors are checked: one outside of its bounds would end up in the archive."""

    def __init__(self, task: Task) -> None:
        self._task, self.spec, self.policy = task, task.spec, task.policy

    def evaluate(self, genotypes: Genotype, key: Array, exploration: Exploration | None = None) -> Evaluation:
        """As the task does, or a refusal."""
        found = self._task.evaluate(genotypes, key, exploration)
        check_inside(np.asarray(found.descriptor), self.spec.descriptor_bounds)
        return found


@contextlib.contextmanager
def watched(task: Any) -> Iterator[Watched]:
    """The user's task with its descriptors checked; what it holds is given back at the end if it is a context."""
    if not (isinstance(task, Task) and isinstance(task.spec, TaskSpec)):
        raise UserError(f"task: expected an object with a `spec` (a TaskSpec), a `policy` and `evaluate`, got {task!r}")
    with task if isinstance(task, contextlib.AbstractContextManager) else contextlib.nullcontext():
        yield Watched(task)
