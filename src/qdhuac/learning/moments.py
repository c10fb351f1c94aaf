"""Running mean and variance of observations and returns, and what is scaled by them.

An affine map before a dense layer is another dense layer, so a network on scaled observations is exactly a plain
network on raw ones: what leaves the learner is plain.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from qdhuac.types import Array, Genotype, Transition

SMALLEST = 1e-3  # standard deviation below which an observation counts as constant, and is only centred
HIGHEST = 5.0  # the support's ends in scaled units, unless the configuration says otherwise
ROOM = 0.8  # share of the support that returns so far may fill: better ones, and their distributions, need the rest


class Moments(NamedTuple):
    """Running moments of all rows so far."""

    rows: Array  # float32, how many
    mean: Array  # [O]
    squares: Array  # [O] sum of squared distances to the mean


def init(size: int) -> Moments:
    """Moments of no rows."""
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
    """Standard deviations. [O]"""
    return jnp.sqrt(moments.squares / jnp.maximum(moments.rows, 1.0))


def fold(moments: Moments, network: Genotype) -> Genotype:
    """A network on observations in standard deviations from the mean as a network on raw observations."""
    first = network["Dense_0"]
    spread = deviation(moments)
    kernel = first["kernel"] / jnp.where(spread > SMALLEST, spread, 1.0)[:, None]
    return network | {"Dense_0": {"kernel": kernel, "bias": first["bias"] - moments.mean @ kernel}}


class Returns(NamedTuple):
    """Moments of the discounted returns of all stored steps so far, in raw units."""

    moments: Moments  # of one number
    highest: Array  # absolute value


def no_returns() -> Returns:
    """Returns of no steps."""
    return Returns(init(1), jnp.float32(0.0))


def add_returns(returns: Returns, transitions: Transition, stored: Array, discount: float) -> Returns:
    """With those of episodes [B, T], of which the steps `stored` [B, T] count."""
    found = discounted(transitions.reward, transitions.terminal, stored, discount).reshape(-1, 1)
    counted = stored.reshape(-1)
    highest = jnp.max(jnp.abs(found[:, 0]), where=counted, initial=0.0)
    return Returns(add(returns.moments, found, counted), jnp.maximum(returns.highest, highest))


def reward_scale(returns: Returns) -> Array:
    """What rewards are multiplied by, so that returns vary by about 1 and none fills more than `ROOM` of the support.

    It is 1 while all returns are 0.
    """
    spread = jnp.maximum(deviation(returns.moments)[0], returns.highest / (ROOM * HIGHEST))
    return jnp.where(returns.highest > 0.0, 1.0 / spread, 1.0)


def discounted(reward: Array, terminal: Array, valid: Array, discount: float) -> Array:
    """True discounted returns of every step [B, T]; what comes after the last step counts nothing."""

    def step(after: Array, row: tuple[Array, Array, Array]) -> tuple[Array, Array]:
        reward, terminal, valid = row
        value = jnp.where(valid, reward + discount * (1.0 - terminal) * after, 0.0)
        return value, value

    _, returns = jax.lax.scan(step, jnp.zeros(len(reward)), (reward.T, terminal.T, valid.T), reverse=True)
    return returns.T
