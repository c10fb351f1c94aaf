"""Make the runs of a study on an executor and print how each ended."""

from __future__ import annotations

import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from qdhuac.errors import UserError
from qdhuac.studies.catalogue import Run
from qdhuac.studies.folder import FINISHED, MISSING, look
from qdhuac.studies.local import STOPPED, Result, log
from qdhuac.text import duration


class Executor(Protocol):
    """Starts runs on this machine or on a cluster."""

    jobs: int  # runs that it takes at a time
    poll: float  # seconds between two calls of `result`
    queues: bool  # whether a run may wait in a queue after `begin`

    def __init__(self) -> None:
        """Raise UserError if the cluster cannot be reached."""

    def prepare(self, root: Path, runs: Sequence[Run], jobs: int) -> None:
        """Get ready for these runs, `jobs` at a time."""

    def begin(self, run: Run, state: str) -> Any:
        """Start or resume a run. Return the job that the other methods take."""

    def result(self, job: Any) -> Result | None:
        """The result of a job, or None while it runs."""

    def stop(self, job: Any, number: int) -> None:
        """Pass a signal to a job. The first one lets the run save, the second one ends it at once."""

    def close(self) -> None:
        """Release the executor."""


class Pool:
    """Gives runs to an executor until all have ended or a signal arrives."""

    def __init__(self, root: Path, executor: Executor) -> None:
        self.root, self.executor = root, executor
        self.failures: list[str] = []
        self.signals: list[int] = []
        self._running: list[tuple[Run, Any]] = []

    def run(self, runs: Sequence[Run]) -> int:
        """Return 0 if every run is finished, 1 if some failed, 128 + signal if it was stopped."""
        waiting, total, passed_on = list(runs), len(runs), 0
        before = {n: signal.signal(n, self._on_signal) for n in (signal.SIGINT, signal.SIGTERM)}
        try:
            while self._running or (waiting and not self.signals):
                while waiting and len(self._running) < self.executor.jobs and not self.signals:
                    self._begin(waiting.pop(0), total - len(waiting), total)
                time.sleep(self.executor.poll)
                for number in self.signals[passed_on:]:
                    for _, job in reversed(self._running):  # waiting jobs first, so that none of them starts
                        self.executor.stop(job, number)
                    passed_on += 1
                for run, job in list(self._running):
                    if (result := self.executor.result(job)) is not None:
                        self._running.remove((run, job))
                        self._end(run, result)
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            self.executor.close()
        for failure in self.failures:
            _say(f"failed: {failure}")
        if self.signals:
            return 128 + self.signals[-1]
        return 1 if self.failures else 0

    def _begin(self, run: Run, position: int, total: int) -> None:
        try:
            # On a cluster the run may have started already. Its node finds out.
            state = MISSING if self.executor.queues else look(self.root, run).state
            if state == FINISHED:  # another process has finished it since
                return
            self._running.append((run, self.executor.begin(run, state)))
        except UserError as error:
            self.failures.append(f"{run.name}: {error}")
            return
        word = "submitted" if self.executor.queues else "starts" if state == MISSING else "resumes"
        _say(f"[{position}/{total}] {word}: {run.name} ({run.folder})")

    def _end(self, run: Run, result: Result) -> None:
        code = result.code
        if self.signals and code is None:
            return  # it had not started
        if code == 0:
            word = "finished"
        elif self.signals and code in STOPPED:
            word = "saved"
        else:
            word, where = "failed", "" if code is None else f" (exit code {code}, see {log(self.root, run)})"
            self.failures.append(f"{run.name}: {result.last}{where}")
        took = "" if code is None else f" after {duration(result.seconds)}"
        _say(f"{word}{took}: {run.name}")

    def _on_signal(self, number: int, _: Any) -> None:
        if not self.signals:
            _say("stopping: every run saves; the same command continues later")
        self.signals.append(number)


def _say(text: str) -> None:
    print(text, flush=True)
