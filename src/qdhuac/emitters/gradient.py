"""Gradient mutation: a few Adam steps of each parent up the critic's mean value."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import optax

from qdhuac.types import Array, Genotype


def gradient_mutation(
    parents: Genotype, observations: Array, value: Callable[[Genotype, Array], Array], *, learning_rate: float
) -> Genotype:
    """Children of `parents` (leaves [n, ...]): one Adam step per minibatch of `observations` [n, steps, B, obs].

    `value(genotype, observations)` is what each step ascends. Every parent starts a fresh optimiser.
    """
    adam = optax.adam(learning_rate)
    descend = jax.grad(lambda genotype, obs: -value(genotype, obs))

    def mutate(genotype: Genotype, batches: Array) -> Genotype:
        def step(carry: Any, obs: Array) -> Any:
            genotype, optimiser = carry
            updates, optimiser = adam.update(descend(genotype, obs), optimiser)
            return (optax.apply_updates(genotype, updates), optimiser), None

        (genotype, _), _ = jax.lax.scan(step, (genotype, adam.init(genotype)), batches)
        return genotype

    return jax.vmap(mutate)(parents, observations)
