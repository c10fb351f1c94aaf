"""One run on a node of a cluster. It is resumed on another node if its own is lost."""

from __future__ import annotations

import contextlib
import fcntl
import os
import platform
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from qdhuac.algorithms import specs
from qdhuac.environment import versions
from qdhuac.errors import UserError
from qdhuac.files import inside, read
from qdhuac.studies.catalogue import Run
from qdhuac.studies.folder import FINISHED, LOGS, config_file, look
from qdhuac.studies.local import STOPPED, Job, Result, begin, ended, open_log

POLL = 0.2  # seconds
PATIENCE = 600.0  # seconds to wait for another process that still has the run


class Stopped(Exception):
    """A run was stopped from outside, for example because its node goes down. It has saved and can be resumed."""


def order(root: Path, run: Run) -> dict[str, Any]:
    """The message to a node. It holds plain values, so that a node with other versions can read and refuse it."""
    return {"versions": versions(), "root": str(root.absolute()), "folder": run.folder, "label": run.label}


def stop_file(root: Path, run: Run) -> Path:
    """A file whose existence asks a run to stop, as Ray does not deliver every cancellation."""
    return inside(root, LOGS, f"{run.folder}.stop")


def work(order: Mapping[str, Any], patience: float = PATIENCE) -> Result:
    """Make one run. Wait up to `patience` seconds if another process has it."""
    return Worker(patience).run(order)


class Worker:
    """Makes one run. A signal handler may call `stop` meanwhile."""

    def __init__(self, patience: float = PATIENCE) -> None:
        self._patience = patience
        self._job: Job | None = None
        self._asked = False

    def run(self, order: Mapping[str, Any]) -> Result:
        """Start or resume a run in a process that ends when this one does."""
        try:
            return self._run(order)
        except UserError as error:
            return Result(None, last=str(error))

    def stop(self) -> None:
        """Let the run save, and wait until it has."""
        self._asked = True
        if self._job is not None:
            process = self._job.process
            process.terminate()
            with contextlib.suppress(ChildProcessError):  # `process.wait` cannot be used: this may interrupt `poll`
                os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)

    def _run(self, order: Mapping[str, Any]) -> Result:
        run = _find(order)
        root = Path(order["root"])
        with open_log(root, run) as out:
            _lock(out, run, self._patience)
            state = look(root, run).state
            if state == FINISHED:
                return Result(0)
            if stop_file(root, run).exists():
                return Result(None, last="stopped before it started")
            self._job = job = begin(root, run, state, out)
            while job.process.poll() is None:
                try:
                    time.sleep(POLL)
                    wanted = stop_file(root, run).exists()
                except KeyboardInterrupt:  # how Ray cancels
                    wanted = True
                if wanted and not self._asked:  # only once: after a second signal it would not save
                    self._asked = True
                    job.process.terminate()
            result = ended(root, job)
        if result.code in STOPPED and not self._asked:
            raise Stopped(f"stopped by a signal on {platform.node()}; it has saved")
        return result


def check_versions(wanted: Mapping[str, str]) -> None:
    """Raise UserError unless this node has these versions."""
    found = versions()
    for name, version in wanted.items():
        if found.get(name) != version:
            raise UserError(f"{platform.node()} has {name} {found.get(name)}, and the study is made with {version}")


def _find(order: Mapping[str, Any]) -> Run:
    """The run of an order. Raise UserError if this node cannot make it."""
    check_versions(order["versions"])
    where = config_file(Path(order["root"]), order["folder"])
    try:
        settings = specs.from_toml(read(where).decode(), str(where))
    except (OSError, UnicodeDecodeError):
        message = f"{platform.node()} does not see {where}; --root must be a folder that all nodes share"
        raise UserError(message) from None
    return Run(order["label"], settings, settings.run.env_steps)


def _lock(out: Any, run: Run, patience: float) -> None:
    """Wait until no other process has the run.

    The lock is on the log, which is also the standard output of the run's process. It is held until both this process
    and the run's have ended, so that a run that is still saving is not taken over.
    """
    deadline = time.monotonic() + patience
    while True:
        try:
            return fcntl.flock(out, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise UserError(f"another process still has the run {run.folder} after {patience:g} seconds") from None
        except OSError as error:
            raise UserError(f"{out.name}: cannot be locked on {platform.node()} ({error.strerror})") from None
        time.sleep(POLL)
