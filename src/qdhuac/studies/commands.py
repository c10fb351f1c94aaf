"""`qdhuac study`: plan, cost, run."""

from __future__ import annotations

import functools
from pathlib import Path

from qdhuac.errors import UserError
from qdhuac.studies import catalogue, cost, worker
from qdhuac.studies.folder import FINISHED, LOGS, look, write
from qdhuac.studies.local import Local, cores
from qdhuac.studies.pool import Executor, Pool
from qdhuac.studies.ray import Ray
from qdhuac.studies.slurm import Slurm

EXECUTORS: dict[str, type[Executor]] = {"local": Local, "ray": Ray, "slurm": Slurm}


def study(name: str, scale: str, seeds: int | None, root: Path, jobs: int | None, dry_run: bool, where: str) -> int:
    """Run what is missing of a study, on this machine or on a cluster; returns the exit code."""
    seeds = seeds or catalogue.SEEDS[scale]
    runs = catalogue.runs(name, scale, seeds)
    if root.exists() and not root.is_dir():
        raise UserError(f"--root {root}: is not a folder")
    found = [look(root, run) for run in runs]
    left = [run for run, f in zip(runs, found, strict=True) if f.state != FINISHED]
    if jobs is None:
        # A cluster knows itself for how many it has room. On an accelerator of this machine, which `paper` is for, runs
        # would only be in each other's way.
        jobs = len(runs) if where != "local" else 1 if scale == "paper" else max(1, len(cores()))
    executor = EXECUTORS[where](dry_run) if left else None  # a cluster that is not there is refused here
    folder = write(root, name, scale, runs)
    print(f"study {name} at scale {scale}: {catalogue.study(name, scale).title}")
    print(f"study folder: {folder}", flush=True)
    if dry_run:
        for run, f in zip(runs, found, strict=True):
            print(f"  {f.state:8s} {f.steps:>9,} of {run.config.run.env_steps:,} steps  {run.name}  ({run.folder})")
    if left:
        # How long things take on this machine says little about a cluster.
        timings = cost.samples(root, scale, runs, found, calibrate=where == "local")
        print("\n".join(cost.table(runs, found, timings, jobs)), flush=True)
    if dry_run:
        if isinstance(executor, Slurm):
            print(executor.script(root, len(left), jobs))
        return 0
    code = 0
    if executor is not None:
        (root / LOGS).mkdir(exist_ok=True)
        for run in left:  # what stopped the study before is over
            worker.stopped(root, run).unlink(missing_ok=True)
        executor.prepare(root, left, functools.partial(worker.order, root, name, scale, seeds), jobs)
        code = Pool(root, executor, lambda text: print(text, flush=True)).run(left)
    if code == 0:
        print(f"all {len(runs)} runs are finished; figures and tables: qdhuac report {folder}")
    return code
