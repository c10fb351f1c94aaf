"""Tests of all archives, then of Dominated Novelty Search and of grids."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qdhuac.archives import DominatedNoveltyArchive, GridArchive, dominated_novelty
from qdhuac.archives.common import sample
from qdhuac.archives.grid import unit_centroids
from qdhuac.errors import UserError
from qdhuac.types import Individuals, Provenance

CAPACITY, BATCH, NEIGHBOURS, SIZE = 9, 6, 3, 16
LOW, HIGH = (0.0, 0.0), (1.0, 1.0)
ARCHIVES = {
    "dns": DominatedNoveltyArchive(CAPACITY, NEIGHBOURS),
    "grid": GridArchive.regular(CAPACITY, LOW, HIGH),
    "cvt": GridArchive.cvt(CAPACITY, LOW, HIGH),
}
ADD = {name: jax.jit(archive.add) for name, archive in ARCHIVES.items()}
CELLS = {name: jax.jit(ARCHIVES[name].cells) for name in ("grid", "cvt")}
every_archive = pytest.mark.parametrize("kind", ARCHIVES)
PROPERTY = settings(max_examples=40, deadline=None, database=None, derandomize=True)

# Few distinct values, so that ties and duplicates are common. Sixteenths are exact in floating point.
finite_fitness = st.integers(-3, 3).map(float)
any_fitness = st.one_of(finite_fitness, st.sampled_from([-np.inf, np.nan, np.inf]))
descriptors = st.tuples(*[st.integers(0, 16).map(lambda i: i / 16)] * 2)


def population(fitness, size):
    return st.lists(st.tuples(fitness, descriptors), min_size=size, max_size=size)


def individuals(members, first_id=0):
    """From (fitness, descriptor) pairs; the genotype repeats the id, so that a mix-up of slots shows."""
    fitness, descriptor = zip(*members, strict=True)
    ids = np.arange(first_id, first_id + len(members), dtype=np.int32)
    provenance = Provenance(ids, np.stack([ids, ids], -1), ids, ids)
    genotypes = {"a": ids.astype(np.float32), "b": np.tile(ids.astype(np.float32)[:, None], (1, 2))}
    return Individuals(genotypes, np.array(fitness, np.float32), np.array(descriptor, np.float32), provenance)


def random_individuals(seed, size, first_id=0):
    random = np.random.default_rng(seed)
    return individuals(list(zip(random.normal(size=size), random.random((size, 2)), strict=True)), first_id)


@functools.cache
def start(kind):
    return ARCHIVES[kind].init(individuals([(0.0, (0.0, 0.0))]))


def assert_same(one, other):
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_array_equal(a, b)


# ---- every archive ----


@every_archive
def test_starts_empty(kind):
    state = start(kind)
    assert ARCHIVES[kind].capacity == len(state.fitness) == CAPACITY
    assert np.all(np.isneginf(state.fitness))
    assert np.all(state.provenance.id == -1)


@every_archive
@given(batches=st.lists(population(any_fitness, BATCH), min_size=1, max_size=4))
@PROPERTY
def test_the_archive_holds_only_evaluated_individuals_and_never_loses_the_best(kind, batches):
    state, tried, best = start(kind), {}, -np.inf
    for turn, members in enumerate(batches):
        offspring = individuals(members, turn * BATCH)
        tried |= {turn * BATCH + i: member for i, member in enumerate(members)}
        before = set(np.asarray(state.provenance.id).tolist())
        state, slots = jax.tree.map(np.asarray, ADD[kind](state, offspring))

        occupied = np.isfinite(state.fitness)
        ids = state.provenance.id[occupied]
        assert len(set(ids.tolist())) == occupied.sum() <= CAPACITY
        assert np.all(np.isneginf(state.fitness[~occupied]))
        for slot in np.flatnonzero(occupied):
            i = int(state.provenance.id[slot])
            assert (float(state.fitness[slot]), tuple(state.descriptor[slot].tolist())) == tried[i]
            assert all(np.all(leaf[slot] == i) for leaf in jax.tree.leaves(state.genotypes))
        assert {turn * BATCH + i for i in np.flatnonzero(slots >= 0)} == set(ids.tolist()) - before
        assert np.all(state.provenance.id[slots[slots >= 0]] == turn * BATCH + np.flatnonzero(slots >= 0))

        best = max([best, *(f for f, _ in members if np.isfinite(f))])
        assert np.max(state.fitness) == best


@every_archive
@given(
    members=population(any_fitness, BATCH),
    rejected=population(st.sampled_from([-np.inf, np.nan, np.inf]), BATCH),
)
@PROPERTY
def test_rejected_offspring_change_nothing(kind, members, rejected):
    state, _ = ADD[kind](start(kind), individuals(members))
    after, slots = ADD[kind](state, individuals(rejected, BATCH))
    assert_same(state, after)
    assert np.all(slots == -1)


@every_archive
def test_a_non_finite_descriptor_is_rejected(kind):
    state, _ = ADD[kind](start(kind), random_individuals(0, BATCH))
    bad = [(1e6, (np.nan, 0.5)), (1e6, (np.inf, 0.5))] * (BATCH // 2)
    after, slots = ADD[kind](state, individuals(bad, BATCH))
    assert_same(state, after)
    assert np.all(slots == -1)


@every_archive
def test_a_clone_never_displaces_its_original(kind):
    """DNS may keep both, for a clone has k - 1 other neighbours; a cell never does."""
    state = start(kind)
    for turn in range(20):
        state, _ = ADD[kind](state, random_individuals(turn, BATCH, turn * BATCH))
    assert np.all(np.isfinite(state.fitness))
    for first in (0, CAPACITY - BATCH):
        clones = jax.tree.map(lambda x, first=first: x[first : first + BATCH], state)
        clones = clones._replace(provenance=clones.provenance._replace(id=clones.provenance.id + 1000))
        after, slots = ADD[kind](state, clones)
        kept = np.asarray(after.provenance.id)
        assert np.all(np.isin(np.asarray(clones.provenance.id)[np.asarray(slots) >= 0] - 1000, kept))
        if kind != "dns":
            assert_same(state, after)


@every_archive
@given(members=population(any_fitness, BATCH), seed=st.integers(0, 1000))
@PROPERTY
def test_empty_slots_are_never_sampled(kind, members, seed):
    state, _ = ADD[kind](start(kind), individuals(members))
    slots = _sample(state, jax.random.key(seed))
    assert slots.shape == (8, 2)
    assert np.all((slots >= 0) & (slots < CAPACITY))
    if np.any(np.isfinite(state.fitness)):
        assert np.all(np.isfinite(np.asarray(state.fitness)[slots]))


_sample = jax.jit(lambda state, key: sample(state, key, (8, 2)))


def test_sampling_is_uniform_over_occupied_slots():
    state = start("dns")
    state = state._replace(fitness=state.fitness.at[jnp.array([0, 3, 4, 8])].set(jnp.array([1e9, -1e9, 0.0, 1.0])))
    slots = np.asarray(sample(state, jax.random.key(0), (4000,)))
    counts = np.bincount(slots, minlength=CAPACITY)
    assert set(np.flatnonzero(counts)) == {0, 3, 4, 8}
    assert np.all(np.abs(counts[[0, 3, 4, 8]] - 1000) < 5 * np.sqrt(750))  # five standard deviations


def test_a_tournament_is_won_by_the_fittest_of_those_drawn():
    """Of 4 occupied slots, the one of rank r (0 is the worst) wins a tournament of 2 with probability (2r + 1)/16."""
    state = start("dns")
    state = state._replace(fitness=state.fitness.at[jnp.array([0, 3, 4, 8])].set(jnp.array([1e9, -1e9, 0.0, 1.0])))
    slots = np.asarray(sample(state, jax.random.key(0), (8000, 2), tournament=2)).ravel()
    counts = np.bincount(slots, minlength=CAPACITY)
    assert set(np.flatnonzero(counts)) == {0, 3, 4, 8}
    assert np.all(np.abs(counts[[3, 4, 8, 0]] - 1000 * np.array([1, 3, 5, 7])) < 5 * np.sqrt(4000))


@every_archive
def test_many_archives_at_once(kind):
    """Seeds under vmap must not affect each other."""
    batches = [random_individuals(seed, BATCH) for seed in range(3)]
    alone = [ADD[kind](start(kind), batch) for batch in batches]
    stacked = jax.tree.map(lambda *x: jnp.stack(x), *batches)
    together = jax.jit(jax.vmap(functools.partial(ARCHIVES[kind].add, start(kind))))(stacked)
    assert_same(jax.tree.map(lambda *x: jnp.stack(x), *alone), together)


# ---- Dominated Novelty Search ----


def slow_novelty(fitness, descriptor, k):
    """The definition, one individual at a time."""
    out = np.full(len(fitness), -np.inf)
    for i in np.flatnonzero(np.isfinite(fitness)):
        fitter = [j for j in np.flatnonzero(np.isfinite(fitness)) if (-fitness[j], j) < (-fitness[i], i)]
        nearest = sorted(np.linalg.norm(descriptor[i] - descriptor[j]) for j in fitter)[:k]
        out[i] = np.mean(nearest) if nearest else np.inf
    return out


_novelty = jax.jit(dominated_novelty, static_argnums=(2, 3))


def arrays(members):
    return np.array([m[0] for m in members], np.float32), np.array([m[1] for m in members], np.float32)


@given(members=population(any_fitness, SIZE), k=st.sampled_from([1, 3, 40]))
@PROPERTY
def test_novelty_equals_its_definition(members, k):
    """Also with ties, duplicates, failures and more neighbours asked for than there are."""
    fitness, descriptor = arrays(members)
    np.testing.assert_allclose(
        _novelty(fitness, descriptor, k), slow_novelty(fitness, descriptor.astype(float), k), rtol=1e-6, atol=1e-7
    )


@given(members=population(any_fitness, SIZE), block=st.sampled_from([1, 5]))
@PROPERTY
def test_blocks_do_not_change_the_scores(members, block):
    fitness, descriptor = arrays(members)
    np.testing.assert_array_equal(
        _novelty(fitness, descriptor, NEIGHBOURS, block), _novelty(fitness, descriptor, NEIGHBOURS, SIZE)
    )


def test_blocks_do_not_change_the_scores_of_a_large_population():
    """More blocks than segments, and a last one that is not full."""
    random = np.random.default_rng(0)
    fitness, descriptor = random.integers(0, 50, 700).astype(np.float32), random.random((700, 3), np.float32)
    np.testing.assert_array_equal(_novelty(fitness, descriptor, 7, 64), _novelty(fitness, descriptor, 7, 700))


@given(members=population(any_fitness, SIZE), order=st.permutations(range(SIZE)), distinct=st.booleans())
@PROPERTY
def test_scores_follow_a_permutation(members, order, distinct):
    """Without ties exactly; ties are broken by position, so equals may only exchange scores with equals."""
    fitness, descriptor = arrays(members)
    if distinct:
        fitness = np.where(np.isfinite(fitness), fitness + np.arange(SIZE, dtype=np.float32) / SIZE, fitness)
    else:  # equals in fitness and in descriptor
        descriptor = np.where(np.isfinite(fitness), fitness, 0)[:, None] * np.ones(2, np.float32)
    order = np.array(order)
    before = np.asarray(_novelty(fitness, descriptor, NEIGHBOURS))
    after = np.asarray(_novelty(fitness[order], descriptor[order], NEIGHBOURS))
    if distinct:
        np.testing.assert_array_equal(after, before[order])
    else:
        for value in np.unique(fitness[np.isfinite(fitness)]):
            np.testing.assert_array_equal(np.sort(after[fitness[order] == value]), np.sort(before[fitness == value]))


@given(members=population(any_fitness, SIZE))
@PROPERTY
def test_only_the_order_of_fitness_matters(members):
    fitness, descriptor = arrays(members)
    transformed = np.where(np.isfinite(fitness), np.exp(fitness) * 100 - 7, fitness)
    np.testing.assert_array_equal(
        _novelty(fitness, descriptor, NEIGHBOURS), _novelty(transformed, descriptor, NEIGHBOURS)
    )


@given(members=population(any_fitness, SIZE))
@PROPERTY
def test_exactly_one_individual_is_undominated_and_it_is_one_of_the_fittest(members):
    """Also among several equal best: none of them would survive if they dominated each other."""
    fitness, descriptor = arrays(members)
    (undominated,) = np.nonzero(np.isposinf(_novelty(fitness, descriptor, NEIGHBOURS)))
    finite = np.isfinite(fitness)
    assert len(undominated) == int(finite.any())
    if finite.any():
        best = fitness[finite].max()
        assert undominated[0] == np.flatnonzero(fitness == best)[0]


@given(batches=st.lists(population(any_fitness, BATCH), min_size=2, max_size=4))
@PROPERTY
def test_dns_keeps_the_highest_scores(batches):
    state = start("dns")
    for turn, members in enumerate(batches):
        before = state
        state, slots = ADD["dns"](state, individuals(members, turn * BATCH))
        fitness, descriptor = arrays(members)
        fitness = np.concatenate([before.fitness, fitness])
        descriptor = np.concatenate([before.descriptor, descriptor])
        score = np.asarray(_novelty(fitness, descriptor, NEIGHBOURS))
        kept = np.argsort(-score, kind="stable")[:CAPACITY]
        np.testing.assert_array_equal(slots >= 0, np.isin(np.arange(CAPACITY, CAPACITY + BATCH), kept))
        np.testing.assert_array_equal(
            np.sort(np.asarray(state.fitness)), np.sort(np.where(np.isfinite(fitness[kept]), fitness[kept], -np.inf))
        )


def test_dns_fills_its_slots_from_the_front():
    """So that of equals the elder, in the earlier slot, counts as fitter while the archive fills."""
    members = [(1.0, (0.0, 0.0)), (np.nan, (0.0, 0.0)), *[(1.0, (0.5, 0.5))] * (BATCH - 2)]
    state, _ = ADD["dns"](start("dns"), individuals(members))
    assert state.provenance.id.tolist() == [0, *range(2, BATCH), *[-1] * (CAPACITY - BATCH + 1)]


def test_dns_agrees_with_pyribs():
    """Without ties: with ties pyribs lets equals dominate each other."""
    ribs = pytest.importorskip("ribs.archives")
    capacity, batch, k = 30, 10, 7
    theirs = ribs.DNSArchive(solution_dim=1, measure_dim=2, capacity=capacity, k_neighbors=k, seed=0)
    ours = DominatedNoveltyArchive(capacity, k)
    state, add = ours.init(random_individuals(0, 1)), jax.jit(ours.add)
    for turn in range(25):
        offspring = random_individuals(turn, batch, turn * batch)
        fitness, descriptor = np.asarray(offspring.fitness, float), np.asarray(offspring.descriptor, float)
        ids = np.asarray(offspring.provenance.id)
        np.testing.assert_allclose(
            _novelty(offspring.fitness, offspring.descriptor, k), theirs.compute_dns(descriptor, fitness), rtol=1e-5
        )
        theirs.add(ids[:, None], fitness, descriptor)
        state, _ = add(state, offspring)
        kept = np.asarray(state.provenance.id)[np.isfinite(state.fitness)]
        assert set(kept.tolist()) == set(theirs.data("solution")[:, 0].astype(int).tolist())


def test_dns_memory_grows_with_the_block_size_and_not_quadratically():
    size = 20_000
    shapes = jax.ShapeDtypeStruct((size,), jnp.float32), jax.ShapeDtypeStruct((size, 2), jnp.float32)
    analysis = jax.jit(lambda f, d: dominated_novelty(f, d, 7)).lower(*shapes).compile().memory_analysis()
    assert analysis.temp_size_in_bytes < 4 * size * size / 5  # one full distance matrix is 1.6 GB


@pytest.mark.parametrize("field", ["capacity", "neighbours", "block"])
def test_dns_refuses_invalid_sizes(field):
    with pytest.raises(UserError, match=f"{field}=0"):
        DominatedNoveltyArchive(**{"capacity": 5, field: 0})


# ---- grids ----


@pytest.mark.parametrize("kind", ["grid", "cvt"])
@given(batches=st.lists(population(any_fitness, BATCH), min_size=1, max_size=4))
@PROPERTY
def test_a_batch_in_a_grid_equals_map_elites_one_at_a_time(kind, batches):
    """A batch gives the same result as its members one by one, including which replaces which."""
    elites, state = {}, start(kind)
    for turn, members in enumerate(batches):
        offspring = individuals(members, turn * BATCH)
        cells = np.asarray(CELLS[kind](offspring.descriptor))
        for i, (fitness, _) in enumerate(members):
            if np.isfinite(fitness) and fitness > elites.get(cells[i], (-np.inf,))[0]:
                elites[cells[i]] = (fitness, turn * BATCH + i)
        state, _ = ADD[kind](state, offspring)
    expected = np.full(CAPACITY, -1)
    for cell, (_, i) in elites.items():
        expected[cell] = i
    np.testing.assert_array_equal(state.provenance.id, expected)


def test_regular_cells_by_hand():
    grid = GridArchive.regular(6, (-1.0, 0.0), (1.0, 10.0))  # 2 x 2 boxes fit into 6
    assert (grid.resolution, grid.capacity) == (2, 4)
    descriptor = jnp.array([[-0.9, 1.0], [-0.9, 9.0], [0.9, 1.0], [1.0, 10.0], [-50.0, 50.0], [0.0, 5.0]])
    assert grid.cells(descriptor).tolist() == [0, 1, 2, 3, 1, 3]
    np.testing.assert_allclose(grid.centroids, [[-0.5, 2.5], [-0.5, 7.5], [0.5, 2.5], [0.5, 7.5]])
    assert grid.cells(jnp.asarray(grid.centroids)).tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("capacity", "dimensions", "resolution"), [(1000, 3, 10), (1024, 2, 32), (999, 3, 9), (3, 2, 1), (250, 1, 250)]
)
def test_regular_resolution(capacity, dimensions, resolution):
    """The cube root of 1000 is 9.99... in floating point."""
    grid = GridArchive.regular(capacity, [0.0] * dimensions, [1.0] * dimensions)
    assert grid.resolution == resolution
    assert grid.capacity == resolution**dimensions


@pytest.mark.parametrize("dimensions", [1, 2, 4])
def test_cvt_cells_are_within_bounds_and_about_equal(dimensions):
    low, high = np.arange(dimensions) - 3.0, np.arange(dimensions) * 5.0 + 1.0
    grid = GridArchive.cvt(64, low.tolist(), high.tolist())
    assert grid.centroids.shape == (64, dimensions)
    assert np.all((grid.centroids > low) & (grid.centroids < high))
    points = np.random.default_rng(1).uniform(low, high, (6400, dimensions)).astype(np.float32)
    cells = np.asarray(grid.cells(jnp.asarray(points)))
    counts = np.bincount(cells, minlength=64)
    assert counts.min() > 40
    assert counts.max() < 200
    # The nearest centroid, where every dimension is as long as every other.
    scaled = (points[:, None] - grid.centroids[None]) / (high - low)
    np.testing.assert_array_equal(cells, np.argmin((scaled**2).sum(-1), -1))


def test_cvt_depends_on_the_seed_alone():
    unit_centroids.cache_clear()
    one = GridArchive.cvt(50, LOW, HIGH, seed=3).centroids
    unit_centroids.cache_clear()
    np.testing.assert_array_equal(one, GridArchive.cvt(50, LOW, HIGH, seed=3).centroids)
    assert np.any(one != GridArchive.cvt(50, LOW, HIGH, seed=4).centroids)


@pytest.mark.parametrize(
    ("capacity", "low", "high", "named"),
    [(0, [0.0], [1.0], "capacity=0"), (4, [0.0], [0.0], "low"), (4, [0.0], [1.0, 2.0], "low"), (4, [], [], "low")],
)
def test_grid_refuses_invalid_bounds(capacity, low, high, named):
    for make in (GridArchive.regular, GridArchive.cvt):
        with pytest.raises(UserError, match=named):
            make(capacity, low, high)


@pytest.mark.parametrize("kind", ["grid", "cvt"])
def test_grid_names_a_descriptor_of_the_wrong_size(kind):
    with pytest.raises(ValueError, match="descriptor has 3 dimensions, but the grid has 2"):
        ARCHIVES[kind].cells(jnp.zeros((5, 3)))
