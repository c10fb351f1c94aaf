"""A cart with a pole, of which everything is known: terms, descriptors, actions, variation, and what a run keeps."""

import math
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from qdhuac.errors import UserError
from qdhuac.tasks import bundle, engine, noise, task_file
from qdhuac.tasks.engine import Simulation
from qdhuac.tasks.mjx import MjxTask
from qdhuac.tasks.model import load
from qdhuac.tasks.native import NativeTask
from qdhuac.tasks.tables import plan, tables

MODEL = """
<mujoco>
  <option timestep="0.01" gravity="0 0 0"/>
  <worldbody>
    <geom name="ground" type="plane" size="5 5 1" contype="0" conaffinity="0"/>
    <body name="cart" pos="0 0 1">
      <joint name="rail" type="slide" axis="1 0 0"/>
      <joint name="side" type="slide" axis="0 1 0"/>
      <geom name="box" type="box" size="0.1 0.2 0.3" mass="2"/>
      <site name="tip" pos="0 0 0.5"/>
      <body name="pole"><joint name="hinge" axis="0 1 0"/>
        <geom name="rod" type="cylinder" size="0.1 0.4" mass="1"/></body>
    </body>
  </worldbody>
  <actuator><motor name="push" joint="rail" gear="3" ctrllimited="true" ctrlrange="-2 1"/>
    <motor name="turn" joint="hinge" gear="5" ctrllimited="true" ctrlrange="-1 1"/></actuator>
  <sensor><jointpos name="where" joint="rail"/><jointvel name="fast" joint="rail"/></sensor>
  <keyframe><key name="ahead" qpos="0.5 0 0.25"/></keyframe>
</mujoco>
"""
TASK = """
model = "cart.xml"
frames = 2
observation = [{ field = "qpos" }, { field = "qvel" }]
reward = [{ term = "alive" }]
descriptors.where = [{ kind = "final", body = "cart", axis = "x", low = -5.0, high = 5.0 }]
"""
STEPS = 40


def write(folder, **changes):
    """The cart's task in a folder, with other values for some keys."""
    (folder / "cart.xml").write_text(MODEL)
    lines = [line for line in TASK.splitlines() if line.partition(" =")[0].partition(".")[0] not in changes]
    path = folder / "cart.toml"
    path.write_text("\n".join([*(f"{key} = {value}" for key, value in changes.items()), *lines]))
    return path


def constant(task, *action):
    """A policy that always does the same. Leaves [1, ...]"""
    network = jax.tree.map(lambda x: jnp.zeros((1, *x.shape)), task.policy.init(jax.random.key(0)))
    network[f"Dense_{len(task.policy.hidden)}"]["bias"] = jnp.arctanh(jnp.array([action], jnp.float32))
    return network


def build(path, kind=NativeTask, **options):
    return kind(path, **{"episode_length": STEPS, "hidden": (4,), "after_termination": "stop", **options})


def evaluated(task, *action, key=0):
    return jax.tree.map(np.asarray, task.evaluate(constant(task, *action), jax.random.key(key)))


MOVED = np.array([0.5, -0.3, 0.7]), np.array([2.0, 0.5, -1.5])  # positions and velocities of the three joints

CASES = {  # a term, and its value after a step of a cart that is not pushed but turned: torque 5 * 0.5, speed -1.5
    '{ term = "alive", weight = 3.0 }': 3.0,
    '{ term = "velocity", joint = "rail" }': 2.0,
    '{ term = "velocity", joint = "rail", target = 1.0, width = 2.0 }': math.exp(-0.25),
    '{ term = "height", body = "cart", weight = 2.0 }': 2.0,
    '{ term = "upright", body = "cart" }': 1.0,
    '{ term = "control", weight = 2.0 }': -0.5,
    '{ term = "action_change" }': -0.25,
    '{ term = "distance", site = "tip", axis = "z", point = [1.0] }': -0.5,
    '{ term = "distance", site = "tip", axis = "z", point = [1.0], width = 0.5, weight = 2.0 }': 2 * math.exp(-1.0),
    '{ term = "value", joint = "side", field = "qvel", weight = -2.0 }': -1.0,
    '{ term = "force", sensor = "fast" }': -2.0,
}


