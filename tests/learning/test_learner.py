"""The learner against problems with known answers, and the joint pass against its definition."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from probes import ACTIONS, OBS, SECOND, START, choose, endless, learner, one_step, train, two_steps

from qdhuac.learning.replay import Batch

VARIANTS = {
    "default": {},
    "one critic": {"critics": 1},
    "reparam": {"weight_norm": "reparam"},
    "no norm": {"batch_norm": False, "weight_norm": "none"},
    "target": {"target_tau": 0.05},
    "scalar": {"kind": "scalar"},
    "plain layers": {"residual": False},
    "no entropy term": {"initial_temperature": 0.0},
}


def values(agent, state, obs, action):
    obs = jnp.broadcast_to(obs, (len(action), OBS))
    return np.asarray(agent.value(state, obs, jnp.asarray(action)[:, None]) / agent.config.reward_scale)


ACTION_GRID = np.linspace(-0.9, 0.9, 7).astype(np.float32)


@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
def test_two_step_values_are_discounted(changes):
    agent = learner(**changes)
    state, _ = train(agent, two_steps(), 3000)
    np.testing.assert_allclose(values(agent, state, SECOND, ACTION_GRID), 1.0, atol=0.06)
    np.testing.assert_allclose(values(agent, state, START, ACTION_GRID), 0.5, atol=0.06)


def test_terminal_value_is_the_reward():
    agent = learner()
    state, metrics = train(agent, one_step(), 1500)
    np.testing.assert_allclose(values(agent, state, START, ACTION_GRID), 1.0, atol=0.05)
    assert metrics.means["q_mean"] == pytest.approx(1.0, abs=0.05)


def test_a_truncated_step_is_bootstrapped():
    agent = learner()
    state, _ = train(agent, endless(), 2500)
    np.testing.assert_allclose(values(agent, state, START, ACTION_GRID), 2.0, atol=0.1)


def test_reward_scale_cancels_out_of_values_in_raw_units():
    agent = learner(reward_scale=0.01, v_min=-50.0, v_max=50.0)
    rows = endless()
    state, _ = train(agent, rows._replace(reward=10.0 * rows.reward), 2500)
    np.testing.assert_allclose(values(agent, state, START, ACTION_GRID), 20.0, atol=1.0)


def test_actor_finds_the_best_action_and_the_critic_the_shape_of_the_reward():
    agent = learner()
    state, _ = train(agent, choose(0.5), 3000)
    assert float(agent.policy.act(state.actor.policy, START)[0]) == pytest.approx(0.5, abs=0.1)
    near = np.linspace(-0.2, 0.8, 6).astype(np.float32)
    np.testing.assert_allclose(values(agent, state, START, near), 1.0 - 4.0 * np.square(near - 0.5), atol=0.25)


def test_temperature_drives_the_entropy_to_its_target():
    agent = learner(initial_temperature=0.5, temperature_learning_rate=3e-3, actor_learning_rate=3e-3)
    _, metrics = train(agent, choose(0.2), 5000)
    assert metrics.means["entropy"] == pytest.approx(agent.target_entropy, abs=0.15)
    assert 0.0 < metrics.means["temperature"] < 0.5


def test_entropy_bonus_is_part_of_the_target():
    """With a fixed temperature the endless problem is worth (1 + alpha gamma H / ...) more, by the soft Bellman sum."""
    alpha = 0.3
    agent = learner(initial_temperature=alpha)
    state, metrics = train(agent, endless(), 4000)
    expected = (1.0 + 0.5 * alpha * float(metrics.means["entropy"])) / (1.0 - 0.5)
    assert float(metrics.means["entropy"]) > 0.3  # nothing speaks against the uniform policy, whose entropy is log 2
    np.testing.assert_allclose(values(agent, state, START, ACTION_GRID), expected, atol=0.1)


def make_batch(agent, size=32, seed=0):
    rng = np.random.default_rng(seed)
    rows = choose()
    pick = rng.integers(0, len(rows.reward), size)
    t = jax.tree.map(lambda x: x[pick], rows)
    t = t._replace(
        obs=jnp.asarray(rng.normal(size=(size, OBS)), jnp.float32),
        next_obs=jnp.asarray(rng.normal(size=(size, OBS)), jnp.float32),
        terminal=jnp.zeros(size),
    )
    return Batch(t, jnp.asarray(pick), jnp.ones(size))


def joint_pass(agent, state, batch, params, target_params):
    """The loss written out for one critic, with the parameters of each half kept apart."""
    t, n = batch.transition, len(batch.weights)
    noise = jax.random.normal(jax.random.key(3), t.action.shape)
    next_action, log_prob = agent.policy.sample(*state.actor, t.next_obs, noise)
    obs, action = jnp.concatenate([t.obs, t.next_obs]), jnp.concatenate([t.action, next_action])
    logits = agent.critic.apply(params, state.stats[0], obs, action, train=True)[0][:n]
    next_logits = agent.critic.apply(target_params, state.stats[0], obs, action, train=True)[0][n:]
    p = jax.nn.softmax(next_logits)
    atoms = agent.atoms
    moved = t.reward[:, None] + 0.5 * (atoms - jnp.exp(state.log_temperature) * log_prob[:, None])
    moved = jnp.clip(moved, atoms[0], atoms[-1])
    share = jnp.maximum(0.0, 1.0 - jnp.abs(moved[:, None, :] - atoms[None, :, None]) / (atoms[1] - atoms[0]))
    target = jnp.sum(share * p[:, None, :], -1)
    return -jnp.mean(jnp.sum(target * jax.nn.log_softmax(logits), -1))


def test_a_scalar_critic_has_the_squared_error_to_the_lower_target_of_the_same_joint_pass():
    agent = learner(kind="scalar")
    state = agent.init(jax.random.key(0))
    batch = make_batch(agent)
    t, n = batch.transition, len(batch.weights)
    next_action, log_prob = agent.policy.sample(
        *state.actor, t.next_obs, jax.random.normal(jax.random.key(3), t.action.shape)
    )
    obs, action = jnp.concatenate([t.obs, t.next_obs]), jnp.concatenate([t.action, next_action])
    pairs = zip(state.critics, state.stats, strict=True)
    both = np.stack([agent.critic.apply(p, s, obs, action, train=True)[0] for p, s in pairs])[..., 0]
    target = t.reward + 0.5 * (both[:, n:].min(0) - np.exp(state.log_temperature) * log_prob)
    loss, (_, priorities, metrics) = agent.critic_loss(state.critics, state, batch, jax.random.key(3))
    np.testing.assert_allclose(loss, np.square(both[:, :n] - target).mean(1).sum(), rtol=1e-5)
    np.testing.assert_allclose(priorities, np.abs(both[:, :n] - target).mean(0), rtol=1e-4, atol=1e-6)
    assert "clipped_above" not in metrics


def test_gradient_is_that_of_the_joint_pass_with_a_constant_target():
    agent = learner(critics=1)
    state, _ = train(agent, choose(), 200)
    batch = make_batch(agent)
    params = state.critics[0]
    mine = jax.grad(lambda p: agent.critic_loss((p,), state, batch, jax.random.key(3))[0])(params)
    held = jax.grad(lambda p: joint_pass(agent, state, batch, p, jax.lax.stop_gradient(p)))(params)
    through = jax.grad(lambda p: joint_pass(agent, state, batch, p, p))(params)
    for a, b in zip(jax.tree.leaves(mine), jax.tree.leaves(held), strict=True):
        np.testing.assert_allclose(a, b, atol=2e-5)
    assert any(
        float(jnp.max(jnp.abs(b - c))) > 1e-3
        for b, c in zip(jax.tree.leaves(held), jax.tree.leaves(through), strict=True)
    ), "the target's output would carry a gradient if it were not stopped"


def test_gradient_reaches_the_batch_statistics_through_both_halves():
    """Moving only the next observations moves the first half's loss, because the statistics are shared."""
    agent = learner(critics=1)
    state, _ = train(agent, choose(), 200)
    batch = make_batch(agent)

    def loss(obs, next_obs):
        t = batch.transition
        noise = jax.random.normal(jax.random.key(3), t.action.shape)
        next_action, _ = agent.policy.sample(*state.actor, jax.lax.stop_gradient(next_obs), noise)
        inputs = jnp.concatenate([obs, next_obs]), jnp.concatenate([t.action, next_action])
        logits = agent.critic.apply(state.critics[0], state.stats[0], *inputs, train=True)[0]
        return jnp.sum(jnp.square(logits[: len(obs)]))

    by_obs, by_next = jax.grad(loss, argnums=(0, 1))(batch.transition.obs, batch.transition.next_obs)
    assert float(jnp.max(jnp.abs(by_obs))) > 1e-3
    assert float(jnp.max(jnp.abs(by_next))) > 1e-3


