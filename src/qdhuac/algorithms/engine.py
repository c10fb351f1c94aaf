"""What the algorithms share: the state of a run, making offspring, screening and storing of results, statistics."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from qdhuac.archives.common import sample
from qdhuac.config import EmitterConfig
from qdhuac.emitters.gradient import gradient_mutation
from qdhuac.emitters.isoline import isoline
from qdhuac.errors import UserError
from qdhuac.learning.replay import Replay, ReplayState
from qdhuac.types import (
    ACTOR,
    EXPLORE,
    GRADIENT,
    ISOLINE,
    OPERATORS,
    Archive,
    Array,
    Emission,
    Evaluation,
    Exploration,
    Genotype,
    Individuals,
    Provenance,
    Transition,
)


class State(NamedTuple):
    """Everything a run is: one pytree, donated to each jitted step."""

    key: Array
    generation: Array  # int32
    archive: Individuals
    replay: Any = None
    learner: Any = None


class Offspring(NamedTuple):
    """A batch from one operator, before it is given an identity."""

    genotypes: Genotype  # leaves [n, ...]
    parents: Array  # [n, 2] slots of the archive, -1 where there is none
    operator: int


def empty_offspring_like(genotype: Genotype, descriptor_size: int) -> Individuals:
    """One individual with nothing in it: the example from which an archive takes its shapes."""
    return Individuals(
        genotypes=jax.tree.map(lambda x: jnp.asarray(x)[None], genotype),
        fitness=jnp.full((1,), -jnp.inf),
        descriptor=jnp.zeros((1, descriptor_size)),
        provenance=Provenance(*(jnp.full(s, -1, jnp.int32) for s in ((1,), (1, 2), (1,), (1,)))),
    )


def emission(
    state: State, batches: list[Offspring], fresh: Callable[[Array], Genotype], exploration: Exploration | None = None
) -> Emission:
    """Offspring of several operators as one emission; fresh genotypes instead while the archive is empty."""
    genotypes = jax.tree.map(lambda *x: jnp.concatenate(x), *(b.genotypes for b in batches))
    slots = jnp.concatenate([b.parents for b in batches])
    operator = jnp.concatenate([jnp.full(len(b.parents), b.operator, jnp.int32) for b in batches])
    size = len(operator)

    empty = _is_empty(state)
    start = jax.vmap(fresh)(jax.random.split(jax.random.fold_in(state.key, 3), size))
    genotypes = jax.tree.map(lambda new, child: jnp.where(empty, new, child), start, genotypes)
    slots = jnp.where(empty, -1, slots)
    # An exploring rollout stays one, so that it is not archived: at the start it is a noisy random policy.
    operator = jnp.where(empty & (operator != EXPLORE), 0, operator)

    provenance = Provenance(
        id=state.generation * size + jnp.arange(size, dtype=jnp.int32),
        parents=jnp.where(slots < 0, -1, state.archive.provenance.id[slots]),
        operator=operator,
        generation=jnp.full(size, state.generation, jnp.int32),
    )
    parent_fitness = jnp.where(slots[:, 0] < 0, jnp.nan, state.archive.fitness[slots[:, 0]])
    return Emission(genotypes, provenance, parent_fitness, exploration)


def isoline_offspring(state: State, key: Array, count: int, e: EmitterConfig) -> Offspring:
    """`count` Iso+Line children of random pairs, or of pairs that won a tournament each."""
    key, key_parents = jax.random.split(key)
    parents = sample(state.archive, key_parents, (count, 2), e.tournament)
    children = isoline(key, state.archive.genotypes, parents, sigma_iso=e.sigma_iso, sigma_line=e.sigma_line)
    return Offspring(children, parents, ISOLINE)


def gradient_offspring(
    state: State,
    key: Array,
    slots: Array,
    observe: Callable[[Array], Array],
    value: Callable[[Genotype, Array], Array],
    e: EmitterConfig,
    operator: int = GRADIENT,
) -> Offspring:
    """Gradient children of the `slots` [n]: up `value(genotype, obs)` on minibatches `observe(key)`."""
    parents = jax.tree.map(lambda x: x[slots], state.archive.genotypes)
    # An empty archive has no parents, and what would be made of them is replaced by fresh genotypes anyway.
    steps = jnp.where(_is_empty(state), 0, e.gradient_steps)
    children = gradient_mutation(key, parents, observe, value, steps=steps, learning_rate=e.gradient_learning_rate)
    return Offspring(children, one_parent(slots), operator)


def actor_offspring(actor: Genotype, operator: int = ACTOR) -> Offspring:
    """The learner's actor as it is."""
    return Offspring(jax.tree.map(lambda x: x[None], actor), jnp.full((1, 2), -1), operator)


def one_parent(slots: Array) -> Array:
    """Parents [n, 2] of those who have only one."""
    return jnp.stack([slots, jnp.full_like(slots, -1)], axis=-1)


def uniform_observations(replay: Replay, buffer: ReplayState, batch_size: int) -> Callable[[Array], Array]:
    """A function from a key to a minibatch of stored observations, whatever their priorities."""
    uniform = dataclasses.replace(replay, exponent=0.0)
    return lambda key: uniform.sample(buffer, key, batch_size).transition.obs


