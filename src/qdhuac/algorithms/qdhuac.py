"""QDHUAC: Quality-Diversity High Update Actor-Critic (Koohy and Bayne, GECCO '26), Algorithm 1.

One generation: emit genotypes from the archive (Iso+Line, gradient mutation, the injected actor), evaluate them, add
them to the archive by true fitness, store their transitions, then learn for UTD x environment steps updates.
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
    screen,
    uniform_observations,
)
from qdhuac.archives.common import sample
from qdhuac.config import Config, EmitterConfig
from qdhuac.errors import UserError
from qdhuac.learning import probe
from qdhuac.learning.replay import Replay
from qdhuac.learning.target_free import TargetFreeLearner
from qdhuac.types import EXPLORE, Archive, Array, Emission, Evaluation, Exploration, Genotype


@dataclasses.dataclass(frozen=True)
class QDHUAC:
    """The stations that the ring is made of."""

    archive: Archive
    replay: Replay
    learner: TargetFreeLearner
    emitter: EmitterConfig
    descriptor_size: int

    def init(self, key: Array) -> State:
        """Policy, critic, archive, replay buffer (lines 1-2)."""
        key, key_learner = jax.random.split(key)
        learner = self.learner.init(key_learner)
        if learner.probe is not None:
            learner = learner._replace(probe=probe.sized(learner.probe, self.archive.capacity))
        example = empty_offspring_like(learner.actor.policy, self.descriptor_size)
        return State(key, jnp.int32(0), self.archive.init(example), self.replay.init(), learner)

    def ask(self, state: State) -> Emission:
        """Genotypes to try (line 5), the actor of the last generation among them (line 17)."""
        e = self.emitter
        explorers, actors = e.exploration_rollouts, int(e.inject_actor)
        lines = min(round(e.isoline_share * (e.batch_size - explorers)), e.batch_size - explorers - actors)
        gradients = e.batch_size - explorers - actors - lines

        key_parents, key_line, key_states = jax.random.split(jax.random.fold_in(state.key, 0), 3)
        parents = sample(state.archive, key_parents, (gradients,))
        actor = state.learner.actor.policy
        batches = []
        if lines:
            batches.append(isoline_offspring(state, key_line, lines, e))
        if gradients:
            batches.append(self._ascend(state, key_states, parents))
        batches += [actor_offspring(actor)] * actors + [actor_offspring(actor, EXPLORE)] * explorers

        exploration = None
        if explorers:
            head = jax.tree.map(lambda x: jnp.broadcast_to(x, (e.batch_size, *x.shape)), state.learner.actor.head)
            exploration = Exploration(head, jnp.arange(e.batch_size) >= e.batch_size - explorers)
        return emission(state, batches, self.learner.policy.init, exploration)

    def tell(self, state: State, emission: Emission, evaluation: Evaluation) -> tuple[State, dict[str, Array]]:
        """Fitness and descriptors to the archive (line 7), transitions to the replay buffer (line 8)."""
        told, _, metrics = absorb(self.archive, self.replay, state, emission, evaluation)
        learner = state.learner
        if learner.probe is not None:
            _, good, _ = screen(emission, evaluation)
            metrics |= probe.observe(self.learner, learner, emission, evaluation, good)
            seen = probe.remember(learner.probe, told.archive, emission, evaluation, self.learner.config.discount)
            told = told._replace(learner=learner._replace(probe=seen))
        return told, metrics

    def learn(self, state: State, updates: Array) -> tuple[State, dict[str, Array]]:
        """`updates` updates of critic, actor and temperature (lines 9-15)."""
        return learn(self.learner, self.replay, state, updates)

    def _ascend(self, state: State, key: Array, slots: Array) -> Offspring:
        """Gradient children of the archive's `slots`, each on its own minibatches of stored states."""

        def value(genotype: Genotype, obs: Array) -> Array:
            return jnp.mean(self.learner.value(state.learner, obs, self.learner.policy.act(genotype, obs)))

        observe = uniform_observations(self.replay, state.replay, self.learner.config.batch_size)
        return gradient_offspring(state, key, slots, observe, value, self.emitter)


def from_config(config: Config, task: Any, archive: Archive) -> QDHUAC:
    """The algorithm for a task; the support is the task's own where the configuration leaves it open."""
    critic = config.critic.on_support(*task.support)
    if not critic.v_min < critic.v_max:
        raise UserError(f"critic.v_min={critic.v_min:g}: must be below critic.v_max={critic.v_max:g}")
    return QDHUAC(
        archive=archive,
        replay=Replay.of(config.replay, task.obs_size, task.action_size),
        learner=TargetFreeLearner(task.policy, critic, config.learner),
        emitter=config.emitter,
        descriptor_size=len(task.descriptor_bounds[0]),
    )
