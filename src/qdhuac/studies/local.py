"""Runs on this machine: one process and one core for each, so that a crash of one does not stop the others."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from qdhuac.errors import UserError, os_errors_as
from qdhuac.files import inside, opened
from qdhuac.store import checkpoint
from qdhuac.studies.catalogue import Run
from qdhuac.studies.folder import LOGS, MISSING, RUNS, config_file

COMMAND = [sys.executable, "-m", "qdhuac.cli"]
ONE_THREAD = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
LAST_BYTES = 1 << 16  # of a log that are read
# Exit codes of a run that a signal has stopped. They are negative if the signal came before its handler was set.
STOPPED = (129, 130, 143, -1, -2, -15)
# Starts a command that gets SIGTERM, and so saves, when this process ends in any way. The command ignores SIGUSR2,
# which Slurm sends to all processes of a job.
LAUNCHER = """import ctypes, os, signal, sys
signal.signal(signal.SIGUSR2, signal.SIG_IGN)
ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG
if os.getppid() == int(sys.argv[1]): os.execv(sys.argv[2], sys.argv[2:])"""


class Result(NamedTuple):
    """How a run ended."""

    code: int | None  # exit code; None: no process was started, `last` says why
    seconds: float = 0.0
    last: str = ""  # the last line of its output


@dataclasses.dataclass
class Job:
    """A run and its process."""

    run: Run
    process: subprocess.Popen[bytes]
    core: int | None
    begun: float


def command(root: Path, run: Run, state: str) -> list[str]:
    """The command that starts a run, resumes it, or writes the missing report of a finished one."""
    path, goal = root / RUNS / run.folder, run.config.run.env_steps
    if state == MISSING:
        return [*COMMAND, "train", "--config", str(config_file(root, run.folder)), "--run-dir", str(path)]
    saved = checkpoint.newest(path / "checkpoints").record
    if not saved.get("pending") and saved.get("counters", {}).get("env_steps", 0) >= goal:
        return [*COMMAND, "report", str(path)]
    return [*COMMAND, "resume", str(path), "--env-steps", str(goal)]


def cores() -> list[int]:
    """The cores that this process may use; empty if the system does not say."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []


def begin(root: Path, run: Run, state: str, out: Any, core: int | None = None) -> Job:
    """Start the process of a run. Its command and output go to its log, `out`."""
    words = command(root, run, state)
    out.write(f"$ {' '.join(words)}\n".encode())
    out.flush()
    return Job(run, start(words, core, out), core, time.monotonic())


def log(root: Path, run: Run) -> Path:
    """The file with the output of a run."""
    return inside(root, LOGS, f"{run.folder}.log")


@contextlib.contextmanager
def open_log(root: Path, run: Run) -> Iterator[Any]:
    """Open the log of a run to append to it. Raises UserError if it is not a file in the study's own folder."""
    with contextlib.ExitStack() as stack:
        with os_errors_as(UserError, f"{log(root, run)}: cannot be written"):
            out = stack.enter_context(opened(log(root, run), "ab"))
        yield out


def ended(root: Path, job: Job) -> Result:
    """The result of a run whose process has ended. Remove the checkpoints of a finished run."""
    if job.process.returncode == 0:
        shutil.rmtree(root / RUNS / job.run.folder / "checkpoints", ignore_errors=True)  # a replay buffer is large
    with opened(log(root, job.run)) as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - LAST_BYTES))
        lines = [line for line in file.read().decode("utf-8", "replace").splitlines() if line.strip()]
    last = lines[-1].removeprefix("qdhuac: error: ") if lines else "no output"
    return Result(job.process.returncode, time.monotonic() - job.begun, last)


class Local:
    """Starts runs on this machine, each on a core of its own if there are enough."""

    queues, poll = False, 0.2

    def prepare(self, root: Path, runs: Sequence[Run], jobs: int) -> None:
        self.root, self.jobs = root, jobs
        usable = cores()
        self._free: list[int | None] = [*usable[:jobs]] if jobs <= len(usable) else [None] * jobs

    def begin(self, run: Run, state: str) -> Job:
        with open_log(self.root, run) as out:
            job = begin(self.root, run, state, out, self._free[0])
        self._free.pop(0)
        return job

    def result(self, job: Job) -> Result | None:
        if job.process.poll() is None:
            return None
        self._free.append(job.core)
        return ended(self.root, job)

    def stop(self, job: Job, number: int) -> None:
        job.process.send_signal(number)

    def close(self) -> None:
        pass


def start(words: Sequence[str], core: int | None, out: Any) -> subprocess.Popen[bytes]:
    """Start a process with one XLA thread, on `core` if given. On Linux it saves and ends when this process ends."""
    flags = os.environ.get("XLA_FLAGS", "")
    environment = {**os.environ, "XLA_FLAGS": f"{flags} {ONE_THREAD}".strip(), "PYTHONUNBUFFERED": "1"}
    if sys.platform == "linux":
        words = [sys.executable, "-IS", "-c", LAUNCHER, str(os.getpid()), *words]
    usable = cores()
    if core is not None:
        os.sched_setaffinity(0, {core})  # the new process inherits it
    try:
        # In a session of its own, so that Ctrl-C does not reach it twice.
        return subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=environment, start_new_session=True
        )
    finally:
        if core is not None:
            os.sched_setaffinity(0, usable)
