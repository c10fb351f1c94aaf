"""What archives share: empty slots, which individuals are admissible, placing and sampling."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from qdhuac.types import Array, Individuals, Provenance


def empty(example: Individuals, capacity: int) -> Individuals:
    """`capacity` empty slots for individuals shaped like those of `example`."""
    slots = jax.tree.map(lambda x: jnp.zeros((capacity, *x.shape[1:]), x.dtype), example)
    return slots._replace(
        fitness=jnp.full_like(slots.fitness, -jnp.inf),
        provenance=Provenance(*(jnp.full_like(x, -1) for x in slots.provenance)),
    )


def admissible(fitness: Array, descriptor: Array) -> Array:
    """Which individuals count at all [N]: fitness and descriptor are finite (an empty slot's fitness is -inf)."""
    return jnp.isfinite(fitness) & jnp.all(jnp.isfinite(descriptor), axis=-1)


def sample(state: Individuals, key: Array, shape: tuple[int, ...], tournament: int = 1) -> Array:
    """Slot indices of the given shape, uniform over the occupied slots; of a wholly empty archive, any slot.

    With a `tournament`, each is the fittest of so many.
    """
    rank = jnp.cumsum(jnp.isfinite(state.fitness))  # [N] occupied slots up to and including this one
    drawn = jax.random.randint(key, (*shape, tournament), 0, jnp.maximum(rank[-1], 1))
    # The slot of the drawn-th occupied one is the first whose rank exceeds it.
    slots = jnp.minimum(jnp.searchsorted(rank, drawn, side="right"), len(rank) - 1)
    winner = jnp.argmax(state.fitness[slots], axis=-1, keepdims=True)
    return jnp.take_along_axis(slots, winner, axis=-1)[..., 0]


def place(state: Individuals, offspring: Individuals, slots: Array) -> Individuals:
    """The archive with offspring written to their `slots` [B]; those whose slot is -1 are dropped.

    A scatter rather than a gather of all survivors: where the state is donated, only the newcomers are copied.
    """
    beyond = jnp.where(slots < 0, len(state.fitness), slots)  # a negative index would count from the end
    return jax.tree.map(lambda old, new: old.at[beyond].set(new, mode="drop"), state, offspring)
