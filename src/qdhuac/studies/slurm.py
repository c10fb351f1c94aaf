"""Runs as an array of Slurm jobs, through submitit. A job that is preempted or out of time saves and is requeued."""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from qdhuac.environment import require
from qdhuac.errors import UserError
from qdhuac.studies.catalogue import Run
from qdhuac.studies.local import Result
from qdhuac.studies.worker import Stopped, Worker, order

FOLDER = "slurm"  # folder below the root: scripts, submitit's files and the output of the jobs
MINUTES = 24 * 60  # time limit of a job
TIMEOUTS = 100  # how often a job may run out of time
GRACE = 180.0  # seconds that Slurm has to end a job


class Task:
    """The function that submitit calls, and requeues when its job has to leave the node."""

    def __init__(self, order: Mapping[str, Any]) -> None:
        self.order = order
        self._worker: Worker | None = None

    def __call__(self) -> Result:
        self._worker = Worker()
        try:
            return self._worker.run(self.order)
        except Stopped as error:
            # Slurm is ending the job. It requeues it only if the process does not end by itself.
            time.sleep(GRACE)
            return Result(None, last=str(error))

    def checkpoint(self) -> Any:
        """Let the run save. Return the task to requeue."""
        if self._worker is not None:
            self._worker.stop()
        return require("submitit", "slurm").helpers.DelayedSubmission(type(self)(self.order))


class Slurm:
    """Submits runs to the Slurm cluster that this machine belongs to."""

    queues, poll = True, 2.0

    def __init__(self) -> None:
        self.submitit = require("submitit", "slurm")
        self._stopped: set[str] = set()
        for program in ("sbatch", "srun", "scancel"):
            if shutil.which(program) is None:
                raise UserError(f"--executor slurm: {program} not found; run the command on a machine with Slurm")

    def prepare(self, root: Path, runs: Sequence[Run], jobs: int) -> None:
        """Submit all runs as one array, of which Slurm starts `jobs` at a time."""
        self.jobs = len(runs)
        executor = self.submitit.SlurmExecutor(root / FOLDER, max_num_timeout=TIMEOUTS)
        # `requeue` is for clusters that end a job without a signal, or lose its node.
        more = {"additional_parameters": {"requeue": True}}
        executor.update_parameters(job_name="qdhuac", time=MINUTES, cpus_per_task=1, array_parallelism=jobs, **more)
        try:
            with executor.batch():
                sent = [executor.submit(Task(order(root, run))) for run in runs]
        except (OSError, RuntimeError) as error:
            raise UserError(f"--executor slurm: {error}") from None
        self._sent = {run.folder: job for run, job in zip(runs, sent, strict=True)}

    def begin(self, run: Run, state: str) -> Any:
        return self._sent[run.folder]

    def result(self, job: Any) -> Result | None:
        if job.job_id in self._stopped:
            return Result(None)  # Slurm sends the signal that lets it save
        if not job.done():
            return None
        try:
            return job.result()
        except self.submitit.core.utils.UncompletedJobError as error:
            return Result(None, last=f"{' '.join(str(error).splitlines()[:2])}, see {job.paths.stderr}")

    def stop(self, job: Any, number: int) -> None:
        job.cancel(check=False)
        self._stopped.add(job.job_id)

    def close(self) -> None:
        pass
