"""The robots of the package that are our own: their models are sane, and both engines simulate the same."""

import functools

import jax
import numpy as np
import pytest

from qdhuac.tasks import engine
from qdhuac.tasks.engine import Simulation
from qdhuac.tasks.mjx import MjxTask
from qdhuac.tasks.native import NativeTask

MASSES = {"quadruped": 12.8, "hexapod": 2.8, "arm": 17.7, "point_maze": 2.0, "ant_maze": 0.91}
WALKERS = ("quadruped", "hexapod")
KEY = jax.random.key(3)


@functools.cache
def task(name):
    return NativeTask(name, episode_length=40, hidden=(16, 16))


def started(name):
    """A simulation at the start."""
    made = Simulation(task(name).model)
    engine.restart(made.addresses, made.fields, task(name).pose, np.zeros(task(name).model.nv))
    return made


def act(name, made, action, steps):
    """Repeat an action; returns what is measured after each step."""
    measured = np.zeros((steps, len(task(name).tables.feet) + len(task(name).tables.numbers)))
    for row in measured:
        engine.step(task(name).tables, made.addresses, made.fields, np.asarray(action, np.float32))
        engine.compute(task(name).tables, made.fields)
        engine.measure(task(name).tables, made.fields, row)
    return measured


@pytest.mark.parametrize("name", MASSES)
def test_masses_are_those_of_such_a_robot(name):
    m = task(name).model
    assert m.body_mass.sum() == pytest.approx(MASSES[name], abs=0.05)
    moving = m.body_mass > 0
    assert (m.body_inertia[moving] > 0).all()
    assert (2 * m.body_inertia.max(1) <= m.body_inertia.sum(1) * (1 + 1e-9)).all()  # possible for a rigid body
    assert (m.body_mass.max() / m.body_mass[moving].min()) < 100


@pytest.mark.parametrize("name", WALKERS)
def test_a_walker_stands_on_its_feet_where_it_is(name):
    made = started(name)
    start = made.data.xpos[1].copy()
    measured = act(name, made, np.zeros(made.model.nu), 100)
    assert made.data.xpos[1] == pytest.approx(start, abs=0.15 * start[2] + 0.05)
    assert made.data.xmat[1, 8] > 0.97
    assert np.abs(made.data.qvel).max() < 0.5
    feet = len(task(name).plan.feet)
    assert feet == {"quadruped": 4, "hexapod": 6}[name]
    assert (measured[-10:, :feet] < 1e-3).all()
    lifted = started(name)
    lifted.data.qpos[2] += 0.1
    assert (act(name, lifted, np.zeros(made.model.nu), 1)[:, :feet] > 0.05).all()


def test_the_arm_holds_a_pose_and_the_table_holds_the_arm():
    made = started("arm")
    reached = act("arm", made, [0.2, 0.3, 0.1, -0.4, 0.0, 0.2, 0.0], 150)
    scale = task("arm").tables.control[:, 0]
    np.testing.assert_allclose(made.data.qpos, scale * [0.2, 0.3, 0.1, -0.4, 0.0, 0.2, 0.0], atol=0.02)
    assert np.ptp(reached[-20:, :3], axis=0).max() < 0.01
    down = started("arm")
    act("arm", down, [0.0, 0.9, 0.0, 0.4, 0.0, 0.0, 0.0], 150)
    tip = down.data.site("grip").xpos
    assert tip[2] > 0.4
    assert down.data.ncon > 0


def test_the_straight_way_through_the_maze_is_a_dead_end():
    made = started("point_maze")
    act("point_maze", made, [0.0, 1.0], 400)
    assert made.data.qpos[1] == pytest.approx(3.5 - 0.2 - 0.4, abs=0.05)  # the wall, and the radius of the disc
    nearest = np.hypot(*(made.data.qpos - [0.0, 14.0]))
    around = started("point_maze")
    for action, steps in (([1, 0], 150), ([0, 1], 70), ([-1, 0], 160), ([0, 1], 70), ([1, 0], 8)):
        act("point_maze", around, action, steps)
    assert np.hypot(*(around.data.qpos - [0.0, 14.0])) < 0.5 * nearest


def test_walls_stop_the_ant():
    made = started("ant_maze")
    made.data.qvel[1] = 8.0
    places = []
    for _ in range(40):
        act("ant_maze", made, np.zeros(8), 1)
        places.append(made.data.qpos[1])
    assert 2.5 < max(places) < 3.5 - 0.2


@pytest.mark.parametrize("name", MASSES)
def test_random_policies_are_finite_and_differ(name):
    genotypes = jax.vmap(task(name).policy.init)(jax.random.split(KEY, 8))
    found = jax.tree.map(np.asarray, task(name).evaluate(genotypes, KEY))
    assert np.isfinite(found.fitness).all()
    assert np.isfinite(found.transitions.next_obs).all()
    assert np.abs(found.transitions.next_obs).max() < 200
    assert (np.ptp(found.descriptor, axis=0) > 0).any()
    assert np.ptp(found.fitness) > 0.01
    assert (found.fitness / 40 + task(name).spec.reward_offset > 0).all()


@pytest.mark.parametrize("name", ["quadruped", "ant_maze"])
def test_both_engines_make_the_same_step(name):
    rng, mine, states = np.random.default_rng(0), task(name), []
    for _ in range(24):
        made = started(name)
        made.data.qpos[:2] += rng.uniform(-2.5, 2.5, 2)  # also at walls
        for _ in range(rng.integers(1, 30)):
            action = rng.uniform(-1, 1, made.model.nu).astype(np.float32)
            engine.step(mine.tables, made.addresses, made.fields, action)
        states.append(
            [x.astype(np.float32) for x in (made.data.qpos, made.data.qvel, made.data.qacc_warmstart, action)]
        )
    columns = [np.stack(column) for column in zip(*states, strict=True)]

    other = MjxTask(name, hidden=(16, 16))

    def step(qpos, qvel, warm_start, action):
        start = other.start(KEY)._replace(qpos=qpos, qvel=qvel)
        before = other.state(other.data(start).replace(qacc_warmstart=warm_start), start)
        return other.step(before, action).obs

    theirs = np.asarray(jax.jit(jax.vmap(step))(*columns))
    ours = np.zeros_like(theirs)
    for obs, (qpos, qvel, warm_start, action) in zip(ours, states, strict=True):
        made = Simulation(mine.model)
        engine.restart(made.addresses, made.fields, qpos.astype(float), qvel.astype(float))
        made.data.qacc_warmstart[:] = warm_start
        engine.step(mine.tables, made.addresses, made.fields, action)
        made.fields[engine.ACTION][:] = action
        engine.observe(mine.tables, made.fields, 0.0, np.uint32(0), 1, obs)
    error = (np.abs(ours - theirs) / (1 + np.abs(theirs))).max(axis=1)
    assert np.median(error) < 1e-4
    assert error.max() < 5e-3