@pytest.mark.parametrize(("term", "value"), CASES.items())
def test_a_term_of_the_reward_has_its_value(tmp_path, term, value):
    task = build(write(tmp_path, reward=f"[{term}]"))
    sim = Simulation(task.model)
    engine.restart(sim.addresses, sim.fields, *MOVED)
    look = lambda: np.array([sim.fields[field][at] for field, at in task.tables.moving])  # noqa: E731
    before, action, measured = look(), np.array([0.0, 0.5], np.float32), np.zeros(len(task.tables.numbers))
    engine.step(task.tables, sim.addresses, sim.fields, action)
    engine.compute(task.tables, sim.fields)
    engine.measure(task.tables, sim.fields, measured)
    found = task.reward(measured, look() - before, action, np.zeros(2, np.float32))
    assert found == pytest.approx(value, rel=1e-3)
    on_jax = task.reward(*map(jnp.asarray, (measured, look() - before, action)), jnp.zeros(2))
    assert on_jax == pytest.approx(found, rel=1e-6)


def test_energy_is_the_power_of_the_actuators(tmp_path):
    path = write(
        tmp_path, reward='[{ term = "energy" }]', observation='[{ field = "qvel" }, { field = "qfrc_actuator" }]'
    )
    out = evaluated(build(path), 0.5, -0.25).transitions
    np.testing.assert_allclose(out.next_obs[0, :, 3:], np.tile([1.5, 0, -1.25], (STEPS, 1)), rtol=1e-5)
    # Forces lag a substep behind velocities, as all but the state; they are constant here.
    power = np.abs(out.next_obs[0, :, :3] * out.next_obs[0, :, 3:]).sum(-1)
    np.testing.assert_allclose(-out.reward[0], power, rtol=1e-4)


def test_parts_are_what_they_name(tmp_path):
    parts = """[
    { joint = "hinge" }, { joint = "rail", field = "qvel" }, { body = "pole", axis = "x" }, { site = "tip" },
    { sensor = "where" }, { field = "sensordata", skip = 1 }, { field = "ctrl", count = 1 }, { field = "action" },
    { body = "pole", field = "pitch" }, { body = "pole", field = "tilt" }, { field = "qpos", limit = 0.6 }]"""
    task = build(write(tmp_path, observation=parts))
    sim, obs = Simulation(task.model), np.zeros(task.policy.obs_size)
    engine.restart(sim.addresses, sim.fields, *MOVED)
    sim.data.ctrl[:] = 0.75, 0.5
    engine.observe(task.tables, sim.fields, 0.0, 0, 0, obs)
    expected = [0.7, 2.0, 0.5, 0.5, -0.3, 1.5, 0.5, 2.0, 0.75, 0.0, 0.0, 0.7, 0.7, 0.5, -0.3, 0.6]
    np.testing.assert_allclose(obs, expected, atol=1e-9)


@pytest.mark.parametrize("angles", [(0.3, -0.8, 0.5), (-2.0, 0.4, 3.0)])
def test_angles_are_those_of_a_rotation(tmp_path, angles):
    """Intrinsic yaw, pitch, roll, as scipy has them."""
    free = MODEL.replace('<joint name="rail" type="slide" axis="1 0 0"/>', '<freejoint name="rail"/>')
    free = free.replace('<joint name="side" type="slide" axis="0 1 0"/>', "")
    free = free[: free.index("  <sensor>")] + "</mujoco>"
    parts = ", ".join(f'{{ body = "cart", field = "{name}" }}' for name in ("yaw", "pitch", "roll", "tilt"))
    path = write(tmp_path, observation=f"[{parts}]")
    (tmp_path / "cart.xml").write_text(free.replace('joint="rail" gear="3"', 'joint="hinge" gear="3"'))
    task, turn = build(path), Rotation.from_euler("ZYX", angles)
    sim, obs = Simulation(task.model), np.zeros(4)
    quaternion = turn.as_quat()[[3, 0, 1, 2]]
    engine.restart(sim.addresses, sim.fields, np.array([0, 0, 1, *quaternion, 0]), np.zeros(7))
    engine.observe(task.tables, sim.fields, 0.0, 0, 0, obs)
    np.testing.assert_allclose(obs[:3], angles, atol=1e-9)
    assert obs[3] == pytest.approx(math.acos(turn.as_matrix()[2, 2]))


