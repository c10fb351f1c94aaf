"""PGA-ME, QD-PG and DCRL-ME on a toy: who is tried, what is stored, that it helps, and that a stop changes nothing."""

from __future__ import annotations

import dataclasses
import json
import signal

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reach import STEPS, ReachTask, generation

from qdhuac import config as configuration
from qdhuac.errors import UserError
from qdhuac.running.arrays import flatten
from qdhuac.running.build import build_algorithm
from qdhuac.running.progress import Silent
from qdhuac.running.rundir import RunDir
from qdhuac.running.runner import Runner
from qdhuac.running.stopping import Stop
from qdhuac.types import ACTOR, DIVERSITY, GRADIENT, ISOLINE, RANDOM

TASKS = {"qd_pg": ReachTask(contacts=True)}
SMALL = {
    "emitter.batch_size": 10,
    "emitter.gradient_steps": 5,
    "emitter.sigma_line": 0.1,
    "learner.batch_size": 64,
    "learner.discount": 0.8,
    "learner.critic_learning_rate": 3e-3,
    "task.episode_length": STEPS,
    "archive.capacity": 20,
    "replay.capacity": 4000,
}


def settings(algorithm, **overrides):
    return configuration.make(
        algorithm, "smoke", SMALL | {name.replace("__", "."): value for name, value in overrides.items()}
    )


def make(algorithm, **overrides):
    task = TASKS.get(algorithm, ReachTask())
    return task, build_algorithm(settings(algorithm, **overrides), task)


@pytest.fixture(scope="module", params=configuration.BASELINES)
def trained(request):
    """Fifteen generations of each baseline."""
    task, algorithm = make(request.param)
    state = algorithm.init(jax.random.key(0))
    records = []
    for _ in range(15):
        state, _, _, record = generation(task, algorithm, state, jnp.int32(100))
        records.append(jax.device_get(record))
    return request.param, task, algorithm, state, records


def test_offspring_are_split_among_the_operators(trained):
    name, _, algorithm, state, _ = trained
    tried = [int(np.sum(algorithm.ask(state).provenance.operator == o)) for o in (ISOLINE, GRADIENT, ACTOR, DIVERSITY)]
    # QD-PG: 4 for quality (3 and the actor) + 3 for diversity (2 and its actor) + 3 Iso+Line
    assert tried == {"pga_me": [5, 4, 1, 0], "dcrl_me": [5, 3, 2, 0], "qd_pg": [3, 3, 1, 3]}[name]
    first = algorithm.ask(algorithm.init(jax.random.key(0)))
    assert set(np.asarray(first.provenance.operator)) == {RANDOM}


def test_the_archive_improves_and_the_critic_learns(trained):
    *_, state, records = trained
    start, end = (
        [r[f"{o}/fitness"] for r in part for o in ("random", "gradient", "actor")]
        for part in (records[:1], records[-3:])
    )
    assert np.nanmax(end) > 4.0 > np.nanmax(start)  # standing still is worth 0, going straight to +1 about 6
    assert float(jnp.max(state.archive.fitness)) >= np.nanmax(end) - 1e-5
    assert records[-1]["critic_loss"] < records[0]["critic_loss"]
    assert not any(v for r in records for k, v in r.items() if k.startswith("count_skipped"))
    assert int(state.replay.size) == 15 * 10 * STEPS


def test_gradient_children_climb_their_critic(trained):
    name, task, algorithm, state, _ = trained
    slots = jnp.argsort(state.archive.fitness)[-4:]
    learner = algorithm.quality if name == "qd_pg" else algorithm.learner
    inner = state.learner.quality if name == "qd_pg" else state.learner
    children = algorithm._ascend(state, jax.random.key(5), slots)
    stored = algorithm.replay.sample(state.replay, jax.random.key(6), 256).transition.obs
    obs = stored[:, : task.obs_size]

    def value(genotype, slot):
        asked = obs
        if name == "dcrl_me":
            d = algorithm.normalise(state.archive.descriptor[slot])
            asked = jnp.concatenate([obs, jnp.broadcast_to(d, (256, len(d)))], -1)
        return jnp.mean(learner.value(inner, asked, task.policy.act(genotype, obs)))

    parents = jax.tree.map(lambda x: x[slots], state.archive.genotypes)
    better = jax.vmap(value)(children.genotypes, slots) - jax.vmap(value)(parents, slots)
    assert np.all(np.asarray(better) > 0)
    np.testing.assert_array_equal(children.parents, np.stack([slots, np.full(4, -1)], -1))


def test_updates_do_not_depend_on_how_they_are_chunked(trained):
    _, _, algorithm, state, _ = trained
    learn = jax.jit(algorithm.learn)
    whole, _ = learn(state, jnp.int32(7))
    parts, _ = learn(learn(state, jnp.int32(3))[0], jnp.int32(4))
    for a, b in zip(jax.tree.leaves(whole.learner), jax.tree.leaves(parts.learner), strict=True):
        np.testing.assert_array_equal(a, b)


class StopAt(Silent):
    """Asks for a stop in the middle of the second generation's learning."""

    def __init__(self, stop):
        self.stop, self.left = stop, 2

    def phase(self, name, done=0, total=0):
        self.left -= (name, done) == ("learning", 7)
        if self.left == 0 and not self.stop:
            self.stop.request(signal.SIGTERM)


