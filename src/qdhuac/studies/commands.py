"""`qdhuac study`: plan, cost, run."""

from __future__ import annotations

from pathlib import Path

from qdhuac.errors import UserError
from qdhuac.studies import catalogue, cost
from qdhuac.studies.folder import FINISHED, look, write
from qdhuac.studies.jobs import Pool, cores


def study(name: str, scale: str, seeds: int | None, root: Path, jobs: int | None, dry_run: bool) -> int:
    """Run what is missing of a study; returns the exit code."""
    runs = catalogue.runs(name, scale, seeds or catalogue.SEEDS[scale])
    # On an accelerator, which `paper` is for, runs would only be in each other's way.
    jobs = jobs or (1 if scale == "paper" else max(1, len(cores())))
    if root.exists() and not root.is_dir():
        raise UserError(f"--root {root}: is not a folder")
    found = [look(root, run) for run in runs]
    folder = write(root, name, scale, runs)
    print(f"study {name} at scale {scale}: {catalogue.study(name, scale).title}")
    print(f"study folder: {folder}", flush=True)
    if dry_run:
        for run, f in zip(runs, found, strict=True):
            print(f"  {f.state:8s} {f.steps:>9,} of {run.config.run.env_steps:,} steps  {run.name}  ({run.folder})")
    if any(f.state != FINISHED for f in found):
        timings = cost.samples(root, scale, runs, found)
        print("\n".join(cost.table(runs, found, timings, jobs)), flush=True)
    if dry_run:
        return 0
    left = [run for run, f in zip(runs, found, strict=True) if f.state != FINISHED]
    code = Pool(root, jobs, lambda text: print(text, flush=True)).run(left)
    if code == 0:
        print(f"all {len(runs)} runs are finished; figures and tables: qdhuac report {folder}")
    return code
