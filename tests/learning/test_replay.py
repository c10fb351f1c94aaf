"""The replay buffer: sums that do not drift, sampling frequencies, overwriting of the oldest rows."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from qdhuac.learning.replay import PRIORITY_EPSILON, Replay
from qdhuac.types import Transition


def rows(start, n, obs=3, action=2):
    """Transitions whose every field identifies them."""
    index = jnp.arange(start, start + n, dtype=jnp.float32)
    return Transition(
        obs=jnp.tile(index[:, None], (1, obs)),
        action=-jnp.tile(index[:, None], (1, action)),
        reward=index + 0.25,
        terminal=index % 2,
        next_obs=jnp.tile(index[:, None] + 0.5, (1, obs)),
    )


def filled(capacity, n, **options):
    replay = Replay(capacity, 3, 2, **options)
    return replay, replay.add(replay.init(), rows(0, n), jnp.ones(n, bool))


def stored(replay, state):
    return sorted(np.asarray(replay.unpack(state.rows).obs[: int(state.size), 0]).tolist())


@pytest.mark.parametrize("contacts", [0, 2])
def test_a_stored_row_is_read_back_unchanged(contacts):
    replay, full = Replay(64, 3, 2, contacts=contacts), rows(0, 40)
    if contacts:
        full = full._replace(contacts=jnp.tile(full.reward[:, None] + 7.0, (1, contacts)))
    state = replay.add(replay.init(), full, jnp.ones(40, bool))
    batch = replay.sample(state, jax.random.key(0), 256)
    expected = jax.tree.map(lambda x: x[batch.indices], full)
    jax.tree.map(np.testing.assert_array_equal, batch.transition, expected)


@pytest.mark.parametrize("exponent", [0.6, 0.0])
def test_a_full_buffer_overwrites_the_oldest_rows(exponent):
    replay = Replay(10, 3, 2, exponent=exponent)
    state = replay.init()
    for start, n in ((0, 4), (4, 4), (8, 5)):
        state = replay.add(state, rows(start, n), jnp.ones(n, bool))
    assert int(state.size) == 10
    assert int(state.position) == 3
    assert stored(replay, state) == list(range(3, 13))
    drawn = np.unique(np.asarray(replay.sample(state, jax.random.key(0), 4000).transition.obs[:, 0]))
    assert drawn.tolist() == list(range(3, 13))


def test_of_a_batch_larger_than_the_buffer_the_last_rows_are_kept():
    replay = Replay(10, 3, 2)
    state = replay.add(replay.init(), rows(0, 37), jnp.ones(37, bool))
    assert stored(replay, state) == list(range(27, 37))
    assert float(state.tree[1]) == pytest.approx(10.0)


def test_only_valid_rows_are_stored():
    replay = Replay(16, 3, 2)
    valid = jnp.array([True, False, True, False, False, True])
    state = replay.add(replay.init(), rows(0, 6), valid)
    assert stored(replay, state) == [0.0, 2.0, 5.0]
    assert int(state.position) == 3
    assert float(state.tree[1]) == pytest.approx(3.0)
    unchanged = replay.add(state, rows(50, 6), jnp.zeros(6, bool))
    for a, b in zip(state, unchanged, strict=True):
        np.testing.assert_array_equal(a, b)


def test_sampled_frequencies_follow_the_priorities():
    replay, state = filled(100, 100)
    priorities = np.random.default_rng(0).gamma(1.0, size=100).astype(np.float32)
    state = replay.set_priorities(state, jnp.arange(100), jnp.asarray(priorities))
    p = (priorities.astype(np.float64) + PRIORITY_EPSILON) ** 0.6
    p /= p.sum()
    draws = 200_000
    # Independent draws: stratification would make the statistic smaller than chi-square allows for.
    one = jax.jit(jax.vmap(lambda k: replay.sample(state, k, 1).indices[0]))
    counts = np.bincount(one(jax.random.split(jax.random.key(3), draws)), minlength=100)
    assert stats.chisquare(counts, draws * p).pvalue > 0.001
    batch = np.bincount(replay.sample(state, jax.random.key(4), draws).indices, minlength=100)
    np.testing.assert_allclose(batch / draws, p, atol=1e-4)  # stratified: each slice of the mass once


def test_uniform_sampling_covers_exactly_the_filled_rows():
    replay, state = filled(1000, 50, exponent=0.0)
    counts = np.bincount(replay.sample(state, jax.random.key(0), 50_000).indices, minlength=50)
    assert len(counts) == 50
    assert stats.chisquare(counts).pvalue > 0.001


def test_new_transitions_enter_with_the_highest_priority():
    replay, state = filled(64, 8)
    state = replay.set_priorities(state, jnp.arange(8), jnp.array([0.1, 50.0, 1, 1, 1, 1, 1, 1]))
    state = replay.add(state, rows(8, 2), jnp.ones(2, bool))
    leaves = np.asarray(state.tree[replay.leaves :])
    np.testing.assert_allclose(leaves[8:10], leaves[1], rtol=1e-5)
    assert leaves[8] == leaves.max()


def test_the_root_equals_the_sum_of_leaves_after_a_million_updates():
    capacity = 5000
    replay, state = filled(capacity, capacity)

    @jax.jit
    def hammer(state):
        def body(i, state):
            key_index, key_value = jax.random.split(jax.random.fold_in(jax.random.key(5), i))
            index = jax.random.randint(key_index, (512,), 0, capacity)  # duplicates included
            value = 10.0 ** jax.random.uniform(key_value, (512,), minval=-4.0, maxval=2.0)
            return replay.set_priorities(state, index, value)

        return jax.lax.fori_loop(0, 2000, body, state)

    state = hammer(state)
    leaves = np.asarray(state.tree[replay.leaves :], np.float64)
    assert float(state.tree[1]) == pytest.approx(leaves.sum(), rel=1e-5)
    tree = np.asarray(state.tree)
    nodes = np.arange(1, replay.leaves)
    np.testing.assert_array_equal(tree[nodes], tree[2 * nodes] + tree[2 * nodes + 1])


def test_non_finite_priorities_are_ignored():
    replay, state = filled(16, 8)
    bad = replay.set_priorities(state, jnp.array([0, 1, 2]), jnp.array([jnp.nan, jnp.inf, 4.0]))
    leaves = np.asarray(bad.tree[replay.leaves :])
    np.testing.assert_allclose(leaves[:3], [1.0, 1.0, 1.0], rtol=1e-5)
    bad = replay.set_priorities(bad, jnp.array([0, 1, 2]), jnp.array([jnp.nan, jnp.inf, 8.0]))
    leaves = np.asarray(bad.tree[replay.leaves :])
    np.testing.assert_allclose(leaves[:3], [1.0, 1.0, 2.0**0.6], rtol=1e-5)
    assert np.isfinite(bad.tree).all()
    assert float(bad.max_priority) == pytest.approx(2.0**0.6, rel=1e-5)


@pytest.mark.parametrize("scale", [0.01, 1.0, 100.0])
def test_rows_never_drawn_have_the_highest_priority_of_the_first_minibatch_at_any_scale(scale):
    replay, state = filled(16, 8)
    state = replay.set_priorities(state, jnp.array([0, 1]), scale * jnp.array([1.0, 3.0]))
    leaves = np.asarray(state.tree[replay.leaves :][:8])
    np.testing.assert_allclose(leaves[1:] / leaves[0], 3.0**0.6, rtol=1e-3)


def test_importance_weights_undo_the_sampling():
    replay, state = filled(64, 64, beta=1.0)
    state = replay.set_priorities(state, jnp.arange(64), jnp.linspace(0.1, 5.0, 64))
    batch = replay.sample(state, jax.random.key(0), 100_000)
    value = np.asarray(batch.transition.reward)
    weights = np.asarray(batch.weights)
    assert weights.max() == pytest.approx(1.0)
    assert np.average(value, weights=weights) == pytest.approx(np.mean(np.arange(64) + 0.25), rel=0.01)
    assert np.mean(value) > 35.0  # without the weights the mean leans to the high priorities


def test_sampling_probabilities_agree_with_flashbax():
    flashbax = pytest.importorskip("flashbax")
    size = 64
    buffer = flashbax.make_prioritised_flat_buffer(
        max_length=size, min_length=1, sample_batch_size=1, add_sequences=True, priority_exponent=0.6
    )
    theirs = buffer.init({"x": jnp.float32(0)})
    theirs = buffer.add(theirs, {"x": jnp.arange(size, dtype=jnp.float32)})
    # A flat buffer stores pairs, so its last row has no successor and is never drawn.
    priorities = np.random.default_rng(1).gamma(1.0, size=size - 1).astype(np.float32) + 0.01
    theirs = buffer.set_priorities(theirs, jnp.arange(size - 1), jnp.asarray(priorities))
    draw = jax.jit(jax.vmap(functools.partial(buffer.sample, theirs)))
    sampled = draw(jax.random.split(jax.random.key(0), 100_000))
    their_p = {int(i): float(p) for i, p in zip(sampled.indices[:, 0], sampled.probabilities[:, 0], strict=True)}

    replay, mine = filled(size, size - 1)
    mine = replay.set_priorities(mine, jnp.arange(size - 1), jnp.asarray(priorities))
    my_p = np.asarray(mine.tree[replay.leaves :][: size - 1] / mine.tree[1], np.float64)
    assert len(their_p) == size - 1
    np.testing.assert_allclose([their_p[i] for i in range(size - 1)], my_p, rtol=1e-3)
    counts = np.bincount(sampled.indices[:, 0], minlength=size - 1)
    assert stats.chisquare(counts, 100_000 * my_p / my_p.sum()).pvalue > 0.001
