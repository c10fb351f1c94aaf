"""One run on a node of a cluster: the command that the local pool would start, so that a lost node is just a resume."""

from __future__ import annotations

import contextlib
import fcntl
import os
import platform
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from qdhuac.environment import versions
from qdhuac.errors import UserError
from qdhuac.studies import catalogue
from qdhuac.studies.catalogue import Run
from qdhuac.studies.folder import FINISHED, STUDY, look
from qdhuac.studies.local import STOPPED, Job, Result, begin, ended, log

POLL = 0.2  # seconds
PATIENCE = 600  # seconds to wait for a process that may still have the run, perhaps on a node that was given up


class Stopped(Exception):
    """Somebody else has stopped a run, as when a node goes down; it has saved and can go on elsewhere."""


def order(root: Path, name: str, scale: str, seeds: int, run: Run) -> dict[str, Any]:
    """What a node is told: plain values, which every version can read as far as the version."""
    told = {"versions": versions(), "root": str(root.absolute()), "study": name, "scale": scale, "seeds": seeds}
    return {**told, "folder": run.folder}


def stopped(root: Path, run: Run) -> Path:
    """The file that is there once a run is to stop: a message of Ray's does not always arrive."""
    return log(root, run).with_suffix(".stop")


def work(order: Mapping[str, Any]) -> Result:
    """Do a run to its end."""
    return Worker().run(order)


class Worker:
    """Does a run; `stop` may be called meanwhile, also by a signal's handler."""

    def __init__(self) -> None:
        self._job: Job | None = None
        self._asked = False

    def run(self, order: Mapping[str, Any]) -> Result:
        """Begin a run or go on with it, in a process that ends when this one does."""
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
            with contextlib.suppress(ChildProcessError):  # not `process.wait`: we may have interrupted its poll
                os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)

    def _run(self, order: Mapping[str, Any]) -> Result:
        run = _find(order)
        root = Path(order["root"])
        with log(root, run).open("ab") as out:
            _lock(out, run)
            state = look(root, run).state
            if state == FINISHED:
                return Result(0)
            if stopped(root, run).exists():
                return Result(None, last="stopped before it began")
            self._job = job = begin(root, run, state, out)
            while job.process.poll() is None:
                try:
                    time.sleep(POLL)
                    wanted = stopped(root, run).exists()
                except KeyboardInterrupt:  # this is how Ray cancels
                    wanted = True
                if wanted and not self._asked:  # once: the second signal would end it at once
                    self._asked = True
                    job.process.terminate()
            result = ended(root, job)
        if result.code in STOPPED and not self._asked:
            raise Stopped(f"stopped by a signal on {platform.node()}; it has saved")
        return result


def node() -> tuple[str, dict[str, str]]:
    """A node's name, and what it has."""
    return platform.node(), versions()


def compare(node: str, theirs: Mapping[str, str], ours: Mapping[str, str]) -> None:
    """Refuse a node that would not compute the same."""
    for name, version in ours.items():
        if theirs.get(name) != version:
            raise UserError(f"{node} has {name} {theirs.get(name)}, and the study is made with {version}")


def _find(order: Mapping[str, Any]) -> Run:
    """The run that is meant, if this node can do it."""
    node, root = platform.node(), Path(order["root"])
    compare(node, versions(), order["versions"])
    name, scale = order["study"], order["scale"]
    if not (root / f"{name}-{scale}" / STUDY).exists():
        raise UserError(f"{node} does not see {root}; --root must be a folder that all nodes share")
    for run in catalogue.runs(name, scale, order["seeds"]):
        if run.folder == order["folder"]:
            return run
    raise UserError(f"{node} knows no run {order['folder']} of {name}: its qdhuac is not the same")


def _lock(out: Any, run: Run) -> None:
    """Wait until nobody else has the run.

    The lock is on the log, which is the run's standard output too: so it is held for as long as this process or the
    run's lives, and nobody takes over a run that is still saving.
    """
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            return fcntl.flock(out, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise UserError(f"another process still has the run {run.folder} after {PATIENCE} seconds") from None
        except OSError as error:
            raise UserError(f"{out.name}: cannot be locked on {platform.node()} ({error.strerror})") from None
        time.sleep(POLL)
