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

PATIENCE = 60.0  # seconds that the processes may start apart from each other
AT_A_TIME = 0.5  # seconds between two looks at a stop signal
SPEECH = 2.0  # seconds that a caller has to say what it has
MOST = 1 << 16  # bytes of that


def answer(address: str, processes: int, has: Mapping[str, str], stop: Any = False) -> bool:
    """Of the first process: wait for the others, compare what they have, and tell them; False if `stop` came true."""
    said: dict[int, Any] = {}
    with contextlib.ExitStack() as stack:
        try:
            listener = stack.enter_context(socket.create_server(("", _split(address)[1])))
        except OSError as error:
            raise UserError(f"--process: {address} cannot be listened to ({error.strerror})") from None
        listener.settimeout(AT_A_TIME)
        deadline = time.monotonic() + PATIENCE
        while len(said) < processes - 1:
            if stop:
                return False
            if time.monotonic() > deadline:
                raise UserError(
                    f"--process: {len(said) + 1} of {processes} processes came to {address} in {PATIENCE:.0f} seconds"
                )
            try:
                caller = stack.enter_context(listener.accept()[0])
                caller.settimeout(SPEECH)
                told = _line(caller)
                said[int(told["rank"])] = dict(told["has"]), caller
            except (OSError, ValueError, KeyError, TypeError):
                continue  # nobody, or somebody else
        wrong = ""
        for rank, (theirs, _) in sorted(said.items(), reverse=True):
            for name in has:
                if theirs.get(name) != has[name]:
                    wrong = f"--process: process {rank} has another {name} than process 0; they must be the same"
        for _, caller in said.values():
            with contextlib.suppress(OSError):
                caller.sendall(_bytes({"wrong": wrong}))
    if wrong:
        raise UserError(wrong)
    return True


def call(address: str, rank: int, has: Mapping[str, str], stop: Any = False) -> bool:
    """Of every other process: say what it has, and wait for the answer; False if `stop` came true."""
    deadline = time.monotonic() + PATIENCE
    while not stop:
        try:
            with socket.create_connection(_split(address), AT_A_TIME) as first:
                first.sendall(_bytes({"rank": rank, "has": dict(has)}))
                first.settimeout(PATIENCE)
                wrong = _line(first)["wrong"]
                break
        except (OSError, ValueError, KeyError, TypeError) as error:
            if time.monotonic() > deadline:
                why = error if isinstance(error, OSError) else "something else answers there"
                raise UserError(f"--process: no process 0 at {address} in {PATIENCE:.0f} seconds ({why})") from None
            time.sleep(0.2)
    else:
        return False
    if wrong:
        raise UserError(str(wrong))
    return True


def _line(connection: socket.socket) -> Any:
    """What the other side says: one line of JSON."""
    return json.loads(connection.makefile("rb").readline(MOST))


def _bytes(what: Mapping[str, Any]) -> bytes:
    return json.dumps(what).encode() + b"\n"


def _split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host, int(port)
