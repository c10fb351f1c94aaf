"""Environments of Gymnasium as tasks: the same `Evaluation` as from our own robots, or an error that explains."""

import functools
import importlib.util
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import gym_envs
import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import qdhuac
from qdhuac import cli
from qdhuac.errors import UserError
from qdhuac.learning import policy
from qdhuac.tasks import checks as own
from qdhuac.tasks import gym_worker
from qdhuac.tasks.gym import GymnasiumTask
from qdhuac.types import Exploration

STEPS, KEY = 12, jax.random.key(1)
walk = functools.partial(
    GymnasiumTask,
    gym_envs.Walk,
    gym_envs.position,
    descriptor_bounds=((0.0,), (1.0,)),
    support=(0.0, 50.0),
    episode_length=STEPS,
    after_termination="reset",
    hidden=(8,),
    workers=0,
)


def constant(task, *actions):
    """Genotypes whose action is always the same."""
    n = len(actions)
    params = jax.tree.map(jnp.zeros_like, jax.vmap(task.policy.init)(jax.random.split(KEY, n)))
    params["Dense_1"]["bias"] = jnp.arctanh(jnp.array(actions))[:, None]
    return params


def random(task, n):
    return jax.vmap(task.policy.init)(jax.random.split(jax.random.key(3), n))


def test_actions_are_stretched_to_the_bounds_of_the_space():
    found = walk().evaluate(constant(walk(), -0.5, 0.0), KEY)  # steps of 1 and of 2
    np.testing.assert_allclose(found.transitions.next_obs[0, :4, 0], [1, 2, 3, 4], rtol=1e-5)
    np.testing.assert_allclose(found.transitions.next_obs[1, :4, 0], [2, 4, 6, 8], rtol=1e-5)


def test_fitness_and_descriptor_are_of_the_first_episode_and_transitions_of_all():
    found = walk().evaluate(constant(walk(), 0.0), KEY)  # falls on its sixth step, at 12
    rows = jax.tree.map(lambda x: np.asarray(x)[0], found.transitions)
    assert found.fitness[0] == pytest.approx(12.0, rel=1e-5)
    assert found.descriptor[0, 0] == pytest.approx(np.mean([2, 4, 6, 8, 10, 12]) / 14, rel=1e-5)
    assert found.steps[0] == STEPS
    assert np.flatnonzero(rows.terminal).tolist() == [5, 11]
    assert rows.next_obs[5, 0] == pytest.approx(12.0)  # the true successor, not the next episode's start
    assert rows.obs[6, 0] == 0.0
    assert len(np.unique(rows.obs[:, 1])) == 2  # each episode has a start of its own


def test_stop_ends_simulation_and_counting():
    found = walk(after_termination="stop").evaluate(constant(walk(), 0.0), KEY)
    assert found.steps[0] == 6
    assert np.asarray(found.valid[0]).tolist() == [True] * 6 + [False] * 6
    assert not np.asarray(found.transitions.obs[0, 6:]).any()


def test_it_acts_as_the_policy_in_jax_and_explores_only_where_asked():
    task = walk()
    genotypes = random(task, 2)
    head = jax.vmap(task.policy.init_head)(jax.random.split(KEY, 2))
    found = task.evaluate(genotypes, KEY, Exploration(head, jnp.array([False, True])))
    wanted = jax.vmap(task.policy.act)(genotypes, found.transitions.obs)
    difference = np.abs(np.asarray(found.transitions.action - wanted)).max((1, 2))
    assert difference[0] < 1e-5
    assert difference[1] > 1e-3
    assert gym_worker.LOG_STD_RANGE == policy.LOG_STD_RANGE


