"""Our components against QDax's, numerically."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from qdax.core.containers.archive import Archive, score_euclidean_novelty
from qdax.core.containers.mapelites_repertoire import MapElitesRepertoire, get_cells_indices
from qdax.core.emitters.dpg_emitter import DiversityPGConfig, DiversityPGEmitter
from qdax.core.emitters.mutation_operators import isoline_variation
from qdax.core.emitters.qpg_emitter import QualityPGConfig, QualityPGEmitter
from qdax.core.neuroevolution.buffers.buffer import QDTransition
from qdax.core.neuroevolution.losses.td3_loss import make_td3_loss_fn
from qdax.core.neuroevolution.networks.networks import MLP, QModule
from qdax.utils.metrics import default_qd_metrics

from qdhuac.algorithms import specs
from qdhuac.algorithms.engine import empty_individual
from qdhuac.archives.grid import GridArchive
from qdhuac.emitters.gradient import gradient_mutation
from qdhuac.emitters.isoline import isoline
from qdhuac.learning.novelty import NoveltyArchive
from qdhuac.learning.policy import Policy
from qdhuac.learning.replay import Batch, Replay
from qdhuac.learning.td3 import TD3Learner
from qdhuac.metrics import scores
from qdhuac.types import Transition

OBS, ACTIONS, ROWS = 5, 3, 64
HIDDEN = (16, 16)
POLICY = Policy(OBS, ACTIONS, HIDDEN)
THEIR_POLICY = MLP((*HIDDEN, ACTIONS), final_activation=jnp.tanh)
CONFIG = specs.make("pga_me", "laptop", {"critic.width": 16, "learner.batch_size": ROWS}).settings
LEARNER = TD3Learner(POLICY, CONFIG.critic, CONFIG.learner)


class Sizes:
    """What QDax's emitter asks of an environment."""

    observation_size, action_size, state_descriptor_length, descriptor_length = OBS, ACTIONS, 2, 2


def rows(key, n=ROWS):
    """The same random transitions, ours and theirs; a fifth are terminal, none is truncated."""
    k = jax.random.split(key, 5)
    ours = Transition(
        obs=jax.random.normal(k[0], (n, OBS)),
        action=jnp.tanh(jax.random.normal(k[1], (n, ACTIONS))),
        reward=jax.random.normal(k[2], (n,)),
        terminal=jax.random.bernoulli(k[3], 0.2, (n,)).astype(jnp.float32),
        next_obs=jax.random.normal(k[4], (n, OBS)),
    )
    desc = jnp.zeros((n, 2))
    theirs = QDTransition(
        obs=ours.obs,
        next_obs=ours.next_obs,
        rewards=ours.reward,
        dones=ours.terminal,
        actions=ours.action,
        truncations=jnp.zeros(n),
        state_desc=desc,
        next_state_desc=desc,
    )
    return ours, theirs


def critics_in_flax(critics):
    return {"params": {f"MLP_{i}": params for i, params in enumerate(critics)}}


def a_learner_state():
    """A state whose targets differ from what they follow."""
    state, other = LEARNER.init(jax.random.key(0)), LEARNER.init(jax.random.key(1))
    return state._replace(target_actor=other.actor, target_critics=other.critics)


