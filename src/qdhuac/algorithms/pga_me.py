"""PGA-MAP-Elites (Nilsson and Cully, 2021): half of the offspring by Iso+Line, half by climbing a TD3 critic.

The critics and their greedy actor learn from everybody's transitions; the actor is one of the offspring.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from qdhuac.algorithms.engine import (
    Offspring,
    State,
    absorb,
    actor_offspring,
    emission,
    empty_offspring_like,
    gradient_offspring,
    isoline_offspring,
    learn,
    uniform_observations,
)
from qdhuac.archives.common import sample
from qdhuac.config import Config, EmitterConfig
from qdhuac.learning.replay import Replay
from qdhuac.learning.td3 import TD3Learner
from qdhuac.types import Archive, Array, Emission, Evaluation, Genotype


@dataclasses.dataclass(frozen=True)
class PGAME:
    """The stations that the ring is made of."""

    archive: Archive
    replay: Replay
    learner: TD3Learner
    emitter: EmitterConfig
    descriptor_size: int

    def init(self, key: Array) -> State:
        """Actor and critics, an empty archive, an empty replay buffer."""
        key, key_learner = jax.random.split(key)
        learner = self.learner.init(key_learner)
        example = empty_offspring_like(learner.actor, self.descriptor_size)
        return State(key, jnp.int32(0), self.archive.init(example), self.replay.init(), learner)

    def ask(self, state: State) -> Emission:
        """Iso+Line children, gradient children and the greedy actor."""
        e = self.emitter
        actors = int(e.inject_actor)
        lines = min(round(e.isoline_share * e.batch_size), e.batch_size - actors)
        gradients = e.batch_size - actors - lines

        key_parents, key_line, key_states = jax.random.split(jax.random.fold_in(state.key, 0), 3)
        parents = sample(state.archive, key_parents, (gradients,))
        batches = [actor_offspring(state.learner.actor)] * actors
        if lines:
            batches.append(isoline_offspring(state, key_line, lines, e))
        if gradients:
            batches.append(self._ascend(state, key_states, parents))
        return emission(state, batches, self.learner.policy.init)

    def tell(self, state: State, emission: Emission, evaluation: Evaluation) -> tuple[State, dict[str, Array]]:
        """The offspring compete for the archive; their transitions are stored."""
        state, _, metrics = absorb(self.archive, self.replay, state, emission, evaluation)
        return state, metrics

    def learn(self, state: State, updates: Array) -> tuple[State, dict[str, Array]]:
        """`updates` updates of the critics and, delayed, of the actor."""
        return learn(self.learner, self.replay, state, updates)

    def _ascend(self, state: State, key: Array, slots: Array) -> Offspring:
        """Gradient children of the archive's `slots`, up the first critic."""

        def value(genotype: Genotype, obs: Array) -> Array:
            return jnp.mean(self.learner.value(state.learner, obs, self.learner.policy.act(genotype, obs)))

        observe = uniform_observations(self.replay, state.replay, self.learner.config.batch_size)
        return gradient_offspring(state, key, slots, observe, value, self.emitter)


def from_config(config: Config, task: Any, archive: Archive) -> PGAME:
    """The algorithm for a task."""
    return PGAME(
        archive=archive,
        replay=Replay.of(config.replay, task.obs_size, task.action_size),
        learner=TD3Learner(task.policy, config.critic, config.learner),
        emitter=config.emitter,
        descriptor_size=len(task.descriptor_bounds[0]),
    )