def test_processes_do_not_change_the_result():
    alone, together = walk(), walk(workers=2)
    genotypes = random(alone, 3)
    try:
        one, other = alone.evaluate(genotypes, KEY), together.evaluate(genotypes, KEY)
    finally:
        together.close()
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"make": gym_envs.Unbounded}, ["action_space", "unbounded"]),
        ({"make": gym_envs.Buttons}, ["action_space", "Box", "Discrete(3)"]),
        ({"make": gym_envs.Image}, ["observation_space", "one dimension", "(4, 4)"]),
        ({"make": gym_envs.Liar}, ["observation", "(3,)", "(2,)"]),
        ({"features": None}, ["features", "function"]),
        ({"features": gym_envs.two_numbers}, ["descriptor", "1 number", "(2,)"]),
        ({"features": gym_envs.table}, ["features", "(1, 1)"]),
        ({"features": lambda env: [0.0], "workers": 2}, ["features", "workers=0"]),
        ({"descriptor_bounds": ((1.0,), (0.0,))}, ["descriptor_bounds"]),
        ({"after_termination": "cry"}, ["after_termination", "reset", "stop"]),
        ({"make": gym_envs.Whole}, ["action_space", "continuous"]),
        ({"make": gym_envs.Boundless}, ["action_space", "unbounded"]),
        ({"descriptor_bounds": ((-np.inf,), (np.inf,))}, ["descriptor_bounds", "finite"]),
        ({"descriptor_bounds": (0.0, 1.0)}, ["descriptor_bounds"]),
        ({"descriptor_bounds": None}, ["descriptor_bounds"]),
        ({"support": None}, ["support"]),
        ({"support": (5.0, 1.0)}, ["support"]),
        ({"episode_length": 12.5}, ["episode_length", "12.5"]),
        ({"hidden": 64}, ["hidden", "64"]),
        ({"workers": -1}, ["workers", "-1"]),
        ({"describe": None}, ["describe", "function"]),
    ],
)
def test_a_mistake_is_reported_when_the_task_is_made(changes, words):
    make, features = (changes.pop("make", gym_envs.Walk), changes.pop("features", gym_envs.position))
    options = {k: v for k, v in walk.keywords.items() if k not in changes} | changes
    with pytest.raises(UserError) as error:
        GymnasiumTask(make, features, **options)
    assert all(word in str(error.value) for word in words), error.value


def test_a_descriptor_outside_of_its_bounds_is_refused():
    task = GymnasiumTask(gym_envs.Walk, gym_envs.metres, **walk.keywords)
    with pytest.raises(UserError, match=r"descriptor of individual 1: \[.*\] is outside of its bounds \(0.0,\) to"):
        own.Watched(task).evaluate(constant(task, -0.99, 0.9), KEY)


def test_a_changing_number_of_features_is_refused():
    task = GymnasiumTask(gym_envs.Walk, gym_envs.more_and_more, **walk.keywords)
    with pytest.raises(UserError, match="features: were 1 numbers at first, and are 2 now"):
        task.evaluate(constant(task, 0.9), KEY)


def test_an_error_during_a_run_keeps_what_was_trained(tmp_path, monkeypatch):
    task, evaluations = walk(), []

    def describe(features):
        evaluations.append(features)
        return features.mean(0) + (len(evaluations) > 6 * 3) * 100.0

    monkeypatch.setattr(task, "describe", describe)
    settings = {"run.generations": 9, "run.checkpoint_minutes": 1000.0}
    with pytest.raises(UserError, match="outside of its bounds"):
        qdhuac.train(task, tmp_path / "run", algorithm="dns", preset="smoke", settings=settings)
    found = qdhuac.load(tmp_path / "run")
    assert len(found.folder.read_metrics()) == 3
    assert found.metadata["generation"] == 3


HELPERS = Path(__file__).parents[1] / "helpers"
CTRL_C = """
import sys
import gym_envs, qdhuac
from test_gym import walk
if __name__ == "__main__":
    for seed in range(3):
        settings = {"run.generations": 100000, "run.seed": seed}
        qdhuac.train(walk(workers=2), f"{sys.argv[1]}-{seed}", algorithm="dns", preset="smoke", settings=settings)
"""


