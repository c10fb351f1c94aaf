"""PGA-ME, QD-PG and DCRL-ME on a toy: offspring, stored data, learning, and exact resuming."""

from __future__ import annotations

import functools
import json
import signal

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reach import STEPS, ReachTask, asked, begun, generation, made_by, numbers
from runs import OneRun as Runner

from qdhuac.algorithms import specs
from qdhuac.algorithms.specs import build as build_algorithm
from qdhuac.emitters.base import Seen
from qdhuac.store.arrays import flatten
from qdhuac.store.run_folder import RunDir
from qdhuac.training.display import Progress
from qdhuac.training.signals import Stop

BASELINES = ("pga_me", "qd_pg", "dcrl_me")
TASKS = {"qd_pg": ReachTask().changed(contacts=True)}
SMALL = {
    "emitter.batch_size": 10,
    "emitter.gradient_steps": 5,
    "emitter.sigma_line": 0.1,
    "learner.batch_size": 64,
    "learner.discount": 0.8,
    "learner.critic_learning_rate": 3e-3,
    "learner.target_tau": 0.02,
    "task.episode_length": STEPS,
    "archive.capacity": 20,
    "replay.capacity": 4000,
}


def settings(algorithm, **overrides):
    return specs.make(algorithm, "smoke", SMALL | {name.replace("__", "."): value for name, value in overrides.items()})


@functools.cache
def built(name):
    """The same object for all its runs, so that it is compiled once."""
    return build_algorithm(settings(name, learner__utd=1.25), TASKS.get(name, ReachTask()))


def make(algorithm, **overrides):
    task = TASKS.get(algorithm, ReachTask())
    return task, build_algorithm(settings(algorithm, **overrides), task)


def run(name, folder, *, again=False, stop=None, progress=None, **overrides):
    """A trainer in `folder` that has run."""
    values = {"learner__utd": 1.25, "run__generations": 12, "run__chunk": 30} | overrides
    config, task = settings(name, **values), TASKS.get(name, ReachTask())
    if again:
        where = RunDir.open(folder)
        where.lock()
    else:
        where = RunDir.create(folder, config)
    runner = Runner(config, task, built(name), where, progress, stop)
    runner.restore() if again else runner.start()
    runner.run()
    return runner


def lines(runner):
    """The metrics without what depends on the clock."""
    rows = map(json.loads, (runner.folder.path / "metrics.jsonl").read_text().splitlines())
    return [{k: v for k, v in row.items() if k not in ("wall_s", "crc") and not k.startswith("time_")} for row in rows]


@pytest.fixture(scope="module", params=BASELINES)
def trained(request, tmp_path_factory):
    """Twelve generations of each baseline, of 100 updates each."""
    runner = run(request.param, tmp_path_factory.mktemp("runs") / "run")
    return request.param, runner, runner.algorithm, runner.state.algorithm, lines(runner)


def test_offspring_are_split_among_the_operators(trained):
    name, _, algorithm, state, _ = trained
    operators = made_by(algorithm, asked(algorithm, state))
    tried = [operators.count(o) for o in ("isoline", "gradient", "actor", "diversity")]
    # QD-PG: 4 for quality (3 and the actor) + 3 for diversity (2 and its actor) + 3 Iso+Line
    assert tried == {"pga_me": [5, 4, 1, 0], "dcrl_me": [5, 3, 2, 0], "qd_pg": [3, 3, 1, 3]}[name]
    assert set(made_by(algorithm, asked(algorithm, begun(algorithm)))) == {"random"}


def test_the_archive_improves_and_the_critic_learns(trained):
    *_, state, rows = trained
    last = max(row[f"{o}/fitness"] for row in rows[-3:] for o in ("gradient", "actor"))
    assert last > 4.0 > rows[0]["random/fitness"]  # standing still is worth 0, going straight to +1 about 6
    assert rows[-1]["max_fitness"] >= last
    assert rows[-1]["archive_size"] > rows[0]["archive_size"]
    assert rows[-1]["gradient_updates"] == 12 * 100
    assert not any(v for row in rows for k, v in row.items() if k.startswith("count_skipped"))
    assert int(state.replay.size) == 12 * 10 * STEPS


