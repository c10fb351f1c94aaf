"""The learner on problems with known answers, and the joint pass against its definition."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from probes import OBS, SECOND, START, choose, endless, learner, one_step, train, two_steps, update

from qdhuac.learning.policy import Policy
from qdhuac.learning.replay import Batch

VARIANTS = {
    "default": {},
    "one critic, reparam": {"critics": 1, "weight_norm": "reparam"},
    "no norm": {"batch_norm": False, "weight_norm": "none"},
    "target": {"target_tau": 0.05},
    "scalar, no entropy term": {"kind": "scalar", "initial_temperature": 0.0},
    "plain layers": {"residual": False},
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
    assert metrics.means["entropy"] == pytest.approx(-1.0, abs=0.15)
    assert 0.0 < metrics.means["temperature"] < 0.5


def test_entropy_bonus_is_part_of_the_target():
    """With a fixed temperature the endless problem is worth (1 + alpha gamma H / ...) more, by the soft Bellman sum."""
    alpha = 0.3
    agent = learner(initial_temperature=alpha)
    state, metrics = train(agent, endless(), 4000)
    expected = (1.0 + 0.5 * alpha * float(metrics.means["entropy"])) / (1.0 - 0.5)
    assert float(metrics.means["entropy"]) > 0.3  # nothing speaks against the uniform policy, whose entropy is log 2
    np.testing.assert_allclose(values(agent, state, START, ACTION_GRID), expected, atol=0.1)


def make_batch(agent, size=32, seed=0, **changes):
    rng = np.random.default_rng(seed)
    rows = choose()
    pick = rng.integers(0, len(rows.reward), size)
    t = jax.tree.map(lambda x: jnp.asarray(np.asarray(x)[pick]), rows)
    t = t._replace(
        obs=jnp.asarray(rng.normal(size=(size, OBS)), jnp.float32),
        next_obs=jnp.asarray(rng.normal(size=(size, OBS)), jnp.float32),
        terminal=jnp.zeros(size),
    )
    return Batch(t._replace(**changes), jnp.asarray(pick), jnp.ones(size))


def first(critics):
    """The parameters or statistics of the first of several critics."""
    return jax.tree.map(lambda x: x[0], critics)


def joint_pass(agent, state, batch, params, target_params):
    """The loss written out for one critic, with the parameters of each half kept apart."""
    t, n = batch.transition, len(batch.weights)
    noise = jax.random.normal(jax.random.key(3), t.action.shape)
    next_action, log_prob = agent.policy.sample(*state.actor, t.next_obs, noise)
    obs, action = jnp.concatenate([t.obs, t.next_obs]), jnp.concatenate([t.action, next_action])
    logits = agent.critic.apply(params, first(state.stats), obs, action, train=True)[0][:n]
    next_logits = agent.critic.apply(target_params, first(state.stats), obs, action, train=True)[0][n:]
    p = jax.nn.softmax(next_logits)
    atoms = agent.atoms
    moved = t.reward[:, None] + 0.5 * (atoms - jnp.exp(state.log_temperature) * log_prob[:, None])
    moved = jnp.clip(moved, atoms[0], atoms[-1])
    share = jnp.maximum(0.0, 1.0 - jnp.abs(moved[:, None, :] - atoms[None, :, None]) / (atoms[1] - atoms[0]))
    target = jnp.sum(share * p[:, None, :], -1)
    return -jnp.mean(jnp.sum(target * jax.nn.log_softmax(logits), -1))


@pytest.mark.parametrize("target_tau", [0.0, 0.05])
def test_a_scalar_critic_has_the_squared_error_to_the_lower_target_of_the_same_joint_pass(target_tau):
    """With target networks these make the second half of a joint pass of their own."""
    agent = learner(kind="scalar", target_tau=target_tau)
    state = agent.init(jax.random.key(0))
    if target_tau:
        state = state._replace(targets=agent.init(jax.random.key(1)).critics)
    batch = make_batch(agent)
    t, n = batch.transition, len(batch.weights)
    next_action, log_prob = agent.policy.sample(
        *state.actor, t.next_obs, jax.random.normal(jax.random.key(3), t.action.shape)
    )
    obs, action = jnp.concatenate([t.obs, t.next_obs]), jnp.concatenate([t.action, next_action])

    def outputs(critics):
        pairs = [jax.tree.map(lambda x, i=i: x[i], (critics, state.stats)) for i in range(2)]
        return np.stack([agent.critic.apply(p, s, obs, action, train=True)[0] for p, s in pairs])[..., 0]

    both, lagging = outputs(state.critics), outputs(state.targets or state.critics)
    target = t.reward + 0.5 * (lagging[:, n:].min(0) - np.exp(state.log_temperature) * log_prob)
    loss, (_, priorities, metrics) = agent.critic_loss(state.critics, state, batch, jax.random.key(3))
    np.testing.assert_allclose(loss, np.square(both[:, :n] - target).mean(1).sum(), rtol=1e-5)
    np.testing.assert_allclose(priorities, np.abs(both[:, :n] - target).mean(0), rtol=1e-4, atol=1e-6)
    assert "clipped_above" not in metrics


def test_gradient_is_that_of_the_joint_pass_with_a_constant_target():
    agent = learner(critics=1)
    state, _ = train(agent, choose(), 200)
    batch = make_batch(agent)
    params = first(state.critics)
    mine = jax.jit(jax.grad(lambda p: agent.critic_loss(p, state, batch, jax.random.key(3))[0]))
    mine = first(mine(state.critics))
    held = jax.jit(jax.grad(lambda p: joint_pass(agent, state, batch, p, jax.lax.stop_gradient(p))))(params)
    through = jax.jit(jax.grad(lambda p: joint_pass(agent, state, batch, p, p)))(params)
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
        logits = agent.critic.apply(first(state.critics), first(state.stats), *inputs, train=True)[0]
        return jnp.sum(jnp.square(logits[: len(obs)]))

    by_obs, by_next = jax.jit(jax.grad(loss, argnums=(0, 1)))(batch.transition.obs, batch.transition.next_obs)
    assert float(jnp.max(jnp.abs(by_obs))) > 1e-3
    assert float(jnp.max(jnp.abs(by_next))) > 1e-3


KINDS = pytest.mark.parametrize("kind", ["categorical", "scalar"])


def constant(agent, state, *values):
    """The critics of a state, changed to return these values for any input."""

    value = jnp.array(values)[:, None]
    bias = value if agent.scalar else -0.5 * jnp.square((agent.atoms - value) / 0.25)
    return state.critics | {"head": {"kernel": jnp.zeros_like(state.critics["head"]["kernel"]), "bias": bias}}


@KINDS
def test_the_target_is_the_reward_and_unless_terminal_the_lower_critics_discounted_soft_value(kind):
    agent = learner(kind=kind, reward_scale=0.5, v_min=-10.0, v_max=10.0)
    state = agent.init(jax.random.key(0))._replace(log_temperature=jnp.log(1.0))
    batch = make_batch(agent, reward=jnp.linspace(-3.0, 5.0, 32), terminal=jnp.arange(32.0) % 2)
    t, key = batch.transition, jax.random.key(3)
    log_prob = agent.policy.sample(*state.actor, t.next_obs, jax.random.normal(key, t.action.shape))[1]
    target = np.asarray(0.5 * t.reward + 0.5 * (1.0 - t.terminal) * (-2.0 - log_prob))
    assert np.any(np.abs(target) < 1.0)  # between the critics, where errors have opposite signs, ...
    assert np.any(target < -2.1)  # ... and beyond them, where the target decides their mean
    for pair in ((-2.0, 1.0), (1.0, -2.0)):
        loss, (_, priorities, metrics) = agent.critic_loss(constant(agent, state, *pair), state, batch, key)
        errors = 0.5 * (np.abs(target + 2.0) + np.abs(target - 1.0))
        np.testing.assert_allclose(priorities, errors, rtol=1e-3)
        expected = {"critic_loss": float(loss) / 2, "q_mean": -1.0, "q_spread": 3.0, "q_disagreement": 6.0}
        expected |= {"td_error": 2 * np.mean(errors), "td_error_spread": 2 * np.std(errors)}
        assert {name: float(metrics[name]) for name in expected} == pytest.approx(expected, rel=1e-3)


def test_the_mass_of_the_target_beyond_the_support_is_reported():
    agent = learner()
    state = agent.init(jax.random.key(0))
    batch = make_batch(agent, reward=jnp.repeat(jnp.array([100.0, -100.0, 0.0, 1.0]), jnp.array([4, 8, 10, 10])))
    *_, metrics = agent.critic_loss(constant(agent, state, 1.0, 1.0), state, batch, jax.random.key(3))[1]
    found = [float(metrics[name]) for name in ("clipped_above", "clipped_below")]
    assert found == pytest.approx([4 / 32, 8 / 32], abs=1e-4)


@KINDS
def test_importance_weights_weigh_the_losses(kind):
    """Half of the rows twice and the others not at all is the same as those rows two times each."""
    agent = learner(kind=kind, initial_temperature=0.0)
    state = agent.init(jax.random.key(0))
    critics = constant(agent, state, -2.0, 1.0)
    batch = make_batch(agent, reward=jnp.linspace(-2.0, 1.5, 32) ** 2)
    halves = batch._replace(weights=jnp.repeat(jnp.array([2.0, 0.0]), 16))
    twice = batch._replace(transition=jax.tree.map(lambda x: jnp.concatenate([x[:16], x[:16]]), batch.transition))
    loss, expected, unweighted = (
        float(agent.critic_loss(critics, state, b, jax.random.key(3))[0]) for b in (halves, twice, batch)
    )
    assert loss == pytest.approx(expected, rel=1e-5)
    assert abs(unweighted - expected) > 0.1


@KINDS
def test_actor_and_gradient_children_climb_the_lower_critic(kind):
    agent = learner(kind=kind)
    state = agent.init(jax.random.key(0))._replace(log_temperature=jnp.log(0.5))
    t = make_batch(agent).transition
    noise = jax.random.normal(jax.random.key(3), t.action.shape)
    log_prob = float(jnp.mean(agent.policy.sample(*state.actor, t.obs, noise)[1]))
    for pair in ((3.0, -1.0), (-1.0, 3.0)):
        told = state._replace(critics=constant(agent, state, *pair))
        np.testing.assert_allclose(agent.value(told, t.obs, t.action), -1.0, rtol=1e-4)
        loss, entropy = agent.actor_loss(told.actor, told, t.obs, noise)
        assert float(loss) == pytest.approx(0.5 * log_prob + 1.0, rel=1e-4)
        assert float(entropy) == pytest.approx(-log_prob, rel=1e-5)


def test_the_target_entropy_is_minus_the_number_of_actions():
    assert learner(Policy(OBS, 3, (8,))).target_entropy == -3.0


def test_the_initial_distribution_is_uniform_or_around_the_initial_value():
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


RATES = learner(critic_learning_rate=2e-3, actor_learning_rate=5e-4, temperature_learning_rate=1e-2, policy_delay=2)


@pytest.fixture(scope="module")
def first_update():
    """A state before and after its first update, in which every optimiser is one of its own."""
    state = RATES.init(jax.random.key(0))
    after, _, metrics = update(RATES, state, make_batch(RATES), jax.random.key(0))
    return state, after, metrics.means


def largest_step(before, after):
    return max(float(jnp.max(jnp.abs(x - y))) for x, y in zip(*map(jax.tree.leaves, (before, after)), strict=True))


def test_critic_actor_and_temperature_each_have_their_own_learning_rate(first_update):
    """Adam's first step is as long as the learning rate."""
    before, after, metrics = first_update
    heads = [state.critics["head"] for state in (before, after)]  # nothing projects these
    assert largest_step(*heads) == pytest.approx(2e-3, rel=0.01)
    assert largest_step(before.actor, after.actor) == pytest.approx(5e-4, rel=0.01)
    assert largest_step(before.log_temperature, after.log_temperature) == pytest.approx(1e-2, rel=0.01)
    # All weights of columns with unit norm move by the learning rate: 3 inputs, and two layers of 32.
    assert metrics["effective_learning_rate"] == pytest.approx(2e-3 * np.sqrt((3 + 32 + 32) / 3), rel=0.1)


