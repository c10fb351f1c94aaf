import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qdhuac.emitters.isoline import isoline

GENOTYPES = {"w": jnp.stack([jnp.zeros((3, 4)), jnp.full((3, 4), 2.0)]), "b": jnp.array([[0.0], [2.0]])}
GENOTYPES["c"] = GENOTYPES["b"]  # two leaves of one shape, which must not share their noise
CHILDREN = 20_000
_isoline = jax.jit(isoline)


def children(parents=(0, 1), seed=0, **sigmas):
    slots = jnp.tile(jnp.array(parents), (CHILDREN, 1))
    return jax.tree.map(np.asarray, _isoline(jax.random.key(seed), GENOTYPES, slots, **sigmas))


def test_without_noise_the_child_is_its_first_parent():
    slots = jnp.array([[0, 1], [1, 0], [1, 1], [0, 0]] * (CHILDREN // 4))
    out = _isoline(jax.random.key(0), GENOTYPES, slots, sigma_iso=0.0, sigma_line=0.0)
    for name, leaf in GENOTYPES.items():
        np.testing.assert_array_equal(out[name], leaf[slots[:, 0]])


@pytest.mark.parametrize("parents", [(0, 1), (1, 0)])
def test_along_the_line(parents):
    """Normal around the first parent, with sigma times the distance; one and the same step in every leaf."""
    out = children(parents=parents, sigma_iso=0.0, sigma_line=0.3)
    step = out["b"][:, 0]
    assert step.mean() == pytest.approx(2.0 * parents[0], abs=0.02)
    assert step.std() == pytest.approx(0.6, rel=0.03)
    np.testing.assert_allclose(out["w"], np.broadcast_to(step[:, None, None], out["w"].shape), atol=1e-6)


def test_isotropic_noise_is_independent_everywhere():
    out = children(parents=(0, 0), sigma_iso=0.2, sigma_line=5.0)  # equal parents: there is no line
    noise = np.concatenate([out["w"].reshape(CHILDREN, -1), out["b"], out["c"]], axis=1)  # [n, 14]
    np.testing.assert_allclose(noise.std(0), 0.2, rtol=0.03)
    np.testing.assert_allclose(np.corrcoef(noise.T), np.eye(14), atol=0.04)


def test_the_two_noises_add_up():
    out = children(sigma_iso=0.2, sigma_line=0.3)
    assert out["b"].var() == pytest.approx(0.2**2 + 0.6**2, rel=0.04)
    covariance = np.mean(out["b"][:, 0] * out["w"][:, 1, 2])  # what two leaves share is the line
    assert covariance == pytest.approx(0.6**2, rel=0.05)


def test_children_depend_on_the_key():
    one, same, other = (children(seed=s, sigma_iso=0.1, sigma_line=0.1)["w"] for s in (0, 0, 1))
    np.testing.assert_array_equal(one, same)
    assert np.mean(one != other) > 0.99
