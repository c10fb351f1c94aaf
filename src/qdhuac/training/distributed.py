"""One run on several devices, perhaps in several processes. On one device nothing here does anything.

Each process makes the same decisions in the same order, so that all of them meet in every computation. Process 0 leads:
it alone keeps the run folder and talks. JAX ends a process that waits for the others in vain, and only wrong results
would show that two were given different commands. So all processes meet at the address of process 0 before anything
starts (`meet`): each says what it has, and process 0 answers whether they fit together.
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

from qdhuac.errors import UserError
from qdhuac.learning.replay import ReplayState
from qdhuac.sharding import AXIS, CUT, EVERYWHERE, count
from qdhuac.training.signals import Stop
from qdhuac.types import Array

if TYPE_CHECKING:
    from qdhuac.training.launch import Process

MEETING_SECONDS = 60.0  # how far apart the processes may start
POLL_SECONDS = 0.5  # between two looks at a stop signal
GREETING_SECONDS = 2.0  # that a caller has to say what it has
GREETING_BYTES = 1 << 16  # the longest that is read


# Devices


@contextlib.contextmanager
def use(devices: int) -> Iterator[None]:
    """Cut what can be cut over the first `devices` devices of all processes together."""
    present = jax.devices()
    if devices > len(present):
        where = "this machine has" if jax.process_count() == 1 else "the processes together have"
        hint = "; on a CPU, XLA_FLAGS=--xla_force_host_platform_device_count=N makes N of it"
        raise UserError(
            f"run.devices={devices}: {where} {len(present)} ({present[0].platform})"
            + (hint if present[0].platform == "cpu" else "")
        )
    if jax.process_count() > 1 and devices != len(present):
        raise UserError(f"run.devices={devices}: the processes have {len(present)} together; use them all")
    if devices == 1:
        yield
        return
    with jax.set_mesh(jax.make_mesh((devices,), (AXIS,), axis_types=(AxisType.Auto,), devices=present[:devices])):
        yield


def placement(state: Any) -> Any:
    """Where each leaf of a state lives: the rows of a replay buffer are cut, the rest is on every device."""

    def place(part: Any) -> Any:
        if isinstance(part, ReplayState):
            return jax.tree.map(lambda _: EVERYWHERE, part)._replace(rows=CUT)
        return EVERYWHERE

    return jax.tree.map(place, state, is_leaf=lambda part: isinstance(part, ReplayState))


def jit(function: Callable[..., Any], results: Any, **options: Any) -> Any:
    """`jax.jit`; on several devices the results go where `results` says."""
    return jax.jit(function, **options, **({"out_shardings": results} if count() > 1 else {}))


def put(tree: Any, places: Any) -> Any:
    """Values that every process has, moved to their places."""
    if count() == 1:
        return tree
    mesh = jax.sharding.get_mesh()
    return jax.device_put(tree, jax.tree.map(lambda place: NamedSharding(mesh, place), places))


def require_memory(state: Any, places: Any, runs: int) -> None:
    """Refuse states that cannot fit; `state` are the shapes of one, `runs` how many there will be."""
    device = jax.local_devices()[0]
    present, where = (device.memory_stats() or {}).get("bytes_limit"), str(device.device_kind)
    sizes = jax.tree.map(lambda leaf: leaf.size * leaf.dtype.itemsize, state)
    if present is None:  # the machine's own memory, which its devices share
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
    """Make one JAX program of all processes, which have met already."""
    jax.config.update("jax_enable_preemption_service", False)  # it would keep SIGTERM to itself
    jax.distributed.initialize(process.address, process.of, process.rank)


def leads() -> bool:
    """This process keeps the run folder."""
    return jax.process_index() == 0


def agreed(number: int) -> int:
    """The largest number that any process gives."""
    if jax.process_count() == 1:
        return number
    from jax.experimental import multihost_utils

    return int(np.max(multihost_utils.process_allgather(np.int32(number))))


def stopped(stop: Stop) -> bool:
    """A stop signal came to any of the processes."""
    if jax.process_count() == 1:
        return bool(stop)
    # Only what all processes agree on counts: a signal that comes meanwhile is for the next time.
    stop.elsewhere = agreed(stop.signal or 0) or None
    return stop.elsewhere is not None


def of_leader(tree: Any) -> Any:
    """What process 0 has. Arrays that all processes made together are the same everywhere already."""
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


# The meeting


def meet(process: Process, has: Mapping[str, str], stop: Any = False) -> bool:
    """Wait until all processes are there. Returns False if `stop` came true.

    Args:
        process: this process.
        has: what must be the same in all processes, by name.
        stop: true once the user wants no more.

    Raises:
        UserError: a process did not come in time, or has something else than process 0.
    """
    return _call(process, has, stop) if process.rank else _listen(process, has, stop)


def _listen(process: Process, has: Mapping[str, str], stop: Any) -> bool:
    """Process 0: wait for the others, compare what they have, and tell them."""
    others: dict[int, tuple[dict[str, str], socket.socket]] = {}
    with contextlib.ExitStack() as stack:
        try:
            listener = stack.enter_context(socket.create_server(("", _split(process.address)[1])))
        except OSError as error:
            raise UserError(f"--process: {process.address} cannot be listened to ({error.strerror})") from None
        listener.settimeout(POLL_SECONDS)
        deadline = time.monotonic() + MEETING_SECONDS
        while len(others) < process.of - 1:
            if stop:
                return False
            if time.monotonic() > deadline:
                raise UserError(
                    f"--process: {len(others) + 1} of {process.of} processes came to {process.address} in "
                    f"{MEETING_SECONDS:.0f} seconds"
                )
            try:
                caller = stack.enter_context(listener.accept()[0])
                caller.settimeout(GREETING_SECONDS)
                greeting = _read(caller)
                others[int(greeting["rank"])] = dict(greeting["has"]), caller
            except (OSError, ValueError, KeyError, TypeError):
                continue  # nobody came, or something that is not a process of this run
        wrong = ""
        for rank, (theirs, _) in sorted(others.items(), reverse=True):
            for name in has:
                if theirs.get(name) != has[name]:
                    wrong = f"--process: process {rank} has another {name} than process 0; they must be the same"
        for _, caller in others.values():
            with contextlib.suppress(OSError):
                caller.sendall(_line({"wrong": wrong}))
    if wrong:
        raise UserError(wrong)
    return True


def _call(process: Process, has: Mapping[str, str], stop: Any) -> bool:
    """Every other process: tell process 0 what it has, and wait for the answer."""
    deadline = time.monotonic() + MEETING_SECONDS
    while not stop:
        try:
            with socket.create_connection(_split(process.address), POLL_SECONDS) as first:
                first.sendall(_line({"rank": process.rank, "has": dict(has)}))
                first.settimeout(MEETING_SECONDS)
                wrong = _read(first)["wrong"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            if time.monotonic() > deadline:
                why = error if isinstance(error, OSError) else "something else answers there"
                raise UserError(
                    f"--process: no process 0 at {process.address} in {MEETING_SECONDS:.0f} seconds ({why})"
                ) from None
            time.sleep(0.2)
            continue
        if wrong:
            raise UserError(str(wrong))
        return True
    return False


def _read(connection: socket.socket) -> Any:
    """One line of JSON."""
    return json.loads(connection.makefile("rb").readline(GREETING_BYTES))


def _line(content: Mapping[str, Any]) -> bytes:
    return json.dumps(content).encode() + b"\n"


def _split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host, int(port)
