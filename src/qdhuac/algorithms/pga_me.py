"""PGA-MAP-Elites (Nilsson and Cully, 2021): half of the offspring by Iso+Line, half by climbing a TD3 critic.

The critics and their greedy actor learn from everybody's transitions; the actor is one of the offspring.
"""

from __future__ import annotations

from typing import Any

from qdhuac.algorithms.engine import QDAlgorithm
from qdhuac.algorithms.specs import PGAMESettings
from qdhuac.emitters.actor_critic import actor_critic_emitters
from qdhuac.learning.replay import Replay
from qdhuac.learning.td3 import TD3Learner
from qdhuac.types import Archive


def build(s: PGAMESettings, task: Any, archive: Archive) -> QDAlgorithm:
    """The algorithm for a task."""
    learner = TD3Learner(task.policy, s.critic, s.learner)
    replay = Replay.of(s.replay, task.policy.obs_size, task.policy.action_size)
    return QDAlgorithm(
        fresh=task.policy.init,
        emitters=actor_critic_emitters(s.emitter, learner, replay, s.emitter.batch_size),
        archive=archive,
        descriptor_size=len(task.descriptor_bounds[0]),
        replay=replay,
        learner=learner,
        updates_per_step=s.learner.utd,
        value_range=task.support,
    )
