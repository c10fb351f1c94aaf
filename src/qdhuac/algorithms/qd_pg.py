"""QD-PG (Pierrot et al., 2022), in the form of its authors' later QDax version.

Two TD3 learners share the replay buffer: one is paid the task's reward, the other the novelty of the foot contacts
that a step leads to. Parents climb the one or the other, and both greedy actors are among the offspring.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

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
    uniform_observations,
)
from qdhuac.archives.common import sample
from qdhuac.config import Config, EmitterConfig
from qdhuac.errors import UserError
from qdhuac.learning.novelty import NoveltyArchive, NoveltyState
from qdhuac.learning.replay import Replay
from qdhuac.learning.td3 import TD3Learner, TD3State
from qdhuac.types import ACTOR, DIVERSITY, GRADIENT, Archive, Array, Emission, Evaluation, Genotype, Transition


class QDPGState(NamedTuple):
    quality: TD3State
    diversity: TD3State
    novelty: NoveltyState


@dataclasses.dataclass(frozen=True)
class QDPG:
    """The stations that the ring is made of; both learners have the same shapes and constants."""

    archive: Archive
    replay: Replay
    learner: TD3Learner
    novelty: NoveltyArchive
    emitter: EmitterConfig
    descriptor_size: int

    def init(self, key: Array) -> State:
        """Two actors with their critics; the archives and the replay buffer are empty."""
        key, key_quality, key_diversity = jax.random.split(key, 3)
        learner = QDPGState(self.learner.init(key_quality), self.learner.init(key_diversity), self.novelty.init())
        example = empty_offspring_like(learner.quality.actor, self.descriptor_size)
        return State(key, jnp.int32(0), self.archive.init(example), self.replay.init(), learner)

    def ask(self, state: State) -> Emission:
        """Iso+Line children; of the rest one half for quality, one for diversity, each with its actor among them."""
        e = self.emitter
        lines = round(e.isoline_share * e.batch_size)
        rest = e.batch_size - lines

        key_parents, key_line, key_quality, key_diversity = jax.random.split(jax.random.fold_in(state.key, 0), 4)
        parents = sample(state.archive, key_parents, (rest,))
        batches = [isoline_offspring(state, key_line, lines, e)] if lines else []
        for learner, key, slots, operators in (
            (state.learner.quality, key_quality, parents[: (rest + 1) // 2], (GRADIENT, ACTOR)),
            (state.learner.diversity, key_diversity, parents[(rest + 1) // 2 :], (DIVERSITY, DIVERSITY)),
        ):
            actors = min(int(e.inject_actor), len(slots))
            if len(slots) > actors:
                batches.append(self._ascend(state, key, slots[actors:], learner, operators[0]))
            batches += [actor_offspring(learner.actor, operators[1])] * actors
        return emission(state, batches, self.learner.policy.init)

    def tell(self, state: State, emission: Emission, evaluation: Evaluation) -> tuple[State, dict[str, Array]]:
        """The offspring compete for the archive; their transitions are stored, and the contacts that are new."""
        state, stored, metrics = absorb(self.archive, self.replay, state, emission, evaluation)
        assert evaluation.transitions is not None
        contacts = evaluation.transitions.contacts
        assert contacts is not None, "QD-PG needs a task whose transitions carry foot contacts"
        seen = self.novelty.add(state.learner.novelty, contacts.reshape(-1, self.novelty.size), stored.reshape(-1))
        return state._replace(learner=state.learner._replace(novelty=seen)), metrics | {"novelty_size": seen.added}

    def learn(self, state: State, updates: Array) -> tuple[State, dict[str, Array]]:
        """`updates` updates of each learner."""
        key, key_diversity = jax.random.split(jax.random.fold_in(state.key, 4))

        def novelty(t: Transition) -> Array:
            assert t.contacts is not None
            return self.novelty.novelty(state.learner.novelty, t.contacts)

        quality, buffer, metrics = self.learner.learn(state.learner.quality, self.replay, state.replay, key, updates)
        diversity, buffer, more = self.learner.learn(
            state.learner.diversity, self.replay, buffer, key_diversity, updates, reward=novelty
        )
        metrics |= {_of_diversity(name): value for name, value in more.items()}
        learner = state.learner._replace(quality=quality, diversity=diversity)
        return state._replace(learner=learner, replay=buffer), metrics

    def _ascend(self, state: State, key: Array, slots: Array, learner: TD3State, operator: int) -> Offspring:
        """Gradient children of the archive's `slots`, up the first critic of one of the learners."""

        def value(genotype: Genotype, obs: Array) -> Array:
            return jnp.mean(self.learner.value(learner, obs, self.learner.policy.act(genotype, obs)))

        observe = uniform_observations(self.replay, state.replay, self.learner.config.batch_size)
        return gradient_offspring(state, key, slots, observe, value, self.emitter, operator)


def from_config(config: Config, task: Any, archive: Archive) -> QDPG:
    """The algorithm for a task whose transitions carry contacts, one per entry of the descriptor."""
    if not getattr(task, "store_contacts", True):
        raise UserError("algorithm qd_pg: needs features in the transitions; make the task with store_contacts=True")
    feet = len(task.descriptor_bounds[0])
    return QDPG(
        archive=archive,
        replay=Replay.of(config.replay, task.obs_size, task.action_size, feet),
        learner=TD3Learner(task.policy, config.critic, config.learner),
        novelty=NoveltyArchive(config.novelty.capacity, feet, config.novelty.threshold, config.novelty.neighbours),
        emitter=config.emitter,
        descriptor_size=feet,
    )


def _of_diversity(name: str) -> str:
    """A metric of the diversity learner; what is counted stays recognisable as such."""
    return f"count_skipped_diversity_{name[14:]}" if name.startswith("count_skipped_") else f"diversity_{name}"