def test_gradient_children_climb_their_critic(trained):
    name, runner, algorithm, state, _ = trained
    task = runner.task
    operator = "diversity" if name == "qd_pg" else "gradient"
    inner = state.learner.diversity if name == "qd_pg" else state.learner
    learner = algorithm.learner.td3 if name == "qd_pg" else algorithm.learner
    climb = next(emitter for emitter, _ in algorithm.emitters if emitter.name == operator)
    seen = Seen(state.archive, state.replay, state.learner)
    children = jax.jit(lambda seen: climb.ask(jax.random.key(5), (), seen, 4))(seen)
    slots = children.parents[:, 0]
    stored = algorithm.replay.sample(state.replay, jax.random.key(6), 256).transition.obs
    obs = stored[:, : task.policy.obs_size]

    def value(genotype, slot):
        asked = obs
        if name == "dcrl_me":
            low, high = jnp.asarray(task.spec.descriptor_bounds)
            d = 2.0 * (state.archive.descriptor[slot] - low) / (high - low) - 1.0
            asked = jnp.concatenate([obs, jnp.broadcast_to(d, (256, len(d)))], -1)
        return jnp.mean(learner.value(inner, asked, task.policy.act(genotype, obs)))

    parents = jax.tree.map(lambda x: x[slots], state.archive.genotypes)
    value = jax.jit(jax.vmap(value))
    better = value(children.genotypes, slots) - value(parents, slots)
    assert np.all(np.asarray(better) > 0)
    assert np.all(np.asarray(children.parents[:, 1]) == -1)


class StopAt(Progress):
    """Requests a stop while the second generation is learning."""

    def __init__(self, stop):
        self.stop, self.left = stop, 2

    def phase(self, name, done=0, total=0):
        self.left -= (name, done) == ("learning", 30)
        if self.left == 0 and not self.stop:
            self.stop.request(signal.SIGTERM)


def test_stopped_and_resumed_equals_uninterrupted_however_it_is_chunked(trained, tmp_path):
    name = trained[0]
    whole = run(name, tmp_path / "whole", run__generations=2)
    stop = Stop()
    part = run(name, tmp_path / "part", run__generations=2, stop=stop, progress=StopAt(stop))
    assert part.recorder.pending is not None
    part.folder.unlock()
    rest = run(name, tmp_path / "part", run__generations=2, again=True)
    assert lines(rest) == lines(whole) == trained[-1][:2]
    chunked = run(name, tmp_path / "chunked", run__generations=2, run__chunk=7)
    reference = flatten(whole.state)
    for other in map(flatten, (rest.state, chunked.state)):
        assert other.keys() == reference.keys()
        assert all(other[k].tobytes() == reference[k].tobytes() for k in reference)


@pytest.mark.parametrize(
    ("algorithm", "overrides"),
    [
        ("pga_me", {"archive.kind": "dns", "archive.capacity": 25}),
        ("qdhuac", {"archive.kind": "cvt", "archive.capacity": 32}),
        ("qdhuac", {"critic.kind": "scalar"}),
    ],
)
def test_archives_and_critics_are_interchangeable(algorithm, overrides):
    task, made = make(algorithm, **{k.replace(".", "__"): v for k, v in overrides.items()})
    state = begun(made)
    assert len(state.archive.fitness) == overrides.get("archive.capacity", 20)
    for _ in range(2):
        state, _, _, record = generation(task, made, state, jnp.int32(10))
    assert int(state.learner.updates) == 20
    assert not any(int(n) for name, n in record.items() if name.startswith("count_skipped"))
    occupied = np.isfinite(state.archive.fitness)
    assert len(set(np.asarray(state.archive.provenance.id)[occupied])) == occupied.sum() > 1


# DCRL-ME


def test_folding_the_descriptor_is_exact():
    task, algorithm = make("dcrl_me")
    actor = algorithm.learner.policy.init(jax.random.key(0))
    actor["Dense_0"]["bias"] += 0.3
    obs = jax.random.normal(jax.random.key(1), (50, 2))
    for d in (-2.0, 0.4, 2.0):
        plain = algorithm.relabel.__self__.fold(actor, jnp.array([d]))
        asked = jnp.concatenate([obs, jnp.full((50, 1), d / 2.0)], -1)  # bounds are -2 and 2
        np.testing.assert_allclose(task.policy.act(plain, obs), algorithm.learner.policy.act(actor, asked), atol=1e-6)
        assert jax.tree.map(jnp.shape, plain) == jax.tree.map(jnp.shape, task.policy.init(jax.random.key(0)))


