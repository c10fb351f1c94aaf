"""C51 (Bellemare et al., 2017): return distributions on a fixed support, and the projected Bellman update."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from qdhuac.types import Array


def support(v_min: float, v_max: float, atoms: int) -> Array:
    """The atoms z_1 .. z_N. [N]"""
    return jnp.linspace(v_min, v_max, atoms)


def mean(probabilities: Array, atoms: Array) -> Array:
    """E[Z]. [...]"""
    return probabilities @ atoms


def project(probabilities: Array, shift: Array, scale: Array, atoms: Array) -> Array:
    """The distribution of ``shift + scale * Z`` on the support, by linear interpolation. [B, N]

    `probabilities` [B, N] of Z, `shift` [B], `scale` [B] in [0, 1]. Mass beyond the support is clipped to its ends.
    """
    size = len(atoms)
    gap = atoms[1] - atoms[0]
    # Where each moved atom lands, in units of the gap: a whole number is exactly on an atom.
    position = (shift[:, None] + scale[:, None] * atoms - atoms[0]) / gap
    position = jnp.clip(position, 0.0, size - 1.0)
    # The mass of a moved atom is shared by its two neighbours on the support.
    lower = jnp.minimum(jnp.floor(position), size - 2.0)
    share = position - lower
    rows, lower = jnp.arange(len(shift))[:, None], lower.astype(jnp.int32)
    projected = jnp.zeros_like(probabilities).at[rows, lower].add(probabilities * (1.0 - share))
    return projected.at[rows, lower + 1].add(probabilities * share)


def clipped_mass(probabilities: Array, shift: Array, scale: Array, atoms: Array) -> tuple[Array, Array]:
    """The mass that `project` clips at the lower and at the upper end. ([B], [B])"""
    moved = shift[:, None] + scale[:, None] * atoms
    below = jnp.sum(jnp.where(moved < atoms[0], probabilities, 0.0), axis=-1)
    above = jnp.sum(jnp.where(moved > atoms[-1], probabilities, 0.0), axis=-1)
    return below, above


def cross_entropy(target: Array, logits: Array) -> Array:
    """``- sum_i m_i log p_i``. [...]"""
    return -jnp.sum(target * jax.nn.log_softmax(logits), axis=-1)
