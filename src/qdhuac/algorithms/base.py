"""What every algorithm shares: the state of a run, screening of results, operator statistics."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from qdhuac.types import (
    EXPLORE,
    OPERATORS,
    Array,
    Emission,
    Evaluation,
    Exploration,
    Genotype,
    Individuals,
    Provenance,
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

    empty = ~jnp.any(jnp.isfinite(state.archive.fitness))
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


def screen(emission: Emission, evaluation: Evaluation) -> tuple[Individuals, Array, dict[str, Array]]:
    """Failed evaluations never improve anything.

    Returns the individuals for the archive (rejected and exploring ones with fitness -inf), which rollouts may be
    stored [B], and how many were rejected, by the tensor that was not finite.
    """
    bad_fitness = ~jnp.isfinite(evaluation.fitness)
    bad_descriptor = ~jnp.all(jnp.isfinite(evaluation.descriptor), axis=-1)
    bad_transitions = jnp.zeros_like(bad_fitness)
    if evaluation.transitions is not None:
        assert evaluation.valid is not None
        for leaf in evaluation.transitions:
            finite = jnp.isfinite(leaf).reshape(*evaluation.valid.shape, -1).all(-1)
            bad_transitions |= jnp.any(evaluation.valid & ~finite, axis=-1)
    good = ~(bad_fitness | bad_descriptor | bad_transitions)
    archived = good & (emission.provenance.operator != EXPLORE)
    offspring = Individuals(
        genotypes=emission.genotypes,
        fitness=jnp.where(archived, evaluation.fitness, -jnp.inf),
        descriptor=jnp.where(good[:, None], evaluation.descriptor, 0.0),
        provenance=emission.provenance,
    )
    counts = {
        "rejected": jnp.sum(~good),
        "rejected_fitness": jnp.sum(bad_fitness),
        "rejected_descriptor": jnp.sum(bad_descriptor),
        "rejected_transitions": jnp.sum(bad_transitions),
    }
    return offspring, good, counts


def operator_statistics(emission: Emission, evaluation: Evaluation, good: Array, survived: Array) -> dict[str, Array]:
    """Per operator: how many were tried and survived, their mean fitness and mean gain over the first parent."""
    out: dict[str, Array] = {}
    gain = evaluation.fitness - emission.parent_fitness
    for index, name in enumerate(OPERATORS):
        mine = (emission.provenance.operator == index) & good
        out[f"{name}/tried"] = jnp.sum(mine)
        out[f"{name}/survived"] = jnp.sum(mine & survived)
        out[f"{name}/fitness"] = _mean(evaluation.fitness, mine)
        out[f"{name}/gain"] = _mean(gain, mine & jnp.isfinite(gain))
    return out


def _mean(values: Array, where: Array) -> Array:
    """Mean over a mask; nan where the mask is empty."""
    return jnp.sum(jnp.where(where, values, 0.0)) / jnp.where(jnp.any(where), jnp.sum(where), jnp.nan)
