"""DCRL-MAP-Elites (Faldor, Chalumeau, Flageat and Cully, 2024): PGA-ME with critic and actor told what to behave like.

``Q(s, a | d)`` and ``pi(s | d)`` are TD3's networks on the observation and a wanted descriptor side by side. A rollout
that was made for d' and behaved like d is stored as one for d', with rewards times ``exp(-|d - d'| / L)``. Wanted were:
by a gradient child its parent's descriptor, by an injected actor that of a random elite, by all others their own.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from qdhuac.algorithms.engine import (
    Offspring,
    State,
    absorb,
    check_results,
    check_transitions,
    emission,
    empty_offspring_like,
    gradient_offspring,
    isoline_offspring,
    learn,
    one_parent,
    uniform_observations,
)
from qdhuac.archives.common import sample
from qdhuac.config import Config, EmitterConfig
from qdhuac.errors import UserError
from qdhuac.learning.policy import Policy
from qdhuac.learning.replay import Replay
from qdhuac.learning.td3 import TD3Learner
from qdhuac.types import ACTOR, GRADIENT, Archive, Array, Emission, Evaluation, Genotype


@dataclasses.dataclass(frozen=True)
class DCRLME:
    """The stations that the ring is made of; the learner's and the buffer's observations end with a descriptor."""

    archive: Archive
    replay: Replay
    learner: TD3Learner
    emitter: EmitterConfig
    policy: Policy  # the genotype's, without a descriptor
    bounds: tuple[tuple[float, ...], tuple[float, ...]]

    def init(self, key: Array) -> State:
        """Actor and critics, an empty archive, an empty replay buffer."""
        key, key_learner = jax.random.split(key)
        example = empty_offspring_like(self.policy.init(key), len(self.bounds[0]))
        learner = self.learner.init(key_learner)
        return State(key, jnp.int32(0), self.archive.init(example), self.replay.init(), learner)

    def ask(self, state: State) -> Emission:
        """Iso+Line children; of the rest half are gradient children, half the actor with a descriptor folded in."""
        e = self.emitter
        lines = round(e.isoline_share * e.batch_size)
        actors = (e.batch_size - lines) // 2 if e.inject_actor else 0

        key_parents, key_line, key_states = jax.random.split(jax.random.fold_in(state.key, 0), 3)
        slots = sample(state.archive, key_parents, (e.batch_size,))
        wanted = jnp.where(jnp.isfinite(state.archive.fitness)[:, None], state.archive.descriptor, jnp.nan)[slots]
        wanted = jnp.where(jnp.arange(e.batch_size)[:, None] < lines, jnp.nan, wanted)
        batches = []
        if lines:
            batches.append(isoline_offspring(state, key_line, lines, e))
        if e.batch_size - lines - actors:
            batches.append(self._ascend(state, key_states, slots[lines : e.batch_size - actors]))
        if actors:
            folded = jax.vmap(self.fold, (None, 0))(state.learner.actor, wanted[-actors:])
            batches.append(Offspring(folded, one_parent(slots[-actors:]), ACTOR))
        return emission(state, batches, self.policy.init)._replace(target=wanted)

    def tell(self, state: State, emission: Emission, evaluation: Evaluation) -> tuple[State, dict[str, Array]]:
        """The offspring compete for the archive; transitions are stored with descriptors and scaled rewards."""
        assert emission.target is not None
        check_results(state, emission, evaluation)
        t, _ = check_transitions(dataclasses.replace(self.replay, obs_size=self.policy.obs_size), evaluation)
        # What is not finite in a descriptor rejects the rollout as such; here it must not spoil the count of rows.
        mine = jnp.nan_to_num(self.normalise(evaluation.descriptor))
        wanted = jnp.where(jnp.isnan(emission.target), mine, self.normalise(emission.target))  # [B, D]
        similarity = jnp.exp(-jnp.linalg.norm(mine - wanted, axis=-1) / self.learner.config.lengthscale)
        beside = jnp.broadcast_to(wanted[:, None], (*t.reward.shape, wanted.shape[-1]))
        t = t._replace(
            obs=jnp.concatenate([t.obs, beside], axis=-1),
            next_obs=jnp.concatenate([t.next_obs, beside], axis=-1),
            reward=similarity[:, None] * t.reward,
        )
        state, _, metrics = absorb(self.archive, self.replay, state, emission, evaluation._replace(transitions=t))
        return state, metrics | {"similarity": jnp.mean(similarity)}

    def learn(self, state: State, updates: Array) -> tuple[State, dict[str, Array]]:
        """`updates` updates of the critics and, delayed, of the actor."""
        return learn(self.learner, self.replay, state, updates)

    def normalise(self, descriptor: Array) -> Array:
        """Descriptors with their bounds at -1 and 1, the units of the lengthscale."""
        low, high = jnp.asarray(self.bounds, jnp.float32)
        return 2.0 * (descriptor - low) / (high - low) - 1.0

    def fold(self, actor: Genotype, descriptor: Array) -> Genotype:
        """The actor for one descriptor [D] as a plain policy: a constant input is a part of the first bias."""
        first, size = actor["Dense_0"], self.policy.obs_size
        bias = first["bias"] + self.normalise(descriptor) @ first["kernel"][size:]
        return actor | {"Dense_0": {"kernel": first["kernel"][:size], "bias": bias}}

    def _ascend(self, state: State, key: Array, slots: Array) -> Offspring:
        """Gradient children of the archive's `slots`, up the first critic asked for the parent's own descriptor."""
        size = self.policy.obs_size
        observe = uniform_observations(self.replay, state.replay, self.learner.config.batch_size)

        def child(key: Array, slot: Array) -> Genotype:
            wanted = self.normalise(state.archive.descriptor[slot])

            def value(genotype: Genotype, stored: Array) -> Array:
                obs = stored[:, :size]
                asked = jnp.concatenate([obs, jnp.broadcast_to(wanted, (len(obs), len(wanted)))], axis=-1)
                return jnp.mean(self.learner.value(state.learner, asked, self.policy.act(genotype, obs)))

            born = gradient_offspring(state, key, slot[None], observe, value, self.emitter)
            return jax.tree.map(lambda x: x[0], born.genotypes)

        children = jax.vmap(child)(jax.random.split(key, len(slots)), slots)
        return Offspring(children, one_parent(slots), GRADIENT)


def from_config(config: Config, task: Any, archive: Archive) -> DCRLME:
    """The algorithm for a task, whose descriptor must have finite bounds."""
    low, high = (np.asarray(b, float) for b in task.descriptor_bounds)
    if not (np.all(np.isfinite([low, high])) and np.all(low < high)):
        raise UserError(
            f"algorithm dcrl_me: needs a descriptor with finite bounds, but those of the task are {low} and {high}"
        )
    conditioned = dataclasses.replace(task.policy, obs_size=task.obs_size + len(low))
    return DCRLME(
        archive=archive,
        replay=Replay.of(config.replay, conditioned.obs_size, task.action_size),
        learner=TD3Learner(conditioned, config.critic, config.learner),
        emitter=config.emitter,
        policy=task.policy,
        bounds=(tuple(low.tolist()), tuple(high.tolist())),
    )
