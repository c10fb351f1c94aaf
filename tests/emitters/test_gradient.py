"""Gradient children: their parents, the states of their minibatches, and what they climb."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from probes import OBS, POLICY, td3

from qdhuac.algorithms.dcrl_me import ConditionedActor, Conditioning
from qdhuac.emitters import gradient
from qdhuac.emitters.base import Seen
from qdhuac.emitters.gradient import GradientChildren, gradient_mutation
from qdhuac.emitters.isoline import IsoLine
from qdhuac.learning.policy import Policy
from qdhuac.learning.replay import Replay
from qdhuac.types import Individuals, Transition

RATE = 0.01
REPLAY = Replay(64, OBS, 1)


def archive(policy, slots=8):
    """Individuals in slots 1, 3, 4 and 6, by far the fittest in 4; the last two biases say which slot it is."""
    fitness = np.full(slots, -np.inf, np.float32)
    fitness[[1, 3, 4, 6]] = -1e6, 1.0, 1e6, 2.0
    genotypes = jax.jit(jax.vmap(policy.init))(jax.random.split(jax.random.key(0), slots))
    return Individuals(genotypes, jnp.asarray(fitness), jnp.zeros((slots, 1)), None)


def stored(signs, priorities):
    """A buffer whose observations [sign, 1] have these priorities."""
    n = len(signs)
    obs = np.stack([signs, np.ones(n)], axis=-1).astype(np.float32)
    rows = Transition(obs, np.zeros((n, 1), np.float32), np.zeros(n, np.float32), np.zeros(n, np.float32), obs)
    return _stored(rows, np.asarray(priorities, np.float32))


@jax.jit
def _stored(rows, priorities):
    n = len(priorities)
    return REPLAY.set_priorities(REPLAY.add(REPLAY.init(), rows, jnp.ones(n, bool)), jnp.arange(n), priorities)


AGENT = td3(Policy(OBS + 1, 1, (32, 32)))
CONDITIONING = Conditioning(POLICY, ((-1.0,), (1.0,)), 0.1)
EMITTERS = {
    "isoline": IsoLine(),
    "gradient": GradientChildren(lambda learner, obs, action: action[:, 0], POLICY, REPLAY, 4, 1, RATE),
    "conditioned": GradientChildren(AGENT.value, POLICY, REPLAY, 4, 1, RATE, condition=CONDITIONING.condition),
    "conditioned actor": ConditionedActor(CONDITIONING, AGENT),
}


@pytest.mark.parametrize("name", EMITTERS)
def test_parents_are_drawn_uniformly_from_the_archive(name):
    emitter, n = EMITTERS[name], 1600
    seen = Seen(archive(POLICY), stored([1.0, -1.0], [1.0, 1.0]), jax.jit(AGENT.init)(jax.random.key(0)))
    parents = np.asarray(jax.jit(emitter.ask, static_argnums=3)(jax.random.key(1), (), seen, n).parents)
    for drawn in parents.T if name == "isoline" else parents[:, :1].T:
        counts = np.bincount(drawn, minlength=8)
        assert set(np.flatnonzero(counts)) == {1, 3, 4, 6}
        assert np.all(np.abs(counts[[1, 3, 4, 6]] - n / 4) < 5 * np.sqrt(n * 3 / 16))  # five standard deviations
    if name != "isoline":
        assert np.all(parents[:, 1] == -1)


def test_conditioned_children_are_made_for_the_descriptors_of_their_parents():
    full = archive(POLICY)._replace(descriptor=jnp.arange(8.0)[:, None])
    buffer, learner = stored([1.0], [1.0]), AGENT.init(jax.random.key(0))
    made = EMITTERS["conditioned"].ask(jax.random.key(1), (), Seen(full, buffer, learner), 5)
    np.testing.assert_array_equal(made.target[:, 0], made.parents[:, 0])
    empty = full._replace(fitness=jnp.full(8, -jnp.inf))
    assert np.isnan(EMITTERS["conditioned"].ask(jax.random.key(1), (), Seen(empty, buffer, learner), 5).target).all()


LINEAR = Policy(OBS, 1, ())  # action = tanh(w obs + b)


def climb(value, buffer, *, steps=1, n=4, batch_size=64):
    """How far the weights of children are from those of their parents. Leaves [n, ...]"""
    emitter = GradientChildren(value, LINEAR, REPLAY, batch_size, steps, RATE)
    seen = Seen(archive(LINEAR), buffer, None)
    out = jax.jit(emitter.ask, static_argnums=3)(jax.random.key(1), (), seen, n)
    return jax.tree.map(
        lambda child, old: np.asarray(child) - np.asarray(old)[out.parents[:, 0]], out.genotypes, seen.archive.genotypes
    )


def wanted(learner, obs, action):
    """States with a 1 ask for a higher action before its tanh, those with a -1 for a lower one."""
    return obs[:, 0] * jnp.arctanh(action[:, 0])


def test_states_are_drawn_uniformly_and_not_by_priority():
    """Many states ask for a lower action, a few with high priority for a higher one."""
    buffer = stored([-1.0] * 12 + [1.0] * 4, [1.0] * 12 + [1e4] * 4)
    assert float(jnp.mean(REPLAY.sample(buffer, jax.random.key(0), 64).transition.obs[:, 0])) > 0.9  # by priority
    moved = climb(wanted, buffer)
    np.testing.assert_allclose(moved["Dense_0"]["bias"], -RATE, rtol=1e-3)  # Adam's first step is its learning rate


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_children_climb_and_start_from_their_parents(sign):
    moved = climb(lambda _, obs, action: sign * action[:, 0], stored([1.0], [1.0]), steps=3)
    for change in jax.tree.leaves(moved):
        np.testing.assert_allclose(change, sign * 3 * RATE, rtol=0.1)


def test_every_step_and_every_child_draws_states_of_its_own():
    """On one state a minibatch, which is +1 or -1, steps that shared it would all have gone the same way."""
    buffer = stored([1.0, -1.0], [1.0, 1.0])
    one, five = (climb(wanted, buffer, steps=steps, n=40, batch_size=1)["Dense_0"]["bias"] for steps in (1, 5))
    assert 5 < np.sum(one > 0.0) < 35
    assert np.sum(np.abs(five) > 4.5 * RATE) < 10


@pytest.mark.parametrize("n", [1, gradient.AT_ONCE, gradient.AT_ONCE + 1])
def test_many_children_equal_the_same_children_made_in_small_batches(n):
    """Each child moves towards its own context, however many are computed at once."""
    goals = np.linspace(-1.0, 1.0, n, dtype=np.float32)[:, None]

    @jax.jit
    def mutate(parents, goals):
        near = lambda genotype, _, goal: -jnp.sum(jnp.square(genotype["x"] - goal))  # noqa: E731
        observe = lambda key: jnp.zeros(1)  # noqa: E731
        return gradient_mutation(jax.random.key(0), parents, observe, near, goals, steps=1, learning_rate=RATE)

    np.testing.assert_allclose(
        mutate({"x": np.zeros((n, 1), np.float32)}, goals)["x"], RATE * np.sign(goals), atol=1e-5
    )


def test_no_steps_are_made_while_the_archive_is_empty():
    emitter = GradientChildren(wanted, LINEAR, REPLAY, 4, 5, RATE)
    full = archive(LINEAR)
    empty = full._replace(fitness=np.full(8, -np.inf, np.float32))
    seen = Seen(empty, stored([1.0], [1.0]), None)
    out = jax.jit(emitter.ask, static_argnums=3)(jax.random.key(1), (), seen, 3)
    parents = jax.tree.map(lambda x: np.asarray(x)[out.parents[:, 0]], empty.genotypes)
    jax.tree.map(np.testing.assert_array_equal, out.genotypes, parents)
