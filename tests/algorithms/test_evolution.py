"""Algorithms without a learner: ask, evaluate, tell."""

import functools
import importlib.util
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reach import made_by, numbers

from qdhuac.algorithms import QDAlgorithm
from qdhuac.archives import DominatedNoveltyArchive, GridArchive
from qdhuac.emitters import IsoLine
from qdhuac.metrics import PassiveGrid, scores
from qdhuac.types import Evaluation

BATCH, LOW, HIGH = 16, (0.0, 0.0), (1.0, 1.0)
ARCHIVES = {"dns": DominatedNoveltyArchive(64), "map-elites": GridArchive.cvt(64, LOW, HIGH)}
every_archive = pytest.mark.parametrize("kind", ARCHIVES)
GRID = PassiveGrid.over(LOW, HIGH, cells=256)


@functools.cache
def evolution(kind, sigma_iso=0.0, sigma_line=0.0):
    """The algorithm, its `ask` and its `tell` compiled once for all tests. Without noise a child is its parent."""

    def fresh(key):  # close to one corner, so that the rest must be discovered
        return {"x": 0.1 * jax.random.uniform(key, (2,)), "y": jnp.zeros(3)}

    emitters = ((IsoLine(sigma_iso, sigma_line), BATCH),)
    algorithm = QDAlgorithm(fresh=fresh, emitters=emitters, archive=ARCHIVES[kind], descriptor_size=2)

    def tell(state, emission, evaluation):
        state, told = algorithm.tell(state, emission, evaluation)
        return state, numbers(told.metrics)

    return algorithm, jax.jit(algorithm.ask), jax.jit(tell)


def simulate(genotypes):
    """Fitness is highest where each y is 1; the descriptor is x."""
    return Evaluation(
        fitness=-jnp.sum(jnp.square(genotypes["y"] - 1.0), axis=-1),
        descriptor=jnp.clip(genotypes["x"], 0.0, 1.0),
        steps=jnp.ones(len(genotypes["x"]), jnp.int32),
    )


@functools.cache
def scanned(kind, generations):
    """All generations in one compiled scan, measured on the passive grid after each."""
    algorithm, _, _ = evolution(kind, sigma_iso=0.05, sigma_line=0.2)

    def generation(carry, _):
        state, seen = carry
        emission = algorithm.ask(state)
        evaluation = simulate(emission.genotypes)
        state, _ = algorithm.tell(state, emission, evaluation)
        seen = GRID.add(seen, evaluation.fitness, evaluation.descriptor)
        return (state, seen), scores(seen, 10.0)

    def run(seed):
        start = algorithm.init(jax.random.key(seed)), GRID.init()
        return jax.lax.scan(generation, start, length=generations)

    return jax.jit(run)


def run(kind, seed=0, generations=150):
    (state, _), history = scanned(kind, generations)(seed)
    return state, jax.tree.map(np.asarray, history)


@every_archive
def test_coverage_and_fitness_grow_far_beyond_a_random_start(kind):
    state, history = run(kind)
    fresh = jax.vmap(evolution(kind)[0].fresh)(jax.random.split(jax.random.key(1), 150 * BATCH))
    random = simulate(fresh)
    by_chance = scores(GRID.add(GRID.init(), random.fitness, random.descriptor), 10.0)
    assert history["coverage"][-1] > 0.6 > 10 * by_chance["coverage"]
    assert history["max_fitness"][-1] > -0.3
    assert by_chance["max_fitness"] == pytest.approx(-3.0)
    assert np.all(np.diff(history["qd_score"]) >= -1e-2)
    assert int(state.generation) == 150


def test_a_seed_determines_everything():
    one, same, other = (run("dns", seed)[0] for seed in (0, 0, 1))
    np.testing.assert_array_equal(one.archive.genotypes["y"], same.archive.genotypes["y"])
    assert np.any(np.asarray(one.archive.genotypes["y"]) != np.asarray(other.archive.genotypes["y"]))


