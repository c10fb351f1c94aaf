"""The robots: task files, sizes, feet, silence, and the same episodes on both engines. Each compiles once on MJX."""

import functools
import shutil
import subprocess
import sys
import warnings

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest
from scipy.stats import ks_2samp

from qdhuac.environment import quiet_imports, quiet_models
from qdhuac.errors import UserError
from qdhuac.tasks import engine, task_file
from qdhuac.tasks.engine import Simulation
from qdhuac.tasks.mjx import MjxTask
from qdhuac.tasks.model import geom_ids
from qdhuac.tasks.native import NativeTask

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
def mjx(name):
    return MjxTask(name, episode_length=LENGTH, hidden=(16, 16))


@functools.cache
def native(name):
    return NativeTask(name, episode_length=LENGTH, hidden=(16, 16))


@functools.cache
def evaluated(name):
    """Random policies, evaluated once on MJX."""
    genotypes = jax.vmap(mjx(name).policy.init)(jax.random.split(jax.random.key(0), BATCH))
    return jax.tree.map(np.asarray, mjx(name).evaluate(genotypes, jax.random.key(1)))


# Task files


def test_sizes_are_those_of_the_robots():
    for name, (obs, action, feet) in SIZES.items():
        task = native(name)
        assert (task.policy.obs_size, task.policy.action_size, task.policy.hidden) == (obs, action, (16, 16))
        assert task.spec.descriptor_bounds == ((0.0,) * feet, (1.0,) * feet)
    for name in ("ant_omni", "humanoid_omni"):
        assert native(name).spec.descriptor_bounds == ((-30.0,) * 2, (30.0,) * 2)
        assert native(name).policy == native(name.removesuffix("_omni")).policy


def test_no_step_of_an_omni_task_lowers_the_qd_score():
    for name in ("ant_omni", "humanoid_omni"):
        task = native(name)
        wildest = np.ones(task.policy.action_size)
        assert task.reward(np.zeros(2), np.zeros(0), wildest, wildest) + task.spec.reward_offset >= 0


def written(folder, old, new, name="hopper"):
    """A copy of a task of the package with one thing in it replaced."""
    for file in (f"{name}.toml", f"{name}.xml", "scene.xml"):
        shutil.copy(task_file.FOLDER / file, folder)
    path = folder / f"{name}.toml"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    return path


def tables_of(path):
    return NativeTask(path, hidden=(4,)).tables


