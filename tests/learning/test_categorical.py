"""The projected Bellman update against a plain implementation and exact properties."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qdhuac.learning import categorical

ATOMS = categorical.support(-2.0, 10.0, 13)  # gap 1


def oracle(p, shift, scale, atoms):
    """C51 as published: one atom at a time, mass split between the two neighbours."""
    atoms = np.asarray(atoms, np.float64)
    gap = atoms[1] - atoms[0]
    out = np.zeros_like(p, np.float64)
    for row in range(len(p)):
        for j, z in enumerate(atoms):
            b = (np.clip(shift[row] + scale[row] * z, atoms[0], atoms[-1]) - atoms[0]) / gap
            low, high = int(np.floor(b)), int(np.ceil(b))
            if low == high:
                out[row, low] += p[row, j]
            else:
                out[row, low] += p[row, j] * (high - b)
                out[row, high] += p[row, j] * (b - low)
    return out


def random_case(seed, rows=64, atoms=ATOMS):
    rng = np.random.default_rng(seed)
    p = rng.dirichlet(np.full(len(atoms), 0.3), rows).astype(np.float32)
    shift = rng.normal(0, 4, rows).astype(np.float32)
    scale = rng.choice([0.0, 0.5, 0.99, 1.0], rows).astype(np.float32)
    return p, shift, scale


@pytest.mark.parametrize("count", [2, 13, 101])
def test_the_projection_equals_a_plain_implementation(count):
    atoms = categorical.support(-2.0, 10.0, count)
    p, shift, scale = random_case(count, atoms=atoms)
    np.testing.assert_allclose(categorical.project(p, shift, scale, atoms), oracle(p, shift, scale, atoms), atol=2e-5)


def test_the_projection_keeps_the_total_mass():
    p, shift, scale = random_case(1)
    np.testing.assert_allclose(jnp.sum(categorical.project(p, shift, scale, ATOMS), -1), 1.0, atol=1e-5)


def test_a_whole_shift_moves_mass_from_atom_to_atom_exactly():
    p = jnp.zeros((1, 13)).at[0, 4].set(0.25).at[0, 5].set(0.75)
    moved = categorical.project(p, jnp.array([3.0]), jnp.array([1.0]), ATOMS)
    np.testing.assert_array_equal(moved, jnp.roll(p, 3, axis=1))


@pytest.mark.parametrize(("shift", "end"), [(100.0, -1), (-100.0, 0)])
def test_mass_beyond_the_support_moves_to_its_end(shift, end):
    p, _, _ = random_case(2, rows=1)
    moved = categorical.project(p, jnp.array([shift]), jnp.array([1.0]), ATOMS)
    assert float(moved[0, end]) == pytest.approx(1.0, abs=1e-6)
    below, above = categorical.clipped_mass(p, jnp.array([shift]), jnp.array([1.0]), ATOMS)
    assert (float(below[0]), float(above[0])) == pytest.approx((1.0, 0.0) if end == 0 else (0.0, 1.0), abs=1e-6)


def test_clipped_mass_counts_only_what_lies_outside():
    p = jnp.full((1, 13), 1.0 / 13.0)
    below, above = categorical.clipped_mass(p, jnp.array([-1.5]), jnp.array([1.0]), ATOMS)
    assert float(below[0]) == pytest.approx(2.0 / 13.0, abs=1e-6)  # -2 and -1 move to -3.5 and -2.5
    assert float(above[0]) == 0.0
    at_the_ends = categorical.clipped_mass(p, jnp.zeros(1), jnp.ones(1), ATOMS)  # where they are, atoms are within
    assert [float(mass[0]) for mass in at_the_ends] == [0.0, 0.0]


def test_a_terminal_target_is_the_reward():
    p, _, _ = random_case(3, rows=1)
    moved = categorical.project(p, jnp.array([1.25]), jnp.array([0.0]), ATOMS)
    np.testing.assert_allclose(moved[0, 3:5], [0.75, 0.25], atol=1e-6)
    assert float(categorical.mean(moved, ATOMS)[0]) == pytest.approx(1.25, abs=1e-5)


def test_the_mean_of_the_projection_is_the_mean_of_the_clipped_atoms():
    p, shift, scale = random_case(4)
    clipped = np.clip(shift[:, None] + scale[:, None] * np.asarray(ATOMS), -2.0, 10.0)
    np.testing.assert_allclose(
        categorical.mean(categorical.project(p, shift, scale, ATOMS), ATOMS), np.sum(p * clipped, -1), atol=1e-4
    )


def test_cross_entropy_is_smallest_where_the_distributions_agree():
    p, _, _ = random_case(5, rows=1)
    p = 0.9 * p + 0.1 / 13  # no zeros, so that log p is finite
    slope = jax.grad(lambda logits: jnp.sum(categorical.cross_entropy(p, logits)))(jnp.log(p))
    np.testing.assert_allclose(slope, 0.0, atol=1e-6)
    assert float(categorical.cross_entropy(p, jnp.log(p))[0]) == pytest.approx(-np.sum(p * np.log(p)), rel=1e-5)
