"""QD-PG's novelty archive (Pierrot et al., 2022): states that have been seen, and how far others are from them.

A state is described by which feet are on the ground, so there are few different ones, often fewer than the neighbours
that novelty asks for: only occupied slots count, and the mean is over as many as there are.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from qdhuac.types import Array

BLOCK = 64  # slots compared at once; those beyond the occupied ones are not looked at


class NoveltyState(NamedTuple):
    states: Array  # [capacity, D]
    added: Array  # int32, how many ever came in


@dataclasses.dataclass(frozen=True)
class NoveltyArchive:
    """Keeps states that are farther than `threshold` from all that it holds; the oldest make room."""

    capacity: int
    size: int  # D
    threshold: float = 0.1
    neighbours: int = 5

    def init(self) -> NoveltyState:
        """An empty archive."""
        return NoveltyState(jnp.zeros((self.capacity, self.size)), jnp.int32(0))

    def add(self, archive: NoveltyState, states: Array, valid: Array) -> NoveltyState:
        """Add those of `states` [n, D] that are valid and novel, in order."""
        near = self._nearest(archive, states, 1)[:, 0] <= self.threshold**2  # [n] too close to what is there
        wanted = valid & ~near

        def some(carry: tuple[NoveltyState, Array]) -> Array:
            return jnp.any(carry[1])

        def add_first(carry: tuple[NoveltyState, Array]) -> tuple[NoveltyState, Array]:
            # One turn per newcomer, not per state: whoever is too close to it drops out at once.
            archive, wanted = carry
            new = states[jnp.argmax(wanted)]
            wanted &= _squared(states, new) > self.threshold**2
            slot = archive.added % self.capacity
            return NoveltyState(archive.states.at[slot].set(new), archive.added + 1), wanted

        return jax.lax.while_loop(some, add_first, (archive, wanted))[0]

    def novelty(self, archive: NoveltyState, states: Array) -> Array:
        """Mean squared distance to the nearest `neighbours` of the occupied slots [n]; 0 while there are none."""
        squared = self._nearest(archive, states, self.neighbours)
        found = jnp.isfinite(squared)
        return jnp.sum(jnp.where(found, squared, 0.0), axis=-1) / jnp.maximum(jnp.sum(found, axis=-1), 1)

    def _nearest(self, archive: NoveltyState, states: Array, k: int) -> Array:
        """Squared distances [n, k] to the nearest occupied slots, inf where there are fewer."""
        occupied = jnp.minimum(archive.added, self.capacity)

        def compare(i: Array, best: Array) -> Array:
            slots = i * BLOCK + jnp.arange(BLOCK)
            block = archive.states[jnp.minimum(slots, self.capacity - 1)]
            squared = jnp.where(slots < occupied, _squared(states[:, None], block), jnp.inf)  # [n, BLOCK]
            return -jax.lax.top_k(-jnp.concatenate([best, squared], axis=-1), k)[0]

        start: Any = jnp.full((len(states), k), jnp.inf)
        return jax.lax.fori_loop(0, (occupied + BLOCK - 1) // BLOCK, compare, start)


def _squared(a: Array, b: Array) -> Array:
    return jnp.sum(jnp.square(a - b), axis=-1)