def test_a_task_can_be_read_from_any_file(tmp_path):
    path = written(tmp_path, '{ term = "alive" }', '{ term = "alive", weight = 2.0 }')
    assert task_file.read(path).reward[1].weight == 2.0
    assert tables_of(path).observed.shape == (11, 2)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("frames = 4", "frames = 4.5", ["hopper.toml", "frames", "a whole number", "4.5"]),
        ("frames = 4", "frame = 4", ["unknown key 'frame'", "frames"]),
        ("frames = 4\n", "", ["frames: missing"]),
        ("frames = 4", "frames = ", ["not valid TOML"]),
        ("frames = 4", "base = '../ant.toml'", ["base", "in the same folder"]),
        ('"alive" }', '"alive", weight = true }', ["reward: 1: weight", "a finite number"]),
        ('"alive" }', '"alive", weight = inf }', ["reward: 1: weight", "a finite number", "inf"]),
        ('"alive" }', '"alive", wight = 1.0 }', ["reward: 1: unknown key 'wight'", "did you mean 'weight'"]),
        ('"alive" }', '"lively" }', ["reward: 1: term", "'alive'", "'lively'"]),
        ('"alive" }', '"distance", body = "torso" }', ["reward: 1: distance: point: expected 3 numbers"]),
        ('"alive" }', '"force", sensor = "touch" }', ["reward: 1: force: sensor 'touch'", "none with a name"]),
        ('"velocity", body = "torso", axis = "x"', '"velocity", body = "torso"', ["velocity", "one number", "axis"]),
        ('"uniform"', '"even"', ["reset: velocity", "'uniform', 'normal'", "'even'"]),
        ("limit = 10.0", "limits = 10.0", ["observation: 2", "unknown key 'limits'"]),
        ("[-200.0, 1000.0]", "[0.0]", ["support"]),
        ('"foot_geom"', '"foot_geo"', ["geom 'foot_geo'", "did you mean 'foot_geom'"]),
        ('"foot_geom"', '"floor"', ["geom 'floor'", "a foot must be a sphere, capsule"]),
        ('field = "qvel"', 'field = "speed"', ["observation: 2", "field 'speed'", "qvel"]),
        ('"rooty"', '"hip"', ["healthy: 1", "joint 'hip'", "thigh_joint"]),
        ('body = "torso"', 'body = "trunk"', ["observation: 0", "body 'trunk'", "torso"]),
        ('body = "torso"', 'body = "torso", joint = "rooty"', ["one of body, joint", "got body and joint"]),
        ('"qpos", skip = 2 }', '"qpos", skip = 6 }', ["observation: 1", "skip=6", "there are 6 numbers"]),
        ('"qpos", skip = 2 }', '"qpos", count = 7 }', ["observation: 1", "count=7", "out of range"]),
        ("low = 0.7 }", "low = 0.7, high = 0.6 }", ["healthy: 0", "a low below a high"]),
        ("low = 0.7, high = 1.5", "low = 1.5, high = 1.5", ["descriptors: posture: 0", "a finite low below"]),
        (
            'kind = "mean", body',
            'kind = "mean", geom = "foot_geom", low = 0.0 }, { kind = "mean", body',
            ["posture: 0"],
        ),
        ("hopper.xml", "nothing.xml", ["nothing.xml"]),
        ("hopper.xml", "../hopper.xml", ["model='../hopper.xml'", "in the folder of the file"]),
        ("hopper.xml", "scene.xml", ["scene.xml", "no actuators"]),
        ("frames = 4", "frames = 4\nactions = { kind = 'position', scale = [1.0] }", ["scale: expected 3 numbers"]),
        ("frames = 4", "frames = 4\nactions = { pose = [1.0] }", ["pose: expected 3 numbers"]),
        ("frames = 4", "frames = 4\nactions = { delay = -1 }", ["delay", "0 to 100"]),
        ("frames = 4", "frames = 4\nvariation = { mass = [0.0, 1.0] }", ["mass", "above 0"]),
        ("frames = 4", "frames = 4\ndescriptor = 'speed'", ["descriptor='speed'", "is not in descriptors"]),
        ("noise = 0.005", "noise = 0.005, keyframe = 'home'", ["keyframe 'home'", "none with a name"]),
        ("noise = 0.005", "noise = 0.005, pose = [0.0]", ["pose: expected 6 numbers"]),
    ],
)
def test_a_mistake_in_a_file_is_named(tmp_path, old, new, words):
    with pytest.raises(UserError) as refusal:
        tables_of(written(tmp_path, old, new))
    assert "\n" not in str(refusal.value)
    assert all(word in str(refusal.value) for word in words), refusal.value


@pytest.mark.parametrize("kind", [NativeTask, MjxTask])
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"task": "hoper"}, "unknown task 'hoper'; choose from: ant, "),
        ({"task": "hoper.toml"}, "hoper.toml: no such task file"),
        (
            {"task": "ant", "after_termination": "loop"},
            "unknown after_termination 'loop'; choose from: reset, stop",
        ),
        ({"task": "ant", "episode_length": 0}, "episode_length=0: must be at least 1"),
        ({"task": "ant", "descriptor": "speed"}, "unknown task.descriptor 'speed'; choose from: feet, position"),
    ],
)
def test_bad_arguments_are_refused(kind, arguments, message):
    with pytest.raises(UserError, match=message):
        kind(**arguments)


# Feet


@pytest.mark.parametrize("name", SIZES)
def test_feet_touch_the_floor_when_they_do(name):
    task = native(name)
    model, sim, rng = task.model, Simulation(task.model), np.random.default_rng(0)
    free = model.jnt_type[0] == mujoco.mjtJoint.mjJNT_FREE
    height, joints = (2, 7) if free else (1, 2)

    poses = np.tile(np.asarray(task.start(jax.random.key(0))[0], float), (26, 1))
    poses[0, height] += 5.0  # in the air
    poses[1, height] -= 5.0  # feet below the floor
    poses[2:, height] += rng.uniform(-0.6, 0.1, 24)
    poses[2:, joints:] += rng.uniform(-0.5, 0.5, poses[2:, joints:].shape)
    if free:
        poses[2:, 3:7] += rng.uniform(-0.4, 0.4, (24, 4))
        poses[:, 3:7] /= np.linalg.norm(poses[:, 3:7], axis=1, keepdims=True)

    heights = np.zeros((26, len(task.plan.feet)))
    distances = np.zeros_like(heights)
    for pose, height, distance in zip(poses, heights, distances, strict=True):
        engine.restart(sim.addresses, sim.fields, pose, np.zeros(model.nv))
        engine.measure(task.tables, sim.fields, height)
        distance[:] = [floor_distance(model, sim.data, foot) for foot in task.plan.feet]
    assert (heights[0] > 0).all()
    assert (heights[1] < 0).all()
    # MuJoCo is the judge of each pose; a foot within 0.1 mm of the floor may be called either way.
    sure = np.abs(distances) > 1e-4
    assert sure.mean() > 0.9
    np.testing.assert_array_equal((heights <= 0)[sure], (distances <= 0)[sure])
    assert ((heights[2:] <= 0).mean(axis=0) > 0.1).all()
    assert ((heights[2:] <= 0).mean(axis=0) < 0.9).all()