def absorb(
    archive: Archive, replay: Replay, state: State, emission: Emission, evaluation: Evaluation
) -> tuple[State, Array, dict[str, Array]]:
    """The state after the offspring competed and their transitions were stored, and which rows those are [B, T]."""
    check_results(state, emission, evaluation)
    transitions, valid = check_transitions(replay, evaluation)
    offspring, good, counts = screen(emission, evaluation)
    kept, survived = archive.add(state.archive, offspring)
    rows = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), transitions)
    stored = valid & good[:, None]
    buffer = replay.add(state.replay, rows, stored.reshape(-1))
    statistics = operator_statistics(emission, evaluation, good, survived)
    key = jax.random.fold_in(state.key, 2)
    return State(key, state.generation + 1, kept, buffer, state.learner), stored, counts | statistics


def learn(learner: Any, replay: Replay, state: State, updates: Array) -> tuple[State, dict[str, Array]]:
    """The state after `updates` updates of the only learner that it has."""
    key = jax.random.fold_in(state.key, 4)
    learned, buffer, metrics = learner.learn(state.learner, replay, state.replay, key, updates)
    return state._replace(learner=learned, replay=buffer), metrics


def screen(emission: Emission, evaluation: Evaluation) -> tuple[Individuals, Array, dict[str, Array]]:
    """Failed evaluations never improve anything.

    Returns the individuals for the archive (rejected and exploring ones with fitness -inf), which rollouts may be
    stored [B], and how many were rejected, by the first tensor that was not finite.
    """
    size = len(evaluation.fitness)
    none = jnp.zeros(size, bool)
    # In the order of cause and effect: a bad genotype makes bad actions, those bad observations, and so on.
    bad = {"genotype": _any_bad(emission.genotypes, size)}
    if evaluation.transitions is not None:
        t, valid = evaluation.transitions, evaluation.valid
        columns = {"observation": (t.obs, t.next_obs, t.contacts), "action": t.action, "reward": (t.reward, t.terminal)}
        bad |= {name: _any_bad(leaves, size, valid) for name, leaves in columns.items()}
    bad |= {"fitness": _any_bad(evaluation.fitness, size), "descriptor": _any_bad(evaluation.descriptor, size)}
    good = ~functools.reduce(jnp.logical_or, bad.values(), none)
    archived = good & (emission.provenance.operator != EXPLORE)
    offspring = Individuals(
        genotypes=emission.genotypes,
        fitness=jnp.where(archived, evaluation.fitness, -jnp.inf),
        descriptor=jnp.where(good[:, None], evaluation.descriptor, 0.0),
        provenance=emission.provenance,
    )
    # One source for each that is rejected: the first cause.
    counts, blamed = {"rejected": jnp.sum(~good)}, none
    for name, those in bad.items():
        counts[f"rejected_{name}"] = jnp.sum(those & ~blamed)
        blamed |= those
    return offspring, good, counts


def check_results(state: State, emission: Emission, evaluation: Evaluation) -> None:
    """Refuse results that are not one for each genotype; only shapes, which are known before anything is computed."""
    size = len(emission.provenance.id)
    for name, rest in {"fitness": (), "steps": (), "descriptor": state.archive.descriptor.shape[1:]}.items():
        _check_shape(name, getattr(evaluation, name), (size, *rest))
    if evaluation.transitions is not None and evaluation.valid is None:
        raise UserError("valid: missing; expected which steps of each episode were simulated [B, T]")


def check_transitions(replay: Replay, evaluation: Evaluation) -> tuple[Transition, Array]:
    """The episodes and which of their steps count, if they fit the rows of the replay buffer."""
    t, valid = evaluation.transitions, evaluation.valid
    if t is None or valid is None:
        raise UserError("transitions: missing; this algorithm learns from every step of each episode")
    sizes: dict[str, tuple[int, ...]] = {
        "obs": (replay.obs_size,),
        "action": (replay.action_size,),
        "next_obs": (replay.obs_size,),
    }
    sizes |= {"reward": (), "terminal": ()} | ({"contacts": (replay.contacts,)} if replay.contacts else {})
    shape = len(evaluation.fitness), jnp.shape(valid)[-1]
    _check_shape("valid", valid, shape)
    for name, rest in sizes.items():
        _check_shape(f"transitions.{name}", getattr(t, name), (*shape, *rest))
    return t, valid


def _check_shape(name: str, array: Array | None, wanted: tuple[int, ...]) -> None:
    if array is None or jnp.shape(array) != wanted:
        raise UserError(f"{name}: expected shape {wanted}, got {None if array is None else jnp.shape(array)}")


def operator_statistics(emission: Emission, evaluation: Evaluation, good: Array, survived: Array) -> dict[str, Array]:
    """Per operator: how many were tried and survived, their mean fitness and mean gain over the first parent."""
    out: dict[str, Array] = {}
    gain = evaluation.fitness - emission.parent_fitness
    for index, name in enumerate(OPERATORS):
        mine = (emission.provenance.operator == index) & good
        out[f"{name}/tried"] = jnp.sum(mine)
        out[f"{name}/survived"] = jnp.sum(mine & survived)
        out[f"{name}/fitness"] = jnp.mean(evaluation.fitness, where=mine)
        out[f"{name}/gain"] = jnp.mean(gain, where=mine & jnp.isfinite(gain))
    return out


def _is_empty(state: State) -> Array:
    return ~jnp.any(jnp.isfinite(state.archive.fitness))


def _any_bad(tree: Any, size: int, where: Array | None = None) -> Array:
    """Who has anything non-finite in leaves [size, ...], or in those of their rows that `where` [size, T] says."""
    out = jnp.zeros(size, bool)
    for leaf in jax.tree.leaves(tree):
        if where is None:
            out |= ~jnp.isfinite(leaf).reshape(size, -1).all(-1)
        else:
            out |= jnp.any(where & ~jnp.isfinite(leaf).reshape(*where.shape, -1).all(-1), axis=-1)
    return out
