"""Starting and going on with runs: what `train` and `resume` have in common, also from Python."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from qdhuac import config
from qdhuac.algorithms import specs
from qdhuac.config import Config
from qdhuac.environment import versions
from qdhuac.errors import RunFailed, UserError
from qdhuac.store import checkpoint
from qdhuac.store.run_folder import RunDir

SEED = "seed-"  # runs side by side are folders of this name and their seed


class Process(NamedTuple):
    """One of several that make a run together; the first leads and keeps the run folder."""

    rank: int
    of: int
    address: str  # of the first one


ALONE = Process(0, 1, "")


def train(
    settings: Config,
    path: Path,
    *,
    seeds: int | None = None,
    process: Process = ALONE,
    log: str | None = None,
    task: Any = None,
) -> int:
    """A new run, or `seeds` of them side by side; `task` is one of the user's own. Returns the exit code."""
    with contextlib.ExitStack() as stack:
        if process.rank:  # what it writes, nobody needs
            path = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "run"
        wanted = {path: settings}
        if seeds is not None:
            each = [specs.validate(config.replace(settings, {"run.seed": settings.run.seed + i})) for i in range(seeds)]
            wanted = {path / f"{SEED}{one.run.seed}": one for one in each}
            if os.path.lexists(path):
                raise UserError(f"--run-dir {path}: exists already; name a new folder, or: qdhuac resume {path}")
        runs: list[tuple[Config, RunDir]] = []
        try:
            for where, one in wanted.items():
                runs.append((one, stack.enter_context(RunDir.create(where, one))))
            return _run(runs, path, True, process, log, task)
        except UserError:  # what could not be seen in the configuration
            for _, folder in runs:
                if not folder.read_metrics():  # nothing is lost
                    folder.remove()
            if seeds is not None:
                with contextlib.suppress(OSError):  # not empty
                    path.rmdir()
            raise


def resume(
    path: Path,
    changes: dict[str, Any],
    *,
    process: Process = ALONE,
    log: str | None = None,
    check: Callable[[RunDir, Config], None] | None = None,
    task: Any = None,
) -> int:
    """Go on with a run, or with several that were started side by side; `check` may refuse. Returns the exit code."""
    with contextlib.ExitStack() as stack:
        if process.rank:
            RunDir.open((_side_by_side(path) or [path])[0])  # there is one
            copy = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "run"
            try:
                path = Path(shutil.copytree(path, copy))
            except OSError as error:  # among them shutil's own, which has a list of what went wrong
                raise RunFailed(f"{path}: cannot be copied to {copy.parent} ({error.strerror or error})") from None
        folders = [stack.enter_context(RunDir.open(one)) for one in _side_by_side(path) or [path]]
        for folder in folders:
            folder.lock()
        runs = list(zip(_changed(folders, changes), folders, strict=True))
        if len(runs) > 1 and (process.of > 1 or runs[0][0].run.devices > 1):
            raise UserError(f"{path}: runs side by side share one device; leave out --devices and --process")
        for settings, folder in runs:
            if check is not None:
                check(folder, settings)
        return _run(runs, path, False, process, log, task)


def _side_by_side(path: Path) -> list[Path]:
    """The folders of `train --seeds`, in order; none if this is another kind of folder, or no path at all."""
    with contextlib.suppress(OSError, ValueError):
        return sorted(path.glob(f"{SEED}*"), key=lambda one: one.name.removeprefix(SEED).zfill(12))
    return []


def _changed(folders: Sequence[RunDir], changes: dict[str, Any]) -> list[Config]:
    """The configurations that runs go on with; refused if that leaves nothing to do in any of them."""
    settings = [_change(folder.read_config(), changes) for folder in folders]
    done = [_done(one, checkpoint.newest(f.checkpoints).record) for one, f in zip(settings, folders, strict=True)]
    if all(done):
        raise UserError(done[0])
    return settings


def _change(settings: Config, changes: dict[str, Any]) -> Config:
    """The configuration that a run goes on with; refused where it changes what a resumed run cannot."""
    known = config.keys(settings)
    for name in changes:
        if name == "run.seed" or (name in known and not name.startswith("run.")):
            raise UserError(f"--set {name}: a resumed run can only change keys of section run other than run.seed")
    return specs.validate(config.replace(settings, changes))


