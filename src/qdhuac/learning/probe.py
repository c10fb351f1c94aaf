"""The probe: what a Polyak-averaged target network would have believed. It observes and never trains.

A shadow of the critics follows them at rate 0.005. Each generation the predictions of both for the new agents are put
beside the agents' true discounted returns. All numbers are in raw units (not times `reward_scale`); a positive gap,
`E[Q] - E[Q_shadow]`, means that the shadow is the more pessimistic of the two.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
import optax

from qdhuac.learning.critic import Params, Stats
from qdhuac.learning.moments import discounted
from qdhuac.types import Array, Evaluation, Metrics, Told

if TYPE_CHECKING:
    from qdhuac.learning.target_free import LearnerState, TargetFreeLearner

RATE = 0.005
TOP = 3  # agents of a batch whose predictions are averaged
POINTS = 50  # of a trajectory; from its first half, so that what is cut off at its end is discounted away
QUANTILE = 0.9


class Probe(NamedTuple):
    """The shadow, and the discounted return of every slot of the archive."""

    critics: Params
    stats: Stats
    returns: Array  # [N] of the first state, nan where the slot is empty


def init(critics: Params, stats: Stats, slots: int) -> Probe:
    """A shadow that agrees with the critics, beside an empty archive with so many slots."""
    return Probe(jax.tree.map(jnp.copy, critics), jax.tree.map(jnp.copy, stats), jnp.full(slots, jnp.nan))


def follow(probe: Probe, critics: Params, stats: Stats) -> Probe:
    """The shadow after one more update; running statistics lag like the weights that they belong to."""
    return probe._replace(
        critics=optax.incremental_update(critics, probe.critics, RATE),
        stats=optax.incremental_update(stats, probe.stats, RATE),
    )


def compare(learner: TargetFreeLearner, state: LearnerState, evaluation: Evaluation, told: Told) -> Metrics:
    """Predictions of critics and shadow for the batch, and how often each misses an agent that is among the best.

    The threshold is the archive's 90th percentile of discounted returns before the batch competes for it.
    """
    probe, transitions, valid = state.probe, evaluation.transitions, evaluation.valid
    assert probe is not None
    assert transitions is not None
    assert valid is not None
    scale = learner.scale(state)
    shadow = state._replace(critics=probe.critics, stats=probe.stats)
    agents = jnp.isfinite(told.individuals.fitness)
    returns = discounted(transitions.reward, transitions.terminal, valid, learner.config.discount)  # [B, T]

    def predict(times: Array) -> tuple[Array, Array]:
        """Both critics' values of what the agents did at these times. [B, len(times)]"""
        obs, action = transitions.obs[:, times], transitions.action[:, times]
        shape = obs.shape[:2]
        flat = (obs.reshape(-1, obs.shape[-1]), action.reshape(-1, action.shape[-1]))
        return tuple((learner.value(s, *flat) / scale).reshape(shape) for s in (state, shadow))  # type: ignore[return-value]

    threshold = jnp.nanquantile(probe.returns, QUANTILE)
    fitness = jnp.where(agents, evaluation.fitness, -jnp.inf)
    top = agents & (jnp.argsort(jnp.argsort(-fitness)) < TOP)
    half = max(1, returns.shape[1] // 2)
    means, sums = {"probe_threshold": threshold}, dict[str, Array]()
    for name, times in (("", jnp.arange(1)), ("path_", jnp.arange(0, half, max(1, half // POINTS)))):
        q, lagging = predict(times)
        truth, counted = returns[:, times], valid[:, times] & top[:, None]
        # Of the whole batch at the start, of the best agents along their way.
        high = (truth > threshold) & valid[:, times] & (agents if name == "" else top)[:, None]
        means |= {
            f"probe_{name}return": jnp.mean(truth, where=counted),
            f"probe_{name}q": jnp.mean(q, where=counted),
            f"probe_{name}q_shadow": jnp.mean(lagging, where=counted),
            f"probe_{name}gap": jnp.mean(q - lagging, where=counted),
        }
        sums |= {
            f"probe_{name}high": jnp.sum(high),
            f"probe_{name}missed": jnp.sum(high & (q < threshold)),
            f"probe_{name}missed_shadow": jnp.sum(high & (lagging < threshold)),
        }
    return Metrics(means, sums, {})


def remember(probe: Probe, evaluation: Evaluation, told: Told, discount: float) -> Probe:
    """The returns of the archive's slots after the batch competed: an individual that stayed kept its slot."""
    t = evaluation.transitions
    assert t is not None
    assert evaluation.valid is not None
    first = discounted(t.reward, t.terminal, evaluation.valid, discount)[:, 0]
    slots = jnp.where(told.slots < 0, len(probe.returns), told.slots)
    return probe._replace(returns=probe.returns.at[slots].set(first, mode="drop"))
