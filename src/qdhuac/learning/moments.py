"""Running mean and variance of what was observed, and networks whose inputs are scaled by them.

An affine map before a dense layer is another dense layer, so a network on scaled observations is exactly a plain
network on raw ones: what leaves the learner is plain.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp

from qdhuac.types import Array, Genotype

SMALLEST = 1e-3  # standard deviation below which an observation counts as constant, and is only centred


class Moments(NamedTuple):
    """Of all rows so far."""

    rows: Array  # float32, how many
    mean: Array  # [O]
    squares: Array  # [O] sum of squared distances to the mean


def init(size: int) -> Moments:
    """Of no rows: mean 0, standard deviation 1."""
    return Moments(jnp.float32(0.0), jnp.zeros(size), jnp.zeros(size))


def add(moments: Moments, rows: Array, counted: Array) -> Moments:
    """With those of `rows` [n, O] that are `counted` [n] (Chan, Golub and LeVeque, 1983)."""
    rows = jnp.where(counted[:, None], rows, 0.0)
    n = jnp.sum(counted, dtype=jnp.float32)
    mean = jnp.sum(rows, axis=0) / jnp.maximum(n, 1.0)
    squares = jnp.sum(jnp.where(counted[:, None], jnp.square(rows - mean), 0.0), axis=0)
    total = jnp.maximum(moments.rows + n, 1.0)
    step = mean - moments.mean
    return Moments(
        moments.rows + n,
        moments.mean + step * n / total,
        moments.squares + squares + jnp.square(step) * moments.rows * n / total,
    )


def deviation(moments: Moments) -> Array:
    """Standard deviations [O], 1 where nothing varies."""
    found = jnp.sqrt(moments.squares / jnp.maximum(moments.rows, 1.0))
    return jnp.where(found > SMALLEST, found, 1.0)


def fold(moments: Moments, network: Genotype) -> Genotype:
    """A network on observations in standard deviations from the mean as a network on raw observations."""
    first = network["Dense_0"]
    kernel = first["kernel"] / deviation(moments)[:, None]
    return network | {"Dense_0": {"kernel": kernel, "bias": first["bias"] - moments.mean @ kernel}}
