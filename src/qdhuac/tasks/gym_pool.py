"""Starts processes that simulate Gymnasium episodes and divides episodes among them.

They need no importable main program, as notebooks have none, and end with the process that started them.
"""

from __future__ import annotations

import functools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from multiprocessing import Pipe
from multiprocessing.connection import wait
from typing import IO, Any

from safetensors.numpy import load

from qdhuac.errors import RunFailed, UserError
from qdhuac.tasks import gym_worker
from qdhuac.tasks.gym_worker import Rows

STARTING = 600.0  # seconds in which a process must have made its environment
POLL = 1.0  # seconds between two looks at the clock
SHOWN = 2**16  # bytes that are shown of what environments print
GROWTH = 2**29  # bytes by which a process may grow without a warning
WARM = 5  # episodes after which a process should not grow any more


def place(what: str, function: Callable[..., Any]) -> tuple[str, str]:
    """Module and name by which another process finds a function. Raises UserError if it cannot."""
    module, name = getattr(function, "__module__", ""), getattr(function, "__qualname__", "")
    found = functools.reduce(lambda scope, part: getattr(scope, part, None), name.split("."), sys.modules.get(module))
    if found is not function:
        raise UserError(
            f"{what}: other processes cannot import it by its name, as they cannot with a lambda or a local function; "
            "give a function of a module, or set workers=0"
        )
    if only_here(function):
        raise UserError(
            f"{what}: other processes cannot import a function of a notebook; write it to a module, for example with "
            "%%writefile, or set workers=0"
        )
    main = sys.modules["__main__"].__spec__  # of `python -m`
    return (main.name if module == "__main__" and main else module), name


def only_here(function: Any) -> bool:
    """It is a function of a notebook, which no other process can import."""
    main = sys.modules["__main__"]
    return getattr(function, "__module__", "") == "__main__" and main.__spec__ is None and script() is None


def script() -> str | None:
    """The file of the main program; None in a notebook and for `python -m`."""
    main = sys.modules["__main__"]
    file = getattr(main, "__file__", None)
    return os.path.abspath(file) if file and os.path.isfile(file) and main.__spec__ is None else None


class Worker:
    """One process, and what it is doing."""

    def __init__(self, wanted: dict[str, Any], show: Callable[[IO[bytes]], None]) -> None:
        self.connection, theirs = Pipe()
        alone = threading.current_thread() is not threading.main_thread()  # then it would die with that thread
        code = f"import sys; sys.path[:] = {sys.path!r}; from qdhuac.tasks import gym_worker; "
        self.process = subprocess.Popen(
            [sys.executable, "-c", f"{code}gym_worker.serve({theirs.fileno()}, {not alone})"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=[theirs.fileno()],
            start_new_session=True,  # Ctrl-C is for the one who asked for the episodes
        )
        theirs.close()
        threading.Thread(target=show, args=(self.process.stdout,), daemon=True).start()
        self.job: int | None = None
        self.left, self.episodes, self.usual = STARTING, 0, 0
        self.connection.send_bytes(json.dumps(wanted).encode())

    def begin(self, job: int, message: bytes, seconds: float) -> None:
        """Ask for an episode, to be finished in so many seconds."""
        self.job, self.left = job, seconds
        self.connection.send_bytes(message)

    def answer(self) -> dict[str, Any] | None:
        """The arrays of an episode, or None if the environment has been made. Raises what went wrong."""
        try:
            answer = self.connection.recv_bytes()
        except (EOFError, OSError):
            code = self.process.wait()
            how = f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
            raise RunFailed(f"a process that simulates was ended {how}") from None
        kind, body = answer[:1], answer[1:]
        if kind == gym_worker.MISTAKE:
            raise UserError(body.decode())
        if kind == gym_worker.FAILURE:
            text, where = json.loads(body)
            error = RunFailed(f"the environment failed: {text}")
            error.add_note(where)
            raise error
        return load(body) if body else None

    def grown(self, memory: int) -> str:
        """A warning if the process has grown since its first episodes."""
        self.episodes += 1
        if self.episodes <= WARM:
            self.usual = memory
        if memory <= self.usual + GROWTH:
            return ""
        was, now = (f"{size / 2**20:,.0f} MB" for size in (self.usual, memory))
        return f"a process that simulates has grown from {was} to {now} in {self.episodes} episodes; is there a leak?"


class Pool:
    """Processes that simulate, started when they are first needed.

    Args:
        wanted: what each process makes.
        size: how many there are.
        deadline: seconds that an episode may take.
    """

    def __init__(self, wanted: dict[str, Any], size: int, deadline: float) -> None:
        self._wanted, self._size, self._deadline = wanted, size, deadline
        self._workers: list[Worker] = []
        self._printed, self._warned = 0, False

    def run(self, messages: Sequence[bytes]) -> list[Rows]:
        """The episodes that the messages ask for. If that fails in any way, the processes are ended."""
        found: dict[int, Rows] = {}
        waiting = list(enumerate(messages))[::-1]
        try:
            new = [Worker(self._wanted, self._show) for _ in range(min(self._size, len(messages)) - len(self._workers))]
            idle, busy = list(self._workers), {worker.connection: worker for worker in new}
            self._workers += new
            while len(found) < len(messages):
                while idle and waiting:
                    worker = idle.pop()
                    worker.begin(*waiting.pop(), self._deadline)
                    busy[worker.connection] = worker
                for ready in self._ready(busy):
                    worker = busy.pop(ready)
                    arrays = worker.answer()
                    if arrays is not None and worker.job is not None:
                        self._watch(worker.grown(int(arrays.pop("memory"))))
                        found[worker.job] = Rows(**arrays)
                    idle.append(worker)
            for worker in busy.values():  # still starting; the others were quicker
                worker.answer()
        except BaseException:  # a stop too
            self.close()
            raise
        return [found[i] for i in range(len(messages))]

    def close(self) -> None:
        """End the processes."""
        for worker in self._workers:
            worker.process.kill()
        for worker in self._workers:
            worker.process.wait()
            worker.connection.close()
        self._workers = []

    def _ready(self, busy: dict[Any, Worker]) -> list[Any]:
        """The connections with an answer. Raises RunFailed if one was due long ago."""
        before = time.monotonic()
        ready = wait(list(busy), POLL)
        # Time that this machine slept does not count.
        passed = min(time.monotonic() - before, 2 * POLL)
        for connection, worker in busy.items():
            worker.left -= passed
            if worker.left < 0 and connection not in ready:
                what = "its environment was not made" if worker.job is None else f"individual {worker.job} is not done"
                limit = STARTING if worker.job is None else self._deadline
                raise RunFailed(f"deadline={limit:g}: {what} after so many seconds; the environment hangs, or is slow")
        return ready

    def _watch(self, warning: str) -> None:
        if warning and not self._warned:
            self._warned = True
            print(f"warning: {warning}", file=sys.stderr, flush=True)

    def _show(self, output: IO[bytes]) -> None:
        """Show the beginning of what a process prints, and read the rest so that it need not wait."""
        with output:
            while text := os.read(output.fileno(), 2**16):
                if self._printed < SHOWN:
                    sys.stderr.write(text[: SHOWN - self._printed].decode(errors="replace"))
                    self._printed += len(text)
                    if self._printed >= SHOWN:
                        sys.stderr.write(f"\nwarning: environments have printed {SHOWN:,} bytes; no more is shown\n")