def test_the_actors_gradient_norm_and_entropy_are_those_of_its_loss(first_update):
    """Twice, so that the mean over all updates is right although the actor only moves in every second one."""
    before, after, metrics = first_update
    t = make_batch(RATES).transition
    noise = jax.random.normal(jax.random.split(jax.random.key(0))[1], t.action.shape)
    learnt = after._replace(log_temperature=before.log_temperature)  # the critics move before the actor
    loss = jax.jit(jax.value_and_grad(RATES.actor_loss, has_aux=True))
    (_, entropy), grad = loss(before.actor, learnt, t.obs, noise)
    assert metrics["actor_gradient_norm"] == pytest.approx(2.0 * float(optax.global_norm(grad)), rel=1e-3)
    assert metrics["entropy"] == pytest.approx(2.0 * float(entropy), rel=1e-4)


def test_hidden_kernels_are_on_the_unit_sphere_after_an_update(first_update):
    layers = first_update[1].critics.items()
    hidden = [layer["kernel"] for name, layer in layers if name != "head" and "kernel" in layer]
    assert len(hidden) == 3
    for kernel in hidden:  # [critics, inputs, outputs]
        np.testing.assert_allclose(jnp.linalg.norm(kernel, axis=1), 1.0, atol=1e-5)


@pytest.mark.parametrize("field", ["reward", "obs", "next_obs", "action"])
def test_a_batch_with_nan_changes_nothing_and_is_counted(field):
    agent = RATES
    state = agent.init(jax.random.key(0))
    batch = make_batch(agent)
    poison = getattr(batch.transition, field).at[0].set(jnp.nan)
    bad = batch._replace(transition=batch.transition._replace(**{field: poison}))
    after, priorities, metrics = update(agent, state, bad, jax.random.key(0))
    assert int(metrics.failures["batch"]) == 1
    assert np.all(np.isnan(priorities))
    for a, b in zip(
        jax.tree.leaves(after._replace(updates=0)), jax.tree.leaves(state._replace(updates=0)), strict=True
    ):
        np.testing.assert_array_equal(a, b)
    _, _, metrics = update(agent, state, batch, jax.random.key(0))
    assert not any(map(int, metrics.failures.values()))


