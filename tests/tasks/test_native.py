"""Rollouts on the C engine. `test_oracle.py` has its single steps, `test_tasks.py` compares episodes with MJX."""

import functools
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qdhuac.environment import quiet_imports
from qdhuac.errors import UserError
from qdhuac.tasks.mjx import MjxTask
from qdhuac.tasks.mujoco_task import Start
from qdhuac.tasks.native import NativeTask
from qdhuac.tasks.task_file import TASKS
from qdhuac.types import Exploration

with quiet_imports():
    import mujoco

BATCH, LENGTH = 6, 60
KEY = jax.random.key(3)


@functools.cache
def task(name, after_termination="reset", threads=None, length=LENGTH):
    return NativeTask(
        name, episode_length=length, after_termination=after_termination, hidden=(16, 16), threads=threads
    )


@functools.cache
def policies(name, batch=BATCH, seed=0):
    return jax.vmap(task(name).policy.init)(jax.random.split(jax.random.key(seed), batch))


@functools.cache
def evaluated(name, after_termination="reset", threads=None):
    return jax.tree.map(np.asarray, task(name, after_termination, threads).evaluate(policies(name), KEY))


# Episodes


@pytest.mark.parametrize("name", TASKS)
def test_random_policies_differ_in_fitness_and_descriptor(name):
    chosen, out = task(name), evaluated(name)
    low, high = np.array(chosen.spec.descriptor_bounds)
    assert out.transitions.obs.shape == out.transitions.next_obs.shape == (BATCH, LENGTH, chosen.policy.obs_size)
    assert out.transitions.action.shape == (BATCH, LENGTH, chosen.policy.action_size)
    assert out.descriptor.shape == (BATCH, len(low))
    assert ((low <= out.descriptor) & (out.descriptor <= high)).all()
    assert (np.ptp(out.descriptor, axis=0) > 0).all()
    assert np.ptp(out.fitness) > 0.1
    leaves = jax.tree.leaves(out.transitions)
    assert len(leaves) == 5  # contacts are only there for those who ask
    assert all(np.isfinite(leaf).all() for leaf in leaves)
    assert all(leaf.dtype == np.float32 for leaf in leaves)


@pytest.mark.parametrize(("name", "alive", "cost"), [("ant_omni", 1.0, 0.5), ("humanoid_omni", 5.0, 0.1 * 0.4**2)])
def test_omni_rewards_do_not_depend_on_where_the_robot_goes(name, alive, cost):
    rows = evaluated(name).transitions
    np.testing.assert_allclose(rows.reward, alive - cost * (rows.action**2).sum(-1), rtol=1e-4, atol=1e-4)


def test_reset_starts_again_and_keeps_the_true_successor():
    out = evaluated("hopper")
    rows, died = out.transitions, out.transitions.terminal == 1
    assert (out.steps == LENGTH).all()
    assert out.steps.dtype == np.int32
    assert out.valid.all()
    assert (died.sum(axis=1) > 0).all()
    onwards = ~died[:, :-1]
    np.testing.assert_array_equal(rows.next_obs[:, :-1][onwards], rows.obs[:, 1:][onwards])
    first = np.concatenate([rows.obs[:, 0], rows.obs[:, 1:][~onwards]])
    np.testing.assert_allclose(first, np.tile([1.25] + [0] * 10, (len(first), 1)), atol=0.0051)
    assert len(np.unique(first[:, 1])) == len(first)  # every episode begins somewhere else
    assert (rows.next_obs[died][:, 0] < 0.7).any() or (np.abs(rows.next_obs[died][:, 1]) > 0.2).any()
    ends = died.argmax(axis=1)
    np.testing.assert_allclose(
        out.fitness, [r[: end + 1].sum() for r, end in zip(rows.reward, ends, strict=True)], rtol=1e-5
    )


def test_stop_simulates_the_first_episode_only():
    chosen = task("hopper", "stop", threads=1)
    out, reset = jax.tree.map(np.asarray, chosen.evaluate(policies("hopper"), KEY)), evaluated("hopper")
    # The engine's own clock shows that the last policy was simulated no further than its first episode.
    assert chosen._simulations.get().data.time == pytest.approx(out.steps[-1] * chosen.dt)
    assert out.steps.sum() < BATCH * LENGTH
    np.testing.assert_array_equal(out.steps, (reset.transitions.terminal == 1).argmax(axis=1) + 1)
    np.testing.assert_array_equal(out.valid, np.arange(LENGTH) < out.steps[:, None])
    np.testing.assert_array_equal(out.transitions.terminal.sum(axis=1), 1)
    np.testing.assert_allclose(out.fitness, reset.fitness, rtol=1e-6)
    np.testing.assert_allclose(out.descriptor, reset.descriptor, rtol=1e-6)
    for mine, its in zip(*map(jax.tree.leaves, (out.transitions, reset.transitions)), strict=True):
        np.testing.assert_array_equal(mine[out.valid], its[out.valid])
        assert (mine[~out.valid] == 0).all()


