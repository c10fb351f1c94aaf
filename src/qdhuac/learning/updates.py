"""What learners share: the loop over minibatches, and the guard against updates that are not finite."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from qdhuac.learning.replay import Batch, Replay, ReplayState
from qdhuac.sharding import spread
from qdhuac.types import Array, Metrics

Means = dict[str, Array]  # what one update reports
Update = Callable[[Any, Batch, Array], tuple[Any, Array, Metrics]]


def run(
    update: Update, state: Any, replay: Replay, buffer: ReplayState, key: Array, updates: Array, batch_size: int
) -> tuple[Any, ReplayState, Metrics]:
    """`updates` updates from the buffer, and their metrics: means over the updates that were not skipped.

    `update(state, batch, key)` returns the new state, whose `updates` has gone up by one, priorities [B] and metrics;
    their failures are updates that were skipped.
    """

    def body(_: Array, carry: Any) -> Any:
        state, buffer, total = carry
        key_batch, key_update = jax.random.split(jax.random.fold_in(key, state.updates))
        batch = spread(replay.sample(buffer, key_batch, batch_size))
        state, priorities, metrics = update(state, batch, key_update)
        buffer = replay.set_priorities(buffer, batch.indices, priorities)
        return state, buffer, jax.tree.map(jnp.add, total, metrics)

    batch = jax.eval_shape(lambda b: replay.sample(b, key, batch_size), buffer)
    shapes = jax.eval_shape(update, state, batch, key)[2]
    total = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)
    # Nothing is stored while every evaluation is rejected: then there is nothing to learn from.
    updates = jnp.where(buffer.size > 0, updates, 0)
    state, buffer, total = jax.lax.fori_loop(0, updates, body, (state, buffer, total))
    done = updates - sum(total.failures.values())
    return state, buffer, total._replace(means={name: value / done for name, value in total.means.items()})


def guard(old: Any, new: Any, batch: Batch, priorities: Array, means: Means) -> tuple[Any, Array, Metrics]:
    """What an update returns: with anything non-finite in it, it changes nothing but its counter."""
    good, metrics = checked(batch, priorities, means)
    state = jax.tree.map(lambda x, y: jnp.where(good, x, y), new, old)
    return state._replace(updates=old.updates + 1), jnp.where(good, priorities, jnp.nan), metrics


def checked(batch: Batch, priorities: Array, means: Means, statistics: Any = ()) -> tuple[Array, Metrics]:
    """Whether all of an update is finite, and its metrics: zero if it is not, with a failure of its first cause."""
    good_batch = finite(batch.transition)
    good_critic = finite((means["critic_gradient_norm"], means["critic_loss"], statistics))
    good_actor, good_priorities = finite(means["actor_gradient_norm"]), finite(priorities)
    good = good_critic & good_actor & good_priorities
    means = {name: jnp.where(good, value, 0.0) for name, value in means.items()}
    skipped = {
        "batch": ~good & ~good_batch,
        "critic": good_batch & ~good_critic,
        "actor": good_batch & good_critic & ~good_actor,
        "priorities": good_batch & good_critic & good_actor & ~good_priorities,
    }
    return good, Metrics(means, {}, {name: flag.astype(jnp.int32) for name, flag in skipped.items()})


def finite(tree: Any) -> Array:
    """Whether all numbers of a tree are finite."""
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(tree)]))
