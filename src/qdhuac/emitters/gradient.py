"""Gradient mutation: a few Adam steps of each parent up the critic's mean value."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import optax

from qdhuac.types import Array, Genotype

AT_ONCE = 32  # parents; each has its own minibatch in the critic, which for thousands would fill the memory


def gradient_mutation(
    key: Array,
    parents: Genotype,
    observe: Callable[[Array], Array],
    value: Callable[[Genotype, Array], Array],
    *,
    steps: int | Array,
    learning_rate: float,
) -> Genotype:
    """Children of `parents` (leaves [n, ...]): `steps` Adam steps each, every parent with a fresh optimiser.

    `observe(key)` draws a minibatch of observations, `value(genotype, observations)` is what a step on it ascends.
    """
    adam = optax.adam(learning_rate)
    descend = jax.grad(lambda genotype, obs: -value(genotype, obs))

    def mutate(key: Array, genotype: Genotype) -> Genotype:
        def step(i: Array, carry: Any) -> Any:
            genotype, optimiser = carry
            # Drawn here, step by step: all at once, a thousand minibatches would be far larger than the parents.
            obs = observe(jax.random.fold_in(key, i))
            updates, optimiser = adam.update(descend(genotype, obs), optimiser)
            return optax.apply_updates(genotype, updates), optimiser

        return jax.lax.fori_loop(0, steps, step, (genotype, adam.init(genotype)))[0]

    size = len(jax.tree.leaves(parents)[0])
    keys = jax.random.split(key, size)
    if size <= AT_ONCE:
        return jax.vmap(mutate)(keys, parents)
    return jax.lax.map(lambda one: mutate(*one), (keys, parents), batch_size=AT_ONCE)
