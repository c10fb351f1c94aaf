"""One run on several devices, or in several processes. On a single device these functions do nothing.

All processes take the same decisions in the same order. Process 0 keeps the run folder and prints. JAX would not notice
that two processes were given different commands, and ends a process that waits in vain for another. Therefore all
processes first connect to process 0, which compares their configurations and versions: see `meet`.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax.sharding import AxisType, NamedSharding

from qdhuac.errors import UserError, os_errors_as
from qdhuac.learning.replay import ReplayState
from qdhuac.sharding import AXIS, CUT, EVERYWHERE, count
from qdhuac.training.signals import Stop
from qdhuac.types import Array

if TYPE_CHECKING:
    from qdhuac.training.launch import Process

MEETING_SECONDS = 60.0  # processes may start this far apart
POLL_SECONDS = 0.5  # between two checks for a stop signal
GREETING_SECONDS = 2.0  # a connection that sends nothing for this long is ignored
GREETING_BYTES = 1 << 16  # longest line that is read
NO_ANSWER = (OSError, ValueError, KeyError, TypeError)  # no message from a process of this run


# Devices


@contextlib.contextmanager
def use(devices: int) -> Iterator[None]:
    """Spread the run over the first `devices` devices. Raises UserError if there are fewer."""
    present = jax.devices()
    if devices > len(present):
        where = "this machine has" if jax.process_count() == 1 else "the processes together have"
        platform, hint = present[0].platform, ""
        if platform == "cpu":
            hint = "; XLA_FLAGS=--xla_force_host_platform_device_count=N splits a CPU into N devices"
        raise UserError(f"run.devices={devices}: {where} {len(present)} ({platform}){hint}")
    if jax.process_count() > 1 and devices != len(present):
        raise UserError(f"run.devices={devices}: the processes have {len(present)} together; use them all")
    if devices == 1:
        yield
        return
    with jax.set_mesh(jax.make_mesh((devices,), (AXIS,), axis_types=(AxisType.Auto,), devices=present[:devices])):
        yield


def placement(state: Any) -> Any:
    """Return the sharding of a state: the rows of a replay buffer are split, the rest is on every device."""

    def place(part: Any) -> Any:
        if isinstance(part, ReplayState):
            return jax.tree.map(lambda _: EVERYWHERE, part)._replace(rows=CUT)
        return EVERYWHERE

    return jax.tree.map(place, state, is_leaf=lambda part: isinstance(part, ReplayState))


def jit(function: Callable[..., Any], results: Any, **options: Any) -> Any:
    """`jax.jit`; on several devices `results` is the sharding of the results."""
    return jax.jit(function, **options, **({"out_shardings": results} if count() > 1 else {}))


def put(tree: Any, places: Any) -> Any:
    """Move values that every process has to their devices."""
    if count() == 1:
        return tree
    mesh = jax.sharding.get_mesh()
    return jax.device_put(tree, jax.tree.map(lambda place: NamedSharding(mesh, place), places))


def require_memory(state: Any, places: Any, runs: int) -> None:
    """Raise UserError if `runs` states do not fit into memory; `state` has the shapes of one."""
    device = jax.local_devices()[0]
    present, where = (device.memory_stats() or {}).get("bytes_limit"), str(device.device_kind)
    sizes = jax.tree.map(lambda leaf: leaf.size * leaf.dtype.itemsize, state)
    if present is None:  # devices share the memory of the machine
        present, where = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), "this machine"
    else:
        sizes = jax.tree.map(lambda size, place: size // (count() if place == CUT else 1), sizes, places)
    needed = runs * sum(jax.tree.leaves(sizes))
    if needed > present:
        whose = "the state of this run needs" if runs == 1 else f"the states of these {runs} runs need"
        raise UserError(
            f"{whose} {needed / 1e9:.0f} GB, and {where} has {present / 1e9:.0f} GB; "
            "lower replay.capacity or archive.capacity"
        )


# Processes


def join(process: Process) -> None:
    """Connect JAX in all processes."""
    jax.config.update("jax_enable_preemption_service", False)  # it would hide SIGTERM
    jax.distributed.initialize(process.address, process.of, process.rank)


def leads() -> bool:
    """True in process 0."""
    return jax.process_index() == 0


def agreed(number: int) -> int:
    """Return the largest number among all processes."""
    if jax.process_count() == 1:
        return number
    from jax.experimental import multihost_utils

    return int(np.max(multihost_utils.process_allgather(np.int32(number))))


def stopped(stop: Stop) -> bool:
    """True if any process has received a stop signal."""
    if jax.process_count() == 1:
        return bool(stop)
    # A signal that arrives after the processes have agreed counts the next time.
    stop.elsewhere = agreed(stop.signal or 0) or None
    return stop.elsewhere is not None


def of_leader(tree: Any) -> Any:
    """Return the values of process 0. Arrays that are spread over processes are equal already."""
    if jax.process_count() == 1 or any(_is_shared(leaf) for leaf in jax.tree.leaves(tree)):
        return tree
    from jax.experimental import multihost_utils

    return multihost_utils.broadcast_one_to_all(tree)


def gathered(tree: Any) -> Any:
    """Return whole arrays, also of those that are split over processes."""
    if jax.process_count() == 1:
        return tree
    return jax.tree.map(lambda leaf: leaf if leaf.is_fully_replicated else _gathered(leaf), tree)


def _gathered(array: Array) -> np.ndarray:
    """The whole array on the host. Devices receive one part at a time, because the whole may not fit."""
    size = len(array) // count()
    parts = (np.asarray(_part(array, i, size)) for i in range(0, len(array), size))
    return np.concatenate(list(parts))


@functools.partial(jax.jit, static_argnums=2, out_shardings=EVERYWHERE)
def _part(array: Array, start: int, size: int) -> Array:
    return jax.lax.dynamic_slice_in_dim(array, start, size)


def _is_shared(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and not leaf.is_fully_addressable


# The meeting


def meet(process: Process, has: Mapping[str, str], stop: Any = False) -> bool:
    """Wait until all processes are there, and check that they fit together.

    Args:
        process: this process.
        has: what must be equal in all processes, by name.
        stop: true once the user wants to stop.

    Returns:
        True, or False if `stop` came true.

    Raises:
        UserError: a process did not come in time, or differs from process 0.
    """
    return _call(process, has, stop) if process.rank else _listen(process, has, stop)


def _listen(process: Process, has: Mapping[str, str], stop: Any) -> bool:
    """Process 0: wait for the others, compare what they have, and send each the result."""
    others: dict[int, tuple[dict[str, str], socket.socket]] = {}
    deadline = time.monotonic() + MEETING_SECONDS
    with contextlib.ExitStack() as stack:
        with os_errors_as(UserError, f"--process: {process.address} cannot be listened to"):
            listener = stack.enter_context(socket.create_server(("", _split(process.address)[1])))
        listener.settimeout(POLL_SECONDS)
        while len(others) < process.of - 1:
            if stop:
                return False
            if time.monotonic() > deadline:
                came = f"{len(others) + 1} of {process.of} processes came to {process.address}"
                raise UserError(f"--process: {came} in {MEETING_SECONDS:.0f} seconds")
            with contextlib.suppress(*NO_ANSWER):  # no connection yet, or from another program
                caller = stack.enter_context(listener.accept()[0])
                caller.settimeout(GREETING_SECONDS)
                greeting = _read(caller)
                others[int(greeting["rank"])] = dict(greeting["has"]), caller
        differences = (
            (rank, name) for rank in sorted(others) for name in has if others[rank][0].get(name) != has[name]
        )
        rank, name = next(differences, (0, ""))
        wrong = name and f"--process: process {rank} has another {name} than process 0; they must be the same"
        for _, caller in others.values():
            with contextlib.suppress(OSError):
                caller.sendall(_line({"wrong": wrong}))
    if wrong:
        raise UserError(wrong)
    return True


def _call(process: Process, has: Mapping[str, str], stop: Any) -> bool:
    """The other processes: send process 0 what this one has, and wait for the result."""
    deadline = time.monotonic() + MEETING_SECONDS
    while not stop:
        try:
            with socket.create_connection(_split(process.address), POLL_SECONDS) as first:
                first.sendall(_line({"rank": process.rank, "has": dict(has)}))
                first.settimeout(MEETING_SECONDS)
                wrong = _read(first)["wrong"]
        except NO_ANSWER as error:
            if time.monotonic() > deadline:
                why = error if isinstance(error, OSError) else "something else answers there"
                missing = f"no process 0 at {process.address} in {MEETING_SECONDS:.0f} seconds"
                raise UserError(f"--process: {missing} ({why})") from None
            time.sleep(0.2)
            continue
        if wrong:
            raise UserError(str(wrong))
        return True
    return False


def _read(connection: socket.socket) -> Any:
    """Read one line of JSON."""
    return json.loads(connection.makefile("rb").readline(GREETING_BYTES))


def _line(content: Mapping[str, Any]) -> bytes:
    return json.dumps(content).encode() + b"\n"


def _split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host, int(port)
