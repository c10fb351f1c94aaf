"""The probe: a lag known in closed form, returns known by hand, and a run that it does not change."""

from __future__ import annotations

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from probes import learner
from reach import STEPS, ReachTask

from qdhuac.algorithms import qdhuac, specs
from qdhuac.archives.dns import DominatedNoveltyArchive
from qdhuac.learning import probe
from qdhuac.store.arrays import flatten
from qdhuac.types import Evaluation, Individuals, Metrics, Told, Transition

SLOPE, SCALE = 0.25, 0.1  # the critic's output moves by so much with every update, in scaled units


def ramp(updates):
    """A scalar critic that returns the same value for every state, which rises by SLOPE with every update."""
    agent = learner(kind="scalar", critics=1, reward_scale=SCALE, probe=True)
    state = agent.init(jax.random.key(0))
    flat = jax.tree.map(jnp.zeros_like, state.critics["head"])
    value = lambda n: state.critics | {"head": flat | {"bias": jnp.full((1, 1), SLOPE * n)}}  # noqa: E731
    shadow = probe.init(value(0), state.stats, slots=4)
    for n in range(1, updates + 1):
        shadow = probe.follow(shadow, value(n), state.stats)
    return agent, state._replace(critics=value(updates), probe=shadow)


def batch(rewards, competed=None, slots=None):
    """Policies with these rewards [B, T] and full episodes; those that have not `competed` explore."""
    rewards = jnp.asarray(rewards, jnp.float32)
    n, steps = rewards.shape
    zeros = jnp.zeros((n, steps, 2))
    rows = Transition(zeros, zeros[..., :1], rewards, jnp.zeros((n, steps)), zeros)
    valid, total = jnp.ones((n, steps), bool), rewards.sum(1)
    evaluation = Evaluation(total, jnp.zeros((n, 1)), jnp.full(n, steps), rows, valid)
    competed = jnp.ones(n, bool) if competed is None else jnp.asarray(competed)
    slots = jnp.full(n, -1) if slots is None else jnp.asarray(slots)
    individuals = Individuals({}, jnp.where(competed, total, -jnp.inf), evaluation.descriptor, None)
    return evaluation, Told(individuals, slots, evaluation.steps, Metrics({}, {}, {}))


@pytest.mark.parametrize("updates", [1, 10, 300])
def test_the_gap_of_a_steadily_rising_critic_is_the_lag_of_polyak_averaging(updates):
    agent, state = ramp(updates)
    seen = probe.compare(agent, state, *batch(np.ones((4, 6)))).means
    # x'_n = (1 - tau) x'_(n-1) + tau x_n with x_n = c n lags by c (1 - tau)/tau (1 - (1 - tau)^n); raw units: / scale
    keep = 1.0 - probe.RATE
    lag = SLOPE * keep / probe.RATE * (1.0 - keep**updates) / SCALE
    for name in ("", "path_"):
        assert seen[f"probe_{name}gap"] == pytest.approx(lag, rel=1e-3)
        assert seen[f"probe_{name}q"] == pytest.approx(SLOPE * updates / SCALE, rel=1e-4)
        assert seen[f"probe_{name}q_shadow"] == pytest.approx(SLOPE * updates / SCALE - lag, rel=1e-3, abs=1e-3)
    assert lag > 0  # the shadow of a rising critic is the pessimist


def test_the_shadow_also_follows_the_running_statistics():
    _, state = ramp(0)
    before = state.probe.stats["stem_norm"]["mean"]
    after = probe.follow(state.probe, state.critics, jax.tree.map(lambda x: x + 2.0, state.stats))
    np.testing.assert_allclose(after.stats["stem_norm"]["mean"], before + probe.RATE * 2.0, rtol=1e-5)