def test_the_lower_critic_decides_the_target():
    agent = learner(critics=2)
    state, _ = train(agent, choose(), 50)
    low = state.critics[0] | {"head": {"kernel": 0.0 * state.critics[0]["head"]["kernel"], "bias": -3.0 * agent.atoms}}
    high = state.critics[1] | {"head": {"kernel": 0.0 * state.critics[1]["head"]["kernel"], "bias": 3.0 * agent.atoms}}
    batch = make_batch(agent)
    for pair in ((low, high), (high, low)):
        _, (_, _, metrics) = agent.critic_loss(pair, state, batch, jax.random.key(0))
        # the target is near v_min = -5: half of it, discounted, plus the rewards; nothing is clipped above
        assert float(metrics["clipped_above"]) < 1e-3
        assert float(metrics["td_error"]) > 2.0


def test_initial_distribution_is_uniform_or_around_the_initial_value():
    rows = make_batch(learner()).transition
    starts = [({"v_min": -2.0, "v_max": 10.0}, 4.0), ({"initial_value": 1.0}, 1.0)]
    for changes, expected in starts + [(changes | {"kind": "scalar"}, expected) for changes, expected in starts]:
        agent = learner(**changes)
        state = agent.init(jax.random.key(0))
        np.testing.assert_allclose(agent.value(state, rows.obs, rows.action), expected, atol=0.15)


