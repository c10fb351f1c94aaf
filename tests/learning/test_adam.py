"""Adam takes optax's steps; one that is not good leaves everything as it was, to the last bit."""

import jax
import jax.numpy as jnp
import numpy as np
import optax

from qdhuac.learning import adam


def gradients(n):
    """Gradients of two tensors, of scales from 1e-6 to 1e2."""
    scale = 10.0 ** jnp.linspace(-6.0, 2.0, 12).reshape(3, 4)
    return {name: scale * jax.random.normal(jax.random.key(n + i), (3, 4)) for i, name in enumerate("ab")}


def test_steps_are_those_of_optax_and_a_bad_one_in_between_changes_nothing():
    params = gradients(100)
    reference = optax.adam(1e-3)
    theirs, mine = reference.init(params), adam.init(params)
    for n in range(5):
        expected, theirs = reference.update(gradients(n), theirs)
        found, mine = adam.step(gradients(n), mine, 1e-3, jnp.bool(True))
        for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4)  # 1 - 0.999 has that much rounding
        poison = jax.tree.map(lambda g: g.at[1, 2].set(jnp.nan), gradients(n))
        nothing, after = adam.step(poison, mine, 1e-3, jnp.bool(False))
        assert not any(np.any(x) for x in jax.tree.leaves(nothing))
        for a, b in zip(jax.tree.leaves(after), jax.tree.leaves(mine), strict=True):
            np.testing.assert_array_equal(a, b)
