"""TD3 against problems with known answers, and its targets against numbers worked out by hand."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from probes import ACTIONS, OBS, SECOND, START, choose, endless, one_step, td3, train, two_steps, update

from qdhuac.learning.replay import Batch
from qdhuac.types import Transition

ACTION_GRID = np.linspace(-0.9, 0.9, 7).astype(np.float32)


def values(agent, state, obs, action=ACTION_GRID):
    """Both critics. [2, n]"""
    obs = jnp.broadcast_to(obs, (len(action), OBS))
    return np.asarray(agent.q(state.critics, obs, jnp.asarray(action)[:, None]) / agent.config.reward_scale)


def same(a, b):
    return all(bool(jnp.array_equal(x, y)) for x, y in zip(*map(jax.tree.leaves, (a, b)), strict=True))


def make_batch(size=16, seed=0, **changes):
    rng = np.random.default_rng(seed)
    normal = lambda *shape: jnp.asarray(rng.normal(size=shape), jnp.float32)  # noqa: E731
    t = Transition(normal(size, OBS), jnp.tanh(normal(size, ACTIONS)), normal(size), jnp.zeros(size), normal(size, OBS))
    return Batch(t._replace(**changes), jnp.arange(size), jnp.ones(size))


def constant(agent, *outputs):
    """Critics that return these numbers for any input."""
    zero = jax.tree.map(jnp.zeros_like, agent.critic.init(jax.random.key(0)))
    head = f"Dense_{agent.critic_config.blocks}"
    return tuple(zero | {head: zero[head] | {"bias": jnp.array([float(q)])}} for q in outputs)


@pytest.mark.parametrize("exponent", [0.0, 0.6])
def test_two_step_values_are_discounted(exponent):
    agent = td3()
    state, _ = train(agent, two_steps(), 2000, exponent)
    np.testing.assert_allclose(values(agent, state, SECOND), 1.0, atol=0.05)
    np.testing.assert_allclose(values(agent, state, START), 0.5, atol=0.05)


def test_a_terminal_step_is_worth_its_reward_and_a_truncated_one_is_bootstrapped():
    agent = td3()
    state, metrics = train(agent, one_step(), 1500, 0.0)
    np.testing.assert_allclose(values(agent, state, START), 1.0, atol=0.05)
    assert metrics.means["q_mean"] == pytest.approx(1.0, abs=0.05)
    assert metrics.means["critic_loss"] < 1e-3
    state, _ = train(agent, endless(), 2000, 0.0)
    np.testing.assert_allclose(values(agent, state, START), 2.0, atol=0.1)


def test_reward_scale_cancels_out_of_values_in_raw_units():
    agent = td3(reward_scale=0.1)
    rows = endless()
    state, metrics = train(agent, rows._replace(reward=10.0 * rows.reward), 2000, 0.0)
    np.testing.assert_allclose(values(agent, state, START), 20.0, atol=1.0)
    assert metrics.means["q_mean"] == pytest.approx(20.0, abs=1.0)


def test_actor_finds_the_best_action_and_the_critics_the_shape_of_the_reward():
    # The actor slower than the critics, or its tanh saturates before they know anything.
    agent = td3(width=64, critic_learning_rate=3e-3, actor_learning_rate=3e-4)
    state, _ = train(agent, choose(0.3), 2000, 0.0)
    assert float(agent.policy.act(state.actor, START)[0]) == pytest.approx(0.3, abs=0.1)
    assert float(agent.policy.act(state.target_actor, START)[0]) == pytest.approx(0.3, abs=0.1)
    near = np.linspace(-0.2, 0.8, 6).astype(np.float32)
    expected = np.broadcast_to(1.0 - 4.0 * np.square(near - 0.3), (2, 6))
    np.testing.assert_allclose(values(agent, state, START, near), expected, atol=0.25)


def test_the_target_uses_the_lower_critic_and_only_where_the_episode_continues():
    agent = td3(discount=0.5, reward_scale=0.5)
    terminal = jnp.array([0.0, 1.0, 0.0])
    batch = make_batch(3, reward=jnp.array([2.0, 4.0, 6.0]), terminal=terminal)
    state = agent.init(jax.random.key(0))
    for pair in ((4.0, 10.0), (10.0, 4.0)):
        state = state._replace(target_critics=constant(agent, *pair))
        target = agent.target(state, batch.transition, jax.random.key(1))
        np.testing.assert_allclose(target, [1.0 + 2.0, 2.0, 3.0 + 2.0], rtol=1e-6)
        # the weighted losses of critics that say 0 and 4, summed: one below the targets 3, 2 and 5, one on both sides
        weighted = batch._replace(weights=jnp.array([1.0, 2.0, 0.5]))
        loss, (priorities, metrics) = agent.critic_loss(constant(agent, 0, 4), state, weighted, jax.random.key(1))
        np.testing.assert_allclose(loss, np.mean([9, 8, 12.5]) + np.mean([1, 8, 0.5]), rtol=1e-6)
        np.testing.assert_allclose(priorities, [2.0, 2.0, 3.0], rtol=1e-6)
        expected = {"critic_loss": 6.5, "q_mean": 4, "q_spread": 4, "q_disagreement": 8, "td_error": 14 / 3}
        expected |= {"td_error_spread": 2 * np.std([2, 2, 3])}
        assert {name: float(value) for name, value in metrics.items()} == pytest.approx(expected, rel=1e-5)


def test_the_targets_action_is_smoothed_and_clipped_twice():
    """With critics that return the action itself, the target shows the action: pi' + clipped noise, clipped."""
    agent = td3(blocks=0, discount=1 - 1e-6, target_noise=0.4, target_noise_clip=0.5)
    identity = {"Dense_0": {"kernel": jnp.array([[0.0], [0.0], [1.0]]), "bias": jnp.zeros(1)}}
    state = agent.init(jax.random.key(0))._replace(target_critics=(identity, identity))
    n = 4000
    batch = make_batch(n, reward=jnp.zeros(n), next_obs=jnp.broadcast_to(START, (n, OBS)))
    key = jax.random.key(5)
    noise = np.clip(0.4 * np.asarray(jax.random.normal(key, (n, 1)))[:, 0], -0.5, 0.5)
    for bias in (0.0, 10.0):
        actor = jax.tree.map(jnp.zeros_like, state.actor)
        actor["Dense_2"]["bias"] += bias
        shown = np.asarray(agent.target(state._replace(target_actor=actor), batch.transition, key))
        np.testing.assert_allclose(shown, np.clip(np.tanh(bias) + noise, -1.0, 1.0), atol=1e-5)
    assert np.mean(np.abs(noise) == 0.5) > 0.1  # the clip was needed


