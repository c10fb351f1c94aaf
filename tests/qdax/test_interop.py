"""Our archives as QDax's repertoires, and our algorithms in QDax's loop."""

import dataclasses

import jax
import jax.numpy as jnp
import matplotlib.colors
import numpy as np
import pytest
from qdax.core.containers.mapelites_repertoire import MapElitesRepertoire, compute_cvt_centroids
from qdax.core.emitters.multi_emitter import MultiEmitter
from qdax.core.emitters.mutation_operators import isoline_variation
from qdax.core.emitters.standard_emitters import MixingEmitter
from qdax.core.map_elites import MAPElites
from qdax.core.neuroevolution.buffers.buffer import QDTransition
from qdax.core.neuroevolution.networks.networks import MLP
from qdax.utils.metrics import default_qd_metrics
from qdax.utils.plotting import plot_2d_map_elites_repertoire
from reach import POLICY, STEPS, ReachTask

from qdhuac.algorithms import dcrl_me, pga_me, qd_pg, qdhuac, specs
from qdhuac.algorithms.engine import empty_offspring_like
from qdhuac.algorithms.evolution import Evolution
from qdhuac.archives import DominatedNoveltyArchive, GridArchive
from qdhuac.errors import UserError
from qdhuac.exchange.qdax import QDaxEmitter, cells_of, from_qdax, read, to_qdax
from qdhuac.store import repertoire as files
from qdhuac.store.arrays import flatten

GRID = GridArchive.cvt(60, (0.0, 0.0), (1.0, 1.0))


def batch(key, n=40, descriptor_size=2, policy=POLICY):
    k = jax.random.split(key, 3)
    example = empty_offspring_like(policy.init(key), descriptor_size)
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


def test_what_is_not_finite_stays_out():
    archive = an_archive()
    broken = archive._replace(
        fitness=jnp.full_like(archive.fitness, jnp.nan), descriptor=archive.descriptor.at[0].set(jnp.nan)
    )
    assert not jnp.any(jnp.isfinite(to_qdax(broken, GRID.centroids).fitnesses))


def named(archive):
    """As the state of a run has it."""
    return {f"algorithm/archive/{name}": array for name, array in flatten(archive).items()}


def test_a_run_s_file_becomes_a_repertoire_and_back(tmp_path):
    path, about = tmp_path / "repertoire.safetensors", {"descriptor_bounds": [[0.0, 0.0], [1.0, 1.0]]}
    archive = an_archive()
    files.write(path, named(archive), about)
    repertoire = to_qdax(read(path), GRID.centroids)
    np.testing.assert_array_equal(repertoire.fitnesses[:, 0], archive.fitness)
    files.write(path, named(from_qdax(repertoire)), about)
    assert len(read(path).fitness) == int(jnp.sum(jnp.isfinite(archive.fitness)))


def test_a_qdax_repertoire_goes_on_as_our_archive():
    centroids = compute_cvt_centroids(2, 500, 30, 0.0, 1.0, jax.random.key(0))
    some = batch(jax.random.key(1))
    theirs = MapElitesRepertoire.init({"params": some.genotypes}, some.fitness, some.descriptor, centroids)
    archive = cells_of(theirs, (0.0, 0.0), (1.0, 1.0))
    more = batch(jax.random.key(2))
    ours, _ = archive.add(from_qdax(theirs), more)
    theirs = theirs.add({"params": more.genotypes}, more.descriptor, more.fitness)
    np.testing.assert_array_equal(ours.fitness, theirs.fitnesses[:, 0])


def test_qdax_draws_as_many_cells_as_our_archive_holds():
    archive = an_archive()
    repertoire = to_qdax(archive, GRID.centroids)
    _, axes = plot_2d_map_elites_repertoire(repertoire.centroids, repertoire.fitnesses, 0.0, 1.0)
    white = matplotlib.colors.to_rgb("white")
    coloured = [p for p in axes.patches if p.get_facecolor()[:3] != white]
    assert len(coloured) == int(jnp.sum(jnp.isfinite(archive.fitness)))
    assert len(axes.patches) - len(coloured) == GRID.capacity


# Refusals


