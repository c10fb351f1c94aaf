"""One turn of the ring as pure functions over the whole state of a run: what the runner compiles."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from qdhuac.algorithms.engine import screen
from qdhuac.metrics import PassiveGrid, archive_scores, scores
from qdhuac.types import Algorithm, Array, Emission, Evaluation, Individuals, Task


class RunState(NamedTuple):
    """What lives on the device: the algorithm's own state and the grid that every algorithm is measured on."""

    algorithm: Any
    grid: Array


@dataclasses.dataclass(frozen=True)
class Ring:
    """An algorithm, and how it is measured."""

    algorithm: Algorithm
    grid: PassiveGrid
    offset: float  # added to a fitness, so that QD scores are positive

    @classmethod
    def of(cls, task: Task, algorithm: Algorithm) -> Ring:
        return cls(algorithm, PassiveGrid.over(*task.descriptor_bounds), task.reward_offset * task.episode_length)

    def init(self, key: Array) -> RunState:
        """The state at generation 0."""
        return _strong(RunState(self.algorithm.init(key), self.grid.init()))

    def ask(self, state: RunState) -> tuple[Emission, Array]:
        """Whom to try, and the key of their evaluation."""
        return self.algorithm.ask(state.algorithm), jax.random.fold_in(state.algorithm.key, 1)

    def tell(
        self, state: RunState, emission: Emission, evaluation: Evaluation
    ) -> tuple[RunState, dict[str, Array], tuple[Array, Individuals]]:
        """How they fared; also the numbers for the metrics, and who is new in the archive."""
        told, record = self.algorithm.tell(state.algorithm, emission, evaluation)  # refuses what does not fit
        offspring, _, _ = screen(emission, evaluation)
        grid = self.grid.add(state.grid, offspring.fitness, offspring.descriptor)
        record = {
            **scores(grid, self.offset),
            **archive_scores(told.archive.fitness, self.offset),
            **record,
            "steps": jnp.sum(evaluation.steps),
        }
        newcomers = _newcomers(state.algorithm.archive, told.archive, len(offspring.fitness))
        return _strong(RunState(told, grid)), record, newcomers

    def learn(self, state: RunState, updates: Array) -> tuple[RunState, dict[str, Array]]:
        """So many updates, and their metrics."""
        learnt, metrics = self.algorithm.learn(state.algorithm, updates)
        return _strong(state._replace(algorithm=learnt)), metrics


def _newcomers(before: Individuals, after: Individuals, most: int) -> tuple[Array, Individuals]:
    """The slots [most] that changed hands, -1 where there are no more, and who is there now, without genotypes."""
    (slots,) = jnp.nonzero(before.provenance.id != after.provenance.id, size=most, fill_value=-1)
    return slots, jax.tree.map(lambda x: x[slots], after._replace(genotypes=None))


def _strong(tree: Any) -> Any:
    """Without weak types, which a checkpoint does not keep: a resumed run must be the same program."""

    def strong(x: Array) -> Array:
        return x if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else jax.lax.convert_element_type(x, x.dtype)

    return jax.tree.map(strong, tree)