@pytest.mark.parametrize(
    ("geom", "pitch", "lowest"),
    [
        ("box", 0.0, 0.7),
        ("rod", 0.0, 0.6),
        ("rod", 0.5, 1 - 0.4 * math.cos(0.5) - 0.1 * math.sin(0.5)),
        ("rod", math.pi / 2, 0.9),
    ],
)
def test_the_height_of_a_foot_is_that_of_its_lowest_point(tmp_path, geom, pitch, lowest):
    task = build(write(tmp_path, descriptors=f'{{ feet = [{{ kind = "contact", geom = "{geom}" }}] }}'))
    sim, measured = Simulation(task.model), np.zeros(1)
    engine.restart(sim.addresses, sim.fields, np.array([0, 0, pitch]), np.zeros(3))
    engine.measure(task.tables, sim.fields, measured)
    assert measured[0] == pytest.approx(lowest)


def described(tmp_path, dimension, features, living, feet=0):
    """The descriptor of one dimension from columns of features [T, n]."""
    task = build(write(tmp_path, descriptors=f"{{ one = [{dimension}] }}"))
    assert len(task.plan.feet) == feet
    padded = np.zeros((STEPS, features.shape[1]), np.float32)
    padded[: len(features)] = features
    return float(task.describe(jnp.asarray(padded), jnp.arange(STEPS) < living)[0])


def test_each_kind_of_dimension_has_its_value(tmp_path):
    x = np.array([[1.0], [3.0], [-2.0], [4.0], [100.0]])  # the last does not belong to the episode
    part, bounds = 'joint = "rail"', "low = -50.0, high = 50.0"
    for kind, value in {"mean": 1.5, "final": 4.0, "range": 6.0}.items():
        assert described(tmp_path, f'{{ kind = "{kind}", {part}, {bounds} }}', x, 4) == value
    assert described(tmp_path, f'{{ kind = "energy", {bounds} }}', x, 4) == 1.5
    assert described(tmp_path, f'{{ kind = "final", {part}, low = 0.0, high = 1.0 }}', x, 4) == 1.0  # clipped
    assert math.isnan(described(tmp_path, f'{{ kind = "mean", {part}, {bounds} }}', x * math.nan, 4))
    down = np.array([[0.0], [1.0], [1.0], [0.0], [1.0], [0.0], [1.0]])
    foot = 'geom = "rod"'
    assert described(tmp_path, f'{{ kind = "contact", {foot} }}', down, 6, feet=1) == 0.5
    per_second = described(tmp_path, f'{{ kind = "frequency", {foot}, {bounds} }}', down, 6, feet=1)
    assert per_second == pytest.approx(2 / (6 * 0.02))
    way = np.array([[1.0, 1.0], [5.0, 5.0], [0.0, 2.0]])
    assert described(tmp_path, '{ kind = "direction", body = "cart" }', way, 3) == pytest.approx(0.75 * math.pi)


@pytest.mark.parametrize(
    ("actions", "told"),
    [
        ("{ scale = 0.5 }", (0.25, -0.125)),
        ("{ scale = [0.5, 2.0] }", (0.25, -0.5)),
        ("{ kind = 'range' }", (0.25, -0.25)),
        ("{ kind = 'position', scale = 0.5, pose = [0.1, 0.2] }", (0.35, 0.075)),
        ("{ kind = 'position' }\nreset = { keyframe = 'ahead' }", (1.0, 0.0)),
    ],
)
def test_actions_are_scaled(tmp_path, actions, told):
    task = build(write(tmp_path, actions=actions, observation='[{ field = "ctrl" }]'))
    np.testing.assert_allclose(evaluated(task, 0.5, -0.25).transitions.next_obs[0, 0], told, rtol=1e-5, atol=1e-6)