def test_the_shadow_predicts_with_its_own_statistics():
    """A critic and a shadow that differ in their running statistics alone disagree."""
    agent = learner(kind="scalar", critics=1, probe=True)
    state = agent.init(jax.random.key(0))
    one = probe.init(state.critics, state.stats, slots=4)
    other = one._replace(stats=jax.tree.map(lambda x: x + 2.0, one.stats))
    gaps = [
        probe.compare(agent, state._replace(probe=p), *batch(np.ones((4, 6)))).means["probe_gap"] for p in (one, other)
    ]
    assert gaps[0] == 0.0
    assert abs(gaps[1]) > 1e-5


def test_a_policy_is_missed_if_it_is_valued_below_the_archives_ninth_decile():
    agent, state = ramp(300)  # the critic says 750, its shadow 365
    archived = jnp.array([0.0, 500.0, 500.0, 500.0])  # so the threshold is 500
    state = state._replace(probe=state.probe._replace(returns=archived))
    rewards = np.zeros((4, 6))
    # The second is no better than the archive; the third explores, and the last was rejected.
    rewards[:, 0] = [600.0, 400.0, 600.0, 600.0]
    seen = probe.compare(agent, state, *batch(rewards, competed=[True, True, False, False]))
    assert seen.means["probe_threshold"] == 500.0
    assert {name: int(n) for name, n in seen.sums.items() if "path" not in name} == {
        "probe_high": 1,
        "probe_missed": 0,
        "probe_missed_shadow": 1,
    }
    assert seen.means["probe_return"] == pytest.approx(500.0)  # the mean of the two agents that count


def test_only_the_best_policies_of_a_batch_are_averaged():
    agent, state = ramp(1)
    seen = probe.compare(agent, state, *batch([[1.0], [5.0], [2.0], [4.0], [3.0]]))
    assert seen.means["probe_return"] == pytest.approx(4.0)


def test_returns_are_discounted_and_end_where_the_robot_falls():
    reward = jnp.array([[1.0, 2.0, 4.0, 8.0]])
    terminal = jnp.array([[0.0, 1.0, 0.0, 0.0]])
    valid = jnp.array([[True, True, True, False]])
    np.testing.assert_allclose(probe.discounted(reward, terminal, valid, 0.5), [[2.0, 2.0, 4.0, 0.0]])


def test_the_stored_returns_are_those_of_the_archives_individuals():
    """One stays in its slot, one comes into the second, and one comes into none."""
    before = probe.Probe((), (), jnp.array([5.0, 6.0, jnp.nan]))
    after = probe.remember(before, *batch([[7.0, 1.0], [9.0, 1.0]], slots=[-1, 1]), 0.5)
    np.testing.assert_array_equal(after.returns, [5.0, 9.5, np.nan])


def algorithm(watched):
    values = {
        "learner.probe": watched,
        "learner.utd": 0.5,
        "task.episode_length": STEPS,
        "emitter.exploration_rollouts": 1,
        "run.generations": 4,
    }
    settings = specs.make("qdhuac", "smoke", values).settings
    return qdhuac.build(settings, ReachTask(), DominatedNoveltyArchive(16, 3))


def lines(runner):
    rows = [json.loads(line) for line in (runner.folder.path / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in row.items() if k not in ("wall_s", "crc") and not k.startswith("time_")} for row in rows]


def test_the_probe_does_not_change_the_run(make_runner):
    plain = make_runner("plain", learning=True, task=ReachTask(), algorithm=algorithm(False))
    watched = make_runner("watched", learning=True, task=ReachTask(), algorithm=algorithm(True), learner__probe=True)
    assert plain.run()
    assert watched.run()
    rows = lines(watched)
    assert [{k: v for k, v in row.items() if not k.startswith("probe_")} for row in rows] == lines(plain)
    assert rows[0]["probe_threshold"] is None  # the archive was empty
    assert all(row["probe_gap"] is not None for row in rows)
    theirs = flatten(watched.state)
    assert all(array.tobytes() == theirs[name].tobytes() for name, array in flatten(plain.state).items())
