"""A generation as pure functions of the state of a run, which the trainer compiles."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from qdhuac.metrics import PassiveGrid, archive_scores, scores
from qdhuac.tasks.base import Task
from qdhuac.types import Algorithm, Array, Emission, Evaluation, Metrics, Told


class RunState(NamedTuple):
    """The state on the device: that of the algorithm, and the grid on which all algorithms are measured."""

    algorithm: Any
    grid: Array


@dataclasses.dataclass(frozen=True)
class Program:
    """An algorithm and its measurement."""

    algorithm: Algorithm
    grid: PassiveGrid
    offset: float  # added to a fitness, so that QD scores are positive

    @classmethod
    def of(cls, task: Task, algorithm: Algorithm) -> Program:
        """Return the program of an algorithm on a task."""
        spec = task.spec
        return cls(algorithm, PassiveGrid.over(*spec.descriptor_bounds), spec.reward_offset * spec.episode_length)

    def init(self, key: Array) -> RunState:
        """Return the state of generation 0."""
        return _strong(RunState(self.algorithm.init(key), self.grid.init()))

    def ask(self, state: RunState) -> tuple[Emission, Array]:
        """Return genotypes to evaluate, and the key for their evaluation."""
        return self.algorithm.ask(state.algorithm), jax.random.fold_in(state.algorithm.key, 1)

    def tell(self, state: RunState, emission: Emission, evaluation: Evaluation) -> tuple[RunState, Metrics, Told]:
        """Return the new state, the metrics, and which of the batch took which slot, without the genotypes."""
        algorithm, told = self.algorithm.tell(state.algorithm, emission, evaluation)  # raises on wrong shapes
        grid = self.grid.add(state.grid, told.individuals.fitness, told.individuals.descriptor)
        measured = scores(grid, self.offset) | archive_scores(algorithm.archive.fitness, self.offset)
        metrics = Metrics(measured, {"steps": jnp.sum(told.steps)}, {}) | told.metrics
        newcomers = told._replace(individuals=told.individuals._replace(genotypes=None), metrics=Metrics({}, {}, {}))
        return _strong(RunState(algorithm, grid)), metrics, newcomers

    def learn(self, state: RunState, updates: Array) -> tuple[RunState, Metrics]:
        """Return the state after `updates` updates, and their metrics."""
        learnt, metrics = self.algorithm.learn(state.algorithm, updates)
        return _strong(state._replace(algorithm=learnt)), metrics


def _strong(tree: Any) -> Any:
    """Remove weak types, which a checkpoint does not keep: a resumed run must compile to the same program."""

    def strong(x: Array) -> Array:
        return x if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else jax.lax.convert_element_type(x, x.dtype)

    return jax.tree.map(strong, tree)
