"""The robots: sizes, contacts, descriptors, silence, and the same episodes on both engines. MJX compiles once each."""

import dataclasses
import functools
import subprocess
import sys
import warnings
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import ks_2samp

from qdhuac import config
from qdhuac.environment import quiet_imports, quiet_models
from qdhuac.errors import UserError
from qdhuac.tasks.mjx import OMNI_REACH, SPECS, Locomotion, final_position, foot_contacts, geom_ids
from qdhuac.tasks.native import NativeLocomotion

with quiet_imports():
    import mujoco

SIZES = {  # observation, action, descriptor
    "hopper": (11, 3, 1),
    "walker2d": (17, 6, 2),
    "halfcheetah": (17, 6, 2),
    "ant": (27, 8, 4),
    "humanoid": (244, 17, 2),
}
BATCH, LENGTH = 6, 60
MANY = 10  # batches for statistics


@functools.cache
def task(name, backend="mjx", after_termination="reset"):
    return Locomotion(
        name, backend=backend, episode_length=LENGTH, after_termination=after_termination, hidden=(16, 16)
    )


@functools.cache
def evaluated(name, backend="mjx"):
    """Random policies, tried once."""
    chosen = task(name, backend)
    genotypes = jax.vmap(chosen.policy.init)(jax.random.split(jax.random.key(0), BATCH))
    return jax.tree.map(np.asarray, chosen.evaluate(genotypes, jax.random.key(1)))


def test_the_table_covers_the_configured_tasks():
    assert set(SPECS) == set(config.TASKS)
    assert SPECS["halfcheetah"].support == (-200, 1000)
    assert SPECS["ant_omni"].support == SPECS["ant"].support == (-150, 2500)
    assert SPECS["humanoid_omni"].support == SPECS["humanoid"].support == (-150, 1500)
    offsets = {name: spec.reward_offset for name, spec in SPECS.items() if not spec.omni}
    assert offsets == {"ant": 3.24, "halfcheetah": 9.231, "hopper": 0.9, "walker2d": 1.413, "humanoid": 0.0}


@pytest.mark.parametrize("name", SIZES)
def test_sizes_and_bounds(name):
    chosen = task(name)
    obs, action, feet = SIZES[name]
    assert (chosen.obs_size, chosen.action_size) == (obs, action)
    assert (chosen.policy.obs_size, chosen.policy.action_size, chosen.policy.hidden) == (obs, action, (16, 16))
    assert chosen.descriptor_bounds == ((0.0,) * feet, (1.0,) * feet)
    assert (chosen.episode_length, chosen.reward_offset) == (LENGTH, SPECS[name].reward_offset)


@pytest.mark.parametrize(("name", "backend"), [*((name, "mjx") for name in SIZES), ("walker2d", "spring")])
def test_feet_touch_the_floor_when_they_do(name, backend):
    chosen = task(name, backend)
    env, model = chosen.env.brax, chosen.env.brax.sys.mj_model
    rng = np.random.default_rng(0)
    free = model.jnt_type[0] == mujoco.mjtJoint.mjJNT_FREE
    height, joints = (2, 7) if free else (1, 2)

    poses = np.tile(np.asarray(env.sys.init_q), (26, 1))
    poses[0, height] += 5.0  # in the air
    poses[1, height] -= 5.0  # feet below the floor
    poses[2:, height] += rng.uniform(-0.6, 0.1, 24)
    poses[2:, joints:] += rng.uniform(-0.5, 0.5, poses[2:, joints:].shape)
    if free:
        poses[2:, 3:7] += rng.uniform(-0.4, 0.4, (24, 4))
        poses[:, 3:7] /= np.linalg.norm(poses[:, 3:7], axis=1, keepdims=True)

    @jax.jit
    @jax.vmap
    def contacts(pose):
        return chosen.contacts(SimpleNamespace(pipeline_state=env.pipeline_init(pose, jnp.zeros(env.sys.qd_size()))))

    seen = np.asarray(contacts(jnp.array(poses, jnp.float32)))
    assert seen.shape == (26, len(chosen.spec.feet))
    assert not seen[0].any()
    assert seen[1].all()

    # MuJoCo's C engine is the judge of each pose; a foot within 0.1 mm of the floor may be called either way.
    sure = 0
    for pose, mine in zip(poses, seen, strict=True):
        for foot, touches in zip(chosen.spec.feet, mine, strict=True):
            distance = floor_distance(model, pose, foot)
            if abs(distance) > 1e-4:
                sure += 1
                assert touches == (distance <= 0), f"{foot} is {distance} m above the floor"
    assert sure > 0.9 * seen.size
    assert (seen[2:].mean(axis=0) > 0.1).all()
    assert (seen[2:].mean(axis=0) < 0.9).all()
    if seen.shape[1] > 1:  # each foot is looked up for itself
        assert (seen[2:].min(axis=1) != seen[2:].max(axis=1)).any()


