"""`qdhuac study`: list the runs of a study, say what is left, and make it."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path

from qdhuac.errors import UserError, os_errors_as
from qdhuac.files import inside
from qdhuac.studies import catalogue, worker
from qdhuac.studies.catalogue import Run
from qdhuac.studies.folder import FINISHED, LOGS, Found, look, write
from qdhuac.studies.local import Local, cores
from qdhuac.studies.pool import Executor, Pool
from qdhuac.studies.ray import Ray
from qdhuac.studies.slurm import Slurm
from qdhuac.text import duration

EXECUTORS: dict[str, type[Executor]] = {"local": Local, "ray": Ray, "slurm": Slurm}


def study(name: str, scale: str, seeds: int | None, root: Path, jobs: int | None, dry_run: bool, where: str) -> int:
    """Make the missing runs of a study, on this machine or on a cluster. Return the exit code.

    Args:
        name: name of the study.
        scale: one of `catalogue.SCALES`.
        seeds: number of seeds; None: the default of the scale.
        root: folder of all studies and their runs.
        jobs: runs at a time; None: as many as fit.
        dry_run: list the runs, and start none.
        where: one of `EXECUTORS`.
    """
    seeds = seeds or catalogue.SEEDS[scale]
    runs = catalogue.runs(name, scale, seeds)
    if root.exists() and not root.is_dir():
        raise UserError(f"--root {root}: is not a folder")
    found = [look(root, run) for run in runs]
    left = [run for run, f in zip(runs, found, strict=True) if f.state != FINISHED]
    if jobs is None:
        # A cluster starts as many as it has room for. Scale `paper` is for an accelerator, which takes one run.
        jobs = len(runs) if where != "local" else 1 if scale == "paper" else max(1, len(cores()))
    executor = EXECUTORS[where]() if left and not dry_run else None  # raises if the cluster cannot be reached
    folder = write(root, name, scale, seeds)
    print(f"study {name} at scale {scale}: {catalogue.study(name, scale).title}")
    print(f"study folder: {folder}", flush=True)
    if dry_run:
        for run, f in zip(runs, found, strict=True):
            print(f"  {f.state:8s} {f.steps:>9,} of {run.config.run.env_steps:,} steps  {run.name}  ({run.folder})")
    if left:
        print("\n".join(remaining(runs, found, jobs)), flush=True)
    if dry_run:
        return 0
    code = 0
    if executor is not None:
        with os_errors_as(UserError, f"--root {root}: cannot be written"):
            inside(root, LOGS).mkdir(exist_ok=True)
            for run in left:  # remove what an earlier Ctrl-C has left
                worker.stop_file(root, run).unlink(missing_ok=True)
        executor.prepare(root, left, jobs)
        code = Pool(root, executor).run(left)
    if code == 0:
        print(f"all {len(runs)} runs are finished; figures and tables: qdhuac report {folder}")
    return code


def remaining(runs: Sequence[Run], found: Sequence[Found], jobs: int) -> list[str]:
    """Describe what is left of a study, with an estimate of the time if some of its runs are finished."""
    left = [
        (run, run.config.run.env_steps - f.steps) for run, f in zip(runs, found, strict=True) if f.state != FINISHED
    ]
    out = [
        f"runs: {len(runs)}, of which {len(runs) - len(left)} finished",
        f"environment steps: {sum(run.config.run.env_steps for run in runs):,}, left {sum(n for _, n in left):,}",
    ]
    paces: dict[str, list[float]] = {}  # seconds per step of the finished runs of each setting
    for run, f in zip(runs, found, strict=True):
        if f.state == FINISHED:
            paces.setdefault(run.label, []).append(f.rows[-1]["wall_s"] / f.steps)
    if paces:
        every = [pace for each in paces.values() for pace in each]
        seconds = [n * statistics.mean(paces.get(run.label, every)) for run, n in left]
        wall = max(sum(seconds) / jobs, max(seconds))
        out.append(f"time left: about {duration(wall)} with {jobs} jobs, at the pace of the finished runs")
    return out
