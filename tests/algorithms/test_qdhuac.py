"""The whole algorithm on an environment that compiles quickly: composition, injection, storage, learning."""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reach import STEPS, ReachTask, asked, begun, generation, made_by, numbers

from qdhuac import config as configuration
from qdhuac.algorithms import specs
from qdhuac.algorithms.specs import build as build_algorithm
from qdhuac.emitters import gradient
from qdhuac.emitters.base import Seen
from qdhuac.emitters.gradient import gradient_mutation
from qdhuac.errors import UserError


@functools.cache
def make(**overrides):
    values = {
        "emitter.batch_size": 10,
        "learner.batch_size": 64,
        "learner.reward_scale": 0.1,
        "learner.discount": 0.8,
        "task.episode_length": STEPS,
        "archive.capacity": 20,
        "archive.neighbours": 3,
        "replay.capacity": 4000,
    } | {name.replace("__", "."): value for name, value in overrides.items()}
    config = specs.make("qdhuac", "smoke", values)
    task = ReachTask()
    return task, build_algorithm(config, task)


@pytest.fixture(scope="module")
def trained():
    """Thirty generations, and the metrics of the first and the last."""
    task, algorithm = make(emitter__exploration_rollouts=2)
    state = begun(algorithm)
    records = []
    for _ in range(30):
        state, emission, evaluation, record = generation(task, algorithm, state, jnp.int32(100))
        records.append(jax.device_get(record))
    return task, algorithm, state, emission, evaluation, records


@pytest.mark.parametrize(("explorers", "expected"), [(0, [5, 4, 1, 0]), (2, [4, 3, 1, 2])])
def test_offspring_are_split_among_the_operators(explorers, expected):
    _, algorithm = make(emitter__exploration_rollouts=explorers)
    state = begun(algorithm)
    assert made_by(algorithm, asked(algorithm, state)) == ["random"] * (10 - explorers) + ["explore"] * explorers
    state = state._replace(archive=state.archive._replace(fitness=state.archive.fitness.at[0].set(1.0)))
    operators = made_by(algorithm, asked(algorithm, state))
    assert [operators.count(o) for o in ("isoline", "gradient", "actor", "explore")] == expected


@pytest.mark.parametrize("algorithm", ["qdhuac", "pga_me", "qd_pg", "dcrl_me", "dns"])
@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("fitness", lambda e: e._replace(fitness=e.fitness[:, None])),
        ("steps", lambda e: e._replace(steps=e.steps[1:])),
        ("descriptor", lambda e: e._replace(descriptor=e.descriptor[:, [0, 0]])),
        ("transitions", lambda e: e._replace(transitions=None)),
        ("valid", lambda e: e._replace(valid=None)),
        ("transitions.obs", lambda e: _column(e, obs=e.transitions.obs[..., :1], next_obs=e.transitions.obs[..., :3])),
        ("transitions.action", lambda e: _column(e, action=e.transitions.action[..., 0])),
        ("transitions.reward", lambda e: _column(e, reward=e.transitions.reward[..., None])),
        ("transitions.contacts", lambda e: _column(e, contacts=None)),
    ],
)
def test_results_of_a_wrong_shape_are_refused_by_name(algorithm, name, change):
    if (algorithm == "dns" and "transitions" in name) or (algorithm != "qd_pg" and "contacts" in name):
        pytest.skip("it does not look at them")
    ring, *shapes = results(algorithm)
    with pytest.raises(UserError, match=f"^{name}: "):
        jax.eval_shape(lambda state, sent, found: ring.tell(state, sent, change(found)), *shapes)
    jax.eval_shape(ring.tell, *shapes)


@functools.cache
def results(algorithm):
    """An algorithm, and the shapes of its state, of what it asks for, and of the results."""
    task = ReachTask().changed(contacts=algorithm == "qd_pg")
    ring = build_algorithm(specs.make(algorithm, "smoke", {"task.episode_length": STEPS}), task)
    state = jax.eval_shape(ring.init, jax.random.key(0))
    emission = jax.eval_shape(ring.ask, state)
    return ring, state, emission, jax.eval_shape(task.evaluate, emission.genotypes, state.key, emission.exploration)


def _column(evaluation, **columns):
    return evaluation._replace(transitions=evaluation.transitions._replace(**columns))


