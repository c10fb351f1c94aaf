"""QDHUAC's learner alone: every rollout is that of the exploring actor, and the learner follows after each.

A baseline for the learner, and useful where one good policy is enough. The archive keeps the actors that were rolled
out, each with the fitness of its stochastic rollout; `qdhuac evaluate` says what they are worth without the noise.
"""

from __future__ import annotations

from qdhuac.algorithms.engine import QDAlgorithm
from qdhuac.algorithms.qdhuac import target_free
from qdhuac.algorithms.settings import ActorSettings
from qdhuac.emitters.actor import ExploringActor
from qdhuac.tasks.base import Task
from qdhuac.types import Archive


def build(s: ActorSettings, task: Task, archive: Archive) -> QDAlgorithm:
    """The algorithm for a task."""
    learner, replay = target_free(s, task, archive.capacity)
    return QDAlgorithm(
        fresh=learner.policy.init,
        emitters=((ExploringActor(learner.injected, learner.head, archived=True), s.emitter.batch_size),),
        archive=archive,
        descriptor_size=task.spec.descriptor_size,
        replay=replay,
        learner=learner,
        updates_per_step=s.learner.utd,
        value_range=learner.value_range,
        observe=learner.observe,
    )
