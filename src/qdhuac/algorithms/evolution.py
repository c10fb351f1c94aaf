"""Quality-diversity without gradients: Iso+Line variation and an archive.

With a `DominatedNoveltyArchive` this is DNS (Bahlous-Boldi et al., 2025), with a `GridArchive` MAP-Elites
(Mouret and Clune, 2015; Vassiliades and Mouret, 2018, for the variation and the CVT cells).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp

from qdhuac.algorithms.engine import (
    Offspring,
    State,
    check_results,
    emission,
    empty_offspring_like,
    operator_statistics,
    screen,
)
from qdhuac.archives.common import sample
from qdhuac.emitters.isoline import isoline
from qdhuac.types import ISOLINE, Archive, Array, Emission, Evaluation, Genotype


@dataclasses.dataclass(frozen=True)
class Evolution:
    """`init / ask / tell` for any genotype: `fresh(key)` makes a random one."""

    archive: Archive
    fresh: Callable[[Array], Genotype]
    descriptor_size: int
    batch_size: int
    tournament: int = 1
    sigma_iso: float = 0.005
    sigma_line: float = 0.1

    def init(self, key: Array) -> State:
        """An empty archive."""
        example = empty_offspring_like(self.fresh(key), self.descriptor_size)
        return State(key=key, generation=jnp.int32(0), archive=self.archive.init(example))

    def ask(self, state: State) -> Emission:
        """Children of random pairs of parents; random genotypes while the archive is empty."""
        key_parents, key_noise = jax.random.split(jax.random.fold_in(state.key, 0))
        parents = sample(state.archive, key_parents, (self.batch_size, 2), self.tournament)
        children = isoline(
            key_noise, state.archive.genotypes, parents, sigma_iso=self.sigma_iso, sigma_line=self.sigma_line
        )
        return emission(state, [Offspring(children, parents, ISOLINE)], self.fresh)

    def tell(self, state: State, emission: Emission, evaluation: Evaluation) -> tuple[State, dict[str, Array]]:
        """The children compete for the archive."""
        check_results(state, emission, evaluation)
        offspring, good, counts = screen(emission, evaluation)
        archive, survived = self.archive.add(state.archive, offspring)
        statistics = operator_statistics(emission, evaluation, good, survived)
        key = jax.random.fold_in(state.key, 2)
        state = state._replace(key=key, generation=state.generation + 1, archive=archive)
        return state, counts | statistics

    def learn(self, state: State, updates: Array) -> tuple[State, dict[str, Array]]:
        """Nothing is learnt."""
        return state, {}
