"""Archives converted to repertoires of QDax and back."""

import jax
import jax.numpy as jnp
import matplotlib.colors
import numpy as np
import pytest
from qdax.core.containers.mapelites_repertoire import MapElitesRepertoire, compute_cvt_centroids
from qdax.core.neuroevolution.networks.networks import MLP
from qdax.utils.plotting import plot_2d_map_elites_repertoire
from reach import POLICY

from qdhuac.algorithms.engine import empty_individual
from qdhuac.archives import DominatedNoveltyArchive, GridArchive
from qdhuac.errors import UserError
from qdhuac.exchange.qdax import cells_of, from_qdax, to_qdax
from qdhuac.store import repertoire as files
from qdhuac.store.arrays import flatten

GRID = GridArchive.cvt(60, (0.0, 0.0), (1.0, 1.0))


def batch(key, n=40, descriptor_size=2, policy=POLICY):
    k = jax.random.split(key, 3)
    example = empty_individual(policy.init(key), descriptor_size)
    some = jax.tree.map(lambda x: jnp.repeat(x, n, axis=0), example)
    return some._replace(
        genotypes=jax.vmap(policy.init)(jax.random.split(k[0], n)),
        fitness=jax.random.normal(k[1], (n,)),
        descriptor=jax.random.uniform(k[2], (n, descriptor_size), maxval=0.6),
    )


def an_archive(archive=GRID):
    some = batch(jax.random.key(0))
    return archive.add(archive.init(some), some)[0]


# Archives


def test_a_map_elites_archive_comes_back_as_it_was():
    archive = an_archive()
    back = from_qdax(to_qdax(archive, GRID.centroids))
    jax.tree.map(np.testing.assert_array_equal, archive[:3], back[:3])
    assert 5 < int(jnp.sum(jnp.isfinite(archive.fitness))) < 60
    assert all(jnp.all(x == -1) for x in back.provenance)


def test_qdax_s_network_runs_a_converted_policy():
    repertoire = to_qdax(an_archive(), GRID.centroids)
    slot = int(jnp.argmax(repertoire.fitnesses))
    obs = jax.random.normal(jax.random.key(1), (POLICY.obs_size,))
    theirs = MLP((*POLICY.hidden, POLICY.action_size), final_activation=jnp.tanh)
    action = theirs.apply(jax.tree.map(lambda x: x[slot], repertoire.genotypes), obs)
    mine = jax.tree.map(lambda x: x[slot], an_archive().genotypes)
    np.testing.assert_allclose(action, POLICY.act(mine, obs), rtol=1e-5)


def test_an_archive_without_cells_keeps_the_fittest_of_each_cell():
    archive = an_archive(DominatedNoveltyArchive(40))
    repertoire = to_qdax(archive, GRID.centroids)
    cell, best = np.asarray(GRID.cells(archive.descriptor)), np.full(GRID.capacity, -np.inf)
    np.maximum.at(best, cell, np.asarray(archive.fitness))
    np.testing.assert_array_equal(repertoire.fitnesses[:, 0], best)
    assert len(set(cell)) < 40  # some shared a cell


def test_non_finite_individuals_are_left_out():
    archive = an_archive()
    broken = archive._replace(
        fitness=jnp.full_like(archive.fitness, jnp.nan), descriptor=archive.descriptor.at[0].set(jnp.nan)
    )
    assert not jnp.any(jnp.isfinite(to_qdax(broken, GRID.centroids).fitnesses))


def named(archive):
    """As in the state of a run."""
    return {f"algorithm/archive/{name}": array for name, array in flatten(archive).items()}


def test_a_run_s_file_becomes_a_repertoire_and_back(tmp_path):
    path, about = tmp_path / "repertoire.safetensors", {"descriptor_bounds": [[0.0, 0.0], [1.0, 1.0]]}
    archive = an_archive()
    files.write(path, named(archive), about)
    repertoire = to_qdax(files.individuals(files.read(path)[0]), GRID.centroids)
    np.testing.assert_array_equal(repertoire.fitnesses[:, 0], archive.fitness)
    files.write(path, named(from_qdax(repertoire)), about)
    assert len(files.read(path)[0]["fitness"]) == int(jnp.sum(jnp.isfinite(archive.fitness)))


def test_a_qdax_repertoire_can_be_used_as_our_archive():
    centroids = compute_cvt_centroids(2, 500, 30, 0.0, 1.0, jax.random.key(0))
    some = batch(jax.random.key(1))
    theirs = MapElitesRepertoire.init({"params": some.genotypes}, some.fitness, some.descriptor, centroids)
    archive = cells_of(theirs, (0.0, 0.0), (1.0, 1.0))
    more = batch(jax.random.key(2))
    ours, _ = archive.add(from_qdax(theirs), more)
    theirs = theirs.add({"params": more.genotypes}, more.descriptor, more.fitness)
    np.testing.assert_array_equal(ours.fitness, theirs.fitnesses[:, 0])


def test_qdax_plots_as_many_cells_as_our_archive_holds():
    archive = an_archive()
    repertoire = to_qdax(archive, GRID.centroids)
    _, axes = plot_2d_map_elites_repertoire(repertoire.centroids, repertoire.fitnesses, 0.0, 1.0)
    white = matplotlib.colors.to_rgb("white")
    coloured = [p for p in axes.patches if p.get_facecolor()[:3] != white]
    assert len(coloured) == int(jnp.sum(jnp.isfinite(archive.fitness)))
    assert len(axes.patches) - len(coloured) == GRID.capacity


# Refusals


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: to_qdax(an_archive(), jnp.zeros((9, 3))), r"centroids: expected \[cells, 2\].*\(9, 3\)"),
        (lambda: cells_of(to_qdax(an_archive(), GRID.centroids), (0.0,), (1.0, 1.0)), "low: expected 2 numbers"),
    ],
)
def test_shapes_that_do_not_fit_are_refused_by_name(make, words):
    with pytest.raises(UserError, match=words):
        make()
