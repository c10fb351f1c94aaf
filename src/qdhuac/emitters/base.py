"""The protocol of emitters, which propose genotypes and are told the results, and what emitters share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import jax.numpy as jnp

from qdhuac.types import Array, Genotype, Individuals, Told


class Seen(NamedTuple):
    """What an emitter may look at."""

    archive: Individuals
    replay: Any  # the state of the replay buffer, None where there is none
    learner: Any  # the state of the learner, None where there is none


class Offspring(NamedTuple):
    """What an emitter proposes: `n` genotypes."""

    genotypes: Genotype  # leaves [n, ...]
    parents: Array  # [n, 2] slots of the archive, -1 where there is none
    head: Any = None  # log-std heads, leaves [n, ...]: these rollouts are stochastic
    target: Array | None = None  # [n, D] the descriptor that each was made for


class Emitter(Protocol):
    """Proposes genotypes. Its own state is a pytree; it is `()` for most."""

    @property
    def name(self) -> str:
        """The operator's name in metrics, history and repertoire; emitters of one name are counted together."""

    @property
    def archived(self) -> bool:
        """False: its rollouts are data for the learner and do not compete for the archive."""

    def init(self, key: Array) -> Any:
        """The emitter's state at generation 0."""

    def ask(self, key: Array, state: Any, seen: Seen, n: int) -> Offspring:
        """`n` genotypes to try. The archive may still be empty; then fresh genotypes take the place of these."""

    def tell(self, state: Any, told: Told) -> Any:
        """The state after the results of its part of the batch."""


class Stateless:
    """Base class of emitters without state."""

    archived = True

    def init(self, key: Array) -> Any:
        """Return an empty state."""
        return ()

    def tell(self, state: Any, told: Told) -> Any:
        """Return the state unchanged."""
        return state


Slots = tuple[tuple[Emitter, int], ...]


def slots(*wanted: tuple[Emitter, int]) -> Slots:
    """The schedule of a batch: each emitter and how many genotypes it gets; those that get none are left out."""
    return tuple((emitter, n) for emitter, n in wanted if n > 0)


def operators(emitters: Sequence[tuple[Emitter, int]], first: str) -> tuple[str, ...]:
    """The names of operators in the order in which they are stored; `first` is for genotypes that no emitter made."""
    return tuple(dict.fromkeys((first, *(emitter.name for emitter, _ in emitters))))


def one_parent(slots: Array) -> Array:
    """Parents [n, 2] of genotypes that have only one, whose slots are [n]."""
    return jnp.stack([slots, jnp.full_like(slots, -1)], axis=-1)


def descriptors(seen: Seen, slots: Array) -> Array:
    """Descriptors [n, D] of the individuals in `slots` [n], nan where a slot is empty."""
    occupied = jnp.isfinite(seen.archive.fitness)[slots, None]
    return jnp.where(occupied, seen.archive.descriptor[slots], jnp.nan)


def no_parents(n: int) -> Array:
    """Parents [n, 2] of genotypes that have none."""
    return jnp.full((n, 2), -1)
