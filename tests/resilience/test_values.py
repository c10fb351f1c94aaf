"""Non-finite numbers and diverging critics: nothing else is affected, and it is reported."""

import dataclasses
import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from probes import learner, td3
from reach import STEPS, ReachTask, asked, begun
from runs import Notes, OneRun
from toys import ToyLearner, ToyTask, toy_algorithm

from qdhuac import cli
from qdhuac.algorithms import specs
from qdhuac.algorithms.specs import build as build_algorithm
from qdhuac.errors import RunFailed
from qdhuac.learning.replay import Batch
from qdhuac.learning.updates import guard
from qdhuac.store import checkpoint
from qdhuac.store.run_folder import RunDir
from qdhuac.types import Transition

SMALL = {"emitter.batch_size": 6, "task.episode_length": STEPS, "learner.utd": 1e-6, "run.generations": 50}


@dataclasses.dataclass
class Poisoned:
    """The results of a task with one number in them replaced, of the third of each batch."""

    source: str
    value: float
    task = ReachTask()
    spec, policy = task.spec, task.policy

    def evaluate(self, genotypes, key, exploration=None):
        result = self.task.evaluate(genotypes, key, exploration)
        t = result.transitions
        match self.source:
            case "fitness":
                return result._replace(fitness=result.fitness.at[2].set(self.value))
            case "descriptor":
                return result._replace(descriptor=result.descriptor.at[2].set(self.value))
            case "observation":
                t = t._replace(next_obs=t.next_obs.at[2, -1, 0].set(self.value))
            case "reward":
                t = t._replace(reward=t.reward.at[2, 3].set(self.value))
            case "action":
                t = t._replace(action=t.action.at[2, 3].set(self.value))
        return result._replace(transitions=t)


@functools.cache
def qdhuac():
    return build_algorithm(specs.make("qdhuac", "smoke", SMALL), ReachTask())


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("source", ["fitness", "descriptor", "observation", "reward", "action"])
def test_an_evaluation_with_nan_is_rejected_counted_and_named(tmp_path, source, value):
    settings = specs.make("qdhuac", "smoke", SMALL | {"run.failure_budget": 1})
    with RunDir.create(tmp_path / "run", settings) as folder:
        runner = OneRun(settings, Poisoned(source, value), qdhuac(), folder)
        runner.start()
        with pytest.raises(RunFailed, match=f"2 evaluations or updates.*most of them in: {source} \\(2\\)"):
            runner.run()
        rows = folder.read_metrics()
    assert [row["rejected"] for row in rows] == [row[f"rejected_{source}"] for row in rows] == [1, 1]
    state = runner.state.algorithm
    assert int(state.replay.size) == 2 * 5 * STEPS
    occupied = np.isfinite(state.archive.fitness)
    assert occupied.sum() > 0
    for leaf in jax.tree.leaves((state.archive.genotypes, state.archive.descriptor, state.replay.rows)):
        assert np.isfinite(leaf).all()
    assert checkpoint.load(folder.checkpoints).record["counters"]["failures"][source] == 2


def test_a_non_finite_genotype_is_not_archived_however_fit():
    settings = specs.make("dns", "smoke", {"emitter.batch_size": 6})
    algorithm = build_algorithm(settings, ReachTask())
    state = begun(algorithm)
    emission = asked(algorithm, state)
    evaluation = ReachTask().evaluate(emission.genotypes, jax.random.key(1))
    poisoned = jax.tree.map(lambda x: x.at[1].set(jnp.nan), emission.genotypes)
    state, told = jax.jit(algorithm.tell)(state, emission._replace(genotypes=poisoned), evaluation)
    assert {name: int(n) for name, n in told.metrics.failures.items() if n} == {"genotype": 1}
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(state.archive.genotypes))


def batch(obs=1.0, reward=1.0, n=16):
    rows = Transition(
        obs=jnp.full((n, 2), obs).at[0].set(0.0),
        action=jnp.zeros((n, 1)),
        reward=jnp.full(n, reward),
        terminal=jnp.zeros(n),
        next_obs=jnp.full((n, 2), obs),
    )
    return Batch(rows, jnp.arange(n), jnp.ones(n))


