"""Running moments are those of NumPy over everything seen; a folded actor does on raw observations what it did."""

import jax
import jax.numpy as jnp
import numpy as np

from qdhuac.config import CriticConfig, LearnerConfig
from qdhuac.learning import moments
from qdhuac.learning.policy import Policy
from qdhuac.learning.target_free import TargetFreeLearner


def test_moments_are_those_of_all_counted_rows_together():
    rng, found, kept = np.random.default_rng(0), moments.init(3), []
    for n in (1, 50, 7, 200):
        rows = rng.normal([100.0, -3.0, 0.0], [0.5, 20.0, 0.0], (n, 3)).astype(np.float32)
        counted = rng.random(n) < 0.7
        found = moments.add(found, jnp.where(counted[:, None], rows, jnp.nan), jnp.asarray(counted))
        kept.append(rows[counted])
    rows = np.concatenate(kept).astype(np.float64)
    assert int(found.rows) == len(rows)
    np.testing.assert_allclose(found.mean, rows.mean(0), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(moments.deviation(found)[:2], rows.std(0)[:2], rtol=1e-3)
    assert moments.deviation(found)[2] == 1.0  # nothing varies there


def test_nothing_counted_changes_nothing():
    found = moments.add(moments.init(2), jnp.full((5, 2), 3.0), jnp.zeros(5, bool))
    for a, b in zip(found, moments.init(2), strict=True):
        np.testing.assert_array_equal(a, b)


def test_the_injected_actor_is_plain_and_does_what_the_learner_has_learnt():
    policy = Policy(4, 2, (32, 32))
    learner = TargetFreeLearner(policy, CriticConfig(width=8, blocks=1), LearnerConfig(normalise_observations=True))
    state = learner.init(jax.random.key(0))
    obs = 30.0 + jnp.array([0.1, 1.0, 10.0, 0.0]) * jax.random.normal(jax.random.key(1), (500, 4))
    state = state._replace(seen=moments.add(state.seen, obs, jnp.ones(500, bool)))
    spread = jnp.std(obs, 0)
    scaled = (obs - jnp.mean(obs, 0)) / jnp.where(spread > 1e-3, spread, 1.0)
    injected = learner.injected(state)
    assert jax.tree.map(jnp.shape, injected) == jax.tree.map(jnp.shape, policy.init(jax.random.key(0)))
    np.testing.assert_allclose(policy.act(injected, obs), policy.act(state.actor.policy, scaled), atol=1e-4)
    assert np.abs(policy.act(injected, obs) - policy.act(state.actor.policy, obs)).max() > 0.1
