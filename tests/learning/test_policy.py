"""The policy network and its tanh-Gaussian."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from qdhuac.learning.policy import Policy, dense_init, product

POLICY = Policy(2, 3, (16, 12, 8))
PARAMS = POLICY.init(jax.random.key(0))


def certain(log_std):
    """A head with a constant output, before it is squashed into its range."""
    return {"kernel": jnp.zeros((8, 3)), "bias": jnp.full(3, log_std)}


def squeezed(head, noise):
    """How far noise moves the action before its tanh."""
    obs, noise = jnp.full((1, 2), 0.1), jnp.full((1, 3), noise)
    return np.arctanh(POLICY.sample(PARAMS, head, obs, noise)[0]) - np.arctanh(POLICY.act(PARAMS, obs))


def test_the_forward_pass_is_relu_layers_and_a_tanh():
    obs = np.random.default_rng(0).normal(size=(5, 2))
    params = jax.tree.map(lambda x: np.asarray(x, float) + 0.1, PARAMS)  # with biases
    layers = [params[f"Dense_{i}"] for i in range(4)]
    x = obs
    for layer in layers[:3]:
        x = np.maximum(x @ layer["kernel"] + layer["bias"], 0.0)
    np.testing.assert_allclose(POLICY.features(params, obs), x, rtol=1e-4)
    np.testing.assert_allclose(POLICY.act(params, obs), np.tanh(x @ layers[3]["kernel"] + layers[3]["bias"]), rtol=1e-4)


def test_layers_start_lecun_uniform_without_bias():
    """With variance 1 / inputs, so that activations keep their scale."""
    layer = dense_init(jax.random.key(0), 48, 2000)
    assert float(jnp.max(jnp.abs(layer["kernel"]))) == pytest.approx(0.25, rel=0.01)
    assert float(jnp.std(layer["kernel"])) == pytest.approx(48**-0.5, rel=0.01)
    assert not np.any(layer["bias"])
    assert POLICY.init_head(jax.random.key(0))["kernel"].shape == (8, 3)


@pytest.mark.parametrize(("output", "std"), [(-100.0, np.exp(-5.0)), (0.0, np.exp(-1.5)), (100.0, np.exp(2.0))])
def test_the_standard_deviation_stays_between_e_to_the_minus_5_and_e_to_the_2(output, std):
    np.testing.assert_allclose(squeezed(certain(output), 0.1), 0.1 * std, rtol=5e-3)


def test_without_noise_the_action_is_the_deterministic_one():
    obs = jax.random.normal(jax.random.key(1), (5, 2))
    action, _ = POLICY.sample(PARAMS, certain(0.0), obs, jnp.zeros((5, 3)))
    np.testing.assert_allclose(action, POLICY.act(PARAMS, obs), rtol=1e-6)
    np.testing.assert_allclose(action, np.tanh(POLICY.mean(PARAMS, POLICY.features(PARAMS, obs))), rtol=1e-6)


@pytest.mark.parametrize("log_std", [-2.0, 0.0, 0.4])
def test_log_probability_is_that_of_a_squashed_gaussian(log_std):
    noise = jax.random.normal(jax.random.key(2), (9, 3))
    obs = jax.random.normal(jax.random.key(3), (9, 2))
    action, log_prob = POLICY.sample(PARAMS, certain(log_std), obs, noise)
    mean = np.arctanh(POLICY.act(PARAMS, obs))
    std = np.exp(-1.5 + 3.5 * np.tanh(log_std))
    expected = stats.norm.logpdf(mean + std * noise, mean, std) - np.log(1.0 - np.square(np.asarray(action, float)))
    np.testing.assert_allclose(log_prob, expected.sum(-1), rtol=0.01, atol=0.01)


def test_the_log_probability_of_a_saturated_action_is_finite():
    _, log_prob = POLICY.sample(PARAMS, certain(100.0), jnp.ones((1, 2)), jnp.full((1, 3), 20.0))
    assert np.isfinite(log_prob).all()


@pytest.mark.parametrize("shape", [(7,), (4, 7), (3, 4, 7)])
def test_the_product_has_the_gradients_of_a_plain_product(shape):
    x, kernel = jax.random.normal(jax.random.key(0), shape), jax.random.normal(jax.random.key(1), (7, 5))
    weights = jax.random.normal(jax.random.key(2), (*shape[:-1], 5))

    def gradients(multiply):
        return jax.grad(lambda x, kernel: jnp.sum(weights * jnp.tanh(multiply(x, kernel))), argnums=(0, 1))(x, kernel)

    for ours, plain in zip(gradients(product), gradients(jnp.matmul), strict=True):
        np.testing.assert_allclose(ours, plain, rtol=1e-5, atol=1e-6)