def test_a_servo_holds_its_position_and_is_as_strong_as_the_motor_was(tmp_path):
    actions = "{ kind = 'position', pose = [0.2, 0.0], stiffness = 60.0, damping = 20.0 }"
    path = write(tmp_path, actions=actions, observation='[{ field = "qpos" }, { field = "qfrc_actuator" }]')
    out = evaluated(build(path, episode_length=400), 0.0, 0.0).transitions.next_obs[0]
    assert out[-1, 0] == pytest.approx(0.2, abs=1e-3)
    assert out[0, 3] == pytest.approx(6.0)  # 60 * 0.2 would be 12; the motor had 3 * 2


@pytest.mark.parametrize("kind", [NativeTask, MjxTask])
def test_a_delayed_action_has_its_effect_later(tmp_path, kind):
    path = write(tmp_path, actions="{ delay = 3 }", observation='[{ field = "ctrl" }, { field = "action" }]')
    obs = evaluated(build(path, kind), 0.5, -0.25).transitions.next_obs[0]
    np.testing.assert_allclose(obs[:, 0], [0] * 3 + [0.5] * (STEPS - 3), rtol=1e-5)
    np.testing.assert_allclose(obs[:, 2:], np.tile([0.5, -0.25], (STEPS, 1)), rtol=1e-5)


VARIED = """{ mass = [0.5, 2.0], friction = [0.5, 1.5], strength = [0.5, 1.0], delay = [0, 3],
observation_noise = 0.1, push = 1.0, push_every = 10 }""".replace("\n", " ")


def test_variation_is_the_same_on_both_engines_and_differs_between_episodes(tmp_path):
    path = write(tmp_path, variation=VARIED)
    native, mjx = (build(path, kind, vary=True) for kind in (NativeTask, MjxTask))
    many = lambda task: jax.tree.map(lambda x: jnp.repeat(x, 4, axis=0), constant(task, 0.5, -0.25))  # noqa: E731
    ours, theirs = (jax.tree.map(np.asarray, t.evaluate(many(t), jax.random.key(1))) for t in (native, mjx))
    np.testing.assert_allclose(ours.transitions.next_obs, theirs.transitions.next_obs, rtol=1e-3, atol=1e-3)
    assert np.ptp(ours.descriptor) > 0.1
    still = build(path, vary=False)
    without = np.asarray(still.evaluate(many(still), jax.random.key(1)).transitions.next_obs)
    assert np.ptp(without, axis=0).max() == 0  # the start has no noise here
    # A task that does not vary again has its own masses back.
    rows = ours.transitions
    np.testing.assert_array_equal(rows.next_obs[:, :-1], rows.obs[:, 1:])


def test_what_varies_is_within_its_bounds_and_in_the_model(tmp_path):
    task = build(write(tmp_path, variation=VARIED), vary=True)
    start = jax.jit(jax.vmap(task.start))(jax.random.split(jax.random.key(0), 500))
    bodies, factors = task.model.nbody, np.asarray(start.factors)
    mass, friction, strength, delay = np.split(factors, np.cumsum([bodies, 1, 2]), axis=1)
    for column, (low, high) in ((mass, (0.5, 2.0)), (friction, (0.5, 1.5)), (strength, (0.5, 1.0))):
        assert low <= column.min() < low + 0.1
        assert high - 0.1 < column.max() <= high
    assert set(delay.ravel()) == {0.0, 1.0, 2.0, 3.0}
    assert len(set(np.asarray(start.seed).tolist())) == 500
    sim = Simulation(task.model)
    engine.vary(sim.varied, np.array([1, 2, 3, 0.5, 0.25, 0.75, 0], np.float32))
    np.testing.assert_allclose(sim.model.body_mass, [0, 4, 3])
    np.testing.assert_allclose(sim.model.body_subtreemass, [7, 7, 3])
    np.testing.assert_allclose(sim.model.body_inertia[1], 2 * task.model.body_inertia[1])
    np.testing.assert_allclose(sim.model.geom_friction, 0.5 * task.model.geom_friction)
    np.testing.assert_allclose(sim.model.actuator_gainprm[:, 0], [0.25, 0.75])
    np.testing.assert_allclose(task.model.body_mass, [0, 2, 1])  # that of other simulations is as it was


