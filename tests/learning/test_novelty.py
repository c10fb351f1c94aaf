"""QD-PG's archive of states against a plain implementation."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from qdhuac.learning.novelty import NoveltyArchive


def slow_novelty(archive, states, neighbours):
    squared = np.square(states[:, None].astype(np.float64) - archive[None]).sum(-1)
    return np.sort(squared, axis=1)[:, :neighbours].mean(1) if len(archive) else np.zeros(len(states))


def slow_add(archive, states, threshold, capacity):
    """One state after the other; distances to what a newcomer pushes out still count for the rest of the batch."""
    archive, seen = list(archive), list(archive)
    for s in states:
        if all(np.linalg.norm(s - other) > threshold for other in seen):
            archive.append(s)
            seen.append(s)
    return np.array(archive[-capacity:]).reshape(-1, states.shape[1])


@pytest.mark.parametrize(
    ("dimensions", "binary", "capacity"), [(2, True, 50), (4, True, 50), (2, False, 200), (1, False, 5)]
)
def test_novelty_equals_a_plain_implementation(dimensions, binary, capacity):
    """From an empty archive through one with fewer states than neighbours to one that overflows."""
    rng = np.random.default_rng(0)
    novelty = NoveltyArchive(capacity, dimensions, threshold=0.1, neighbours=5)
    state, slow = novelty.init(), np.zeros((0, dimensions), np.float32)
    probe = rng.random((7, dimensions)).astype(np.float32)
    np.testing.assert_array_equal(novelty.novelty(state, probe), 0.0)
    for size in (1, 3, 40, 60):
        states = rng.random((size, dimensions)).astype(np.float32)
        states = np.round(states) if binary else states
        valid = rng.random(size) < 0.8
        valid[0] = True
        state = jax.jit(novelty.add)(state, states, valid)
        slow = slow_add(slow, states[valid], 0.1, capacity)
        held = np.asarray(state.states)[: min(int(state.added), capacity)]
        np.testing.assert_array_equal(held[np.lexsort(held.T)], slow[np.lexsort(slow.T)])
        scores = np.asarray(novelty.novelty(state, probe))
        assert np.all(np.isfinite(scores))
        np.testing.assert_allclose(scores, slow_novelty(slow, probe, 5), rtol=1e-5)
    assert int(state.added) > (3 if binary else 5)