RATES = td3(critic_learning_rate=2e-3, actor_learning_rate=5e-4, target_tau=0.25)


def test_critics_and_actor_each_have_their_own_learning_rate():
    """Adam's first step is as long as the learning rate; the actor's is the second update."""
    states, norms = [RATES.init(jax.random.key(0))], []
    for i in range(2):
        state, _, metrics = update(RATES, states[-1], make_batch(seed=i), jax.random.key(i))
        states.append(state)
        norms.append(float(metrics.means["actor_gradient_norm"]))
    for part, before, rate in (("critics", 0, 2e-3), ("actor", 1, 5e-4)):
        pair = (jax.tree.leaves(getattr(state, part)) for state in states[before : before + 2])
        largest = max(float(jnp.max(jnp.abs(x - y))) for x, y in zip(*pair, strict=True))
        assert largest == pytest.approx(rate, rel=0.01)
    # Twice the norm, so that the mean over all updates is right although the actor only moves in every second one.
    obs = make_batch(seed=1).transition.obs
    climbed = jax.jit(jax.grad(lambda actor: jnp.mean(RATES.value(states[2], obs, RATES.policy.act(actor, obs)))))
    grad = climbed(states[1].actor)
    assert norms == pytest.approx([0.0, 2.0 * float(optax.global_norm(grad))], rel=1e-4)


def test_targets_follow_by_tau_and_the_actor_every_second_time():
    agent = RATES
    states, moved = [agent.init(jax.random.key(0))], []
    for i in range(4):
        states.append(update(agent, states[-1], make_batch(seed=i), jax.random.key(i))[0])
        before, after = states[-2:]
        moved.append(not same(before.actor, after.actor))
        assert same(before.target_actor, after.target_actor) == (not moved[-1])
        pairs = [(before.target_critics, after.critics, after.target_critics)]
        pairs += [(before.target_actor, after.actor, after.target_actor)] * moved[-1]
        for old, new, target in pairs:
            for x, y, z in zip(*map(jax.tree.leaves, (old, new, target)), strict=True):
                np.testing.assert_allclose(z, 0.75 * x + 0.25 * y, atol=1e-6)
    assert moved == [False, True, False, True]


def test_actor_and_mutations_climb_the_first_critic():
    agent = td3()
    state = agent.init(jax.random.key(0))._replace(critics=constant(agent, 7.0, 3.0))
    t = make_batch().transition
    np.testing.assert_allclose(agent.value(state, t.obs, t.action), 7.0)


@pytest.mark.parametrize("field", ["reward", "obs", "next_obs", "action"])
def test_a_batch_with_nan_changes_nothing_and_is_counted(field):
    agent = RATES
    state = agent.init(jax.random.key(0))
    batch = make_batch()
    poison = getattr(batch.transition, field).at[0].set(jnp.nan)
    bad = batch._replace(transition=batch.transition._replace(**{field: poison}))
    after, priorities, metrics = update(agent, state, bad, jax.random.key(0))
    assert int(metrics.failures["batch"]) == 1
    assert np.all(np.isnan(priorities))
    assert int(after.updates) == 1
    assert same(after._replace(updates=0), state._replace(updates=0))
    _, _, metrics = update(agent, state, batch, jax.random.key(0))
    assert not any(map(int, metrics.failures.values()))
