"""What every algorithm is made of: emitters propose, an archive selects, a learner learns from a replay buffer.

`QDAlgorithm` does the bookkeeping once: ids and parents, fresh genotypes while the archive is empty, screening of
failed evaluations, storing of transitions, statistics of operators. An algorithm is a composition of these parts.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp

from qdhuac.emitters.base import Seen, Slots, operators
from qdhuac.errors import UserError, check_callable, check_has, check_number, check_whole
from qdhuac.learning.replay import Replay
from qdhuac.tasks.checks import check_array, check_results
from qdhuac.types import (
    RANDOM,
    Archive,
    Array,
    Emission,
    Evaluation,
    Exploration,
    Genotype,
    Individuals,
    Metrics,
    Provenance,
    Told,
    Transition,
)


class State(NamedTuple):
    """The state of a run as one pytree, donated to each jitted step."""

    key: Array
    generation: Array  # int32
    born: Array  # int32, ids given so far
    archive: Individuals
    replay: Any = None
    learner: Any = None
    emitters: tuple[Any, ...] = ()


class Learner(Protocol):
    """Learns from a replay buffer. Its state is a pytree."""

    def init(self, key: Array) -> Any:
        """The state before the first update."""

    def learn(self, state: Any, replay: Any, buffer: Any, key: Array, updates: Array) -> tuple[Any, Any, Metrics]:
        """`updates` updates from the buffer, whose shape is `replay`; both are None for an algorithm without one."""


def stored_as_they_are(emission: Emission, evaluation: Evaluation) -> tuple[Evaluation, Metrics]:
    """The transitions of an evaluation go to the replay buffer unchanged."""
    return evaluation, Metrics({}, {}, {})


def nothing_observed(learner: Any, evaluation: Evaluation, told: Told, stored: Array) -> tuple[Any, Metrics]:
    """The state of the learner does not change."""
    return learner, Metrics({}, {}, {})


@dataclasses.dataclass(frozen=True)
class QDAlgorithm:
    """An algorithm as a composition.

    `relabel(emission, evaluation)` may change what is stored of an evaluation; `observe(learner, evaluation, told,
    stored)` lets the learner's state see an evaluation, of which the rows `stored` [B, T] went to the replay buffer.
    """

    fresh: Callable[[Array], Genotype]  # a random genotype
    emitters: Slots  # each with the number of genotypes that it gets of a batch
    archive: Archive
    descriptor_size: int
    replay: Replay | None = None
    learner: Learner | None = None
    updates_per_step: float = 0.0
    value_range: tuple[float, float] = (math.nan, math.nan)  # discounted returns to expect; nan: unknown
    relabel: Callable[[Emission, Evaluation], tuple[Evaluation, Metrics]] = stored_as_they_are
    observe: Callable[[Any, Evaluation, Told, Array], tuple[Any, Metrics]] = nothing_observed

    def __post_init__(self) -> None:
        check_callable("fresh", self.fresh)
        try:
            given = [(emitter, n) for emitter, n in self.emitters]
        except (TypeError, ValueError):
            given = []
        if not given:
            raise UserError("emitters: expected pairs of an emitter and the number of its genotypes")
        for emitter, n in given:
            check_has("emitters", emitter, "name", "archived", "init", "ask", "tell")
            check_whole(f"emitters: number of {emitter.name}", n, 1)
        check_has("archive", self.archive, "capacity", "init", "add")
        check_whole("descriptor_size", self.descriptor_size, 1)
        if self.replay is not None:
            check_has("replay", self.replay, "columns", "init", "add")
        check_number("updates_per_step", self.updates_per_step, low=0)
        if self.learner is not None or self.updates_per_step:
            check_has("learner", self.learner, "init", "learn")

    @property
    def operators(self) -> tuple[str, ...]:
        """The names that `Provenance.operator` indexes."""
        return operators(self.emitters, RANDOM)

    @property
    def batch_size(self) -> int:
        """Genotypes of a generation."""
        return sum(n for _, n in self.emitters)

    def init(self, key: Array) -> State:
        """An empty archive, an empty replay buffer, a learner before its first update."""
        key, key_learner, *keys = jax.random.split(key, 2 + len(self.emitters))
        return State(
            key=key,
            generation=jnp.int32(0),
            born=jnp.int32(0),
            archive=self.archive.init(empty_individual(self.fresh(key), self.descriptor_size)),
            replay=None if self.replay is None else self.replay.init(),
            learner=None if self.learner is None else self.learner.init(key_learner),
            emitters=tuple(emitter.init(k) for (emitter, _), k in zip(self.emitters, keys, strict=True)),
        )

    def ask(self, state: State) -> Emission:
        """Genotypes from all emitters, or random ones while the archive is empty."""
        seen = Seen(state.archive, state.replay, state.learner)
        key_fresh, *keys = jax.random.split(jax.random.fold_in(state.key, 0), 1 + len(self.emitters))
        parts = [
            emitter.ask(key, emitter_state, seen, n)
            for key, (emitter, n), emitter_state in zip(keys, self.emitters, state.emitters, strict=True)
        ]
        size = self.batch_size
        genotypes = _joined([part.genotypes for part in parts])
        slots = _joined([part.parents for part in parts])
        operator = self._per_emitter([self.operators.index(emitter.name) for emitter, _ in self.emitters])

        empty = ~jnp.any(jnp.isfinite(state.archive.fitness))
        start = jax.vmap(self.fresh)(jax.random.split(key_fresh, size))
        genotypes = jax.tree.map(lambda new, child: jnp.where(empty, new, child), start, genotypes)
        slots = jnp.where(empty, -1, slots)
        # Exploring rollouts keep their operator and are not archived, here with noise around a random policy.
        operator = jnp.where(empty & self._archived, 0, operator)
        provenance = Provenance(
            id=state.born + jnp.arange(size, dtype=jnp.int32),
            parents=jnp.where(slots < 0, -1, state.archive.provenance.id[slots]),
            operator=operator,
            generation=jnp.full(size, state.generation, jnp.int32),
        )
        parent_fitness = jnp.where(slots[:, 0] < 0, jnp.nan, state.archive.fitness[slots[:, 0]])
        heads = [part.head for part in parts]  # those of deterministic rollouts are not used
        is_stochastic = self._per_emitter([head is not None for head in heads])
        exploration = None if (head := self._filled(heads, 0.0)) is None else Exploration(head, is_stochastic)
        target = self._filled([part.target for part in parts], math.nan)
        return Emission(genotypes, provenance, parent_fitness, exploration, target)

    def tell(self, state: State, emission: Emission, evaluation: Evaluation) -> tuple[State, Told]:
        """The genotypes compete for the archive; the transitions of those that did not fail are stored."""
        check_results(self.descriptor_size, len(emission.provenance.id), evaluation)
        evaluation, relabelled = self.relabel(emission, evaluation)
        individuals, good, failures = screen(emission, evaluation, self._archived)
        archive, slots = self.archive.add(state.archive, individuals)
        metrics = Metrics({}, {}, failures) | self._statistics(emission, evaluation, good, slots >= 0) | relabelled
        told = Told(individuals, slots, evaluation.steps, metrics)
        buffer, learner = state.replay, state.learner
        if self.replay is not None:
            transitions, valid = check_transitions(self.replay.columns, evaluation)
            stored = valid & good[:, None]
            rows = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), transitions)
            buffer = self.replay.add(buffer, rows, stored.reshape(-1))
            learner, observed = self.observe(learner, evaluation, told, stored)
            told = told._replace(metrics=metrics | observed)
        return State(
            key=jax.random.fold_in(state.key, 2),
            generation=state.generation + 1,
            born=state.born + self.batch_size,
            archive=archive,
            replay=buffer,
            learner=learner,
            emitters=self._tell_emitters(state.emitters, told),
        ), told

    def learn(self, state: State, updates: Array) -> tuple[State, Metrics]:
        """`updates` updates of the learner, if there is one."""
        if self.learner is None:
            return state, Metrics({}, {}, {})
        key = jax.random.fold_in(state.key, 3)
        learner, buffer, metrics = self.learner.learn(state.learner, self.replay, state.replay, key, updates)
        return state._replace(learner=learner, replay=buffer), metrics

    @property
    def _archived(self) -> Array:
        """Which of a batch compete for the archive. [B]"""
        return self._per_emitter([emitter.archived for emitter, _ in self.emitters])

    def _per_emitter(self, values: list[Any]) -> Array:
        """One value per emitter as one per genotype. [B]"""
        return jnp.concatenate(
            [jnp.full(n, value, jnp.result_type(value)) for value, (_, n) in zip(values, self.emitters, strict=True)]
        )

    def _filled(self, values: list[Any], blank: float) -> Any:
        """One value per genotype from one tree per emitter, `blank` where that is None. None if it is None for all."""
        given = [value for value in values if value is not None]
        if not given:
            return None

        def blanks(n: int) -> Any:
            return jax.tree.map(lambda x: jnp.full((n, *x.shape[1:]), blank, x.dtype), given[0])

        sizes = [n for _, n in self.emitters]
        return _joined([blanks(n) if value is None else value for value, n in zip(values, sizes, strict=True)])

    def _tell_emitters(self, states: tuple[Any, ...], told: Told) -> tuple[Any, ...]:
        """Tell each emitter the results of its own genotypes."""
        out, start = [], 0
        for (emitter, n), state in zip(self.emitters, states, strict=True):
            part = jax.tree.map(lambda x, a=start, b=start + n: x[a:b], told._replace(metrics=Metrics({}, {}, {})))
            out.append(emitter.tell(state, part))
            start += n
        return tuple(out)

    def _statistics(self, emission: Emission, evaluation: Evaluation, good: Array, survived: Array) -> Metrics:
        """Per operator: how many were tried and survived, their mean fitness and mean gain over the first parent."""
        means: dict[str, Array] = {}
        sums: dict[str, Array] = {}
        gain = evaluation.fitness - emission.parent_fitness
        for index, name in enumerate(self.operators):
            made = (emission.provenance.operator == index) & good
            sums |= {f"{name}/tried": jnp.sum(made), f"{name}/survived": jnp.sum(made & survived)}
            means[f"{name}/fitness"] = jnp.mean(evaluation.fitness, where=made)
            means[f"{name}/gain"] = jnp.mean(gain, where=made & jnp.isfinite(gain))
        return Metrics(means, sums, {})


def empty_individual(genotype: Genotype, descriptor_size: int) -> Individuals:
    """An individual with fitness -inf, from which an archive takes its shapes."""
    return Individuals(
        genotypes=jax.tree.map(lambda x: jnp.asarray(x)[None], genotype),
        fitness=jnp.full((1,), -jnp.inf),
        descriptor=jnp.zeros((1, descriptor_size)),
        provenance=Provenance(*(jnp.full(s, -1, jnp.int32) for s in ((1,), (1, 2), (1,), (1,)))),
    )


def screen(emission: Emission, evaluation: Evaluation, archived: Array) -> tuple[Individuals, Array, dict[str, Array]]:
    """Reject failed evaluations, so that they never improve anything.

    Returns the individuals for the archive (rejected ones and those that are not `archived` with fitness -inf), which
    rollouts may be stored [B], and how many were rejected, by the first tensor that was not finite.
    """
    size = len(evaluation.fitness)
    # In the order of cause and effect: a bad genotype makes bad actions, those bad observations, and so on.
    bad = {"genotype": _any_bad(emission.genotypes, size)}
    if evaluation.transitions is not None:
        t, valid = evaluation.transitions, evaluation.valid
        columns = {"observation": (t.obs, t.next_obs, t.contacts), "action": t.action, "reward": (t.reward, t.terminal)}
        bad |= {name: _any_bad(leaves, size, valid) for name, leaves in columns.items()}
    bad |= {"fitness": _any_bad(evaluation.fitness, size), "descriptor": _any_bad(evaluation.descriptor, size)}
    good = ~functools.reduce(jnp.logical_or, bad.values())
    individuals = Individuals(
        genotypes=emission.genotypes,
        fitness=jnp.where(good & archived, evaluation.fitness, -jnp.inf),
        descriptor=jnp.where(good[:, None], evaluation.descriptor, 0.0),
        provenance=emission.provenance,
    )
    # One source for each that is rejected: the first cause.
    failures: dict[str, Array] = {}
    blamed = jnp.zeros(size, bool)
    for name, those in bad.items():
        failures[name] = jnp.sum(those & ~blamed)
        blamed |= those
    return individuals, good, failures


def check_transitions(columns: Mapping[str, tuple[int, ...]], evaluation: Evaluation) -> tuple[Transition, Array]:
    """The episodes and which of their steps count, if they have these columns, each by its shape after [B, T]."""
    t, valid = evaluation.transitions, evaluation.valid
    if t is None or valid is None:
        raise UserError("transitions: missing; this algorithm learns from every step of each episode")
    shape = len(evaluation.fitness), jnp.shape(valid)[-1]
    check_array("valid", valid, shape)
    for name, rest in columns.items():
        check_array(f"transitions.{name}", getattr(t, name), (*shape, *rest))
    return t, valid


def _joined(trees: list[Any]) -> Any:
    return jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *trees)


def _any_bad(tree: Any, size: int, where: Array | None = None) -> Array:
    """Which individuals have a non-finite number in their leaves [size, ...]. [size]

    With `where` [size, T], only those rows of the leaves [size, T, ...] count.
    """
    out = jnp.zeros(size, bool)
    for leaf in jax.tree.leaves(tree):
        if where is None:
            out |= ~jnp.isfinite(leaf).reshape(size, -1).all(-1)
        else:
            out |= jnp.any(where & ~jnp.isfinite(leaf).reshape(*where.shape, -1).all(-1), axis=-1)
    return out
