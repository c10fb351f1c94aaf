"""Random numbers that both engines compute alike, from a seed, a step and an index, without keeping any state.

The integers are mixed as in MurmurHash3's last step. `qdhuac.tasks.engine` has the same in compiled code.
"""

from __future__ import annotations

import jax.numpy as jnp

from qdhuac.types import Array

MIX = (0x9E3779B1, 0x85EBCA77, 0x85EBCA6B, 0xC2B2AE35)


def uniform(seed: Array, step: Array, index: Array) -> Array:
    """Numbers from 0 to below 1."""
    x = seed ^ (step.astype(jnp.uint32) * jnp.uint32(MIX[0])) ^ (index.astype(jnp.uint32) * jnp.uint32(MIX[1]))
    x = (x ^ (x >> 16)) * jnp.uint32(MIX[2])
    x = (x ^ (x >> 13)) * jnp.uint32(MIX[3])
    x = x ^ (x >> 16)
    return (x >> 8).astype(jnp.float32) * jnp.float32(2.0**-24)


def normal(seed: Array, step: Array, size: int) -> Array:
    """Standard normal numbers (Box and Muller, 1958). [size]"""
    index = 2 * jnp.arange(size)
    radius = jnp.sqrt(-2.0 * jnp.log1p(-uniform(seed, step, index)))
    return radius * jnp.cos(2.0 * jnp.pi * uniform(seed, step, index + 1))
