"""Archives to pandas and to pyribs, and back without loss."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ribs.archives import CVTArchive
from ribs.archives import GridArchive as RibsGrid

from qdhuac.archives import GridArchive
from qdhuac.errors import UserError
from qdhuac.exchange.frames import from_frame, from_ribs, to_frame, to_ribs
from qdhuac.types import Individuals, Provenance

GENOTYPE = {"b": jnp.zeros((2, 3)), "a": jnp.zeros(2)}
LOW, HIGH = (0.0, -1.0), (1.0, 1.0)
RANGES = list(zip(LOW, HIGH, strict=True))


def archive_of(grid, n=40):
    """A MAP-Elites archive with some empty cells."""
    random = np.random.default_rng(0)

    def numbers(*shape):
        return jnp.asarray(random.normal(size=(n, *shape)), jnp.float32)

    ids = jnp.arange(n, dtype=jnp.int32)
    descriptor = jnp.asarray(random.uniform(LOW, HIGH, size=(n, 2)), jnp.float32)
    provenance = Provenance(ids, jnp.stack([ids - 1, ids - 2], -1), ids % 5, ids // 7)
    offspring = Individuals({"a": numbers(2), "b": numbers(2, 3)}, numbers(), descriptor, provenance)
    state, _ = grid.add(grid.init(offspring), offspring)
    assert 0 < np.isneginf(state.fitness).sum() < grid.capacity
    return state


def occupied(individuals):
    """Without empty slots, in the order of fitness."""
    order = np.argsort(individuals.fitness)[np.isneginf(individuals.fitness).sum() :]
    return jax.tree.map(lambda leaf: np.asarray(leaf)[order], individuals)


def assert_same(one, other):
    assert jax.tree.structure(one) == jax.tree.structure(other)
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_array_equal(a, b)
        assert a.dtype == b.dtype


def test_to_pandas_and_back_nothing_is_lost():
    archive = archive_of(GridArchive.regular(25, LOW, HIGH))
    frame = to_frame(archive)
    assert len(frame) == np.isfinite(archive.fitness).sum()
    assert_same(occupied(from_frame(frame, GENOTYPE)), occupied(archive))


@pytest.mark.parametrize("kind", ["grid", "cvt"])
def test_to_pyribs_and_back_only_the_provenance_is_lost(kind):
    if kind == "grid":
        ours = GridArchive.regular(25, LOW, HIGH)
        theirs = RibsGrid(solution_dim=8, dims=(5, 5), ranges=RANGES)
    else:
        ours = GridArchive.cvt(25, LOW, HIGH)
        # Our cells are nearest in bounds scaled to a unit, theirs in raw numbers.
        ours = GridArchive(np.full(2, -1.0, np.float32), np.full(2, 1.0, np.float32), ours.centroids)
        theirs = CVTArchive(solution_dim=8, centroids=ours.centroids, ranges=RANGES)
    archive = archive_of(ours)
    back = from_ribs(to_ribs(archive, theirs), GENOTYPE)
    assert len(back.fitness) == np.isfinite(archive.fitness).sum()
    assert_same(occupied(back)[:3], occupied(archive)[:3])
    assert np.all(back.provenance.id == -1)


def test_the_frame_has_the_columns_of_pyribs():
    archive = archive_of(GridArchive.regular(25, LOW, HIGH))
    theirs = to_ribs(archive, RibsGrid(solution_dim=8, dims=(5, 5), ranges=RANGES)).data(return_type="pandas")
    ours = to_frame(archive)
    shared = [name for name in theirs.columns if name not in ("index", "threshold")]
    assert [name for name in ours.columns if name in shared] == shared
    a, b = (frame.sort_values("objective")[shared].to_numpy(float) for frame in (ours, theirs))
    np.testing.assert_array_equal(a, b)


def test_an_empty_archive_is_an_empty_frame():
    archive = GridArchive.regular(4, LOW, HIGH).init(archive_of(GridArchive.regular(25, LOW, HIGH)))
    assert len(to_frame(archive)) == 0
    assert len(to_ribs(archive, RibsGrid(solution_dim=8, dims=(2, 2), ranges=RANGES))) == 0


def test_data_of_a_wrong_shape_is_refused_by_name():
    archive = archive_of(GridArchive.regular(25, LOW, HIGH))
    frame = to_frame(archive)
    with pytest.raises(UserError, match=r"solution: expected 2 columns.* got 8"):
        from_frame(frame, {"a": jnp.zeros(2)})
    for name in ("objective", "measures_0"):
        with pytest.raises(UserError, match=f"{name}: the data frame has no such column"):
            from_frame(frame.drop(columns=name), GENOTYPE)
    with pytest.raises(UserError, match=r"archive.solution_dim: is 3, .* 8"):
        to_ribs(archive, RibsGrid(solution_dim=3, dims=(5, 5), ranges=RANGES))
    with pytest.raises(UserError, match=r"archive.measure_dim: is 1, .* 2"):
        to_ribs(archive, RibsGrid(solution_dim=8, dims=(5,), ranges=RANGES[:1]))
