"""The robots against Brax's environments on MJX, which they were before: models, starts, and single steps.

One program per robot is compiled on each side. Brax is needed for this file alone.
"""

import functools
import re

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest

from qdhuac.environment import quiet_imports
from qdhuac.tasks import engine
from qdhuac.tasks.engine import Simulation
from qdhuac.tasks.mjx import MjxTask
from qdhuac.tasks.mujoco_task import Start
from qdhuac.tasks.native import NativeTask

with quiet_imports():
    envs = pytest.importorskip("brax.envs")

pytestmark = pytest.mark.filterwarnings("ignore")
ROBOTS = ["ant", "halfcheetah", "hopper", "humanoid", "walker2d"]
STATES, KEY = 256, jax.random.key(3)
# Fields of a model that decide how it moves and touches.
PHYSICS = re.compile("(body|jnt|dof|geom|actuator|opt|qpos|pair|exclude)_.*|qpos0|n(body|jnt|geom|u|v|q)")
LOOKS = re.compile(".*_(rgba|matid|user|bvh.*|sameframe|.*adr|.*num|.*id|pluginid)")


@functools.cache
def brax(name):
    return envs.get_environment(name, backend="mjx")


@functools.cache
def native(name):
    return NativeTask(name, episode_length=60, hidden=(16, 16))


@pytest.mark.parametrize("name", ROBOTS)
def test_the_model_is_that_of_brax(name):
    theirs, options, ours = brax(name).sys.mj_model, brax(name).sys.opt, MjxTask(name).model
    compared = 0
    for field in filter(PHYSICS.fullmatch, dir(theirs)):
        if LOOKS.fullmatch(field) or field in ("jnt_range", "actuator_forcerange"):
            continue
        np.testing.assert_allclose(getattr(ours, field), getattr(theirs, field), rtol=1e-9, atol=1e-12, err_msg=field)
        compared += 1
    assert compared > 60
    limited = np.asarray(ours.jnt_limited, bool)
    np.testing.assert_array_equal(ours.jnt_range[limited], theirs.jnt_range[limited])
    assert ours.opt.timestep == float(options.timestep)
    for field in ("iterations", "ls_iterations", "solver", "integrator", "cone", "disableflags"):
        assert getattr(ours.opt, field) == int(getattr(options, field)), field
    assert native(name).model.opt.ls_iterations == 3 * options.ls_iterations + 1
    assert native(name).dt == float(brax(name).dt)


@pytest.mark.parametrize("name", ROBOTS)
def test_episodes_begin_where_those_of_brax_do(name, monkeypatch):
    class ResetStops(Exception):
        pass

    def stop(qpos, qvel):
        raise ResetStops(qpos, qvel)

    monkeypatch.setattr(brax(name), "pipeline_init", stop)
    with pytest.raises(ResetStops) as stopped:
        brax(name).reset(KEY)
    their_qpos, their_qvel = stopped.value.args
    qpos, qvel = native(name).start(KEY)[:2]
    if native(name).model.jnt_type[0] == mujoco.mjtJoint.mjJNT_FREE:
        their_qpos = their_qpos.at[3:7].divide(jnp.linalg.norm(their_qpos[3:7]))
    np.testing.assert_allclose(qpos, their_qpos, rtol=1e-6)
    np.testing.assert_allclose(qvel, their_qvel, rtol=1e-6)


def states_on_the_way(task):
    """Positions, velocities, the solver's warm start and next actions, from rollouts of random actions."""
    rng, sim = np.random.default_rng(0), Simulation(task.model)
    starts = jax.jit(jax.vmap(task.start))(jax.random.split(KEY, STATES))[:2]
    states = []
    for qpos, qvel, leave in zip(*map(np.asarray, starts), rng.integers(0, 60, STATES), strict=True):
        engine.restart(sim.addresses, sim.fields, qpos, qvel)
        action = np.zeros(task.policy.action_size, np.float32)
        for _ in range(leave):
            action = np.clip(0.7 * action + 0.5 * rng.normal(size=action.shape), -1, 1).astype(np.float32)
            engine.step(task.tables, sim.addresses, sim.fields, action)
        state = (sim.data.qpos, sim.data.qvel, sim.data.qacc_warmstart, rng.uniform(-1, 1, action.shape))
        states.append([x.astype(np.float32) for x in state])
    return [np.stack(column) for column in zip(*states, strict=True)]


