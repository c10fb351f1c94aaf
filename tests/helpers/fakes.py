"""A countable environment: a policy determines how long its episodes last, and observations identify the episode."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from qdhuac.learning.policy import Policy

POLICY = Policy(obs_size=2, action_size=2, hidden=(4,))


class CounterState(NamedTuple):
    obs: jax.Array  # [2] steps taken in this episode, tag of this episode
    reward: jax.Array
    done: jax.Array


class Counter:
    """Step n of an episode has reward n. The first action, times 10, is the episode's length (0: unlimited).

    `nan_at` poisons the reward of that step; `nan_after_death` everything that follows a death.
    """

    def __init__(
        self,
        *,
        nan_at: int = -1,
        nan_after_death: bool = False,
        on_reset: Callable[[], None] | None = None,
        on_step: Callable[[], None] | None = None,
    ) -> None:
        self.nan_at, self.nan_after_death = nan_at, nan_after_death
        self.on_reset, self.on_step = on_reset, on_step

    def reset(self, key: jax.Array) -> CounterState:
        if self.on_reset:
            jax.debug.callback(self.on_reset)
        zero = jnp.float32(0)
        return CounterState(jnp.stack([zero, jax.random.uniform(key)]), zero, zero)

    def step(self, state: CounterState, action: jax.Array) -> CounterState:
        if self.on_step:
            jax.debug.callback(self.on_step)
        count, tag = state.obs[0] + 1.0, state.obs[1]
        life = jnp.round(10.0 * action[0])
        dead = (life > 0) & (count > life)
        poisoned = (count == self.nan_at) | (self.nan_after_death & dead)
        obs = jnp.where(self.nan_after_death & dead, jnp.nan, jnp.stack([count, tag]))
        done = ((life > 0) & (count >= life)).astype(jnp.float32)
        return CounterState(obs, jnp.where(poisoned, jnp.nan, count), done)


def policies(*lives: int) -> dict:
    """Genotypes, leaves [B, ...], whose action is constant: the life span that `Counter` reads, and 0."""
    params = jax.tree.map(jnp.zeros_like, jax.vmap(POLICY.init)(jax.random.split(jax.random.key(0), len(lives))))
    bias = jnp.arctanh(jnp.array(lives) / 10.0)
    params["Dense_1"]["bias"] = jnp.stack([bias, jnp.zeros(len(lives))], axis=1)
    return params