@pytest.mark.parametrize(("number", "ends"), [(signal.SIGINT, -signal.SIGINT), (signal.SIGTERM, 143)])
def test_a_stop_saves_and_ends_a_loop_over_seeds_too(tmp_path, number, ends):
    """In a terminal Ctrl-C goes to every process of the group."""
    (tmp_path / "script.py").write_text(CTRL_C)
    places = (HELPERS, Path(__file__).parent, *os.environ.get("PYTHONPATH", "").split(os.pathsep))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, places))}
    words = [sys.executable, str(tmp_path / "script.py"), str(tmp_path / "run")]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(words, env=environment, start_new_session=True, **pipes) as process:
        while not process.stdout.readline().startswith("generation "):
            assert process.poll() is None, process.stderr.read()
        os.killpg(process.pid, number) if number == signal.SIGINT else process.send_signal(number)
        out, err = process.communicate(timeout=120)
    assert process.returncode == ends
    assert "saved; resume with" in out
    assert err.count("Traceback") == (number == signal.SIGINT)  # Python's own, of the loop
    assert [path.name for path in tmp_path.glob("run-*")] == ["run-0"]
    run = qdhuac.load(tmp_path / "run-0")
    assert run.metadata["generation"] == len(run.folder.read_metrics()) > 0


def test_a_descriptor_that_is_not_a_number_is_a_failed_evaluation():
    task = GymnasiumTask(gym_envs.Walk, gym_envs.nowhere, **walk.keywords)
    assert np.isnan(task.evaluate(constant(task, 0.0), KEY).descriptor).all()


def test_the_configuration_records_what_the_task_determines(tmp_path):
    options = {**walk.keywords, "after_termination": "stop", "hidden": (8, 4)}
    task = GymnasiumTask(gym_envs.Walk, gym_envs.position, **options)
    run = qdhuac.train(task, tmp_path / "run", algorithm="dns", preset="smoke", settings={"run.generations": 1})
    assert (run.config.task.after_termination, tuple(run.config.policy.hidden)) == ("stop", (8, 4))
    with pytest.raises(UserError, match=r"policy\.hidden is decided by the task, which has \[8, 4\]"):
        qdhuac.train(task, tmp_path / "other", settings={"policy.hidden": [16]})
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize("algorithm", ["qdhuac", "pga_me", "qd_pg", "dcrl_me"])
def test_a_learner_learns_from_it(tmp_path, algorithm):
    task = walk(store_contacts=algorithm == "qd_pg")
    run = qdhuac.train(task, tmp_path / "run", algorithm=algorithm, preset="smoke", settings={"run.generations": 2})
    rows = run.folder.read_metrics()
    assert [row["env_steps"] for row in rows] == [6 * STEPS, 12 * STEPS]
    assert rows[-1]["gradient_updates"] == int(0.1 * 12 * STEPS)
    assert np.isfinite(rows[-1]["critic_loss"])
    # In the second generation parents climbed the critic, and the actor itself was tried.
    assert rows[-1]["gradient/tried"] > 0
    assert rows[-1]["actor/tried"] > 0
    assert run.best(np.zeros(2)).shape == (1,)


def test_a_run_is_like_any_other(tmp_path, capsys):
    task, path = walk(), tmp_path / "run"
    qdhuac.train(task, path, algorithm="qdhuac", preset="smoke", settings={"run.generations": 2})
    again = qdhuac.resume(task, path, settings={"run.generations": 3})
    assert len(again.folder.read_metrics()) == 3
    changed = GymnasiumTask(gym_envs.Wide, gym_envs.position, **walk.keywords)
    with pytest.raises(UserError, match="obs_size: the run was trained with 2, but the task has 3"):
        qdhuac.resume(changed, path, settings={"run.generations": 4})
    strong = GymnasiumTask(gym_envs.Strong, gym_envs.position, **walk.keywords)
    with pytest.raises(UserError, match=r"action_bounds: the run was trained with \[\[0.0\], \[4.0\]\], but"):
        qdhuac.resume(strong, path, settings={"run.generations": 4})
    for changes in ({"descriptor_bounds": ((-5.0,), (5.0,))}, {"hidden": (9,)}):
        with pytest.raises(UserError, match=f"{next(iter(changes))}: the run was trained with"):
            qdhuac.resume(walk(**changes), path, settings={"run.generations": 4})
    capsys.readouterr()
    assert cli.main(["evaluate", str(path)]) == 2  # the command line does not have the task
    assert "own" in capsys.readouterr().err
    assert cli.main(["export", str(path), "--output", str(tmp_path / "out")]) == 0
    (action,) = json.loads((tmp_path / "out" / "contract.json").read_text())["actions"]
    assert (action["low"], action["high"], action["control_low"], action["control_high"]) == (-1.0, 1.0, 0.0, 4.0)