@pytest.mark.parametrize("mode", ["reset", "stop"])
def test_stored_contacts_are_what_the_descriptor_is_made_of(mode):
    options = {"episode_length": LENGTH, "after_termination": mode, "hidden": (16, 16), "store_contacts": True}
    out = jax.tree.map(np.asarray, NativeTask("walker2d", **options).evaluate(policies("walker2d"), KEY))
    contacts, died = out.transitions.contacts, out.transitions.terminal == 1
    assert contacts.shape == (BATCH, LENGTH, 2)
    assert set(np.unique(contacts)) == {0.0, 1.0}
    first = np.cumsum(died, axis=1) - died == 0  # up to and including the first fall
    shares = [c[living].mean(axis=0) for c, living in zip(contacts, first, strict=True)]
    np.testing.assert_allclose(out.descriptor, shares, rtol=1e-6)
    assert (contacts[~out.valid] == 0).all()
    # MJX promises the same; only its shapes are looked at, because it would take long to compile.
    mjx = jax.eval_shape(MjxTask("walker2d", **options).evaluate, policies("walker2d"), KEY, None)
    assert mjx.transitions.contacts.shape == contacts.shape
    for kind in (NativeTask, MjxTask):
        with pytest.raises(UserError, match=r"ant_omni.*contacts"):
            kind("ant_omni", store_contacts=True)


def test_the_key_determines_the_result():
    first = evaluated("hopper")
    again = task("hopper", threads=1).evaluate(policies("hopper"), KEY)  # whatever the number of threads
    jax.tree.map(np.testing.assert_array_equal, first, again)
    other = task("hopper").evaluate(policies("hopper"), jax.random.key(4))
    assert (first.transitions.obs[:, 0] != other.transitions.obs[:, 0]).any(axis=1).all()


def test_actions_are_those_of_the_policies_and_only_active_rollouts_explore():
    chosen, genotypes = task("halfcheetah"), policies("halfcheetah")
    heads = jax.vmap(chosen.policy.init_head)(jax.random.split(jax.random.key(1), BATCH))
    active = jnp.arange(BATCH) % 2 == 1
    out = chosen.evaluate(genotypes, KEY, Exploration(heads, active))
    _, key_noise = jax.random.split(KEY)
    noise = [jax.random.normal(jax.random.fold_in(key_noise, t), (BATCH, 6)) for t in range(LENGTH)]
    along = jax.vmap(jax.vmap(chosen.policy.sample, in_axes=(None, None, 0, 0)))
    sampled, _ = along(genotypes, heads, out.transitions.obs, jnp.stack(noise, axis=1))
    calm = jax.vmap(jax.vmap(chosen.policy.act, in_axes=(None, 0)))(genotypes, out.transitions.obs)
    np.testing.assert_allclose(out.transitions.action[active], sampled[active], atol=1e-5)
    np.testing.assert_allclose(out.transitions.action[~active], calm[~active], atol=1e-5)
    plain = evaluated("halfcheetah")
    np.testing.assert_array_equal(out.transitions.next_obs[~active], plain.transitions.next_obs[~np.asarray(active)])


# Mishaps


def test_an_unstable_simulation_is_rejected_without_a_message(monkeypatch, capfd):
    chosen = NativeTask("halfcheetah", episode_length=20, hidden=(16, 16))
    monkeypatch.setattr(
        chosen, "start", lambda key: Start(jnp.zeros(9), jnp.full(9, 1e12), jnp.zeros(0), jnp.uint32(0))
    )
    out = chosen.evaluate(policies("halfcheetah"), KEY)
    assert not np.isfinite(out.fitness).any()
    assert not np.isfinite(out.transitions.next_obs).all()
    assert capfd.readouterr() == ("", "")
    assert mujoco.get_mju_user_warning() is None


def test_an_evaluation_prints_nothing_and_leaves_no_file(tmp_path):
    code = """
import jax, jax.numpy as jnp
from qdhuac.tasks.native import NativeTask
task = NativeTask("halfcheetah", episode_length=5, hidden=(8,))
genotypes = jax.vmap(task.policy.init)(jax.random.split(jax.random.key(0), 3))
broken = jax.tree.map(lambda x: x * jnp.nan, genotypes)
assert jnp.isfinite(task.evaluate(genotypes, jax.random.key(0)).fitness).all()
assert jnp.isnan(task.evaluate(broken, jax.random.key(0)).fitness).all()
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert list(tmp_path.iterdir()) == []