def test_a_gradient_of_the_actor_that_is_not_finite_leaves_actor_and_temperature_as_they_were():
    """It climbs values by the running statistics, with which a training batch has nothing to do: here they are none."""
    state = RATES.init(jax.random.key(0))
    stats = state.stats | {"stem_norm": {"mean": jnp.zeros((2, 32)), "var": jnp.full((2, 32), -1.0)}}
    state = state._replace(stats=stats)
    after, priorities, metrics = update(RATES, state, make_batch(RATES), jax.random.key(0))
    assert {name: int(n) for name, n in metrics.failures.items() if n} == {"actor": 1}
    for name in ("actor", "log_temperature", "actor_optimiser", "temperature_optimiser"):
        assert largest_step(getattr(state, name), getattr(after, name)) == 0.0
    assert largest_step(state.critics, after.critics) > 0.0
    assert np.all(np.isnan(priorities))


def test_policy_delay_updates_the_actor_every_second_time():
    state = RATES.init(jax.random.key(0))
    moved = []
    for i in range(4):
        new, _, metrics = update(RATES, state, make_batch(RATES, seed=i), jax.random.key(i))
        moved.append(largest_step(new.actor, state.actor) > 0.0)
        assert [bool(metrics.means[name] != 0.0) for name in ("actor_gradient_norm", "entropy")] == [moved[-1]] * 2
        state = new
    assert moved == [True, False, True, False]


def test_polyak_target_lags_by_tau():
    agent = learner(target_tau=0.25)
    state = agent.init(jax.random.key(0))
    after, _, _ = update(agent, state, make_batch(agent), jax.random.key(0))
    for target, old, new in zip(*map(jax.tree.leaves, (after.targets, state.targets, after.critics)), strict=True):
        np.testing.assert_allclose(target, 0.75 * old + 0.25 * new, atol=1e-6)


def test_a_temperature_of_zero_stays_zero():
    agent = learner(initial_temperature=0.0, temperature_learning_rate=1e-2)
    state, metrics = train(agent, choose(), 200)
    assert float(jnp.exp(state.log_temperature)) == 0.0
    assert metrics.means["temperature"] == 0.0
    assert not any(map(int, metrics.failures.values()))