@pytest.mark.parametrize("name", configuration.BASELINES)
def test_stopped_and_resumed_equals_uninterrupted(name, tmp_path):
    config = settings(name, run__generations=2, run__chunk=7, learner__utd=0.2, emitter__gradient_steps=2)
    task, algorithm = TASKS.get(name, ReachTask()), build_algorithm(config, TASKS.get(name, ReachTask()))

    def runner(folder, again=False, **more):
        if again:
            where = RunDir.open(tmp_path / folder)
            where.lock()
        else:
            where = RunDir.create(tmp_path / folder, config)
        run = Runner(config, task, algorithm, where, **more)
        run.restore() if again else run.start()
        return run

    def lines(run):
        rows = map(json.loads, (run.folder.path / "metrics.jsonl").read_text().splitlines())
        return [{k: v for k, v in row.items() if k != "wall_s" and not k.startswith("time_")} for row in rows]

    whole = runner("whole")
    assert whole.run()
    stop = Stop()
    part = runner("part", stop=stop, progress=StopAt(stop))
    assert not part.run()
    assert part.pending is not None
    part.folder.unlock()
    rest = runner("part", again=True)
    assert rest.run()
    assert lines(rest) == lines(whole)
    a, b = flatten(rest.state), flatten(whole.state)
    assert a.keys() == b.keys()
    assert all(a[k].tobytes() == b[k].tobytes() for k in a)


@pytest.mark.parametrize(
    ("algorithm", "overrides"),
    [
        ("pga_me", {"archive.kind": "dns", "archive.capacity": 25}),
        ("dcrl_me", {"archive.kind": "grid"}),
        ("qdhuac", {"archive.kind": "cvt", "archive.capacity": 32}),
        ("qdhuac", {"critic.kind": "scalar"}),
    ],
)
def test_archives_and_critics_are_interchangeable(algorithm, overrides):
    task, made = make(algorithm, **{k.replace(".", "__"): v for k, v in overrides.items()})
    state = made.init(jax.random.key(0))
    assert len(state.archive.fitness) == overrides.get("archive.capacity", 20)
    for _ in range(2):
        state, _, _, record = generation(task, made, state, jnp.int32(10))
    assert np.isfinite(record["critic_loss"])
    assert int(jnp.sum(jnp.isfinite(state.archive.fitness))) > 1


# DCRL-ME


def test_folding_the_descriptor_is_exact():
    _, algorithm = make("dcrl_me")
    actor = algorithm.learner.policy.init(jax.random.key(0))
    actor["Dense_0"]["bias"] += 0.3
    obs = jax.random.normal(jax.random.key(1), (50, 2))
    for d in (-2.0, 0.4, 2.0):
        plain = algorithm.fold(actor, jnp.array([d]))
        asked = jnp.concatenate([obs, jnp.full((50, 1), d / 2.0)], -1)  # bounds are -2 and 2
        np.testing.assert_allclose(
            algorithm.policy.act(plain, obs), algorithm.learner.policy.act(actor, asked), atol=1e-6
        )
        assert jax.tree.map(jnp.shape, plain) == jax.tree.map(jnp.shape, algorithm.policy.init(jax.random.key(0)))


def test_rollouts_are_stored_for_the_descriptor_they_were_made_for():
    task, algorithm = make("dcrl_me")
    state, first, *_ = generation(task, algorithm, algorithm.init(jax.random.key(0)), jnp.int32(1))
    assert np.all(np.isnan(first.target))  # random ones were made for nothing: their rewards count in full
    emission = algorithm.ask(state)
    target = np.asarray(emission.target)[:, 0]
    assert np.all(np.isnan(target[:5]))
    ids = np.asarray(state.archive.provenance.id)
    slots = [int(np.flatnonzero(ids == p)[0]) for p in np.asarray(emission.provenance.parents)[5:, 0]]
    np.testing.assert_allclose(target[5:], np.asarray(state.archive.descriptor)[slots, 0])

    evaluation = task.evaluate(emission.genotypes, jax.random.key(3))
    after, record = algorithm.tell(state, emission, evaluation)
    rows = algorithm.replay.unpack(after.replay.rows[10 * STEPS : 20 * STEPS])
    got, own = np.asarray(evaluation.descriptor)[:, 0], np.asarray(evaluation.transitions.reward)
    wanted = np.where(np.isnan(target), got, target)
    similarity = np.exp(-np.abs(got / 2 - wanted / 2) / 0.1)
    np.testing.assert_allclose(rows.reward, (similarity[:, None] * own).reshape(-1), atol=1e-5)
    np.testing.assert_allclose(rows.obs[:, 2], np.repeat(wanted / 2, STEPS), atol=1e-6)
    np.testing.assert_allclose(rows.next_obs[:, 2], np.repeat(wanted / 2, STEPS), atol=1e-6)
    np.testing.assert_allclose(similarity[:5], 1.0)
    assert record["similarity"] == pytest.approx(similarity.mean(), abs=1e-5)


def test_a_descriptor_without_bounds_is_refused():
    for bounds in (((-np.inf,), (np.inf,)), ((0.0,), (0.0,))):
        task = dataclasses.replace(ReachTask(), descriptor_bounds=bounds)
        config = settings("dcrl_me", archive__kind="dns")
        with pytest.raises(UserError, match=r"dcrl_me.*finite bounds") as caught:
            build_algorithm(config, task)
        assert "\n" not in str(caught.value)