@every_archive
def test_provenance(kind):
    """Ids are consecutive; a child names parents that were in the archive, and is made from the first."""
    algorithm, ask, tell = evolution(kind)
    state, tried = algorithm.init(jax.random.key(0)), {}
    for generation in range(4):
        state = jax.tree.map(lambda x: x if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else np.asarray(x), state)
        emission = jax.tree.map(np.asarray, ask(state))
        made = emission.provenance
        first = generation * BATCH
        assert made.id.tolist() == list(range(first, first + BATCH))
        assert set(made.generation.tolist()) == {generation}
        assert set(made_by(algorithm, emission)) == {"isoline" if generation else "random"}
        alive = set(state.archive.provenance.id[np.isfinite(state.archive.fitness)].tolist())
        for i in range(BATCH):
            parents = made.parents[i].tolist()
            if generation == 0:
                assert parents == [-1, -1]
                assert np.isnan(emission.parent_fitness[i])
            else:
                assert set(parents) <= alive
                genotype, fitness = tried[parents[0]]
                np.testing.assert_array_equal(emission.genotypes["x"][i], genotype)
                assert float(emission.parent_fitness[i]) == fitness
        # A fitness of its own for each, so that a swap would show.
        evaluation = simulate(emission.genotypes)._replace(fitness=np.arange(BATCH, dtype=np.float32) + first)
        tried |= {int(made.id[i]): (emission.genotypes["x"][i], float(evaluation.fitness[i])) for i in range(BATCH)}
        state, _ = tell(state, emission, evaluation)
    kept = np.isfinite(state.archive.fitness)
    assert kept.sum() >= 1
    for slot in np.flatnonzero(kept):
        genotype, fitness = tried[int(state.archive.provenance.id[slot])]
        np.testing.assert_array_equal(state.archive.genotypes["x"][slot], genotype)
        assert float(state.archive.fitness[slot]) == fitness


@every_archive
def test_if_the_whole_first_generation_fails_the_next_is_random_again(kind):
    algorithm, ask, tell = evolution(kind)
    state = algorithm.init(jax.random.key(0))
    first = ask(state)
    failed = simulate(first.genotypes)._replace(fitness=jnp.full(BATCH, jnp.nan))
    state, statistics = tell(state, first, failed)
    assert int(statistics["rejected"]) == int(statistics["rejected_fitness"]) == BATCH
    assert not np.any(np.isfinite(state.archive.fitness))

    second = ask(state)
    assert set(made_by(algorithm, second)) == {"random"}
    assert np.all(second.provenance.parents == -1)
    assert second.provenance.id.tolist() == list(range(BATCH, 2 * BATCH))
    assert np.all(second.genotypes["x"] != first.genotypes["x"])
    state, statistics = tell(state, second, simulate(second.genotypes))
    assert int(statistics["rejected"]) == 0
    assert np.any(np.isfinite(state.archive.fitness))
    assert set(made_by(algorithm, ask(state))) == {"isoline"}


@every_archive
def test_failures_are_counted_and_change_nothing_else(kind):
    algorithm, ask, tell = evolution(kind)
    state = algorithm.init(jax.random.key(0))
    state, _ = tell(state, emission := ask(state), simulate(emission.genotypes))
    emission = ask(state)
    evaluation = simulate(emission.genotypes)
    bad = Evaluation(
        fitness=jnp.full(BATCH, 1e6).at[0].set(jnp.nan),
        descriptor=evaluation.descriptor.at[1:].set(jnp.nan),
        steps=evaluation.steps,
    )
    after, statistics = tell(state, emission, bad)
    jax.tree.map(np.testing.assert_array_equal, after.archive, state.archive)
    assert int(statistics["rejected"]) == BATCH
    assert int(statistics["rejected_fitness"]) == 1
    assert int(statistics["rejected_descriptor"]) == BATCH - 1
    assert int(statistics["isoline/tried"]) == int(statistics["isoline/survived"]) == 0


def test_operator_statistics():
    algorithm, ask, tell = evolution("dns")
    state = algorithm.init(jax.random.key(0))
    state, statistics = tell(state, emission := ask(state), simulate(emission.genotypes))
    assert int(statistics["random/tried"]) == int(statistics["random/survived"]) == BATCH  # the archive has room
    assert float(statistics["random/fitness"]) == pytest.approx(-3.0)
    assert np.isnan(statistics["random/gain"])
    emission = ask(state)
    evaluation = simulate(emission.genotypes)._replace(fitness=emission.parent_fitness + 2.0)
    _, statistics = tell(state, emission, evaluation)
    assert int(statistics["random/tried"]) == 0
    assert int(statistics["isoline/tried"]) == BATCH
    assert float(statistics["isoline/gain"]) == pytest.approx(2.0)


def _example(name):
    path = Path(__file__).parents[2] / "examples" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("archive", ["dns", "map-elites"])
def test_the_planar_arm_reaches_further_and_further(archive, capsys):
    history = _example("planar_arm").main([archive, "--generations", "50"])
    coverage = [scores["coverage"] for scores in history]
    assert len(coverage) == len(capsys.readouterr().out.splitlines()) == 10
    assert coverage == sorted(coverage)
    assert coverage[-1] > 1.5 * coverage[0] > 0
    assert history[-1]["qd_score"] > history[0]["qd_score"] > 0
