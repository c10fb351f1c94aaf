"""Running moments equal those of NumPy over all rows; a folded actor takes raw observations."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qdhuac.config import CriticConfig, LearnerConfig
from qdhuac.learning import moments
from qdhuac.learning.policy import Policy
from qdhuac.learning.replay import Replay
from qdhuac.learning.target_free import TargetFreeLearner
from qdhuac.metrics import symptoms
from qdhuac.types import Evaluation, Transition


def test_moments_are_those_of_all_counted_rows_together():
    rng, found, kept = np.random.default_rng(0), moments.init(3), []
    for n in (1, 50, 7, 200):
        rows = rng.normal([100.0, -3.0, 0.0], [0.5, 20.0, 0.0], (n, 3)).astype(np.float32)
        counted = rng.random(n) < 0.7
        found = moments.add(found, jnp.where(counted[:, None], rows, jnp.nan), jnp.asarray(counted))
        kept.append(rows[counted])
    rows = np.concatenate(kept).astype(np.float64)
    assert int(found.rows) == len(rows)
    np.testing.assert_allclose(found.mean, rows.mean(0), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(moments.deviation(found)[:2], rows.std(0)[:2], rtol=1e-3)
    assert moments.deviation(found)[2] == 0.0


def test_no_counted_rows_change_nothing():
    found = moments.add(moments.init(2), jnp.full((5, 2), 3.0), jnp.zeros(5, bool))
    for a, b in zip(found, moments.init(2), strict=True):
        np.testing.assert_array_equal(a, b)


def test_the_injected_actor_acts_on_raw_observations_as_the_learners_does_on_scaled_ones():
    policy = Policy(4, 2, (32, 32))
    learner = TargetFreeLearner(policy, CriticConfig(width=8, blocks=1), LearnerConfig(normalise_observations=True))
    state = learner.init(jax.random.key(0))
    obs = 30.0 + jnp.array([0.1, 1.0, 10.0, 0.0]) * jax.random.normal(jax.random.key(1), (500, 4))
    state = state._replace(seen=moments.add(state.seen, obs, jnp.ones(500, bool)))
    spread = jnp.std(obs, 0)
    scaled = (obs - jnp.mean(obs, 0)) / jnp.where(spread > 1e-3, spread, 1.0)
    injected = learner.injected(state)
    assert jax.tree.map(jnp.shape, injected) == jax.tree.map(jnp.shape, policy.init(jax.random.key(0)))
    np.testing.assert_allclose(policy.act(injected, obs), policy.act(state.actor.policy, scaled), atol=1e-4)
    assert np.abs(policy.act(injected, obs) - policy.act(state.actor.policy, obs)).max() > 0.1


def episodes(scale=1.0, constant=False):
    """Two episodes of 30 steps; the second ends, and was not simulated after that."""
    reward = scale * (jnp.ones((2, 30)) if constant else jax.random.normal(jax.random.key(2), (2, 30)))
    terminal = jnp.zeros((2, 30)).at[1, 9].set(1.0)
    stored = jnp.ones((2, 30), bool).at[1, 10:].set(False)
    t = Transition(jnp.zeros((2, 30, 1)), jnp.zeros((2, 30, 1)), reward, terminal, jnp.zeros((2, 30, 1)))
    return t, stored


def returns_of(t, stored):
    out = []
    for rewards, counted in zip(np.asarray(t.reward, np.float64), np.asarray(stored), strict=True):
        after = 0.0
        for r in rewards[counted][::-1]:
            after = r + 0.9 * after
            out.append(after)
    return np.array(out)


@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e4])
def test_scaled_returns_vary_by_one_or_leave_room_at_the_supports_end_whatever_the_rewards(scale):
    t, stored = episodes(scale)
    found = moments.add_returns(moments.no_returns(), t, stored, 0.9)
    truth = returns_of(t, stored)
    spread = max(truth.std(), np.abs(truth).max() / 4.0)
    np.testing.assert_allclose(moments.reward_scale(found), 1.0 / spread, rtol=1e-4)
    # Returns that hardly vary are held back where a fifth of the support is left for better ones.
    t, stored = episodes(scale, constant=True)
    found = moments.add_returns(moments.no_returns(), t, stored, 0.0)
    np.testing.assert_allclose(moments.reward_scale(found), 4.0 / scale, rtol=1e-4)


def test_rewards_that_are_all_zero_are_left_as_they_are():
    t, stored = episodes(0.0)
    found = moments.add_returns(moments.no_returns(), t, stored, 0.9)
    assert float(moments.reward_scale(moments.no_returns())) == float(moments.reward_scale(found)) == 1.0


@pytest.mark.parametrize(("huge", "source"), [("reward", "reward_scale"), ("obs", "observation_scale")])
def test_moments_beyond_float32_are_left_as_they_were_and_counted_by_name(huge, source):
    config = LearnerConfig(normalise_rewards=True, normalise_observations=True)
    learner = TargetFreeLearner(Policy(1, 1, (8,)), CriticConfig(width=8, blocks=1, v_min=-5.0, v_max=5.0), config)
    t, stored = episodes()
    evaluation = Evaluation(jnp.zeros(2), jnp.zeros((2, 1)), jnp.full(2, 30), t, stored)
    state, metrics = learner.observe(learner.init(jax.random.key(0)), evaluation, None, stored)
    assert not any(map(int, metrics.failures.values()))
    t = t._replace(**{huge: getattr(t, huge).at[0, 3].set(1e25)})  # finite, and its square is not
    after, metrics = learner.observe(state, evaluation._replace(transitions=t), None, stored)
    assert {name: int(n) for name, n in metrics.failures.items() if n} == {source: 1}
    unchanged = {"reward": "returns", "obs": "seen"}[huge]
    for a, b in zip(*(jax.tree.leaves(getattr(s, unchanged)) for s in (after, state)), strict=True):
        np.testing.assert_array_equal(a, b)
    assert np.all([np.isfinite(x).all() for x in jax.tree.leaves(learner.injected(after))])


def test_a_learner_with_scaled_rewards_learns_the_same_whatever_their_unit():
    """Rewards a thousand times as large give the same actor, and values a thousand times as large."""
    config = LearnerConfig(normalise_rewards=True, batch_size=32)
    learner = TargetFreeLearner(Policy(1, 1, (8,)), CriticConfig(width=8, blocks=1, v_min=-5.0, v_max=5.0), config)
    learn = jax.jit(learner.learn, static_argnums=1)

    def learnt(scale):
        t, stored = episodes(scale)
        replay = Replay(64, 1, 1)
        rows = jax.tree.map(lambda x: x.reshape(60, *x.shape[2:]), t)
        buffer = replay.add(replay.init(), rows, stored.reshape(-1))
        state = learner.init(jax.random.key(0))
        state = state._replace(returns=moments.add_returns(state.returns, t, stored, config.discount))
        state, _, metrics = learn(state, replay, buffer, jax.random.key(1), 5)
        return state, metrics

    (one, metrics), (other, large) = learnt(1.0), learnt(1000.0)
    for a, b in zip(jax.tree.leaves(one.actor), jax.tree.leaves(other.actor), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5)
    assert float(large.means["q_spread"]) == pytest.approx(1000.0 * float(metrics.means["q_spread"]), rel=1e-2)


def test_a_support_in_scaled_units_is_not_taken_for_the_returns_to_expect():
    """Otherwise healthy values, which metrics give in raw units, would be warned of."""
    critic = CriticConfig(v_min=-5.0, v_max=5.0)
    for normalise, known in ((True, False), (False, True)):
        learner = TargetFreeLearner(Policy(1, 1), critic, LearnerConfig(normalise_rewards=normalise))
        assert bool(symptoms({"q_mean": 140.0, "q_spread": 50.0}, *learner.value_range)) == known
        assert float(learner.atoms[-1]) == pytest.approx(5.0 if normalise else 0.05)
