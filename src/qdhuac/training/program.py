"""One generation as pure functions of the whole state of a run: what the trainer compiles."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from qdhuac.metrics import PassiveGrid, archive_scores, scores
from qdhuac.tasks.base import Task
from qdhuac.types import Algorithm, Array, Emission, Evaluation, Metrics, Told


class RunState(NamedTuple):
    """What lives on the device: the algorithm's state, and the grid on which every algorithm is measured."""

    algorithm: Any
    grid: Array


@dataclasses.dataclass(frozen=True)
class Program:
    """An algorithm and how it is measured."""

    algorithm: Algorithm
    grid: PassiveGrid
    offset: float  # added to a fitness, so that QD scores are positive

    @classmethod
    def of(cls, task: Task, algorithm: Algorithm) -> Program:
        """The program of an algorithm on a task."""
        return cls(
            algorithm,
            PassiveGrid.over(*task.spec.descriptor_bounds),
            task.spec.reward_offset * task.spec.episode_length,
        )

    def init(self, key: Array) -> RunState:
        """The state at generation 0."""
        return _strong(RunState(self.algorithm.init(key), self.grid.init()))

    def ask(self, state: RunState) -> tuple[Emission, Array]:
        """Genotypes to evaluate, and the key of their evaluation."""
        return self.algorithm.ask(state.algorithm), jax.random.fold_in(state.algorithm.key, 1)

    def tell(self, state: RunState, emission: Emission, evaluation: Evaluation) -> tuple[RunState, Metrics, Told]:
        """The state after the evaluation; its metrics; and the newcomers of the archive, without their genotypes."""
        algorithm, told = self.algorithm.tell(state.algorithm, emission, evaluation)  # raises on wrong shapes
        grid = self.grid.add(state.grid, told.individuals.fitness, told.individuals.descriptor)
        measured = scores(grid, self.offset) | archive_scores(algorithm.archive.fitness, self.offset)
        metrics = Metrics(measured, {"steps": jnp.sum(told.steps)}, {}) | told.metrics
        newcomers = told._replace(individuals=told.individuals._replace(genotypes=None), metrics=Metrics({}, {}, {}))
        return _strong(RunState(algorithm, grid)), metrics, newcomers

    def learn(self, state: RunState, updates: Array) -> tuple[RunState, Metrics]:
        """The state after `updates` updates, and their metrics."""
        learnt, metrics = self.algorithm.learn(state.algorithm, updates)
        return _strong(state._replace(algorithm=learnt)), metrics


def _strong(tree: Any) -> Any:
    """Without weak types, which a checkpoint does not keep: a resumed run must be the same program."""

    def strong(x: Array) -> Array:
        return x if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else jax.lax.convert_element_type(x, x.dtype)

    return jax.tree.map(strong, tree)