def test_noise_is_even_normal_and_the_same_in_compiled_code():
    seed, steps, index = jnp.uint32(123456789), jnp.arange(200), jnp.arange(50)
    drawn = np.asarray(jax.vmap(lambda t: noise.uniform(seed, t, index))(steps))
    again = [[engine.uniform(np.uint32(123456789), t, i) for i in range(50)] for t in range(200)]
    np.testing.assert_allclose(drawn, again, rtol=1e-6)
    assert np.histogram(drawn, 10, (0, 1))[0] == pytest.approx(1000, abs=120)
    assert abs(np.corrcoef(drawn[:-1].ravel(), drawn[1:].ravel())[0, 1]) < 0.03
    normal = np.asarray(jax.vmap(lambda t: noise.normal(seed, t, 50))(steps))
    assert normal.mean() == pytest.approx(0, abs=0.03)
    assert normal.std() == pytest.approx(1, abs=0.03)


# The files of a task


def test_a_bundle_holds_every_file_that_a_task_names(tmp_path):
    for name in ("ant_omni.toml", "ant.toml", "ant.xml", "scene.xml"):
        shutil.copy(task_file.FOLDER / name, tmp_path)
    files = bundle.collect(tmp_path / "ant_omni.toml")
    assert files.keys() == {"ant_omni.toml", "ant.toml", "ant.xml", "scene.xml"}
    copy = tmp_path / "copy"
    copy.mkdir()
    for name, content in files.items():
        (copy / name).write_bytes(content)
    assert bundle.digest(bundle.collect(copy / "ant_omni.toml")) == bundle.digest(files)
    (copy / "scene.xml").write_bytes(files["scene.xml"] + b"\n")
    assert bundle.digest(bundle.collect(copy / "ant_omni.toml")) != bundle.digest(files)
    one, other = task_file.read(copy / "ant_omni.toml"), task_file.builtin("ant_omni")
    assert tables(one, load(one), plan(one, load(one))).observed.shape == (27, 2)
    assert one.reward == other.reward


MESH = "v 0 0 0\nv 1 0 0\nv 0 1 0\nv 0 0 1\nf 1 3 2\nf 1 2 4\nf 1 4 3\nf 2 3 4\n"


def test_meshes_belong_to_a_bundle(tmp_path):
    path = write(tmp_path)
    (tmp_path / "looks").mkdir()
    (tmp_path / "looks" / "shell.obj").write_text(MESH)
    assets = '<compiler meshdir="looks"/><asset><mesh name="shell" file="shell.obj"/></asset>'
    (tmp_path / "cart.xml").write_text(MODEL.replace("<option", assets + "<option"))
    assert bundle.collect(path).keys() == {"cart.toml", "cart.xml", "looks/shell.obj"}
    assert load(task_file.read(path)).nmesh == 1


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('<include file="../other.xml"/>', ["other.xml", "outside of the folder"]),
        ('<include file="/etc/passwd"/>', ["/etc/passwd", "outside of the folder"]),
        ('<include file="link.xml"/>', ["link.xml", "outside of the folder"]),
        ('<include file="none.xml"/>', ["none.xml", "no such"]),
        ('<include file="."/>', ["cannot be read"]),
        ('<asset><mesh file="none.obj"/></asset>', ["none.obj", "no such"]),
        ("<include", ["cart.xml", "not valid XML"]),
    ],
)
def test_a_bundle_refuses_what_is_outside_or_missing(tmp_path, line, words):
    folder = tmp_path / "task"
    folder.mkdir()
    path = write(folder)
    (tmp_path / "other.xml").write_text("<mujoco/>")
    (folder / "link.xml").symlink_to(tmp_path / "other.xml")
    (folder / "cart.xml").write_text(MODEL.replace("<option", line + "<option"))
    with pytest.raises(UserError) as refusal:
        bundle.collect(path)
    assert all(word in str(refusal.value) for word in words), refusal.value
    assert "\n" not in str(refusal.value)
