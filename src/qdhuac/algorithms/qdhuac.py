"""QDHUAC: Quality-Diversity High Update Actor-Critic (Koohy and Bayne, GECCO '26), Algorithm 1.

One generation: emit genotypes from the archive (Iso+Line, gradient mutation, the injected actor), evaluate them, add
them to the archive by true fitness, store their transitions, then learn for UTD x environment steps updates.
"""

from __future__ import annotations

import math

from qdhuac.algorithms.engine import QDAlgorithm
from qdhuac.algorithms.settings import QDHUACSettings, TargetFreeSettings
from qdhuac.emitters.actor import ExploringActor
from qdhuac.emitters.actor_critic import actor_critic_emitters
from qdhuac.emitters.base import slots
from qdhuac.errors import UserError
from qdhuac.learning.moments import HIGHEST
from qdhuac.learning.replay import Replay
from qdhuac.learning.target_free import TargetFreeLearner
from qdhuac.tasks.base import Task, policy_of
from qdhuac.types import Archive


def build(s: QDHUACSettings, task: Task, archive: Archive) -> QDAlgorithm:
    """The algorithm for a task; the support is the task's own where the configuration leaves it open."""
    learner, replay = target_free(s, task, archive.capacity)
    explorers = s.emitter.exploration_rollouts
    return QDAlgorithm(
        fresh=policy_of(task).init,  # line 1
        emitters=(  # lines 5 and 17
            *actor_critic_emitters(s.emitter, learner, replay, s.emitter.batch_size - explorers),
            *slots((ExploringActor(learner.injected, learner.head), explorers)),
        ),
        archive=archive,  # line 7: true fitness decides
        descriptor_size=task.spec.descriptor_size,
        replay=replay,  # line 8
        learner=learner,  # lines 9 to 15
        updates_per_step=s.learner.utd,
        value_range=learner.value_range,
        observe=learner.observe,
    )


def target_free(s: TargetFreeSettings, task: Task, slots: int) -> tuple[TargetFreeLearner, Replay]:
    """The learner, which may have a probe of an archive with so many slots, and its replay buffer."""
    policy = policy_of(task)
    critic = s.critic.on_support(*((-HIGHEST, HIGHEST) if s.learner.normalise_rewards else task.spec.support))
    if math.isnan(critic.v_min + critic.v_max):
        raise UserError(
            "critic.v_min, critic.v_max: missing, and the task has no support; give the range of discounted returns to "
            "expect, or set learner.normalise_rewards=true"
        )
    if not critic.v_min < critic.v_max:
        raise UserError(f"critic.v_min={critic.v_min:g}: must be below critic.v_max={critic.v_max:g}")
    learner = TargetFreeLearner(policy, critic, s.learner, slots)
    return learner, Replay.of(s.replay, policy.obs_size, policy.action_size)
