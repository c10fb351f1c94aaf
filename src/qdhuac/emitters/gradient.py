"""Gradient children: a few Adam steps of each parent up the critic's mean value."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from qdhuac.archives.common import sample
from qdhuac.config import ActorCriticEmitterConfig
from qdhuac.emitters.base import Offspring, Seen, Stateless, descriptors, one_parent
from qdhuac.errors import check_callable, check_has, check_number, check_whole
from qdhuac.learning.policy import Policy
from qdhuac.learning.replay import Replay
from qdhuac.types import Array, Genotype

AT_ONCE = 32  # parents; each has its own minibatch in the critic, which for thousands would fill the memory


@dataclasses.dataclass(frozen=True)
class GradientChildren(Stateless):
    """Children of uniformly drawn parents that took Adam steps up a critic.

    Args:
        value: `value(learner, obs, action)` [B], which a step ascends in the mean over a minibatch.
        policy: the network of the genotypes.
        replay: the buffer from which states are drawn uniformly, not by priority.
        batch_size: states per step.
        steps: steps per child.
        learning_rate: of Adam, which starts anew for each child.
        name: the operator's name in metrics.
        condition: for a critic that depends on a wanted descriptor: `condition(obs, descriptor)` is what it gets as
            observations. The wanted descriptor of a child is its parent's.
    """

    value: Callable[[Any, Array, Array], Array]
    policy: Policy
    replay: Replay
    batch_size: int
    steps: int
    learning_rate: float
    name: str = "gradient"
    condition: Callable[[Array, Array], Array] | None = None

    @classmethod
    def of(cls, e: ActorCriticEmitterConfig, learner: Any, replay: Replay, **changes: Any) -> GradientChildren:
        """The emitter of a configuration for the critic of a learner; `changes` replace fields of it."""
        batch_size, steps, rate = learner.config.batch_size, e.gradient_steps, e.gradient_learning_rate
        plain = cls(learner.value, learner.policy, replay, batch_size, steps, rate)
        return dataclasses.replace(plain, **changes)

    def __post_init__(self) -> None:
        check_callable("value", self.value)
        check_has("policy", self.policy, "act")
        check_has("replay", self.replay, "sample")
        check_whole("batch_size", self.batch_size, 1)
        check_whole("steps", self.steps, 1)
        check_number("learning_rate", self.learning_rate, above=0)

    def ask(self, key: Array, state: tuple[()], seen: Seen, n: int) -> Offspring:
        """`n` children."""
        key_parents, key_states = jax.random.split(key)
        parents = sample(seen.archive, key_parents, (n,))
        uniform = dataclasses.replace(self.replay, exponent=0.0)

        def value(genotype: Genotype, stored: Array, descriptor: Array) -> Array:
            obs = stored[:, : self.policy.obs_size]
            asked = stored if self.condition is None else self.condition(obs, descriptor)
            return jnp.mean(self.value(seen.learner, asked, self.policy.act(genotype, obs)))

        children = gradient_mutation(
            key_states,
            jax.tree.map(lambda x: x[parents], seen.archive.genotypes),
            lambda key: uniform.sample(seen.replay, key, self.batch_size).transition.obs,
            value,
            seen.archive.descriptor[parents],
            # None while the archive is empty: fresh genotypes will take the place of these children.
            steps=jnp.where(jnp.any(jnp.isfinite(seen.archive.fitness)), self.steps, 0),
            learning_rate=self.learning_rate,
        )
        target = None if self.condition is None else descriptors(seen, parents)
        return Offspring(children, one_parent(parents), target=target)


def gradient_mutation(
    key: Array,
    parents: Genotype,
    observe: Callable[[Array], Array],
    value: Callable[[Genotype, Array, Any], Array],
    context: Any = (),
    *,
    steps: int | Array,
    learning_rate: float,
) -> Genotype:
    """Children of `parents` (leaves [n, ...]): `steps` Adam steps each, every parent with a fresh optimiser.

    `observe(key)` draws a minibatch of observations; `value(genotype, observations, context)` is what a step on it
    ascends, where `context` (leaves [n, ...]) is what each parent brings along.
    """
    adam = optax.adam(learning_rate)
    descend = jax.grad(lambda genotype, obs, context: -value(genotype, obs, context))

    def mutate(key: Array, genotype: Genotype, context: Any) -> Genotype:
        def step(i: Array, carry: Any) -> Any:
            genotype, optimiser = carry
            # Drawn here, step by step: all at once, a thousand minibatches would be far larger than the parents.
            obs = observe(jax.random.fold_in(key, i))
            updates, optimiser = adam.update(descend(genotype, obs, context), optimiser)
            return optax.apply_updates(genotype, updates), optimiser

        return jax.lax.fori_loop(0, steps, step, (genotype, adam.init(genotype)))[0]

    size = len(jax.tree.leaves(parents)[0])
    keys = jax.random.split(key, size)
    if size <= AT_ONCE:
        return jax.vmap(mutate)(keys, parents, context)
    return jax.lax.map(lambda one: mutate(*one), (keys, parents, context), batch_size=AT_ONCE)
