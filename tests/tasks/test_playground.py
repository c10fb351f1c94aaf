"""Environments with the interface of MuJoCo Playground as tasks, and one of Playground itself where it is installed."""

import dataclasses
import functools
import importlib.util
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest

import qdhuac
from qdhuac.errors import UserError
from qdhuac.tasks import checks as own
from qdhuac.tasks.playground import PlaygroundTask
from qdhuac.types import Exploration

KEY, STEPS = jax.random.key(2), 7


@functools.partial(jax.tree_util.register_dataclass)
@dataclasses.dataclass
class State:
    """The fields of Playground's."""

    data: Any
    obs: Any
    reward: Any
    done: Any
    metrics: Any
    info: Any


class Slide:
    """A point pushed along a line, with wind; it is over beyond 2. As in Playground, the state keeps a key."""

    action_size = 1

    def __init__(self, observe=lambda x: {"state": jnp.stack([x, jnp.float32(1.0)]), "privileged_state": x[None]}):
        self.observe = observe

    def reset(self, rng):
        rng, here = jax.random.split(rng)
        x = jax.random.uniform(here, (), minval=-1.0, maxval=1.0)
        zero = jnp.zeros(())
        return State({"x": x}, self.observe(x), zero, zero, {"x": x}, {"rng": rng})

    def step(self, state, action):
        rng, here = jax.random.split(state.info["rng"])
        x = state.data["x"] + action[0] + 0.1 * jax.random.normal(here)
        done = (jnp.abs(x) > 2.0).astype(float)
        return State({"x": x}, self.observe(x), -jnp.abs(x), done, {"x": x}, {"rng": rng})


def place(state):
    return jnp.clip(state.data["x"][None], -2.0, 2.0)


slide = functools.partial(
    PlaygroundTask,
    descriptor_bounds=((-2.0,), (2.0,)),
    support=(-20.0, 0.0),
    episode_length=STEPS,
    hidden=(8,),
)


def test_an_evaluation_equals_stepping_the_environment():
    env, task = Slide(), slide(Slide(), place, after_termination="stop")
    genotypes = jax.vmap(task.policy.init)(jax.random.split(KEY, 5))
    found = jax.tree.map(np.asarray, task.evaluate(genotypes, KEY))
    key_reset, _ = jax.random.split(KEY)
    for i, key in enumerate(jax.random.split(jax.random.fold_in(key_reset, 0), 5)):
        state, rewards, places = env.reset(jax.random.key_data(key)), [], []
        while len(rewards) < STEPS and not state.done:
            genotype = jax.tree.map(lambda x, i=i: x[i], genotypes)
            state = env.step(state, task.policy.act(genotype, state.obs["state"]))
            rewards.append(float(state.reward))
            places.append(float(place(state)[0]))
        assert found.steps[i] == len(rewards)
        assert found.fitness[i] == pytest.approx(sum(rewards), abs=1e-4)
        assert found.descriptor[i, 0] == pytest.approx(np.mean(places), abs=1e-4)
    assert len(set(found.steps.tolist())) > 1  # some were over early


def test_a_learner_learns_from_it(tmp_path):
    task = slide(Slide(), place)
    run = qdhuac.train(task, tmp_path / "run", preset="smoke", settings={"run.generations": 2})
    assert run.folder.read_metrics()[-1]["gradient_updates"] > 0
    assert run.best(np.zeros(2)).shape == (1,)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"features": None}, ["features", "function"]),
        ({"features": lambda state: state.data["x"]}, ["features", "one dimension"]),
        ({"features": lambda state: jnp.zeros(2)}, ["descriptor", "1 number", "(2,)"]),
        ({"env": Slide(lambda x: {"pixels": x[None]})}, ["observation", "'state'", "pixels"]),
        ({"env": Slide(lambda x: jnp.zeros((4, 4)))}, ["observation", "(4, 4)"]),
        ({"descriptor_bounds": ((1.0,), (0.0,))}, ["descriptor_bounds"]),
        ({"episode_length": 0}, ["episode_length"]),
        ({"after_termination": "cry"}, ["after_termination", "reset", "stop"]),
    ],
)
def test_a_mistake_is_reported_when_the_task_is_made(changes, words):
    env, features = changes.pop("env", Slide()), changes.pop("features", place)
    with pytest.raises(UserError) as error:
        slide(env, features, **changes)
    assert all(word in str(error.value) for word in words), error.value


def test_a_descriptor_outside_of_its_bounds_is_refused():
    task = slide(Slide(), place, descriptor_bounds=((5.0,), (6.0,)))
    with pytest.raises(UserError, match=r"descriptor of individual 0: \[.*\] is outside of its bounds \(5.0,\) to"):
        own.Watched(task).evaluate(jax.vmap(task.policy.init)(jax.random.split(KEY, 2)), KEY)


def test_a_learner_trains_on_cheetah_run_of_playground(tmp_path):
    pytest.importorskip("mujoco_playground", reason="needs the extra playground")
    path = Path(__file__).parents[2] / "examples" / "playground_cheetah.py"
    spec = importlib.util.spec_from_file_location(path.stem, path)
    spec.loader.exec_module(cheetah := importlib.util.module_from_spec(spec))
    task = cheetah.make_task(episode_length=40, hidden=(16, 16))
    assert (task.policy.obs_size, task.policy.action_size) == (17, 6)
    settings = cheetah.SETTINGS | {"run.env_steps": 0, "run.generations": 2, "emitter.exploration_rollouts": 2}
    run = qdhuac.train(task, tmp_path / "run", preset="smoke", settings=settings)
    rows = run.folder.read_metrics()
    assert rows[-1]["gradient_updates"] == int(0.1 * rows[-1]["env_steps"]) > 0
    assert np.isfinite(rows[-1]["critic_loss"])
    assert rows[-1]["gradient/tried"] > 0
    assert rows[-1]["rejected"] == 0

    # What MuJoCo in C says of the same states and actions.
    policies = jax.vmap(task.policy.init)(jax.random.split(KEY, 6))
    heads = jax.vmap(task.policy.init_head)(jax.random.split(KEY, 6))
    exploration = Exploration(heads, jnp.array([True] * 2 + [False] * 4))
    found = jax.tree.map(np.asarray, task.evaluate(policies, KEY, exploration))
    model = task.env._env.mj_model
    data, feet = mujoco.MjData(model), [{"ground", foot} for foot in cheetah.FEET]
    for i in range(6):
        transitions, down = jax.tree.map(lambda x, i=i: x[i], found.transitions), []
        for obs, action, next_obs in zip(transitions.obs, transitions.action, transitions.next_obs, strict=True):
            data.qpos[1:], data.qvel[:], data.ctrl[:] = obs[:8], obs[8:], action
            mujoco.mj_step(model, data)
            pairs = [{model.geom(g).name for g in contact.geom} for contact in data.contact if contact.dist <= 0]
            down.append([foot in pairs for foot in feet])
            np.testing.assert_allclose(np.concatenate([data.qpos[1:], data.qvel]), next_obs, rtol=0.05, atol=0.05)
        np.testing.assert_allclose(found.descriptor[i], np.mean(down, 0), atol=1e-5)
        assert found.fitness[i] == pytest.approx(transitions.reward.sum(), rel=1e-4)
    assert 0.0 < found.descriptor.mean() < 1.0