def test_the_injected_genotype_is_the_learners_actor_without_its_head(trained):
    _, algorithm, state, *_ = trained
    emission = asked(algorithm, state)
    operators = made_by(algorithm, emission)
    slot = operators.index("actor")
    for child, actor in zip(*map(jax.tree.leaves, (emission.genotypes, state.learner.actor.policy)), strict=True):
        np.testing.assert_array_equal(child[slot], actor)
    assert emission.exploration is not None
    active = np.asarray(emission.exploration.active)
    assert active.tolist() == [name == "explore" for name in operators]


def test_exploring_rollouts_give_data_but_are_not_archived(trained):
    task, algorithm, state, emission, *_ = trained
    assert algorithm.operators.index("explore") not in np.asarray(state.archive.provenance.operator)
    rows = algorithm.replay.unpack(state.replay.rows[: int(state.replay.size)])
    assert int(state.replay.size) == 30 * 10 * STEPS
    # The last two rollouts of a generation explore: their actions are not what their policy says.
    deterministic = jax.vmap(task.policy.act)(emission.genotypes, rows.obs[-10 * STEPS :].reshape(10, STEPS, -1))
    surprise = np.max(np.abs(deterministic - rows.action[-10 * STEPS :].reshape(10, STEPS, -1)), axis=(1, 2))
    assert np.all(surprise[:8] < 1e-5)
    assert np.all(surprise[8:] > 1e-3)


def test_it_learns_to_reach_the_goal(trained):
    _, _, state, _, _, records = trained
    best = max(float(r["actor/fitness"]) for r in records[-3:])
    assert best > 5.0  # standing still is worth 0; going straight to +1 is worth at least 5.7
    assert float(jnp.max(state.archive.fitness)) >= best - 1e-5
    assert float(records[-1]["critic_loss"]) < float(records[0]["critic_loss"])


def test_gradient_children_improve_on_their_parents_by_the_critics_own_measure(trained):
    _, algorithm, state, *_ = trained
    (climb,) = (emitter for emitter, _ in algorithm.emitters if emitter.name == "gradient")
    seen = Seen(state.archive, state.replay, state.learner)
    offspring = jax.jit(climb.ask, static_argnums=3)(jax.random.key(5), (), seen, 4)
    children, slots = offspring.genotypes, offspring.parents[:, 0]
    obs = algorithm.replay.sample(state.replay, jax.random.key(6), 256).transition.obs

    def value(genotype):
        return jnp.mean(algorithm.learner.value(state.learner, obs, algorithm.learner.policy.act(genotype, obs)))

    parents = jax.tree.map(lambda x: x[slots], state.archive.genotypes)
    better = jax.jit(jax.vmap(value))
    gains = np.asarray(better(children)) - np.asarray(better(parents))
    assert np.mean(gains) > 0.01
    assert np.sum(gains > 0.0) >= 3  # of four: a parent may be the best already


def test_gradient_mutation_is_adam_from_a_fresh_start():
    """Adam's first step is the learning rate times the sign of the gradient, for each parent on its own."""
    parents = {"w": jnp.array([[1.0, -2.0], [0.5, 0.0]])}
    children = gradient_mutation(
        jax.random.key(0),
        parents,
        lambda key: jnp.array([[3.0, -3.0], [1.0, -1.0]]),
        lambda g, obs, _: jnp.sum(g["w"] * obs.mean(0)) * jnp.sign(g["w"][1] + 1.0),
        steps=1,
        learning_rate=0.1,
    )
    np.testing.assert_allclose(children["w"], [[0.9, -1.9], [0.6, -0.1]], atol=1e-4)


def test_gradient_mutation_of_many_parents_is_that_of_each_and_spares_memory():
    weights = jax.random.normal(jax.random.key(1), (16, 512))

    def mutate(key, parents):
        return gradient_mutation(
            key,
            parents,
            lambda key: jax.random.normal(key, (64, 16)),
            lambda g, obs, _: jnp.mean(jnp.tanh((obs * g["w"]) @ weights)),
            steps=2,
            learning_rate=0.1,
        )

    def memory(n):
        shapes = jax.random.key(0), {"w": jax.ShapeDtypeStruct((n, 16), jnp.float32)}
        return jax.jit(mutate).lower(*shapes).compile().memory_analysis().temp_size_in_bytes

    parents = {"w": jax.random.normal(jax.random.key(2), (70, 16))}
    together = jax.jit(mutate)(jax.random.key(0), parents)["w"]
    gradient.AT_ONCE, before = 1000, gradient.AT_ONCE
    try:
        at_once = jax.jit(lambda *x: mutate(*x))(jax.random.key(0), parents)["w"]
    finally:
        gradient.AT_ONCE = before
    np.testing.assert_allclose(together, at_once, rtol=1e-5)
    assert memory(320) < 2 * memory(32)


