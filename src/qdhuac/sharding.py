"""Several devices for one run: what is spread over them, and how processes on several machines stay together.

Every compiled function is written for one device. Inside `use`, some arrays are cut along their first axis: policies in
a rollout, transitions in a minibatch, rows of the replay buffer. The compiler makes the rest of it, so that a mean over
a minibatch, and with it a gradient or a batch statistic, is still that of the whole minibatch.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from qdhuac.errors import UserError
from qdhuac.types import Array

AXIS = "devices"
EVERYWHERE, CUT = PartitionSpec(), PartitionSpec(AXIS)


@contextlib.contextmanager
def use(count: int) -> Iterator[None]:
    """Spread what can be spread over the first `count` devices, of all processes together."""
    present = jax.devices()
    if count > len(present):
        where = "this machine has" if jax.process_count() == 1 else "the processes together have"
        hint = "; on a CPU, XLA_FLAGS=--xla_force_host_platform_device_count=N makes N of it"
        raise UserError(
            f"run.devices={count}: {where} {len(present)} ({present[0].platform})"
            + (hint if present[0].platform == "cpu" else "")
        )
    if jax.process_count() > 1 and count != len(present):
        raise UserError(f"run.devices={count}: the processes have {len(present)} together; use them all")
    if count == 1:
        yield
        return
    with jax.set_mesh(jax.make_mesh((count,), (AXIS,), axis_types=(AxisType.Auto,), devices=present[:count])):
        yield


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


def put(tree: Any, specs: Any) -> Any:
    """Values that every process has, to where the specs want them."""
    if count() == 1:
        return tree
    mesh = jax.sharding.get_mesh()
    return jax.device_put(tree, jax.tree.map(lambda spec: NamedSharding(mesh, spec), specs))


def memory() -> tuple[int | None, str]:
    """Bytes that one device has, and its name; None where it is the machine's own memory."""
    device = jax.local_devices()[0]
    return (device.memory_stats() or {}).get("bytes_limit"), str(device.device_kind)


# Several processes. Each makes the same decisions in the same order, so that all of them meet in every computation.


def join(address: str, processes: int, index: int) -> None:
    """Together with the others, who are known to come to the address of process 0."""
    jax.config.update("jax_enable_preemption_service", False)  # it would keep SIGTERM to itself
    jax.distributed.initialize(address, processes, index)


def agreed(number: int) -> int:
    """The largest number that any process says."""
    if jax.process_count() == 1:
        return number
    from jax.experimental import multihost_utils

    return int(np.max(multihost_utils.process_allgather(np.int32(number))))


def of_leader(tree: Any) -> Any:
    """What process 0 has. Arrays that all of them made together are the same everywhere already."""
    if jax.process_count() == 1 or any(_is_shared(leaf) for leaf in jax.tree.leaves(tree)):
        return tree
    from jax.experimental import multihost_utils

    return multihost_utils.broadcast_one_to_all(tree)


def gathered(tree: Any) -> Any:
    """Whole arrays, also of those that are cut over several processes."""
    if jax.process_count() == 1:
        return tree
    return jax.tree.map(lambda leaf: leaf if leaf.is_fully_replicated else _gathered(leaf), tree)


def _gathered(array: Array) -> np.ndarray:
    """In the host's memory. One device's part at a time goes through all devices, which need not hold the whole."""
    size = len(array) // count()
    parts = (np.asarray(_part(array, i, size)) for i in range(0, len(array), size))
    return np.concatenate(list(parts))


@functools.partial(jax.jit, static_argnums=2, out_shardings=EVERYWHERE)
def _part(array: Array, start: int, size: int) -> Array:
    return jax.lax.dynamic_slice_in_dim(array, start, size)


def _is_shared(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and not leaf.is_fully_addressable
