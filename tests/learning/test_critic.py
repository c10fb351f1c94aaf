"""The critic network: normalisation against its definition, in every combination."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qdhuac.learning.critic import NORM_EPSILON, Critic, batch_norm

OBS, ACTION = 5, 2


def make(**changes):
    critic = Critic(OBS, ACTION, outputs=11, width=16, **changes)
    return critic, *critic.init(jax.random.key(0))


def data(n=64, key=1):
    obs = 3.0 + 2.0 * jax.random.normal(jax.random.key(key), (n, OBS))
    return obs, jax.random.uniform(jax.random.key(key + 1), (n, ACTION), minval=-1.0, maxval=1.0)


def slow_forward(critic, params, obs, action):
    """NumPy, float64, layer by layer, with the batch's own statistics."""
    p = jax.tree.map(lambda x: np.asarray(x, np.float64), params)

    def kernel(layer):
        if critic.weight_norm == "reparam":
            return layer["gain"] * layer["kernel"] / np.sqrt(np.sum(layer["kernel"] ** 2, axis=0))
        return layer["kernel"]

    def norm(name, x):
        if name not in p:
            return x
        return (x - x.mean(0)) / np.sqrt(x.var(0) + NORM_EPSILON) * p[name]["scale"] + p[name]["bias"]

    def layer(name, x):
        return norm(f"{name}_norm", x @ kernel(p[name]) + p[name].get("bias", 0.0))

    h = np.maximum(layer("stem", norm("input_norm", np.concatenate([obs, action], -1, dtype=np.float64))), 0.0)
    for i in range(critic.blocks):
        change = layer(f"block_{i}_b", np.maximum(layer(f"block_{i}_a", h), 0.0))
        h = h + change if critic.residual else np.maximum(change, 0.0)
    return h @ kernel(p["head"]) + p["head"]["bias"]


COMBINATIONS = list(itertools.product([True, False], ["none", "reparam", "project"], [0, 2], [True]))


@pytest.mark.parametrize(
    ("batch_norm", "weight_norm", "blocks", "residual"), [*COMBINATIONS, (True, "project", 2, False)]
)
def test_the_forward_pass_equals_a_plain_implementation(batch_norm, weight_norm, blocks, residual):
    critic, params, stats = make(batch_norm=batch_norm, weight_norm=weight_norm, blocks=blocks, residual=residual)
    keys = iter(jax.random.split(jax.random.key(9), 100))
    params = jax.tree.map(lambda x: x + 0.1 * jax.random.normal(next(keys), x.shape), params)
    obs, action = data()
    logits, _ = critic.apply(params, stats, obs, action, train=True)
    np.testing.assert_allclose(logits, slow_forward(critic, params, obs, action), atol=2e-4)


def test_running_statistics_follow_the_batches_and_serve_evaluation():
    critic, params, stats = make(momentum=0.9)
    obs, action = data()
    inputs = jnp.concatenate([obs, action], -1)
    _, once = critic.apply(params, stats, obs, action, train=True)
    np.testing.assert_allclose(once["input_norm"]["mean"], 0.1 * inputs.mean(0), atol=1e-5)
    np.testing.assert_allclose(once["input_norm"]["var"], 0.9 + 0.1 * inputs.var(0), atol=1e-4)
    for _ in range(200):
        _, stats = critic.apply(params, stats, obs, action, train=True)
    trained, _ = critic.apply(params, stats, obs, action, train=True)
    evaluated, same = critic.apply(params, stats, obs, action, train=False)
    np.testing.assert_allclose(evaluated, trained, atol=1e-3)
    assert same == stats or all(a is b for a, b in zip(jax.tree.leaves(same), jax.tree.leaves(stats), strict=True))


def test_evaluation_of_one_row_does_not_depend_on_the_others():
    critic, params, stats = make()
    obs, action = data()
    alone, _ = critic.apply(params, stats, obs[:1], action[:1], train=False)
    together, _ = critic.apply(params, stats, obs, action, train=False)
    np.testing.assert_allclose(alone[0], together[0], atol=1e-5)
    in_training, _ = critic.apply(params, stats, obs, action, train=True)
    assert float(jnp.max(jnp.abs(in_training - together))) > 1e-3


def test_projection_normalises_hidden_columns_and_not_the_head():
    critic, params, _ = make(weight_norm="project")
    grown = jax.tree.map(lambda x: 3.0 * x, params)
    after = critic.project(grown)
    for name in ("stem", "block_0_a", "block_1_b"):
        np.testing.assert_allclose(jnp.linalg.norm(after[name]["kernel"], axis=0), 1.0, atol=1e-5)
    np.testing.assert_array_equal(after["head"]["kernel"], grown["head"]["kernel"])
    for kind in ("none", "reparam"):
        critic, params, _ = make(weight_norm=kind)
        assert critic.project(params) is params


def test_reparametrised_weights_do_not_depend_on_the_length_of_v():
    critic, params, stats = make(weight_norm="reparam", batch_norm=False)
    longer = {k: v | {"kernel": 5.0 * v["kernel"]} if "kernel" in v else v for k, v in params.items()}
    obs, action = data()
    np.testing.assert_allclose(
        critic.apply(longer, stats, obs, action, train=True)[0],
        critic.apply(params, stats, obs, action, train=True)[0],
        atol=1e-4,
    )


def test_logits_start_near_zero():
    critic, params, stats = make()
    logits, _ = critic.apply(params, stats, *data(), train=True)
    assert float(jnp.max(jnp.abs(logits))) < 0.2


@pytest.mark.parametrize("relu", [False, True])
def test_the_gradient_of_batch_normalisation_is_that_of_its_definition(relu):
    def definition(x, scale, bias):
        y = (x - jnp.mean(x, 0)) / jnp.sqrt(jnp.var(x, 0) + NORM_EPSILON) * scale + bias
        return jnp.maximum(y, 0.0) if relu else y

    keys = jax.random.split(jax.random.key(3), 4)
    inputs = 5.0 + 2.0 * jax.random.normal(keys[0], (64, 7)), *(1.0 + jax.random.normal(k, (7,)) for k in keys[1:3])
    weights = jax.random.normal(keys[3], (64, 7))
    mine = jax.grad(lambda *x: jnp.sum(weights * batch_norm(*x, relu)[0]), argnums=(0, 1, 2))(*inputs)
    plain = jax.grad(lambda *x: jnp.sum(weights * definition(*x)), argnums=(0, 1, 2))(*inputs)
    np.testing.assert_allclose(batch_norm(*inputs, relu)[0], definition(*inputs), atol=1e-5)
    for a, b in zip(mine, plain, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5 * float(jnp.max(jnp.abs(b))))
