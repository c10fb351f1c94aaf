"""PGA-MAP-Elites (Nilsson and Cully, 2021): half of the offspring by Iso+Line, half by climbing a TD3 critic.

The critics and their greedy actor learn from the transitions of all rollouts; the actor is one of the offspring.
"""

from __future__ import annotations

from qdhuac.algorithms.engine import QDAlgorithm
from qdhuac.algorithms.settings import PGAMESettings
from qdhuac.emitters.actor_critic import actor_critic_emitters
from qdhuac.learning.replay import Replay
from qdhuac.learning.td3 import TD3Learner
from qdhuac.tasks.base import Task, policy_of
from qdhuac.types import Archive


def build(s: PGAMESettings, task: Task, archive: Archive) -> QDAlgorithm:
    """The algorithm for a task."""
    policy = policy_of(task)
    learner = TD3Learner(policy, s.critic, s.learner)
    replay = Replay.of(s.replay, policy.obs_size, policy.action_size)
    return QDAlgorithm(
        fresh=policy.init,
        emitters=actor_critic_emitters(s.emitter, learner, replay, s.emitter.batch_size),
        archive=archive,
        descriptor_size=task.spec.descriptor_size,
        replay=replay,
        learner=learner,
        updates_per_step=s.learner.utd,
        value_range=task.spec.support,
    )