def replaced(**changes):
    return to_qdax(an_archive(), GRID.centroids).replace(**changes)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: to_qdax(an_archive(), jnp.zeros((9, 3))), r"centroids: expected \[cells, 2\].*\(9, 3\)"),
        (lambda: from_qdax(replaced(fitnesses=jnp.zeros((60, 2)))), r"repertoire.fitnesses: .*60 cells.*\(60, 2\)"),
        (lambda: from_qdax(replaced(descriptors=jnp.zeros((60, 3)))), r"repertoire.descriptors: .*\(60, 3\)"),
        (lambda: from_qdax(replaced(genotypes={"x": jnp.zeros((59, 2))})), r"repertoire.genotypes\['x'\]: .*\(59, 2\)"),
        (lambda: cells_of(replaced(), (0.0,), (1.0, 1.0)), "low: expected 2 numbers"),
    ],
)
def test_shapes_that_do_not_fit_are_refused_by_name(make, words):
    with pytest.raises(UserError, match=words):
        make()


# Our algorithms in QDax's loop


def algorithm(name, contacts=False, **more):
    """A small one for the task of a point on a line."""
    overrides = {
        "emitter.batch_size": 10,
        "emitter.gradient_steps": 10,
        "replay.capacity": 4000,
        "learner.batch_size": 32,
        "critic.width": 32,
        "emitter.exploration_rollouts": 0,
    }
    config = specs.make(name, "smoke", overrides | more)
    build = {"pga_me": pga_me, "qd_pg": qd_pg, "qdhuac": qdhuac, "dcrl_me": dcrl_me}[name].from_config
    return build(config, ReachTask(contacts=contacts), DominatedNoveltyArchive(8))


def evolution(size=1):
    return Evolution(DominatedNoveltyArchive(8), POLICY.init, descriptor_size=size, batch_size=10, sigma_iso=0.05)


TASK = ReachTask(contacts=True)


def score(genotypes, key):
    """The task as a scoring function of QDax, whose last step is truncated and leads to another episode's start."""
    e = TASK.evaluate(genotypes["params"], key)
    t, n = e.transitions, len(e.fitness)
    last = jnp.zeros((n, STEPS)).at[:, -1].set(1.0)
    transitions = QDTransition(
        obs=t.obs,
        next_obs=jnp.where(last[..., None] > 0, 99.0, t.next_obs),
        rewards=t.reward,
        dones=last,
        truncations=last,
        actions=t.action,
        state_desc=t.contacts,
        next_state_desc=t.contacts,
    )
    return e.fitness, e.descriptor, {"transitions": transitions}


CENTROIDS = jnp.linspace(-2.0, 2.0, 21)[:, None]


def population(n=10, policy=POLICY):
    return {"params": jax.vmap(policy.init)(jax.random.split(jax.random.key(5), n))}


def metrics(repertoire):
    return default_qd_metrics(repertoire, qd_offset=STEPS * TASK.reward_offset)


def run(emitter, generations=15, scoring=score):
    loop = MAPElites(scoring, emitter, metrics)
    repertoire, state, first = jax.jit(loop.init)(population(), CENTROIDS, jax.random.PRNGKey(0))
    carry = (repertoire, state, jax.random.PRNGKey(1))
    (repertoire, state, _), history = jax.lax.scan(loop.scan_update, carry, length=generations)
    return repertoire, state, first, history


@pytest.mark.parametrize("name", ["pga_me", "qd_pg", "qdhuac"])
def test_an_algorithm_learns_in_qdax_s_loop(name):
    repertoire, state, first, history = run(QDaxEmitter(algorithm(name, contacts=name == "qd_pg"), updates=30))
    assert history["max_fitness"][-1] > first["max_fitness"] + 0.1
    assert history["qd_score"][-1] > 1.5 * first["qd_score"]
    learner = state.learner.diversity if name == "qd_pg" else state.learner
    assert int(learner.updates) == 30 * 16  # also from the first population
    assert int(state.replay.size) == 16 * 10 * (STEPS - 1)  # truncated steps are left out
    assert not jnp.any(state.replay.rows == 99.0)
    assert not jnp.any(jnp.isfinite(state.archive.fitness))  # QDax selects
    assert jax.tree.structure(repertoire.genotypes) == jax.tree.structure(population())