def floor_distance(model, pose, foot):
    """How far a foot is above the floor, inf where the engine sees no contact."""
    data = mujoco.MjData(model)
    data.qpos[:] = pose
    mujoco.mj_forward(model, data)
    pair = sorted(geom_ids(model, "robot", ("floor", foot)))
    return min((c.dist for c in data.contact if sorted(c.geom) == pair), default=np.inf)


def test_a_missing_foot_is_an_error_that_names_what_there_is():
    chosen = task("hopper")
    wrong = dataclasses.replace(chosen.spec, feet=("foot_geom", "paw"))
    with pytest.raises(ValueError, match=r"'hopper' has no geom 'paw'; its geoms are: floor, torso_geom, .*foot_geom"):
        foot_contacts(chosen.env.brax, wrong)


@pytest.mark.parametrize(
    ("name", "backend"), [*((name, "mjx") for name in SIZES), ("ant_omni", "spring"), ("humanoid_omni", "spring")]
)
def test_random_policies_differ_in_fitness_and_descriptor(name, backend):
    chosen, out = task(name, backend), evaluated(name, backend)
    low, high = np.array(chosen.descriptor_bounds)
    assert out.descriptor.shape == (BATCH, len(low))
    assert ((low <= out.descriptor) & (out.descriptor <= high)).all()
    assert (np.ptp(out.descriptor, axis=0) > 0).all()
    assert np.ptp(out.fitness) > 0.1
    assert (out.steps == LENGTH).all()
    rows = out.transitions
    assert rows.obs.shape == rows.next_obs.shape == (BATCH, LENGTH, chosen.obs_size)
    assert rows.action.shape == (BATCH, LENGTH, chosen.action_size)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(rows))
    # Within an episode, one row's successor is the next row's observation.
    onwards = rows.terminal[:, :-1] == 0
    np.testing.assert_array_equal(rows.next_obs[:, :-1][onwards], rows.obs[:, 1:][onwards])
    assert (rows.next_obs[:, :-1][~onwards] != rows.obs[:, 1:][~onwards]).any(-1).all()


# The same episodes on MuJoCo's C engine


@functools.cache
def native(name):
    return NativeLocomotion(name, episode_length=LENGTH, hidden=(16, 16))


@functools.cache
def population(name, trained):
    """Random policies, or the children of those that selection on the C engine has left."""
    rng, chosen = np.random.default_rng(0), native(name)
    genotypes = jax.vmap(chosen.policy.init)(jax.random.split(jax.random.key(2), BATCH * MANY))
    for generation in range(12 if trained else 0):
        keys = jax.random.split(jax.random.key(generation))  # of a single start the luckiest would be chosen
        fitness = sum(np.asarray(chosen.evaluate(genotypes, key).fitness) for key in keys)
        parents = np.resize(np.argsort(-fitness)[:BATCH], BATCH * MANY)
        noise = 0.02 * (np.arange(BATCH * MANY) >= BATCH)  # the parents themselves stay
        genotypes = jax.tree.map(
            lambda x, parents=parents, noise=noise: (
                x[parents] + noise.reshape(-1, *[1] * (x.ndim - 1)) * rng.normal(size=x.shape).astype(np.float32)
            ),
            genotypes,
        )
    return genotypes


@pytest.mark.parametrize("trained", [False, True])
@pytest.mark.parametrize("name", SIZES)
def test_episodes_of_both_engines_are_distributed_alike(name, trained):
    genotypes, ours = population(name, trained), native(name)
    batches = [jax.tree.map(lambda x, i=i: x[i : i + BATCH], genotypes) for i in range(0, BATCH * MANY, BATCH)]
    parts = [task(name).evaluate(batch, jax.random.key(100 + i)) for i, batch in enumerate(batches)]
    theirs = jax.tree.map(lambda *x: np.concatenate(x), *parts)
    mine = jax.tree.map(np.asarray, ours.evaluate(genotypes, jax.random.key(99)))
    assert jax.tree.map(lambda x: (x.shape, x.dtype), mine) == jax.tree.map(lambda x: (x.shape, x.dtype), theirs)
    falls = [out.transitions.terminal.sum(axis=1) for out in (mine, theirs)]
    columns = [(mine.fitness, theirs.fitness), falls, *zip(mine.descriptor.T, theirs.descriptor.T, strict=True)]
    assert min(ks_2samp(*pair, method="asymp").pvalue for pair in columns) > 0.001
    if trained:  # these are not more random policies
        untrained = ours.evaluate(population(name, False), jax.random.key(99)).fitness
        assert ks_2samp(mine.fitness, untrained, method="asymp").pvalue < 0.001
        assert mine.fitness.mean() > untrained.mean()