@pytest.mark.parametrize("trained", ["dcrl_me"], indirect=True)
def test_rollouts_are_stored_for_the_descriptor_they_were_made_for(trained):
    _, runner, algorithm, state, rows = trained
    first = asked(algorithm, begun(algorithm))
    assert np.all(np.isnan(first.target))  # random ones were made for nothing: their rewards count in full
    assert rows[0]["similarity"] == 1.0 > rows[-1]["similarity"]
    emission = asked(algorithm, state)
    target = np.asarray(emission.target)[:, 0]
    assert np.all(np.isnan(target[:5]))
    ids = np.asarray(state.archive.provenance.id)
    slots = [int(np.flatnonzero(ids == p)[0]) for p in np.asarray(emission.provenance.parents)[5:, 0]]
    np.testing.assert_allclose(target[5:], np.asarray(state.archive.descriptor)[slots, 0])

    evaluation = runner.task.evaluate(emission.genotypes, jax.random.key(3))
    after, told = jax.jit(algorithm.tell)(state, emission, evaluation)
    rows = algorithm.replay.unpack(after.replay.rows[12 * 10 * STEPS : 13 * 10 * STEPS])
    got, own = np.asarray(evaluation.descriptor)[:, 0], np.asarray(evaluation.transitions.reward)
    wanted = np.where(np.isnan(target), got, target)
    similarity = np.exp(-np.abs(got / 2 - wanted / 2) / 0.1)
    np.testing.assert_allclose(rows.reward, (similarity[:, None] * own).reshape(-1), atol=1e-5)
    np.testing.assert_allclose(rows.obs[:, 2], np.repeat(wanted / 2, STEPS), atol=1e-6)
    np.testing.assert_allclose(rows.next_obs[:, 2], np.repeat(wanted / 2, STEPS), atol=1e-6)
    np.testing.assert_allclose(similarity[:5], 1.0)
    assert told.metrics.means["similarity"] == pytest.approx(similarity.mean(), abs=1e-5)


# QD-PG


@pytest.mark.parametrize("trained", ["qd_pg"], indirect=True)
def test_the_novelty_archive_holds_every_contact_seen_and_rewards_the_diversity_critic(trained):
    _, _, algorithm, state, records = trained
    rows = algorithm.replay.unpack(state.replay.rows[: int(state.replay.size)])
    np.testing.assert_array_equal(rows.contacts[:, 0], rows.next_obs[:, 0] > 0.5)
    assert int(state.learner.novelty.added) == records[-1]["novelty_size"] == 2
    # both states are half a unit from the archive on average, so every step is worth 0.5 / (1 - 0.8)
    assert records[-1]["diversity_q_mean"] == pytest.approx(2.5, abs=0.4)
    assert records[-1]["q_mean"] != pytest.approx(2.5, abs=0.4)
    assert {"count_skipped_diversity_critic", "count_skipped_critic"} <= records[-1].keys()


def test_rejected_rollouts_do_not_reach_the_novelty_archive():
    task, algorithm = TASKS["qd_pg"], built("qd_pg")
    state = begun(algorithm)
    emission = asked(algorithm, state)
    evaluation = task.evaluate(emission.genotypes, jax.random.key(1))
    t = evaluation.transitions
    strange = t.contacts.at[3].set(5.0).at[4, 2].set(jnp.nan)
    t = t._replace(contacts=strange, reward=t.reward.at[3, 0].set(jnp.inf))
    after, told = jax.jit(algorithm.tell)(state, emission, evaluation._replace(transitions=t))
    record = numbers(told.metrics)
    assert (int(record["rejected_reward"]), int(record["rejected_observation"]), int(record["rejected"])) == (1, 1, 2)
    assert float(jnp.max(after.learner.novelty.states)) <= 1.0