def test_a_stopped_run_says_how_to_go_on(tmp_path, capsys, monkeypatch):
    task, evaluations = walk(), []

    def evaluate(*arguments):
        evaluations.append(arguments)
        if len(evaluations) == 2:
            signal.raise_signal(signal.SIGTERM)
        return GymnasiumTask.evaluate(task, *arguments)

    monkeypatch.setattr(task, "evaluate", evaluate)
    with pytest.raises(SystemExit, match="143"):
        qdhuac.train(task, tmp_path / "run", preset="smoke", settings={"run.generations": 3})
    assert f'saved; resume with: qdhuac.resume(task, "{tmp_path / "run"}")' in capsys.readouterr().out
    qdhuac.resume(task, tmp_path / "run")
    assert len(qdhuac.load(tmp_path / "run").folder.read_metrics()) == 3


def test_qd_pg_refuses_a_task_without_contacts(tmp_path):
    with pytest.raises(UserError, match="store_contacts=True"):
        qdhuac.train(walk(), tmp_path / "run", algorithm="qd_pg", preset="smoke")
    assert not (tmp_path / "run").exists()


def example(name):
    spec = importlib.util.spec_from_file_location(name, Path(__file__).parents[2] / "examples" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_example_own_robot_trains_the_learner_on_its_transitions(capsys):
    robot = example("own_robot")
    state = robot.main(["--generations", "2", "--updates", "3"])
    assert np.isfinite(state.archive.fitness).sum() > 0
    assert int(state.replay.size) == 2 * robot.BATCH * robot.STEPS
    assert "critic loss nan" not in capsys.readouterr().out


def test_half_cheetah_of_gymnasium_is_what_a_replay_of_its_actions_gives(monkeypatch):
    task = example("gymnasium_halfcheetah").make_task(episode_length=80, hidden=(8,), workers=0)
    seeds, reset = [], gym_worker.Simulator.reset
    monkeypatch.setattr(gym_worker.Simulator, "reset", lambda self, seed: (seeds.append(seed), reset(self, seed))[1])
    found = jax.tree.map(np.asarray, task.evaluate(random(task, 2), KEY))
    assert len(set(seeds)) == 2
    env = gymnasium.make("HalfCheetah-v5")
    for i, seed in enumerate(seeds):
        rows = jax.tree.map(lambda x, i=i: x[i], found.transitions)
        obs, down = env.reset(seed=seed)[0], []
        for t in range(80):
            np.testing.assert_allclose(rows.obs[t], obs, rtol=1e-6)
            obs, reward, *_ = env.step(rows.action[t])
            np.testing.assert_allclose(rows.next_obs[t], obs, rtol=1e-6)
            assert rows.reward[t] == pytest.approx(reward, rel=1e-5)
            data, model = env.unwrapped.data, env.unwrapped.model
            pairs = [{model.geom(g).name for g in c.geom} for c in data.contact if c.dist <= 0]
            down.append([{"floor", foot} in pairs for foot in ("bfoot", "ffoot")])
        assert not rows.terminal.any()
        assert found.fitness[i] == pytest.approx(rows.reward.sum(), rel=1e-5)
        np.testing.assert_allclose(found.descriptor[i], np.mean(down, 0), rtol=1e-5)
    # It is dropped from a small height: feet touch the ground, and not in all steps.
    assert 0.0 < found.descriptor.mean() < 1.0
