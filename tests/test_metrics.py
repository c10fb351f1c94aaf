import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qdhuac.metrics import CELLS, PassiveGrid, archive_scores, auc_increment, scores, symptoms

EMPTY = -jnp.inf


def test_scores_by_hand():
    out = scores(jnp.array([EMPTY, 10.0, -4.0, EMPTY]), offset_total=5.0)
    assert {k: float(v) for k, v in out.items()} == {"qd_score": 16.0, "coverage": 0.5, "max_fitness": 10.0}


def test_archive_scores_by_hand():
    out = {k: float(v) for k, v in archive_scores(jnp.array([EMPTY, 10.0, -4.0, EMPTY, EMPTY]), 5.0).items()}
    assert out == {
        "archive_qd_score": 16.0,
        "archive_coverage": pytest.approx(0.4),
        "archive_max_fitness": 10.0,
        "archive_size": 2.0,
        "archive_mean_fitness": 3.0,
    }


def test_scores_of_an_empty_archive():
    nothing = jnp.full(5, EMPTY)
    out = {k: float(v) for k, v in (scores(nothing, 100.0) | archive_scores(nothing, 100.0)).items()}
    assert out["qd_score"] == out["coverage"] == out["archive_size"] == 0.0
    assert math.isnan(out["max_fitness"])
    assert math.isnan(out["archive_mean_fitness"])


def test_a_maximum_below_zero():
    assert float(scores(jnp.array([EMPTY, -7.0, -3.0]), 0.0)["max_fitness"]) == -3.0


@pytest.fixture(scope="module")
def grid():
    return PassiveGrid.over((0.0, 0.0), (1.0, 1.0), cells=16)


def test_passive_grid_keeps_the_best_of_each_cell(grid):
    centres = jnp.asarray(grid.grid.centroids)
    add = jax.jit(grid.add)
    state = add(grid.init(), jnp.array([1.0, 3.0, 2.0]), centres[jnp.array([4, 4, 9])])
    state = add(state, jnp.array([2.5, 7.0, -1.0]), centres[jnp.array([4, 9, 0])])
    expected = np.full(16, -np.inf)
    expected[[0, 4, 9]] = -1.0, 3.0, 7.0
    np.testing.assert_array_equal(state, expected)


def test_passive_grid_ignores_what_is_not_finite(grid):
    centres = jnp.asarray(grid.grid.centroids)
    state = grid.add(grid.init(), jnp.array([1.0]), centres[:1])
    fitness = jnp.array([jnp.nan, jnp.inf, -jnp.inf, 1e9, 1e9])
    descriptor = jnp.stack([centres[0], centres[0], centres[1], jnp.array([jnp.nan, 0.5]), jnp.array([0.5, jnp.inf])])
    np.testing.assert_array_equal(grid.add(state, fitness, descriptor), state)


def test_every_passive_grid_over_the_same_bounds_is_the_same():
    one, other = (PassiveGrid.over((0.0,) * 2, (1.0,) * 2).grid for _ in range(2))
    assert one.capacity == CELLS == 1024
    np.testing.assert_array_equal(one.centroids, other.centroids)


def test_area_under_the_score():
    """0 to 10 over 100 steps, then 10 to 20 over 50."""
    assert auc_increment(0.0, 10.0, 100) + auc_increment(10.0, 20.0, 50) == 500.0 + 750.0


def test_area_does_not_lose_small_terms():
    total = 1e12
    for _ in range(100):
        total += auc_increment(jnp.float32(1.0), jnp.float32(1.0), 10)
    assert total == 1e12 + 1000


HEALTHY = {
    "q_mean": 400.0,
    "q_spread": 100.0,
    "clipped_above": 0.001,
    "clipped_below": 0.0,
    "critic_gradient_norm": 0.05,
    "actor_gradient_norm": 0.02,
}


@pytest.mark.parametrize(
    ("changes", "symptom", "words"),
    [
        ({}, None, ""),
        ({"q_mean": None}, None, ""),
        ({"q_mean": 2150.0}, "values", "mean 2.15e+03"),  # its spread reaches farther out than the range is wide
        ({"q_mean": 2050.0}, None, ""),
        ({"q_mean": -1350.0}, "values", "-200 to 1000"),
        ({"q_mean": -1250.0}, None, ""),
        ({"clipped_above": None, "clipped_below": None}, None, ""),
        ({"clipped_above": 0.09, "clipped_below": 0.09}, None, ""),
        ({"clipped_above": 0.4}, "values", "40 % of the critic's target lies above"),
        ({"clipped_below": 0.4}, "values", "below"),
        ({"critic_gradient_norm": None}, None, ""),
        ({"critic_gradient_norm": 0.0}, "gradients", "critic is dead"),
        ({"actor_gradient_norm": 0.0}, "gradients", "actor is dead"),
        ({"diversity_critic_gradient_norm": 0.0}, "gradients", "diversity critic is dead"),
    ],
)
def test_symptoms(changes, symptom, words):
    found = symptoms(HEALTHY | changes, -200.0, 1000.0)
    assert list(found) == ([symptom] if symptom else [])
    assert words in "".join(found.values())