def test_evolution_runs_in_qdax_s_loop_and_needs_no_transitions():
    def bare(genotypes, key):
        fitness, descriptor, _ = score(genotypes, key)
        return fitness, descriptor, {}

    repertoire, _, first, history = run(QDaxEmitter(evolution()), generations=40, scoring=bare)
    assert history["coverage"][-1] > first["coverage"]
    assert jnp.all(jnp.diff(history["qd_score"]) > -1e-3)
    assert int(jnp.sum(jnp.isfinite(repertoire.fitnesses))) == round(float(history["coverage"][-1]) / 100 * 21)


def test_children_are_the_repertoire_s():
    """With next to no noise a child is its parent: whoever is emitted must be in the repertoire."""
    emitter = QDaxEmitter(dataclasses.replace(evolution(), sigma_iso=0.0, sigma_line=0.0))
    loop = MAPElites(score, emitter, metrics)
    repertoire, state, _ = jax.jit(loop.init)(population(), CENTROIDS, jax.random.PRNGKey(0))
    emit = jax.jit(emitter.emit)
    children, _ = emit(repertoire, state, jax.random.PRNGKey(3))
    kernel = children["params"]["Dense_0"]["kernel"]
    stored = repertoire.genotypes["params"]["Dense_0"]["kernel"][jnp.isfinite(repertoire.fitnesses[:, 0])]
    assert all(bool(jnp.any(jnp.all(stored == k, axis=(1, 2)))) for k in kernel)
    other, _ = emit(repertoire, state, jax.random.PRNGKey(4))
    assert not jnp.array_equal(kernel, other["params"]["Dense_0"]["kernel"])


def test_beside_another_emitter_it_learns_from_everybody():
    def vary(a, b, key):
        return isoline_variation(a, b, key, 0.05, 0.1)

    other = MixingEmitter(lambda x, key: x, vary, 1.0, batch_size=6)
    emitter = MultiEmitter((other, QDaxEmitter(algorithm("pga_me"), updates=5)))
    _, state, _, _ = run(emitter, generations=3)
    assert emitter.batch_size == 16
    assert int(state.emitter_states[1].replay.size) == (10 + 3 * 16) * (STEPS - 1)


def other_policies(genotypes, key):
    return score(population(), key)


def no_transitions(genotypes, key):
    return *score(genotypes, key)[:2], {}


def narrow(genotypes, key):
    fitness, descriptor, extra = score(genotypes, key)
    return fitness, descriptor, {"transitions": extra["transitions"].replace(obs=jnp.zeros((10, STEPS, 7)))}


@pytest.mark.parametrize(
    ("make", "scoring", "words"),
    [
        (lambda: QDaxEmitter(algorithm("dcrl_me")), score, "algorithm dcrl_me: cannot run in QDax's loop"),
        (
            lambda: QDaxEmitter(algorithm("qdhuac", **{"emitter.exploration_rollouts": 2})),
            score,
            "emitter.exploration_rollouts=2: must be 0",
        ),
        (lambda: QDaxEmitter(evolution(size=3)), score, "descriptors: .* 1 dimensions, .* built for 3"),
        (lambda: QDaxEmitter(algorithm("pga_me")), no_transitions, "extra_scores: has no 'transitions'"),
        (lambda: QDaxEmitter(algorithm("pga_me")), narrow, r"transitions.obs: expected \[10, steps, 2\]"),
    ],
)
def test_what_cannot_run_in_qdax_s_loop_is_refused_by_name(make, scoring, words):
    with pytest.raises(UserError, match=words):
        run(make(), generations=1, scoring=scoring)


def test_other_genotypes_than_the_algorithm_s_are_refused_by_name():
    wide = dataclasses.replace(POLICY, hidden=(16, 8))
    loop = MAPElites(other_policies, QDaxEmitter(algorithm("pga_me")), metrics)
    with pytest.raises(UserError, match=r"genotypes\['Dense_1'\]\['bias'\]: expected \(16,\), got \(8,\)"):
        jax.jit(loop.init)(population(policy=wide), CENTROIDS, jax.random.PRNGKey(0))
