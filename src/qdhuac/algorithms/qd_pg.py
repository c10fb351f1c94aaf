"""QD-PG (Pierrot et al., 2022), in the form of its authors' later QDax version.

Two TD3 learners share the replay buffer. The rewards of one are the task's, those of the other the novelty of the foot
contacts after the step. Parents climb one critic or the other, and both greedy actors are among the offspring.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import jax

from qdhuac.algorithms.engine import QDAlgorithm
from qdhuac.algorithms.settings import QDPGSettings
from qdhuac.emitters.actor import InjectedActor
from qdhuac.emitters.base import Slots, slots
from qdhuac.emitters.gradient import GradientChildren
from qdhuac.emitters.isoline import IsoLine
from qdhuac.errors import UserError
from qdhuac.learning.novelty import NoveltyArchive, NoveltyState
from qdhuac.learning.replay import Replay, ReplayState
from qdhuac.learning.td3 import TD3Learner, TD3State
from qdhuac.tasks.base import Task, policy_of
from qdhuac.types import Archive, Array, Evaluation, Metrics, Told, Transition


class QDPGState(NamedTuple):
    """Two learners with the same shapes and constants, and the states that have been seen."""

    quality: TD3State
    diversity: TD3State
    novelty: NoveltyState


@dataclasses.dataclass(frozen=True)
class QualityAndDiversity:
    """Two TD3 learners that share a replay buffer."""

    td3: TD3Learner
    novelty: NoveltyArchive

    def init(self, key: Array) -> QDPGState:
        """Two actors with their critics, and an empty novelty archive."""
        key_quality, key_diversity = jax.random.split(key)
        return QDPGState(self.td3.init(key_quality), self.td3.init(key_diversity), self.novelty.init())

    def learn(
        self, state: QDPGState, replay: Replay, buffer: ReplayState, key: Array, updates: Array
    ) -> tuple[QDPGState, ReplayState, Metrics]:
        """`updates` updates of each; the metrics of the second have `diversity_` before their names."""
        key, key_diversity = jax.random.split(key)

        def novelty(t: Transition) -> Array:
            assert t.contacts is not None
            return self.novelty.novelty(state.novelty, t.contacts)

        quality, buffer, metrics = self.td3.learn(state.quality, replay, buffer, key, updates)
        diversity, buffer, more = self.td3.learn(
            state.diversity, replay, buffer, key_diversity, updates, reward=novelty
        )
        more = Metrics(*({f"diversity_{name}": value for name, value in part.items()} for part in more))
        return state._replace(quality=quality, diversity=diversity), buffer, metrics | more

    def observe(self, state: QDPGState, evaluation: Evaluation, told: Told, stored: Array) -> tuple[QDPGState, Metrics]:
        """Add new contacts to the novelty archive."""
        assert evaluation.transitions is not None
        contacts = evaluation.transitions.contacts
        assert contacts is not None
        seen = self.novelty.add(state.novelty, contacts.reshape(-1, self.novelty.size), stored.reshape(-1))
        return state._replace(novelty=seen), Metrics({"novelty_size": seen.added}, {}, {})


def emitters(s: QDPGSettings, td3: TD3Learner, replay: Replay) -> Slots:
    """Iso+Line children; of the rest one half for quality, one for diversity, each with its actor among them."""
    e = s.emitter
    lines = round(e.isoline_share * e.batch_size)
    rest = e.batch_size - lines
    half = (rest + 1) // 2

    def pair(part: Callable[[QDPGState], TD3State], n: int, *names: str) -> Slots:
        """The gradient children and the actor of one of the two learners."""
        climb = GradientChildren.of(
            e, td3, replay, value=lambda learner, obs, action: td3.value(part(learner), obs, action), name=names[0]
        )
        actors = min(int(e.inject_actor), n)
        return (climb, n - actors), (InjectedActor(lambda learner: part(learner).actor, names[1]), actors)

    return slots(
        (IsoLine.of(e), lines),
        *pair(lambda learner: learner.quality, half, "gradient", "actor"),
        *pair(lambda learner: learner.diversity, rest - half, "diversity", "diversity"),
    )


def build(s: QDPGSettings, task: Task, archive: Archive) -> QDAlgorithm:
    """The algorithm for a task whose transitions carry contacts, one per entry of the descriptor."""
    policy = policy_of(task)
    if not task.spec.contacts:
        raise UserError("algorithm qd_pg: needs features in the transitions; make the task with store_contacts=True")
    feet = task.spec.descriptor_size
    td3 = TD3Learner(policy, s.critic, s.learner)
    replay = Replay.of(s.replay, policy.obs_size, policy.action_size, feet)
    novelty = NoveltyArchive(s.novelty.capacity, feet, s.novelty.threshold, s.novelty.neighbours)
    learner = QualityAndDiversity(td3, novelty)
    return QDAlgorithm(
        fresh=policy.init,
        emitters=emitters(s, td3, replay),
        archive=archive,
        descriptor_size=feet,
        replay=replay,
        learner=learner,
        updates_per_step=s.learner.utd,
        value_range=task.spec.support,
        observe=learner.observe,
    )