@pytest.mark.parametrize("support", [(-200.0, 1000.0), (-150.0, 2500.0), (-150.0, 1500.0), (-150.0, 0.0)])
def test_near_an_end_of_the_support_the_start_is_still_the_initial_value(support):
    low, high = support
    agent = learner(v_min=low, v_max=high, atoms=101, initial_value=0.0, reward_scale=0.01)
    rows = make_batch(agent).transition
    start = agent.value(agent.init(jax.random.key(0)), rows.obs, rows.action) / 0.01
    np.testing.assert_allclose(start, 0.0, atol=15.0)  # an Ant that stands still is worth 100


@pytest.mark.parametrize("field", ["reward", "obs", "next_obs", "action"])
def test_a_poisoned_batch_changes_nothing_and_is_counted(field):
    agent = learner()
    state = agent.init(jax.random.key(0))
    batch = make_batch(agent)
    poison = getattr(batch.transition, field).at[0].set(jnp.nan)
    bad = batch._replace(transition=batch.transition._replace(**{field: poison}))
    after, priorities, metrics = agent.update(state, bad, jax.random.key(0))
    assert int(metrics.failures["batch"]) == 1
    assert np.all(np.isnan(priorities))
    for a, b in zip(
        jax.tree.leaves(after._replace(updates=0)), jax.tree.leaves(state._replace(updates=0)), strict=True
    ):
        np.testing.assert_array_equal(a, b)
    _, _, metrics = agent.update(state, batch, jax.random.key(0))
    assert not any(map(int, metrics.failures.values()))


def test_policy_delay_updates_the_actor_every_second_time():
    agent = learner(policy_delay=2)
    state = agent.init(jax.random.key(0))
    moved = []
    for i in range(4):
        new, _, _ = agent.update(state, make_batch(agent, seed=i), jax.random.key(i))
        moved.append(
            any(bool(jnp.any(a != b)) for a, b in zip(*map(jax.tree.leaves, (new.actor, state.actor)), strict=True))
        )
        state = new
    assert moved == [True, False, True, False]


def test_polyak_target_lags_by_tau():
    agent = learner(target_tau=0.25)
    state = agent.init(jax.random.key(0))
    after, _, _ = agent.update(state, make_batch(agent), jax.random.key(0))
    for target, old, new in zip(*map(jax.tree.leaves, (after.targets, state.targets, after.critics)), strict=True):
        np.testing.assert_allclose(target, 0.75 * old + 0.25 * new, atol=1e-6)


def test_log_probability_is_that_of_a_squashed_gaussian():
    from scipy import stats

    agent = learner()
    state = agent.init(jax.random.key(0))
    noise = jnp.linspace(-2.0, 2.0, 9)[:, None]
    obs = jnp.broadcast_to(START, (9, OBS))
    action, log_prob = agent.policy.sample(*state.actor, obs, noise)
    mean = agent.policy.mean(state.actor.policy, agent.policy.features(state.actor.policy, obs))
    std = (jnp.arctanh(action) - mean) / jnp.where(noise == 0, 1, noise)
    std = float(std[0, 0])
    expected = stats.norm.logpdf(np.arctanh(action[:, 0]), mean[:, 0], std) - np.log(1.0 - np.square(action[:, 0]))
    np.testing.assert_allclose(log_prob, expected, atol=1e-3)
    assert dataclasses.replace(agent.policy, hidden=(8,)).init_head(jax.random.key(0))["bias"].shape == (ACTIONS,)


def test_a_temperature_of_zero_stays_zero():
    agent = learner(initial_temperature=0.0, temperature_learning_rate=1e-2)
    state, metrics = train(agent, choose(), 200)
    assert float(jnp.exp(state.log_temperature)) == 0.0
    assert metrics.means["temperature"] == 0.0
    assert not any(map(int, metrics.failures.values()))
