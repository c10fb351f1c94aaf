"""Dominated Novelty Search (Bahlous-Boldi, Faldor et al., 2025): local competition without a grid."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from qdhuac.archives.common import admissible, empty, place
from qdhuac.config import ArchiveConfig
from qdhuac.errors import check_whole
from qdhuac.types import Array, Individuals

BLOCK = 512  # rows of the distance matrix held at once
SEGMENTS = 4  # shares of the rows that see only the columns they can need; each one is compiled on its own


def dominated_novelty(fitness: Array, descriptor: Array, k: int, block: int = BLOCK) -> Array:
    """Mean distance in descriptor space to the k nearest fitter individuals [N].

    Of equally fit individuals the earlier counts as fitter, so domination is strict: of several equal best exactly one
    scores +inf, because none dominates it. With fewer than k fitter ones the mean is over those. An individual with a
    non-finite fitness or descriptor scores -inf and dominates none.

    Args:
        fitness: [N]
        descriptor: [N, D]
        k: neighbours.
        block: rows of the distance matrix held at once; memory is O(N x block).
    """
    size = len(fitness)
    counted = admissible(fitness, descriptor)
    # A stable order from the fittest down: an individual is dominated by those before it.
    order = jnp.argsort(jnp.where(counted, -fitness, jnp.inf), stable=True)
    ranked = descriptor[order]
    k = min(k, size)

    def nearest(rows: Array, fitter: Array) -> Array:
        """Squared distances [block, k] of the individuals ranked `rows` [block] to their nearest among `fitter`."""
        some = ranked[jnp.minimum(rows, size - 1)]
        # Differences rather than a matrix product, which would lose the small distances to cancellation.
        squared = sum(jnp.square(some[:, None, d] - fitter[None, :, d]) for d in range(descriptor.shape[-1]))
        squared = jnp.where(jnp.arange(len(fitter)) < rows[:, None], squared, jnp.inf)
        return -jax.lax.top_k(-squared, k)[0]

    block = min(block, size)
    blocks = -(-size // block)
    segment = -(-blocks // SEGMENTS) * block  # rows
    squared = []
    for start in range(0, size, segment):
        stop = min(start + segment, size)
        rows = jnp.arange(start, start + -(-(stop - start) // block) * block).reshape(-1, block)
        fitter = ranked[: max(stop, k)]  # at least k, so that top_k has enough; those that are not fitter are masked
        squared.append(jax.lax.map(lambda r, fitter=fitter: nearest(r, fitter), rows).reshape(-1, k)[: stop - start])

    rank = jnp.arange(size)
    count = jnp.minimum(rank, k)
    distances = jnp.where(jnp.arange(k) < count[:, None], jnp.sqrt(jnp.concatenate(squared)), 0.0)
    novelty = jnp.where(rank == 0, jnp.inf, jnp.sum(distances, axis=-1) / jnp.maximum(count, 1))
    return jnp.where(counted, jnp.zeros_like(novelty).at[order].set(novelty), -jnp.inf)


@dataclasses.dataclass(frozen=True)
class DominatedNoveltyArchive:
    """Keeps the individuals with the highest dominated novelty (Dominated Novelty Search).

    Args:
        capacity: the number of slots N.
        neighbours: how many nearest fitter individuals novelty is averaged over.
        block: rows of the distance matrix held at once; memory is O(N x block).

    Raises:
        UserError: one of them is not a whole number from 1.
    """

    capacity: int
    neighbours: int = 7
    block: int = BLOCK

    def __post_init__(self) -> None:
        for name in ("capacity", "neighbours", "block"):
            check_whole(name, getattr(self, name), 1)

    def init(self, example: Individuals) -> Individuals:
        """An empty archive for individuals shaped like those of `example`."""
        return empty(example, self.capacity)

    def add(self, state: Individuals, offspring: Individuals) -> tuple[Individuals, Array]:
        """Keep the best scored of archive [N] and offspring [B].

        Members that stay keep their slots; offspring take the first free ones. Of equal scores the archive's members
        come first.

        Returns:
            The archive, and the slot that each of the offspring took [B], -1 where it took none.
        """
        fitness = jnp.concatenate([state.fitness, offspring.fitness])
        descriptor = jnp.concatenate([state.descriptor, offspring.descriptor])
        score = dominated_novelty(fitness, descriptor, self.neighbours, self.block)
        # Stable: at -inf an empty slot beats a rejected offspring, which therefore never comes in.
        best = jnp.argsort(-score, stable=True)[: self.capacity]
        kept = jnp.zeros(len(score), bool).at[best].set(True)
        survived = kept[self.capacity :]

        # A member is evicted only when no slot stays empty, so the offspring fill every slot that is evicted.
        free = ~kept[: self.capacity] | ~jnp.isfinite(state.fitness)
        (slots,) = jnp.nonzero(free, size=len(survived), fill_value=self.capacity)
        turn = jnp.cumsum(survived) - 1  # the newcomer's place in the queue for free slots
        taken = jnp.where(survived, slots[turn], -1).astype(jnp.int32)
        return place(state, offspring, taken), taken


def build(config: ArchiveConfig, bounds: object) -> DominatedNoveltyArchive:
    """The archive that a configuration asks for; it needs no bounds."""
    return DominatedNoveltyArchive(config.capacity, config.neighbours)