@pytest.mark.parametrize("name", SIZES)
def test_a_key_begins_the_same_episodes_on_both_engines(name):
    ours, theirs = native(name), task(name)
    for attribute in ("obs_size", "action_size", "policy", "descriptor_bounds", "reward_offset", "support", "spec"):
        assert getattr(ours, attribute) == getattr(theirs, attribute)
    genotypes = jax.vmap(ours.policy.init)(jax.random.split(jax.random.key(0), BATCH))
    mine = ours.evaluate(genotypes, jax.random.key(1)).transitions
    for my, its in zip(*map(jax.tree.leaves, (mine, evaluated(name).transitions)), strict=True):
        np.testing.assert_allclose(my[:, :3], its[:, :3], rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize(("name", "alive", "cost"), [("ant_omni", 1.0, 0.5), ("humanoid_omni", 5.0, 0.1 * 0.4**2)])
def test_omni_rewards_do_not_depend_on_where_the_robot_goes(name, alive, cost):
    chosen, out = task(name, "spring"), evaluated(name, "spring")
    assert chosen.descriptor_bounds == ((-OMNI_REACH,) * 2, (OMNI_REACH,) * 2)
    np.testing.assert_allclose(
        out.transitions.reward, alive - cost * (out.transitions.action**2).sum(-1), rtol=1e-4, atol=1e-4
    )
    # The offset keeps every possible step at or above zero.
    assert alive - cost * chosen.action_size + chosen.reward_offset >= 0


def test_final_position_is_clipped_but_an_explosion_is_nowhere():
    positions = jnp.array([[1.0, 2.0], [-50.0, 3.0], [jnp.inf, 7.0]])
    place = lambda *living: np.asarray(final_position(positions, jnp.array(living)))  # noqa: E731
    np.testing.assert_array_equal(place(True, False, False), [1, 2])
    np.testing.assert_array_equal(place(True, True, False), [-OMNI_REACH, 3])
    np.testing.assert_array_equal(place(True, True, True), [np.nan, 7])


@pytest.mark.parametrize(("backend", "mode"), [("generalized", "reset"), ("positional", "stop")])
def test_the_other_backends_trace(backend, mode):
    chosen = task("hopper", backend, mode)
    genotypes = jax.eval_shape(jax.vmap(chosen.policy.init), jax.random.split(jax.random.key(0), BATCH))
    out = jax.eval_shape(chosen.evaluate, genotypes, jax.random.key(0))
    assert out.descriptor.shape == (BATCH, 1)
    assert out.transitions.obs.shape == (BATCH, LENGTH, 11)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "hoper"}, "unknown task 'hoper'; choose from: hopper, walker2d"),
        ({"name": "ant", "backend": "bullet"}, "unknown backend 'bullet'; choose from: mjx"),
        ({"name": "ant", "after_termination": "loop"}, "unknown after_termination 'loop'; choose from: reset, stop"),
        ({"name": "ant", "episode_length": 0}, "episode_length=0: must be at least 1"),
    ],
)
def test_bad_arguments_are_refused(arguments, message):
    with pytest.raises(UserError, match=message):
        Locomotion(**arguments)


def test_building_a_task_is_silent_and_leaves_no_file(tmp_path):
    code = """
import jax
from qdhuac.tasks.mjx import Locomotion
task = Locomotion("halfcheetah", episode_length=5)
jax.eval_shape(lambda k: task.evaluate(jax.vmap(task.policy.init)(k[None]), k), jax.random.key(0))
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert list(tmp_path.iterdir()) == []


def test_other_messages_are_not_swallowed(capsys):
    with quiet_imports():
        print("Failed to import warp: no")
        print("something else")
    assert capsys.readouterr().out == "something else\n"

    text = "<mujoco><compiler{}/><worldbody><body><geom size='1'/></body></worldbody></mujoco>"
    with quiet_models():
        mujoco.MjModel.from_xml_string(text.format(" settotalmass='2'"))
    with pytest.raises(UserWarning, match="MuJoCo: wheel fell off"), quiet_models():
        mujoco.get_mju_user_warning()("wheel fell off")
    with pytest.raises(UserWarning, match="mine"), quiet_models():
        warnings.warn("mine", stacklevel=1)
    with pytest.raises(ValueError, match="unrecognized element"), quiet_models():
        mujoco.MjModel.from_xml_string("<mujoco><wheel/></mujoco>")
    assert mujoco.get_mju_user_warning() is None
    assert capsys.readouterr() == ("", "")
