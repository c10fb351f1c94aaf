"""Tiny decision problems whose values are known exactly, as full replay buffers."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np

from qdhuac.config import CriticConfig, LearnerConfig, MLPCriticConfig, TD3Config
from qdhuac.learning.policy import Policy
from qdhuac.learning.replay import Replay
from qdhuac.learning.target_free import TargetFreeLearner
from qdhuac.learning.td3 import TD3Learner
from qdhuac.types import Transition

OBS, ACTIONS, ROWS = 2, 1, 2048
POLICY = Policy(OBS, ACTIONS, (32, 32))
SMALL = {
    "batch_size": 64,
    "reward_scale": 1.0,
    "discount": 0.5,
    "critic_learning_rate": 1e-3,
    "actor_learning_rate": 1e-3,
}
START, SECOND = jnp.array([1.0, -1.0]), jnp.array([-1.0, 1.0])


@functools.cache
def one_step():
    """Every action ends the episode with reward 1: Q = 1."""
    action = _actions()
    return _rows(START, action, 1.0, 1.0, START)


@functools.cache
def two_steps():
    """START -> SECOND (reward 0) -> end (reward 1): Q(SECOND) = 1, Q(START) = gamma."""
    action = _actions()
    first = _rows(START, action, 0.0, 0.0, SECOND)
    second = _rows(SECOND, action, 1.0, 1.0, SECOND)
    return jax.tree.map(lambda x, y: jnp.concatenate([x, y]), first, second)


@functools.cache
def endless():
    """Reward 1 without end; each row is a truncated step and so not terminal: Q = 1 / (1 - gamma)."""
    return _rows(START, _actions(), 1.0, 0.0, START)


@functools.cache
def choose(best: float = 0.5):
    """One step with reward 1 - 4 (a - best)^2: the best action is `best`, worth 1."""
    action = _actions()
    return _rows(START, action, 1.0 - 4.0 * jnp.square(action[:, 0] - best), 1.0, START)


@functools.cache
def corridor():
    """A walk from anywhere in [-1, 1] to the end at 1, where each step costs 1: at best up to 27 steps."""
    position, action = jax.random.uniform(jax.random.key(8), (ROWS,), minval=-1.0, maxval=1.0), _actions()
    after = _walk(position, action[:, 0])
    ends = (after >= 1.0).astype(jnp.float32)
    rows = _rows(START, action, -1.0, 1.0, START)
    return rows._replace(obs=corridor_obs(position), terminal=ends, next_obs=corridor_obs(after))


def corridor_obs(position):
    """Observations [n, OBS] of positions [n] in the corridor."""
    return jnp.stack([position, jnp.ones_like(position)], axis=-1)


def corridor_values(discount: float):
    """Positions [P], actions [A] and the values [P, A] of the best policy in the corridor, by value iteration."""
    positions, actions = np.linspace(-1.0, 1.0, 401), np.linspace(-1.0, 1.0, 41)
    after = np.asarray(_walk(positions[:, None], actions))
    value, change = np.zeros(401), 1.0
    while change > 1e-9:
        q = -1.0 + discount * np.where(after < 1.0, np.interp(after, positions, value), 0.0)
        change = np.max(np.abs(value - q.max(axis=1)))
        value = q.max(axis=1)
    return positions, actions, q


def _walk(position, action):
    return (position + 0.05 * (1.0 + 0.5 * action)).clip(-1.0, 1.0)


def learner(policy: Policy = POLICY, **changes) -> TargetFreeLearner:
    """A tiny learner; `changes` go to the critic's or the learner's configuration."""
    critic = {"width": 32, "blocks": 1, "atoms": 51, "v_min": -5.0, "v_max": 5.0}
    config = SMALL | {"initial_temperature": 1e-4, "temperature_learning_rate": 1e-6}
    return TargetFreeLearner(policy, *_configured(CriticConfig, critic, LearnerConfig, config, changes))


def td3(policy: Policy = POLICY, **changes) -> TD3Learner:
    """A tiny TD3 learner; `changes` as for `learner`."""
    config = SMALL | {"policy_delay": 2, "target_tau": 0.02}
    return TD3Learner(policy, *_configured(MLPCriticConfig, {"width": 32, "blocks": 1}, TD3Config, config, changes))


def _configured(critic_type, critic, config_type, config, changes):
    of_critic = {name: value for name, value in changes.items() if name in critic_type.__dataclass_fields__}
    rest = {name: value for name, value in changes.items() if name not in of_critic}
    return critic_type(**critic | of_critic), config_type(**config | rest)


def train(learner: TargetFreeLearner | TD3Learner, rows: Transition, updates: int, exponent: float = 0.6):
    """The learner's state after `updates` updates on nothing but `rows`, and the metrics of the last hundred."""
    count = len(rows.reward)
    replay = Replay(4096, OBS, ACTIONS, exponent)
    buffer = replay.add(replay.init(), rows, jnp.ones(count, bool))
    state, buffer, _ = _learn(learner, replay, learner.init(jax.random.key(0)), buffer, jnp.int32(updates - 100))
    state, _, metrics = _learn(learner, replay, state, buffer, jnp.int32(100))
    return state, metrics


@functools.partial(jax.jit, static_argnums=(0, 1))  # one compilation per configuration, whichever test asks first
def _learn(learner, replay, state, buffer, updates):
    return learner.learn(state, replay, buffer, jax.random.key(1), updates)


@functools.partial(jax.jit, static_argnums=0)
def update(learner, state, batch, key):
    """One update, compiled once for each learner."""
    return learner.update(state, batch, key)


def _actions():
    return jax.random.uniform(jax.random.key(7), (ROWS, ACTIONS), minval=-1.0, maxval=1.0)


def _rows(obs, action, reward, terminal, next_obs) -> Transition:
    n = len(action)
    return Transition(
        obs=jnp.broadcast_to(obs, (n, OBS)),
        action=action,
        reward=jnp.broadcast_to(reward, (n,)),
        terminal=jnp.full(n, terminal),
        next_obs=jnp.broadcast_to(next_obs, (n, OBS)),
    )
