"""DCRL-MAP-Elites (Faldor, Chalumeau, Flageat and Cully, 2024): PGA-ME conditioned on a descriptor.

``Q(s, a | d)`` and ``pi(s | d)`` are TD3's networks on the observation and a wanted descriptor side by side. A rollout
that was made for d' and behaved like d is stored as one for d', with rewards times ``exp(-|d - d'| / L)``. The wanted
descriptor is that of the parent for a gradient child, that of a random elite for an injected actor, and the measured
one for all others.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from qdhuac.algorithms.engine import QDAlgorithm, check_transitions
from qdhuac.algorithms.settings import DCRLMESettings
from qdhuac.archives.common import sample
from qdhuac.emitters.base import Offspring, Seen, Stateless, descriptors, one_parent, slots
from qdhuac.emitters.gradient import GradientChildren
from qdhuac.emitters.isoline import IsoLine
from qdhuac.learning.policy import Policy
from qdhuac.learning.replay import Replay
from qdhuac.learning.td3 import TD3Learner
from qdhuac.tasks.base import Bounds, Task, policy_of
from qdhuac.types import Archive, Array, Emission, Evaluation, Genotype, Metrics


@dataclasses.dataclass(frozen=True)
class Conditioning:
    """How a descriptor gets into observations, rewards and the first layer of an actor."""

    policy: Policy  # the genotype's, without a descriptor
    bounds: Bounds
    lengthscale: float

    def normalise(self, descriptor: Array) -> Array:
        """Descriptors with their bounds at -1 and 1, the units of the lengthscale."""
        low, high = jnp.asarray(self.bounds, jnp.float32)
        return 2.0 * (descriptor - low) / (high - low) - 1.0

    def fold(self, actor: Genotype, descriptor: Array) -> Genotype:
        """The actor for one descriptor [D] as a plain policy: a constant input is a part of the first bias."""
        first, size = actor["Dense_0"], self.policy.obs_size
        bias = first["bias"] + self.normalise(descriptor) @ first["kernel"][size:]
        return actor | {"Dense_0": {"kernel": first["kernel"][:size], "bias": bias}}

    def condition(self, obs: Array, descriptor: Array) -> Array:
        """Observations [..., obs_size] with a wanted descriptor [..., D] beside them."""
        return _beside(obs, self.normalise(descriptor))

    def relabel(self, emission: Emission, evaluation: Evaluation) -> tuple[Evaluation, Metrics]:
        """Append the wanted descriptor to observations, and scale rewards by similarity."""
        assert emission.target is not None
        t, _ = check_transitions(Replay(1, self.policy.obs_size, self.policy.action_size).columns, evaluation)
        # A non-finite descriptor rejects the rollout later, by its own name and not as a bad observation.
        reached = jnp.nan_to_num(self.normalise(evaluation.descriptor))
        wanted = jnp.where(jnp.isnan(emission.target), reached, self.normalise(emission.target))  # [B, D]
        similarity = jnp.exp(-jnp.linalg.norm(reached - wanted, axis=-1) / self.lengthscale)
        t = t._replace(
            obs=_beside(t.obs, wanted[:, None]),
            next_obs=_beside(t.next_obs, wanted[:, None]),
            reward=similarity[:, None] * t.reward,
        )
        return evaluation._replace(transitions=t), Metrics({"similarity": jnp.mean(similarity)}, {}, {})


@dataclasses.dataclass(frozen=True)
class ConditionedActor(Stateless):
    """The actor, conditioned on the descriptor of a random elite."""

    conditioning: Conditioning
    learner: TD3Learner
    name: str = "actor"

    def ask(self, key: Array, state: tuple[()], seen: Seen, n: int) -> Offspring:
        """The actor for `n` descriptors."""
        parents = sample(seen.archive, key, (n,))
        target = descriptors(seen, parents)
        actor = self.learner.injected(seen.learner)
        return Offspring(jax.vmap(self.conditioning.fold, (None, 0))(actor, target), one_parent(parents), target=target)


def _beside(obs: Array, wanted: Array) -> Array:
    return jnp.concatenate([obs, jnp.broadcast_to(wanted, (*obs.shape[:-1], wanted.shape[-1]))], axis=-1)


def build(s: DCRLMESettings, task: Task, archive: Archive) -> QDAlgorithm:
    """The algorithm for a task."""
    policy, size = policy_of(task), task.spec.descriptor_size
    e = s.emitter
    conditioning = Conditioning(policy, task.spec.descriptor_bounds, s.learner.lengthscale)
    conditioned = dataclasses.replace(policy, obs_size=policy.obs_size + size)
    learner = TD3Learner(conditioned, s.critic, s.learner)
    replay = Replay.of(s.replay, conditioned.obs_size, conditioned.action_size)
    lines = round(e.isoline_share * e.batch_size)
    actors = (e.batch_size - lines) // 2 if e.inject_actor else 0
    children = GradientChildren.of(e, learner, replay, policy=policy, condition=conditioning.condition)
    return QDAlgorithm(
        fresh=policy.init,
        emitters=slots(
            (IsoLine.of(e), lines),
            (children, e.batch_size - lines - actors),
            (ConditionedActor(conditioning, learner), actors),
        ),
        archive=archive,
        descriptor_size=size,
        replay=replay,
        learner=learner,
        updates_per_step=s.learner.utd,
        value_range=task.spec.support,
        relabel=conditioning.relabel,
    )