def _run(
    runs: Sequence[tuple[Config, RunDir]], path: Path, new: bool, process: Process, log: str | None, task: Any
) -> int:
    """The part that needs JAX; `path` holds all `runs`."""
    leads = process.rank == 0
    for _, folder in runs if leads else ():
        print(f"run folder: {folder.path}", flush=True)
    from qdhuac.training import display as progress
    from qdhuac.training import loggers
    from qdhuac.training.signals import Stop

    display: progress.Progress = progress.Silent()
    ended: list[str] = []  # what to say at the end, however it came
    # Signals are caught from here on, also while JAX is still being loaded.
    with Stop(lambda: display.note("stopping: finishing the current chunk, then saving ...")) as stop:
        from qdhuac import sharding as devices
        from qdhuac.environment import prepare_jax
        from qdhuac.training.build import build, choose_backend
        from qdhuac.training.loop import Runner
        from qdhuac.training.side_by_side import OneOfSeveral, Seeds

        prepare_jax()
        if process.of > 1:
            if not _meet(process, *runs[0], stop):
                if new:
                    runs[0][1].remove()
                return stop.exit_code
            devices.join(process.address, process.of, process.rank)
        # The backend is recorded, so that a run goes on with the physics it began with.
        runs = [(choose_backend(settings), folder) for settings, folder in runs]
        first = runs[0][0]
        display = progress.make(first) if leads else display
        try:
            with devices.use(first.run.devices):
                task, algorithm = build(first, task)
                shown = [display if len(runs) == 1 else OneOfSeveral(display, f.path.name) for _, f in runs]
                runners = [Runner(s, task, algorithm, f, one, stop) for (s, f), one in zip(runs, shown, strict=True)]
                for runner in runners:
                    if new:
                        runner.start(len(runs))
                    else:
                        runner.restore()
                    runner.folder.write_config(runner.config)
                    runner.books.log = loggers.make(log, runner.folder.path, runner.config) if leads else None
                try:
                    finished = (runners[0] if len(runs) == 1 else Seeds(runners, display)).run()
                finally:
                    for runner in runners:
                        ended += runner.books.warnings if leads else []
                        if runner.books.log:
                            runner.books.log.close()
        except Exception as error:
            if isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in str(error):
                raise RunFailed(f"{path}: out of memory; lower replay.capacity or emitter.batch_size") from None
            raise
        finally:
            display.close()
            for text in ended:
                print(f"warning: {text}", file=sys.stderr)
    if not finished:
        if leads:
            command = f'qdhuac.resume(task, "{path}")' if first.task.name == config.OWN else f"qdhuac resume {path}"
            print(f"saved; resume with: {command}", flush=True)
        return stop.exit_code
    return 0


def _meet(process: Process, settings: Config, folder: RunDir, stop: Any) -> bool:
    """Refuse processes that would not make the same run; False if a stop signal came before all were there."""
    from qdhuac.training import distributed as roll_call

    has = {"number of processes": str(process.of), "configuration": config.to_toml(settings)}
    has |= {f"version of {name}": version for name, version in versions().items()}
    if folder.checkpoints.exists():
        has["checkpoint"] = str(checkpoint.newest(folder.checkpoints).record.get("counters"))
    if process.rank:
        return roll_call.call(process.address, process.rank, has, stop)
    return roll_call.answer(process.address, process.of, has, stop)


def _done(settings: Config, record: dict[str, Any]) -> str:
    """Why a run has nothing left to do; empty if it has."""
    goal, done = settings.run, record.get("counters", {})
    generations, env_steps = (done.get(k, 0) if isinstance(done, dict) else None for k in ("generation", "env_steps"))
    if type(generations) is not int or type(env_steps) is not int:
        raise UserError("the newest checkpoint's manifest has no counters that this version of qdhuac knows")
    # A run that was stopped while learning has collected its last steps, but still owes their updates.
    steps_reached = not record.get("pending") and 0 < goal.env_steps <= env_steps
    if 0 < goal.generations <= generations or steps_reached:
        return (
            f"nothing left to do: the run has done {generations} generations and {env_steps} steps, and its goal is "
            f"run.generations={goal.generations}, run.env_steps={goal.env_steps} (0: none); "
            "give a larger --generations or --env-steps"
        )
    return ""
