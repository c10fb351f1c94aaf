"""The emitters of algorithms with one actor and one critic: Iso+Line, gradient children, the injected actor."""

from __future__ import annotations

from typing import Any

from qdhuac.config import ActorCriticEmitterConfig
from qdhuac.emitters.actor import InjectedActor
from qdhuac.emitters.base import Slots, slots
from qdhuac.emitters.gradient import GradientChildren
from qdhuac.emitters.isoline import IsoLine
from qdhuac.learning.replay import Replay


def actor_critic_emitters(e: ActorCriticEmitterConfig, learner: Any, replay: Replay, n: int) -> Slots:
    """`isoline_share` of `n` are Iso+Line children; of the rest one is the actor, and the others climb the critic.

    `learner` has `value(state, obs, action)` and `injected(state)`.
    """
    actors = int(e.inject_actor)
    lines = min(round(e.isoline_share * n), n - actors)
    return slots(
        (IsoLine.of(e), lines),
        (GradientChildren.of(e, learner, replay), n - actors - lines),
        (InjectedActor(learner.injected), actors),
    )
