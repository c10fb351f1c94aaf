"""What all learners do alike: the loop over minibatches, and the guard against updates that are not finite."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from qdhuac.learning.replay import Batch, Replay, ReplayState
from qdhuac.sharding import spread
from qdhuac.types import Array

Metrics = dict[str, Array]
Update = Callable[[Any, Batch, Array], tuple[Any, Array, Metrics]]


def run(
    update: Update, state: Any, replay: Replay, buffer: ReplayState, key: Array, updates: Array, batch_size: int
) -> tuple[Any, ReplayState, Metrics]:
    """`updates` updates from the buffer; metrics are means over those not skipped, `count_*` are sums.

    `update(state, batch, key)` returns the new state, whose `updates` has gone up by one, priorities [B] and metrics.
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
    done = updates - sum(v for k, v in total.items() if k.startswith("count_"))
    return state, buffer, {k: v if k.startswith("count_") else v / done for k, v in total.items()}


def guard(
    old: Any, new: Any, batch: Batch, priorities: Array, metrics: Metrics, statistics: Any = ()
) -> tuple[Any, Array, Metrics]:
    """What an update returns: with anything non-finite in it, it changes nothing but its counter."""
    good_batch = _finite(batch.transition)
    critic = (metrics["critic_gradient_norm"], metrics["critic_loss"], statistics)
    good_critic, good_actor = _finite(critic), jnp.isfinite(metrics["actor_gradient_norm"])
    good_priorities = _finite(priorities)
    good = good_critic & good_actor & good_priorities
    state = jax.tree.map(lambda x, y: jnp.where(good, x, y), new, old)
    metrics = {k: jnp.where(good, v, 0.0) for k, v in metrics.items()}
    metrics |= {
        "count_skipped_batch": (~good & ~good_batch).astype(jnp.int32),
        "count_skipped_critic": (good_batch & ~good_critic).astype(jnp.int32),
        "count_skipped_actor": (good_batch & good_critic & ~good_actor).astype(jnp.int32),
        "count_skipped_priorities": (good_batch & good_critic & good_actor & ~good_priorities).astype(jnp.int32),
    }
    return state._replace(updates=old.updates + 1), jnp.where(good, priorities, jnp.nan), metrics


def _finite(tree: Any) -> Array:
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(tree)]))
