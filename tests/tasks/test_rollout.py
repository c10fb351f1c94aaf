"""Rollouts of an environment in which every number can be worked out by hand."""

import collections
import functools

import fakes
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType

from qdhuac import sharding as devices
from qdhuac.algorithms.engine import screen
from qdhuac.errors import UserError
from qdhuac.tasks.rollout import rollout, share_of_steps
from qdhuac.types import Emission, Exploration, Provenance

LIVES = (3, 0, 9, 5)  # 0 never dies, 9 outlives the time limit
T = 8
KEY = jax.random.key(7)


PLAIN = fakes.Counter()


@functools.cache
def plain(mode):
    """The rollout that most tests use, made once."""
    return run(mode)


def final_value(features, living):
    """The features at the end of the first episode."""
    return features[jnp.sum(living) - 1]


def run(mode="reset", *, lives=LIVES, env=PLAIN, describe=final_value, exploration=None, key=KEY, **options):
    """A jitted rollout; the descriptor is made of the step count and of whether it is odd."""
    function = functools.partial(
        rollout,
        env,
        fakes.POLICY,
        features=lambda state: jnp.stack([state.obs[0], state.obs[0] % 2]),
        describe=describe,
        episode_length=T,
        after_termination=mode,
        **options,
    )
    return jax.tree.map(np.asarray, jax.jit(function)(fakes.policies(*lives), key, exploration))


@pytest.mark.parametrize("mode", ["reset", "stop"])
def test_fitness_and_descriptor_are_those_of_the_first_episode(mode):
    out = plain(mode)
    np.testing.assert_array_equal(out.fitness, [6, 36, 36, 15])  # 1 + ... + n
    np.testing.assert_array_equal(out.descriptor[:, 0], [3, 8, 8, 5])
    shares = run(mode, describe=share_of_steps).descriptor[:, 1]
    np.testing.assert_allclose(shares, [2 / 3, 1 / 2, 1 / 2, 3 / 5], rtol=1e-6)


def test_steps_and_valid_rows():
    reset, stop = plain("reset"), plain("stop")
    np.testing.assert_array_equal(reset.steps, [8, 8, 8, 8])
    assert reset.valid.all()
    np.testing.assert_array_equal(stop.steps, [3, 8, 8, 5])
    np.testing.assert_array_equal(stop.valid, np.arange(T) < stop.steps[:, None])
    assert stop.steps.dtype == reset.steps.dtype == np.int32


def test_terminal_marks_failures_and_not_the_time_limit():
    reset, stop = plain("reset").transitions, plain("stop").transitions
    np.testing.assert_array_equal(reset.terminal[0], [0, 0, 1, 0, 0, 1, 0, 0])
    np.testing.assert_array_equal(reset.terminal[1:3], np.zeros((2, T)))
    np.testing.assert_array_equal(stop.terminal[0], [0, 0, 1, 0, 0, 0, 0, 0])
    # A failure on the very last step is a failure.
    assert run("reset", lives=(8,)).transitions.terminal[0, -1] == 1


def test_next_observation_is_the_true_successor_also_at_the_end_of_an_episode():
    rows = plain("reset").transitions
    np.testing.assert_array_equal(rows.next_obs[..., 0], rows.obs[..., 0] + 1)
    np.testing.assert_array_equal(rows.next_obs[0, :, 0], [1, 2, 3, 1, 2, 3, 1, 2])
    np.testing.assert_array_equal(rows.next_obs[1, :, 0], np.arange(1, T + 1))
    np.testing.assert_array_equal(rows.reward, rows.next_obs[..., 0])


def test_no_transition_joins_two_episodes():
    rows = plain("reset").transitions
    tags, next_tags = rows.obs[..., 1], rows.next_obs[..., 1]
    np.testing.assert_array_equal(tags, next_tags)
    # Every new episode has fresh randomness, for each policy its own.
    starts = rows.obs[..., 0] == 0
    assert starts.sum() == 3 + 1 + 1 + 2
    assert len(np.unique(tags[starts])) == starts.sum()
    same = ~starts[:, 1:]
    np.testing.assert_array_equal(tags[:, 1:][same], tags[:, :-1][same])


@pytest.mark.parametrize("mode", ["reset", "stop"])
def test_actions_are_stored_as_executed(mode):
    out = plain(mode)
    expected = np.where(out.valid, np.array(LIVES)[:, None] / 10.0, 0.0)
    np.testing.assert_allclose(out.transitions.action[..., 0], expected, atol=1e-6)


def test_nan_after_the_end_of_an_episode_is_ignored():
    out = run("stop", env=fakes.Counter(nan_after_death=True))
    np.testing.assert_array_equal(out.fitness, [6, 36, 36, 15])
    np.testing.assert_array_equal(out.descriptor[:, 0], [3, 8, 8, 5])
    for leaf in jax.tree.leaves(out.transitions):
        assert np.isfinite(leaf).all()
        assert (leaf[~out.valid] == 0).all()