def test_gradient_mutation_draws_new_states_for_every_step_and_parent():
    drawn = []

    def observe(key):
        obs = jax.random.normal(key, (1,))
        jax.debug.callback(lambda x: drawn.append(float(x[0])), obs)
        return obs

    parents = {"w": jnp.zeros((3, 1))}
    climb = lambda g, o, _: jnp.sum(g["w"] * o)  # noqa: E731
    gradient_mutation(jax.random.key(0), parents, observe, climb, steps=4, learning_rate=0.1)
    jax.effects_barrier()
    assert len(drawn) == len(set(drawn)) == 12


@pytest.mark.parametrize("occupied", [False, True])
def test_with_an_empty_archive_no_gradient_steps_are_made(occupied):
    _, algorithm = make(emitter__gradient_steps=4)
    state = begun(algorithm)
    if occupied:
        state = state._replace(archive=state.archive._replace(fitness=state.archive.fitness.at[0].set(1.0)))
    looks = []

    def value(learner, obs, action):
        jax.debug.callback(lambda: looks.append(1))
        return jnp.sum(action, axis=-1)

    (climb,) = (emitter for emitter, _ in algorithm.emitters if emitter.name == "gradient")
    seen = Seen(state.archive, state.replay, state.learner)
    dataclasses.replace(climb, value=value).ask(jax.random.key(0), (), seen, 2)
    jax.effects_barrier()
    assert bool(looks) == occupied


def test_a_rollout_with_nan_enters_neither_archive_nor_replay():
    task, algorithm = make()
    state = begun(algorithm)
    emission = asked(algorithm, state)
    evaluation = task.evaluate(emission.genotypes, jax.random.key(1))
    rewards = evaluation.transitions.reward.at[3, 2].set(jnp.nan)
    evaluation = evaluation._replace(transitions=evaluation.transitions._replace(reward=rewards))
    state, told = jax.jit(algorithm.tell)(state, emission, evaluation)
    record = numbers(told.metrics)
    assert int(record["rejected_reward"]) == int(record["rejected"]) == 1
    assert int(state.replay.size) == 9 * STEPS
    assert int(jnp.sum(jnp.isfinite(state.archive.fitness))) == 9
    assert bool(jnp.all(jnp.isfinite(state.replay.rows)))


@functools.partial(jax.jit, static_argnums=0)
def learn(algorithm, state, updates):
    return algorithm.learn(state, updates)


def test_nothing_is_learnt_from_an_empty_buffer():
    _, algorithm = make(emitter__exploration_rollouts=2)  # as `trained`
    state = begun(algorithm)
    after, _ = learn(algorithm, state, jnp.int32(5))
    for a, b in zip(jax.tree.leaves(after._replace(key=0)), jax.tree.leaves(state._replace(key=0)), strict=True):
        np.testing.assert_array_equal(a, b)


def test_updates_do_not_depend_on_how_they_are_chunked():
    task, algorithm = make(emitter__exploration_rollouts=2)  # as `trained`
    state, *_ = generation(task, algorithm, begun(algorithm), jnp.int32(1))
    whole, _ = learn(algorithm, state, jnp.int32(30))
    parts, _ = learn(algorithm, learn(algorithm, state, jnp.int32(11))[0], jnp.int32(19))
    for a, b in zip(jax.tree.leaves(whole.learner), jax.tree.leaves(parts.learner), strict=True):
        np.testing.assert_array_equal(a, b)


def test_support_comes_from_the_task_unless_it_is_given():
    _, algorithm = make()
    assert (algorithm.learner.critic_config.v_min, algorithm.learner.critic_config.v_max) == (-20.0, 10.0)
    _, algorithm = make(critic__v_max=50.0)
    np.testing.assert_allclose(algorithm.learner.atoms[jnp.array([0, -1])], [-2.0, 5.0], rtol=1e-6)
    with pytest.raises(configuration.UserError, match=r"critic.v_min=70.*below critic.v_max=10"):
        make(critic__v_min=70.0)
