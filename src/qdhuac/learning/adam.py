"""Adam (Kingma and Ba, 2015) that can leave everything as it was.

A step that is not `good` has length zero and changes no moment. That is part of the same pass over the numbers: to
compute a step and then to select between old and new state reads and writes them all once more.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from qdhuac.types import Array

MEAN_KEPT, SQUARE_KEPT, EPSILON = 0.9, 0.999, 1e-8


class AdamState(NamedTuple):
    """Moments of the gradients so far, each like the parameters."""

    taken: Array  # int32, steps that were good
    mean: Any
    square: Any


def init(params: Any) -> AdamState:
    """The state before the first step."""
    return AdamState(jnp.int32(0), *(jax.tree.map(jnp.zeros_like, params) for _ in range(2)))


def step(gradient: Any, state: AdamState, rate: float, good: Array) -> tuple[Any, AdamState]:
    """What to add to the parameters, and the state after it; zero and `state` unless `good`."""
    taken = state.taken + good

    def average(kept: float, old: Any, new: Any) -> Any:
        keep, share = jnp.where(good, kept, 1.0), jnp.where(good, 1.0 - kept, 0.0)
        return jax.tree.map(lambda x, y: keep * x + share * y, old, new)

    gradient = jax.tree.map(lambda g: jnp.where(good, g, 0.0), gradient)
    mean = average(MEAN_KEPT, state.mean, gradient)
    square = average(SQUARE_KEPT, state.square, jax.tree.map(jnp.square, gradient))
    # Both start at zero: divided by the weight of the gradients in them they are averages.
    late = jnp.maximum(taken, 1)
    length = jnp.where(good, rate, 0.0) / (1.0 - MEAN_KEPT**late)
    weight = 1.0 - SQUARE_KEPT**late
    steps = jax.tree.map(lambda m, s: -length * m / (jnp.sqrt(s / weight) + EPSILON), mean, square)
    return steps, AdamState(taken, mean, square)