def floor_distance(model, data, foot):
    """How far a foot is above the floor, inf where the engine sees no contact."""
    pair = sorted(geom_ids(model, ("floor", foot)))
    return min((c.dist for c in data.contact if sorted(c.geom) == pair), default=np.inf)


# Episodes


# Single steps are compared for all robots, in test_oracle. A whole episode on MJX takes long to compile: here are one
# robot of each kind of descriptor.
@pytest.mark.parametrize("name", ["hopper", "ant_omni"])
def test_random_policies_differ_in_fitness_and_descriptor(name):
    chosen, out = mjx(name), evaluated(name)
    low, high = np.array(chosen.spec.descriptor_bounds)
    assert out.descriptor.shape == (BATCH, len(low))
    assert ((low <= out.descriptor) & (out.descriptor <= high)).all()
    assert (np.ptp(out.descriptor, axis=0) > 0).all()
    assert np.ptp(out.fitness) > 0.1
    assert (out.steps == LENGTH).all()
    rows = out.transitions
    assert rows.obs.shape == rows.next_obs.shape == (BATCH, LENGTH, chosen.policy.obs_size)
    assert rows.action.shape == (BATCH, LENGTH, chosen.policy.action_size)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(rows))
    # Within an episode, one row's successor is the next row's observation.
    onwards = rows.terminal[:, :-1] == 0
    np.testing.assert_array_equal(rows.next_obs[:, :-1][onwards], rows.obs[:, 1:][onwards])
    assert (rows.next_obs[:, :-1][~onwards] != rows.obs[:, 1:][~onwards]).any(-1).all()


@pytest.mark.parametrize("name", ["hopper", "ant_omni"])
def test_a_key_begins_the_same_episodes_on_both_engines(name):
    ours, theirs = native(name), mjx(name)
    assert (ours.policy, ours.file) == (theirs.policy, theirs.file)
    genotypes = jax.vmap(ours.policy.init)(jax.random.split(jax.random.key(0), BATCH))
    mine = ours.evaluate(genotypes, jax.random.key(1)).transitions
    for my, its in zip(*map(jax.tree.leaves, (mine, evaluated(name).transitions)), strict=True):
        np.testing.assert_allclose(my[:, :3], its[:, :3], rtol=2e-3, atol=2e-3)


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


@pytest.mark.parametrize(("name", "trained"), [("hopper", True), ("ant_omni", False)])
def test_episodes_of_both_engines_are_distributed_alike(name, trained):
    genotypes, ours = population(name, trained), native(name)
    batches = [jax.tree.map(lambda x, i=i: x[i : i + BATCH], genotypes) for i in range(0, BATCH * MANY, BATCH)]
    parts = [mjx(name).evaluate(batch, jax.random.key(100 + i)) for i, batch in enumerate(batches)]
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


def test_the_final_position_is_clipped_and_that_of_an_unstable_simulation_is_nan():
    positions = jnp.array([[1.0, 2.0], [-50.0, 3.0], [jnp.inf, 7.0]])
    describe = native("ant_omni").describe
    place = lambda *living: np.asarray(describe(positions, jnp.array(living)))  # noqa: E731
    np.testing.assert_array_equal(place(True, False, False), [1, 2])
    np.testing.assert_array_equal(place(True, True, False), [-30, 3])
    np.testing.assert_array_equal(place(True, True, True), [np.nan, 7])


def test_an_omni_task_traces_on_mjx():
    chosen = MjxTask("ant_omni", episode_length=LENGTH, hidden=(16, 16), after_termination="stop")
    genotypes = jax.eval_shape(jax.vmap(chosen.policy.init), jax.random.split(jax.random.key(0), BATCH))
    assert jax.eval_shape(chosen.evaluate, genotypes, jax.random.key(0)).descriptor.shape == (BATCH, 2)


def test_building_a_task_prints_nothing_and_leaves_no_file(tmp_path):
    code = """
import jax
from qdhuac.tasks.mjx import MjxTask
task = MjxTask("halfcheetah", episode_length=5)
jax.eval_shape(lambda k: task.evaluate(jax.vmap(task.policy.init)(k[None]), k), jax.random.key(0))
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert list(tmp_path.iterdir()) == []


def test_other_messages_are_not_suppressed(capsys):
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
