"""Before several processes make one run: whether all are there, and agree on what to do.

JAX ends a process that waits for the others in vain, and only wrong results would show that two were told different
things. So they meet here first, at the same address: each says what it has, and the first answers all of them.
"""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections.abc import Mapping
from typing import Any

from qdhuac.errors import UserError

PATIENCE = 60.0  # seconds
MOST = 1 << 16  # bytes that a process says of itself


def answer(address: str, processes: int, has: Mapping[str, str]) -> None:
    """Of the first process: wait for the others, compare what they have, and tell them."""
    deadline = time.monotonic() + PATIENCE
    said: dict[int, Any] = {}
    with contextlib.ExitStack() as stack:
        try:
            listener = stack.enter_context(socket.create_server(("", _split(address)[1])))
        except OSError as error:
            raise UserError(f"--process: {address} cannot be listened to ({error.strerror})") from None
        while len(said) < processes - 1:
            listener.settimeout(max(deadline - time.monotonic(), 0.01))
            try:
                caller = stack.enter_context(listener.accept()[0])
                caller.settimeout(max(deadline - time.monotonic(), 0.01))
                told = json.loads(caller.makefile().readline(MOST))
                said[int(told["rank"])] = dict(told["has"]), caller
            except TimeoutError:
                raise UserError(
                    f"--process: {len(said) + 1} of {processes} processes came to {address} in {PATIENCE:.0f} seconds"
                ) from None
            except (OSError, ValueError, KeyError, TypeError):
                continue  # somebody else's call
        wrong = ""
        for rank, (theirs, _) in sorted(said.items()):
            for name in has:
                if theirs.get(name) != has[name] and not wrong:
                    wrong = f"--process: process {rank} has another {name} than process 0; they must be the same"
        for _, caller in said.values():
            with contextlib.suppress(OSError):
                caller.sendall((wrong + "\n").encode())
    if wrong:
        raise UserError(wrong)


def call(address: str, rank: int, has: Mapping[str, str]) -> None:
    """Of every other process: say what it has, and wait for the answer."""
    deadline = time.monotonic() + PATIENCE
    while True:
        left = deadline - time.monotonic()
        try:
            with socket.create_connection(_split(address), max(left, 0.01)) as first:
                first.sendall((json.dumps({"rank": rank, "has": dict(has)}) + "\n").encode())
                first.settimeout(PATIENCE)
                wrong = first.makefile().readline(MOST)
                if not wrong:
                    raise ConnectionError("it closed the connection")
                break
        except OSError as error:
            if left <= 0:
                raise UserError(f"--process: no process 0 at {address} in {PATIENCE:.0f} seconds ({error})") from None
            time.sleep(0.2)
    if wrong.strip():
        raise UserError(wrong.strip())


def _split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)