@pytest.mark.parametrize(
    ("agent", "huge"),
    [
        (learner(kind="scalar"), {"reward": 1e30}),  # its square is not finite, so neither is the gradient
        (learner(), {"obs": 1e30}),  # nor is the variance for the running statistics, though the gradient is
        (td3(), {"reward": 1e30}),
    ],
    ids=["scalar", "statistics", "td3"],
)
def test_gradients_and_statistics_that_overflow_change_nothing(agent, huge):
    state = agent.init(jax.random.key(0))
    after, priorities, metrics = jax.jit(agent.update)(state, batch(**huge), jax.random.key(1))
    assert int(metrics.failures["critic"]) == 1
    assert np.isnan(priorities).all()
    same = jax.tree.map(np.array_equal, after._replace(updates=0), state._replace(updates=0))
    assert all(jax.tree.leaves(same))


def test_priorities_that_are_not_finite_are_counted_and_change_nothing():
    agent = learner()
    state = agent.init(jax.random.key(0))
    fine = {
        "critic_gradient_norm": jnp.float32(1),
        "critic_loss": jnp.float32(1),
        "actor_gradient_norm": jnp.float32(1),
    }
    moved = state._replace(log_temperature=state.log_temperature + 1)
    after, priorities, metrics = guard(state, moved, batch(), jnp.ones(16).at[3].set(jnp.inf), fine)
    assert int(metrics.failures["priorities"]) == 1
    assert np.isnan(priorities).all()
    assert after.log_temperature == state.log_temperature
    *_, metrics = guard(state, moved, batch(), jnp.ones(16), fine)
    assert int(metrics.failures["priorities"]) == 0


class Diverging(ToyLearner):
    """Its values double with every generation, which has 30 updates."""

    def init(self, key):
        return super().init(key) | {"updates": jnp.int32(0)}

    def learn(self, learner, replay, buffer, key, updates):
        learner, buffer, metrics = super().learn(learner, replay, buffer, key, updates)
        learner["updates"] += updates
        size = 2.0 ** ((learner["updates"] + 29) // 30)
        values = {"q_mean": size, "q_spread": jnp.float32(0), "critic_gradient_norm": jnp.float32(1)}
        return learner, buffer, metrics._replace(means=metrics.means | values)


def diverging():
    return dataclasses.replace(toy_algorithm(Diverging), value_range=(-1.0, 10.0))


def test_a_diverging_critic_is_reported_at_once_in_the_metrics_and_at_the_end(make_runner, capsys, monkeypatch):
    runner = make_runner(learning=True, algorithm=diverging(), progress=Notes())
    runner.run()
    rows = runner.folder.read_metrics()
    assert [row["warning_values"] for row in rows] == [0, 0, 0, 0, 1, 1]  # 2^5 is beyond 10 + 11
    assert not any(row["warning_gradients"] for row in rows)
    assert len(runner.progress.said) == 1
    assert "generation 5" in runner.progress.said[0]
    assert runner.recorder.warnings[0].startswith("in 2 of 6 generations, first in 5: the critic's values (mean 64")

    # It is remembered across a stop, and the command says it last.
    runner.folder.unlock()
    monkeypatch.setattr("qdhuac.training.build.build_task", lambda settings: ToyTask())
    monkeypatch.setattr("qdhuac.algorithms.specs.build", lambda settings, task: diverging())
    monkeypatch.setattr("qdhuac.environment.prepare_jax", lambda: None)
    assert cli.main(["resume", str(runner.folder.path), "--generations", "7"]) == 0
    assert "warning: in 3 of 7 generations, first in 5: the critic's values" in capsys.readouterr().err
    assert "warning values" in (runner.folder.path / "report.html").read_text()
    assert json.loads((runner.folder.path / "metrics.jsonl").read_text().splitlines()[-1])["warning_values"] == 1