@pytest.mark.parametrize("mode", ["reset", "stop"])
def test_features_are_stored_with_the_step_that_led_to_them_for_those_who_ask(mode):
    assert plain(mode).transitions.contacts is None
    rows = run(mode, contacts=lambda features: features).transitions
    np.testing.assert_array_equal(rows.contacts[..., 0], rows.next_obs[..., 0])
    np.testing.assert_array_equal(rows.contacts[..., 1], rows.next_obs[..., 0] % 2)


@pytest.mark.parametrize("mode", ["reset", "stop"])
def test_nan_during_an_episode_is_rejected(mode):
    rejected = [False, True, True, True]  # the first one never gets as far as step 4
    out = run(mode, env=fakes.Counter(nan_at=4))
    np.testing.assert_array_equal(np.isnan(out.fitness), rejected)
    np.testing.assert_array_equal(np.isnan(out.transitions.reward).any(1), rejected)
    size, one_each = len(LIVES), jnp.arange(len(LIVES))
    provenance = Provenance(one_each, jnp.full((size, 2), -1), one_each, one_each)
    sent = Emission(fakes.policies(*LIVES), provenance, jnp.full(size, jnp.nan))
    _, good, failures = screen(sent, out, jnp.ones(size, bool))
    np.testing.assert_array_equal(~np.asarray(good), rejected)
    assert {name: int(n) for name, n in failures.items() if n} == {"reward": 3}


def test_exploration_changes_only_active_rollouts():
    lives = (0, 0, 0, 0)
    heads = jax.vmap(fakes.POLICY.init_head)(jax.random.split(jax.random.key(1), 4))
    active = jnp.array([False, True, False, True])
    deterministic = run(lives=lives, can_terminate=False)
    explored = run(lives=lives, can_terminate=False, exploration=Exploration(heads, active))
    same = np.isclose(deterministic.transitions.action, explored.transitions.action, atol=1e-6)
    assert same[[0, 2]].all()
    assert not same[[1, 3]].any()
    noise = np.arctanh(explored.transitions.action[[1, 3]])
    assert len(np.unique(noise.round(6))) == noise.size  # fresh for every rollout, step and joint


@pytest.mark.parametrize(
    ("mode", "resets", "steps"),
    [("reset", len({0, 3, 5, 6}), T), ("stop", 1, 5)],  # restarts after 3 and 6, and after 5; all stopped after 5
)
def test_only_what_is_needed_is_simulated(mode, resets, steps):
    calls = collections.Counter()
    env = fakes.Counter(on_reset=lambda: calls.update(["reset"]), on_step=lambda: calls.update(["step"]))
    run(mode, lives=(3, 5), env=env)
    jax.effects_barrier()
    assert calls == {"reset": resets, "step": steps}  # calls of the whole batch


@pytest.mark.parametrize("mode", ["reset", "stop"])
def test_counted_steps_are_those_that_the_environment_counted(mode):
    """The environment writes its own count into the observation: each episode's last one, added up."""
    out = run(mode, lives=(3, 5, 0))
    count, ends = np.asarray(out.transitions.next_obs[..., 0]), np.asarray(out.transitions.terminal) > 0
    last = np.asarray(out.valid).sum(1) - 1
    for i, end in enumerate(last):
        unfinished = 0.0 if ends[i, end] else count[i, end]
        assert int(out.steps[i]) == int(np.sum(np.where(ends[i], count[i], 0.0)) + unfinished)


def test_the_same_key_gives_the_same_result_and_another_key_another_start():
    function = jax.jit(
        functools.partial(
            rollout, PLAIN, fakes.POLICY, features=lambda s: s.obs, describe=final_value, episode_length=T
        )
    )
    first, again, other = (
        np.asarray(function(fakes.policies(0, 0), k).descriptor[:, 1]) for k in (KEY, KEY, jax.random.key(8))
    )
    np.testing.assert_array_equal(first, again)
    assert (first != other).all()


@pytest.mark.parametrize("mode", ["reset", "stop"])
def test_several_runs_at_once_equal_each_alone(mode):
    keys, heads = jax.random.split(KEY, 3), jax.vmap(fakes.POLICY.init_head)(jax.random.split(KEY, 6))
    exploration = Exploration(heads, jnp.array([False, True, False, False, False, True]))
    lives = (3, 0, 5, 2, 0, 4)
    both = run(mode, lives=lives, exploration=exploration, key=keys)
    for i, key in enumerate(keys):
        mine = slice(2 * i, 2 * i + 2)
        alone = run(mode, lives=lives[mine], exploration=jax.tree.map(lambda x: x[mine], exploration), key=key)  # noqa: B023
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a[mine], b, rtol=1e-6), both, alone)  # noqa: B023
    assert len(np.unique(both.transitions.obs[:, 0, 1])) == 6  # nobody starts like another


def test_a_number_of_policies_that_is_not_divisible_by_the_devices_is_refused():
    mesh = AbstractMesh((3,), (devices.AXIS,), axis_types=(AxisType.Auto,))
    with jax.sharding.use_abstract_mesh(mesh), pytest.raises(UserError, match=r"emitter\.batch_size=4: run\.devices=3"):
        run()