def native_step(task, *numbers):
    t, sim, out = task.tables, Simulation(task.model), []
    look = lambda: np.array([sim.fields[field][at] for field, at in t.moving])  # noqa: E731
    still = np.zeros(task.policy.action_size, np.float32)
    for qpos, qvel, warm_start, action in zip(*numbers, strict=True):
        before, after = np.zeros((2, task.policy.obs_size), np.float32)
        measured = np.zeros(len(t.feet) + len(t.numbers))
        engine.restart(sim.addresses, sim.fields, qpos, qvel)
        sim.data.qacc_warmstart[:] = warm_start
        engine.observe(t, sim.fields, 0.0, 0, 0, before)
        was = look()
        engine.step(t, sim.addresses, sim.fields, action)
        engine.observe(t, sim.fields, 0.0, 0, 1, after)
        engine.measure(t, sim.fields, measured)
        reward = task.reward(measured, look() - was, action, still)
        out.append({"before": before, "after": after, "reward": reward, "clearance": measured[: len(t.feet)]})
        out[-1]["failed"] = engine.failed(t, sim.fields)
    return {name: np.stack([row[name] for row in out]) for name in out[0]}


def mjx_step(name, *numbers):
    """One step of ours on MJX."""
    task = MjxTask(name, hidden=(16, 16))

    def step(qpos, qvel, warm_start, action):
        start = Start(qpos, qvel, jnp.zeros(0), jnp.uint32(0))
        begun = task.state(task.data(start).replace(qacc_warmstart=warm_start), start)
        after = task.step(begun, action)
        seen = {"before": begun.obs, "after": after.obs, "reward": after.reward}
        return {**seen, "failed": after.done > 0.5, "contacts": after.features > 0.5}

    return jax.tree.map(np.asarray, jax.jit(jax.vmap(step))(*numbers))


def brax_step(name, *numbers):
    env, feet = brax(name), native(name).plan.feet
    extra = (jnp.zeros(env.action_size),) if name == "humanoid" else ()
    floor, *feet = (env.sys.mj_model.geom(geom).id for geom in ("floor", *feet))

    def step(qpos, qvel, warm_start, action):
        physics = env.pipeline_init(qpos, qvel).replace(qacc_warmstart=warm_start)
        before = env._get_obs(physics, *extra)
        metrics = jax.eval_shape(env.reset, KEY).metrics
        state = env.step(envs.State(physics, before, jnp.zeros(()), jnp.zeros(()), dict.fromkeys(metrics, 0.0)), action)
        contact = state.pipeline_state._impl.contact
        pairs, touching = jnp.sort(contact.geom, axis=-1), contact.dist <= 0.0
        contacts = [jnp.any(touching & jnp.all(pairs == jnp.array(sorted((floor, foot))), -1)) for foot in feet]
        seen = {"before": before, "after": state.obs, "reward": state.reward}
        return {**seen, "failed": state.done > 0.5, "contacts": jnp.stack(contacts)}

    return jax.tree.map(np.asarray, jax.jit(jax.vmap(step))(*numbers))


@pytest.mark.parametrize("name", ROBOTS)
def test_one_step_is_that_of_brax(name):
    task = native(name)
    numbers = states_on_the_way(task)
    theirs, ours = brax_step(name, *numbers), {"native": native_step(task, *numbers), "mjx": mjx_step(name, *numbers)}
    for mine in ours.values():
        error = {
            field: (np.abs(mine[field] - theirs[field]) / (1.0 + np.abs(theirs[field]))).reshape(STATES, -1).max(axis=1)
            for field in ("before", "after", "reward")
        }
        assert error["before"].max() < 1e-5
        assert error["reward"].max() < 1e-4
        # MJX computes in single precision: where a contact or a limit is about to change, its rounding is amplified.
        assert np.quantile(error["after"], 0.9) < 1e-4
        assert np.quantile(error["after"], 0.99) < 1e-3
        assert error["after"].max() < 5e-3
        np.testing.assert_array_equal(mine["failed"], theirs["failed"])
    sure = np.abs(ours["native"]["clearance"]) > 1e-4  # within a tenth of a millimetre it may be called either way
    for contacts in (ours["native"]["clearance"] <= 0, ours["mjx"]["contacts"]):
        np.testing.assert_array_equal(contacts[sure], theirs["contacts"][sure])
    # The states are ones to learn something from.
    assert sure.mean() > 0.98
    assert (theirs["contacts"].mean(axis=0) > 0.02).all()
    assert theirs["failed"].mean() > 0.1 or not task.file.can_terminate
