"""What is cut over the devices in use, as seen from inside a compiled function.

Every compiled function is written for one device. Inside a mesh, some arrays are cut along their first axis: policies
in a rollout, transitions in a minibatch, rows of the replay buffer. The compiler does the rest, so that a mean over a
minibatch, and with it a gradient or a batch statistic, is still that of the whole minibatch. `training/distributed.py`
decides which devices those are, and how several processes make one run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import PartitionSpec

from qdhuac.types import Array

AXIS = "devices"
EVERYWHERE, CUT = PartitionSpec(), PartitionSpec(AXIS)


def count() -> int:
    """How many devices are in use."""
    mesh = jax.sharding.get_abstract_mesh()
    return 1 if mesh.empty else mesh.shape[AXIS]


def spread(tree: Any) -> Any:
    """The same values, each leaf cut along its first axis."""
    return tree if count() == 1 else jax.lax.with_sharding_constraint(tree, CUT)


def each(function: Callable[..., Any], cut: tuple[bool, ...]) -> Callable[..., Any]:
    """`function` on each device by itself, with its part of those arguments that are `cut`; the results are joined."""
    specs = tuple(CUT if is_cut else EVERYWHERE for is_cut in cut)
    return function if count() == 1 else jax.shard_map(function, in_specs=specs, out_specs=CUT, check_vma=False)


def mine(array: Array) -> Array:
    """Inside `each`: this device's part of an array that every device has."""
    if count() == 1:
        return array
    size = len(array) // count()
    return jax.lax.dynamic_slice_in_dim(array, jax.lax.axis_index(AXIS) * size, size)
