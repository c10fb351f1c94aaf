"""Runs a study: one process per run, one core each, so that a crash of one does not stop the others."""

from __future__ import annotations

import dataclasses
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from qdhuac.errors import UserError
from qdhuac.running import checkpoint
from qdhuac.running.progress import duration
from qdhuac.studies.catalogue import Run, arguments
from qdhuac.studies.folder import FINISHED, MISSING, RUNS, look

COMMAND = [sys.executable, "-m", "qdhuac.cli"]
ONE_THREAD = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
POLL = 0.2  # seconds


@dataclasses.dataclass
class Job:
    """A run in a process of its own."""

    run: Run
    process: subprocess.Popen[bytes]
    core: int | None
    log: Path
    begun: float


def command(root: Path, run: Run, state: str) -> list[str]:
    """How to begin or to go on with a run; one that was killed after its last checkpoint lacks its report alone."""
    path, goal = root / RUNS / run.folder, run.config.run.env_steps
    if state == MISSING:
        return [*COMMAND, "train", *arguments(run), "--run-dir", str(path)]
    saved = checkpoint.newest(path / "checkpoints").record
    if not saved.get("pending") and saved.get("counters", {}).get("env_steps", 0) >= goal:
        return [*COMMAND, "report", str(path)]
    return [*COMMAND, "resume", str(path), "--env-steps", str(goal)]


def cores() -> list[int]:
    """The cores that this process may use; empty where the system does not tell."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []


class Pool:
    """Keeps `jobs` runs going until all have ended or a signal came; each is pinned to a core if there are enough."""

    def __init__(self, root: Path, jobs: int, say: Callable[[str], None] = print) -> None:
        self.root, self.jobs, self.say = root, jobs, say
        self.failures: list[str] = []
        self.signal: int | None = None
        self._running: list[Job] = []
        usable = cores()
        self._free: list[int | None] = [*usable[:jobs]] if jobs <= len(usable) else [None] * jobs

    def run(self, runs: Sequence[Run]) -> int:
        """0 when every run is finished, 1 if some failed, 128 + signal when stopped (all have saved)."""
        waiting, total = list(runs), len(runs)
        before = {n: signal.signal(n, self._on_signal) for n in (signal.SIGINT, signal.SIGTERM)}
        try:
            while self._running or (waiting and self.signal is None):
                while waiting and self._free and self.signal is None:
                    self._start(waiting.pop(0), total - len(waiting), total)
                time.sleep(POLL)
                for job in [j for j in self._running if j.process.poll() is not None]:
                    self._end(job)
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
        for failure in self.failures:
            self.say(f"failed: {failure}")
        if self.signal is not None:
            return 128 + self.signal
        return 1 if self.failures else 0

    def _start(self, run: Run, position: int, total: int) -> None:
        try:
            state = look(self.root, run).state
            if state == FINISHED:  # meanwhile, by another process
                return
            words = command(self.root, run, state)
        except UserError as error:
            self.failures.append(f"{run.name}: {error}")
            return
        core = self._free.pop(0)
        log = self.root / "logs" / f"{run.folder}.log"
        log.parent.mkdir(exist_ok=True)
        with log.open("ab") as out:
            out.write(f"$ {' '.join(words)}\n".encode())
            out.flush()
            process = start(words, core, out)
        self._running.append(Job(run, process, core, log, time.monotonic()))
        self.say(f"[{position}/{total}] {'begins' if state == MISSING else 'goes on'}: {run.name} ({run.folder})")

    def _end(self, job: Job) -> None:
        self._running.remove(job)
        self._free.append(job.core)
        code, took = job.process.returncode, duration(time.monotonic() - job.begun)
        if code == 0:
            # What a report needs stays: configuration, metrics, repertoire. A replay buffer is large.
            shutil.rmtree(self.root / RUNS / job.run.folder / "checkpoints", ignore_errors=True)
            self.say(f"finished after {took}: {job.run.name}")
        elif self.signal is not None and code in (130, 143):
            self.say(f"saved after {took}: {job.run.name}")
        else:
            self.failures.append(f"{job.run.name}: {last_line(job.log)} (exit code {code}, see {job.log})")
            self.say(f"failed after {took}: {job.run.name}")

    def _on_signal(self, number: int, _: Any) -> None:
        """The first lets every run save, the second ends them at once."""
        if self.signal is None:
            self.say("stopping: every run saves; the same command goes on later")
        self.signal = number
        for job in self._running:
            if job.process.poll() is None:
                job.process.send_signal(number)


def last_line(log: Path) -> str:
    """The last thing that a process said."""
    lines = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    return lines[-1].removeprefix("qdhuac: error: ") if lines else "said nothing"


def start(words: Sequence[str], core: int | None, out: Any) -> subprocess.Popen[bytes]:
    """A process with one thread for XLA, on one core if one is named."""
    flags = os.environ.get("XLA_FLAGS", "")
    environment = {**os.environ, "XLA_FLAGS": f"{flags} {ONE_THREAD}".strip(), "PYTHONUNBUFFERED": "1"}
    usable = cores()
    if core is not None:
        os.sched_setaffinity(0, {core})  # inherited from the first instruction on
    try:
        # A session of its own: Ctrl-C reaches the children through us, once.
        return subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=environment, start_new_session=True
        )
    finally:
        if core is not None:
            os.sched_setaffinity(0, usable)