def assert_trees_close(ours, theirs, **tolerance):
    assert jax.tree.structure(ours) == jax.tree.structure(theirs)
    for (path, a), b in zip(jax.tree_util.tree_leaves_with_path(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(a, b, err_msg=jax.tree_util.keystr(path), **tolerance)


LOSSES = make_td3_loss_fn(
    policy_fn=THEIR_POLICY.apply,
    critic_fn=QModule(hidden_layer_sizes=HIDDEN).apply,
    reward_scaling=CONFIG.learner.reward_scale,
    discount=CONFIG.learner.discount,
    noise_clip=CONFIG.learner.target_noise_clip,
    policy_noise=CONFIG.learner.target_noise,
)


def test_the_policy_acts_as_qdax_s_network_with_the_same_parameters():
    params, obs = POLICY.init(jax.random.key(0)), jax.random.normal(jax.random.key(1), (9, OBS))
    np.testing.assert_allclose(POLICY.act(params, obs), THEIR_POLICY.apply({"params": params}, obs), rtol=1e-5)


def test_random_policies_have_the_spread_of_qdax_s():
    wide = Policy(40, 2, (300,))
    theirs = MLP((300, 2), final_activation=jnp.tanh).init(jax.random.key(0), jnp.zeros(40))["params"]
    ours = wide.init(jax.random.key(1))
    assert jax.tree.map(jnp.shape, ours) == jax.tree.map(jnp.shape, theirs)
    for name in ("Dense_0", "Dense_1"):
        a, b = ours[name]["kernel"], theirs[name]["kernel"]
        np.testing.assert_allclose(jnp.std(a), jnp.std(b), rtol=0.05)
        np.testing.assert_allclose(jnp.max(jnp.abs(a)), jnp.max(jnp.abs(b)), rtol=0.02)
        assert not jnp.any(ours[name]["bias"])
        assert not jnp.any(theirs[name]["bias"])


def test_the_critics_loss_and_its_gradient_are_qdax_s():
    state, key = a_learner_state(), jax.random.key(2)
    ours, theirs = rows(jax.random.key(3))
    batch = Batch(ours, jnp.arange(ROWS), jnp.ones(ROWS))

    def their_loss(critics):
        targets = critics_in_flax(state.target_critics)
        return LOSSES[1](critics_in_flax(critics), {"params": state.target_actor}, targets, theirs, key)

    loss, gradient = jax.value_and_grad(lambda c: LEARNER.critic_loss(c, state, batch, key)[0])(state.critics)
    expected, expected_gradient = jax.value_and_grad(their_loss)(state.critics)
    np.testing.assert_allclose(loss, expected, rtol=1e-5)
    assert_trees_close(gradient, expected_gradient, rtol=1e-4, atol=1e-6)


def test_the_actor_climbs_qdax_s_loss():
    state = a_learner_state()
    ours, theirs = rows(jax.random.key(3))

    def loss(actor):
        return -jnp.mean(LEARNER.value(state, ours.obs, POLICY.act(actor, ours.obs)))

    def their_loss(actor):
        return LOSSES[0]({"params": actor}, critics_in_flax(state.critics), theirs)

    value, gradient = jax.value_and_grad(loss)(state.actor)
    expected, expected_gradient = jax.value_and_grad(their_loss)(state.actor)
    np.testing.assert_allclose(value, expected, rtol=1e-5)
    assert_trees_close(gradient, expected_gradient, rtol=1e-4, atol=1e-6)


@pytest.fixture
def emitter():
    """QDax's TD3 without smoothing noise, and its state on a buffer that holds one transition many times."""
    config = QualityPGConfig(
        env_batch_size=4,
        num_critic_training_steps=10,
        num_pg_training_steps=20,
        replay_buffer_size=8,
        critic_hidden_layer_size=HIDDEN,
        batch_size=ROWS,
        policy_noise=0.0,
    )
    emitter = QualityPGEmitter(config, THEIR_POLICY, Sizes())
    start = a_learner_state()
    ours, theirs = rows(jax.random.key(3), 1)
    ours = ours._replace(terminal=jnp.zeros(1))
    theirs = jax.tree.map(lambda x: x[:, None], theirs.replace(dones=jnp.zeros(1)))
    population = {"params": jax.tree.map(lambda x: x[None], start.actor)}
    state = emitter.init(jax.random.key(4), None, population, None, None, {"transitions": theirs})
    critics, targets = critics_in_flax(start.critics), critics_in_flax(start.target_critics)
    state = state.replace(
        critic_params=critics, target_critic_params=targets, target_actor_params={"params": start.target_actor}
    )
    return emitter, state, start, ours, theirs


def test_ten_updates_of_critics_actor_and_targets_end_where_qdax_s_end(emitter):
    """Both see the same minibatch in each update: it is the same transition 64 times."""
    theirs, their_state, state, row, transitions = emitter
    learner = dataclasses.replace(LEARNER, config=dataclasses.replace(CONFIG.learner, target_noise=0.0))
    replay = Replay(8, OBS, ACTIONS, exponent=0.0)
    buffer = replay.add(replay.init(), row, jnp.ones(1, bool))
    state, _, metrics = learner.learn(state, replay, buffer, jax.random.key(5), jnp.int32(10))
    end = theirs.state_update(their_state, None, None, None, None, {"transitions": transitions})
    assert metrics.failures["critic"] == 0
    close = {"rtol": 1e-3, "atol": 2e-5}
    assert_trees_close(critics_in_flax(state.critics), end.critic_params, **close)
    assert_trees_close(critics_in_flax(state.target_critics), end.target_critic_params, **close)
    assert_trees_close({"params": state.actor}, end.actor_params, **close)
    assert_trees_close({"params": state.target_actor}, end.target_actor_params, **close)


def test_gradient_children_are_qdax_s(emitter):
    theirs, their_state, state, row, _ = emitter
    parents = jax.vmap(POLICY.init)(jax.random.split(jax.random.key(6), 3))

    def value(genotype, obs, _):
        return jnp.mean(LEARNER.value(state, obs, POLICY.act(genotype, obs)))

    def observe(key):
        return jnp.broadcast_to(row.obs, (ROWS, OBS))

    children = gradient_mutation(jax.random.key(7), parents, observe, value, steps=20, learning_rate=1e-3)
    expected = theirs.emit_pg(their_state, {"params": parents})
    assert_trees_close({"params": children}, expected, rtol=1e-3, atol=2e-5)
    moved = jax.tree.map(lambda a, b: float(jnp.max(jnp.abs(a - b))), children, parents)
    assert max(jax.tree.leaves(moved)) > 0.01


def test_iso_line_children_are_distributed_as_qdax_s():
    """20 000 children of one pair: mean, covariance across leaves and fourth moment along the line."""
    n, iso, line = 20_000, 0.05, 0.5
    pair = {"a": jnp.array([[0.0, 1.0], [1.0, 3.0]]), "b": jnp.array([[[2.0]], [[-1.0]]])}
    parents = jnp.tile(jnp.array([[0, 1]]), (n, 1))
    ours = isoline(jax.random.key(0), pair, parents, sigma_iso=iso, sigma_line=line)
    first, second = (jax.tree.map(lambda x, i=i: jnp.repeat(x[i : i + 1], n, axis=0), pair) for i in (0, 1))
    theirs = isoline_variation(first, second, jax.random.key(1), iso_sigma=iso, line_sigma=line)

    def flat(tree):
        return np.concatenate([np.asarray(x).reshape(n, -1) for x in jax.tree.leaves(tree)], axis=1)

    a, b = flat(ours), flat(theirs)
    np.testing.assert_allclose(a.mean(0), b.mean(0), atol=0.05)
    np.testing.assert_allclose(np.cov(a.T), np.cov(b.T), rtol=0.05, atol=0.01)
    direction = flat(jax.tree.map(lambda x, y: y - x, first, second))[0]
    direction /= np.linalg.norm(direction)
    along_a, along_b = (x @ direction - (x @ direction).mean() for x in (a, b))
    np.testing.assert_allclose((along_a**4).mean(), (along_b**4).mean(), rtol=0.1)
    across = a - a.mean(0) - np.outer(along_a, direction)
    np.testing.assert_allclose((across**2).sum(1).mean(), 2 * iso**2, rtol=0.05)  # two dimensions are left


@pytest.mark.parametrize("dimensions", [1, 2, 4])
def test_descriptors_fall_into_the_cells_that_qdax_puts_them_into(dimensions):
    low, high = [-1.0] * dimensions, [3.0] * dimensions
    grid = GridArchive.cvt(200, low, high)
    descriptor = jax.random.uniform(jax.random.key(0), (2000, dimensions), minval=-1.0, maxval=3.0)
    theirs = get_cells_indices(descriptor, jnp.asarray(grid.centroids))
    ours = grid.cells(descriptor)
    # A descriptor right between two centroids may go either way by rounding.
    both = jnp.stack([grid.centroids[np.asarray(ours)], grid.centroids[np.asarray(theirs)]])
    distance = jnp.linalg.norm(both - descriptor, axis=-1)
    np.testing.assert_allclose(distance[0], distance[1], rtol=1e-5)
    assert jnp.mean(ours == theirs) > 0.999


def filled(seed, batches=4, n=50):
    """The same batches of individuals added to our archive and to QDax's repertoire; half of the cells stay empty."""
    grid = GridArchive.cvt(100, (0.0, 0.0), (1.0, 1.0))
    ours = grid.init(empty_individual(jnp.zeros(3), 2))
    theirs = MapElitesRepertoire.init_default(jnp.zeros(3), jnp.asarray(grid.centroids))
    for key in jax.random.split(jax.random.key(seed), batches):
        k = jax.random.split(key, 3)
        genotypes, fitness = jax.random.normal(k[0], (n, 3)), jax.random.normal(k[1], (n,))
        descriptor = jax.random.uniform(k[2], (n, 2), maxval=0.7)
        example = empty_individual(jnp.zeros(3), 2)
        batch = jax.tree.map(lambda x: jnp.repeat(x, n, axis=0), example)
        ours, _ = grid.add(ours, batch._replace(genotypes=genotypes, fitness=fitness, descriptor=descriptor))
        theirs = theirs.add(genotypes, descriptor, fitness)
    return ours, theirs


def test_the_same_offspring_survive_as_in_qdax_s_repertoire():
    ours, theirs = filled(0)
    assert 20 < int(jnp.sum(jnp.isfinite(ours.fitness))) < 70
    np.testing.assert_array_equal(ours.fitness, theirs.fitnesses[:, 0])
    np.testing.assert_array_equal(ours.genotypes, theirs.genotypes)
    np.testing.assert_array_equal(ours.descriptor, theirs.descriptors)


def test_scores_are_qdax_s_metrics():
    ours, theirs = filled(1)
    expected = default_qd_metrics(theirs, qd_offset=7.0)
    found = scores(ours.fitness, offset_total=7.0)
    np.testing.assert_allclose(found["qd_score"], expected["qd_score"], rtol=1e-5)
    np.testing.assert_allclose(100 * found["coverage"], expected["coverage"], rtol=1e-6)
    assert found["max_fitness"] == expected["max_fitness"]


def novelties(neighbours, size):
    """The novelty of all corners of a cube after 300 random ones of them, by our archive and by QDax's."""
    corners = jnp.stack(jnp.meshgrid(*[jnp.array([0.0, 1.0])] * size), -1).reshape(-1, size)
    seen = corners[jax.random.randint(jax.random.key(0), (300,), 0, len(corners))]
    mine = NoveltyArchive(50, size, threshold=0.1, neighbours=neighbours)
    state = mine.add(mine.init(), seen, jnp.ones(300, bool))
    theirs = Archive.create(acceptance_threshold=0.1, state_descriptor_size=size, max_size=50).insert(seen)
    assert int(state.added) == int(theirs.current_position) == 2**size
    score = functools.partial(score_euclidean_novelty, num_nearest_neighb=neighbours, scaling_ratio=1.0)
    return mine.novelty(state, corners), score(theirs, corners)


@pytest.mark.parametrize(("neighbours", "size"), [(2, 2), (4, 2), (5, 4)])
def test_novelty_is_qdax_s(neighbours, size):
    ours, theirs = novelties(neighbours, size)
    np.testing.assert_allclose(ours, theirs, rtol=1e-5)


def test_with_two_feet_and_five_neighbours_qdax_s_novelty_overflows_and_ours_does_not():
    ours, theirs = novelties(5, 2)
    assert jnp.all(theirs > 1e37)  # a fifth of the largest float: its square, in the critic's loss, is infinite
    np.testing.assert_allclose(ours, 1.0)  # squared distances 0, 1, 1 and 2


@pytest.mark.parametrize(("neighbours", "learns"), [(2, True), (5, False)])
def test_qdax_s_diversity_critic_learns_nothing_with_five_neighbours_on_two_feet(neighbours, learns):
    """Why the curves of QD-PG are compared with two neighbours: squares of such rewards overflow in Adam."""
    _, theirs = rows(jax.random.key(3))
    corners = jnp.tile(jnp.array([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]]), (ROWS // 4, 1))
    theirs = jax.tree.map(lambda x: x[None], theirs.replace(state_desc=corners))
    config = DiversityPGConfig(
        env_batch_size=2,
        num_critic_training_steps=4,
        replay_buffer_size=2 * ROWS,
        critic_hidden_layer_size=HIDDEN,
        batch_size=ROWS,
        archive_max_size=10,
    )
    novelty = functools.partial(score_euclidean_novelty, num_nearest_neighb=neighbours, scaling_ratio=1.0)
    emitter = DiversityPGEmitter(config, THEIR_POLICY, Sizes(), novelty)
    population = {"params": jax.tree.map(lambda x: x[None], POLICY.init(jax.random.key(0)))}
    extra = {"transitions": theirs}
    state = emitter.init(jax.random.key(4), None, population, None, None, extra)
    end = emitter.state_update(state, None, None, None, None, extra)
    change = jax.tree.map(lambda a, b: jnp.max(jnp.abs(a - b)), end.critic_params, state.critic_params)
    largest = jnp.max(jnp.stack(jax.tree.leaves(change)))
    assert bool(largest > 1e-4) is learns  # neither 0 nor nan is
