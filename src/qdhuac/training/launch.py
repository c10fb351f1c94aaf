"""Starting and resuming runs: what the command line and `qdhuac.train` and `qdhuac.resume` share."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from qdhuac import config
from qdhuac.algorithms import specs
from qdhuac.algorithms.specs import AlgorithmSpec
from qdhuac.config import Config
from qdhuac.environment import versions
from qdhuac.errors import RunFailed, UserError
from qdhuac.store import checkpoint
from qdhuac.store.run_folder import RunDir

if TYPE_CHECKING:
    from qdhuac.tasks.base import Task
    from qdhuac.training.loggers import Logger

SEED = "seed-"  # runs side by side are folders of this name and their seed


class Process(NamedTuple):
    """One of several processes that make a run together; the first keeps the run folder."""

    rank: int
    of: int
    address: str  # of the first one, HOST:PORT


ALONE = Process(0, 1, "")


def train(
    settings: Config,
    path: Path,
    *,
    seeds: int | None = None,
    process: Process = ALONE,
    log: str | Logger | None = None,
    task: Task | None = None,
    algorithm: AlgorithmSpec | None = None,
) -> int:
    """Train a new run in the folder `path`; returns the exit code, 0 or that of the signal that stopped it.

    Args:
        seeds: if given, train so many runs side by side, in folders of `path`.
        process: which of several processes this is.
        log: the name of a logger, or one of the user's own.
        task: one of the user's own; None: the one of the configuration.
        algorithm: one of the user's own; None: the one of the configuration.
    """
    specs.archive(settings.archive.kind)  # one of the user's own that cannot be imported is refused at once
    with contextlib.ExitStack() as stack:
        if process.rank:  # nobody needs what it writes
            path = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "run"
        wanted = {path: settings}
        if seeds is not None:
            numbers = [settings.run.seed + i for i in range(seeds)]
            each = [specs.validate(config.replace(settings, {"run.seed": n}), algorithm) for n in numbers]
            wanted = {path / f"{SEED}{one.run.seed}": one for one in each}
            if os.path.lexists(path):
                raise UserError(f"--run-dir {path}: exists already; name a new folder, or: qdhuac resume {path}")
        runs: list[tuple[Config, RunDir]] = []
        try:
            for where, one in wanted.items():
                runs.append((one, stack.enter_context(RunDir.create(where, one))))
            return _run(runs, path, True, process, log, task, algorithm)
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
    changes: Mapping[str, Any],
    *,
    process: Process = ALONE,
    log: str | Logger | None = None,
    check: Callable[[RunDir, Config], None] | None = None,
    task: Task | None = None,
    algorithm: AlgorithmSpec | None = None,
) -> int:
    """Go on with the run in the folder `path`, or with those that were started side by side in it. Returns as `train`.

    Args:
        changes: configuration keys of section `run`; where the run has an archive of the user's own, also
            `archive.kind`, because a stored name is never imported: the user gives it again.
        check: called with the folder and the configuration of each run; may raise UserError.
        process, log, task, algorithm: as for `train`.
    """
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
        runs = list(zip(_changed(folders, changes, algorithm), folders, strict=True))
        if len(runs) > 1 and (process.of > 1 or runs[0][0].run.devices > 1):
            raise UserError(f"{path}: runs side by side share one device; leave out --devices and --process")
        for settings, folder in runs:
            if check is not None:
                check(folder, settings)
        return _run(runs, path, False, process, log, task, algorithm)


def _side_by_side(path: Path) -> list[Path]:
    """The folders of `train --seeds`, in order; none if this is another kind of folder, or no path at all."""
    with contextlib.suppress(OSError, ValueError):
        return sorted(path.glob(f"{SEED}*"), key=lambda one: one.name.removeprefix(SEED).zfill(12))
    return []


def _changed(folders: Sequence[RunDir], changes: Mapping[str, Any], algorithm: AlgorithmSpec | None) -> list[Config]:
    """The configurations that runs go on with; refused if that leaves nothing to do in any of them."""
    settings = [_change(folder.read_config(), changes, algorithm) for folder in folders]
    done = [_done(one, checkpoint.newest(f.checkpoints).record) for one, f in zip(settings, folders, strict=True)]
    if all(done):
        raise UserError(done[0])
    return settings


def _change(settings: Config, changes: Mapping[str, Any], algorithm: AlgorithmSpec | None) -> Config:
    """The configuration that a run goes on with; refused where it changes what a resumed run cannot."""
    name, kind = settings.algorithm, settings.archive.kind
    if algorithm is not None and algorithm.name != name:
        raise UserError(f"--algorithm {algorithm.name}: the run was trained with {name}")
    if algorithm is None and ":" in name:
        raise UserError(f"--algorithm: the run has one from outside of qdhuac; give it again: --algorithm {name}")
    changes = dict(changes)
    again = changes.pop("archive.kind", None) if ":" in kind else None
    if again != kind and ":" in kind:
        raise UserError(f"--set: the run has an archive from outside of qdhuac; give it again: archive.kind={kind}")
    if algorithm is not None:
        settings = specs.from_dict(config.to_dict(settings), algorithm)
    known = config.keys(settings)
    for key in changes:
        if key == "run.seed" or (key in known and not key.startswith("run.")):
            raise UserError(f"--set {key}: a resumed run can only change keys of section run other than run.seed")
    return specs.validate(config.replace(settings, changes), algorithm)


def _run(
    runs: Sequence[tuple[Config, RunDir]],
    path: Path,
    new: bool,
    process: Process,
    log: str | Logger | None,
    task: Task | None,
    algorithm: AlgorithmSpec | None,
) -> int:
    """The part that needs JAX; `path` holds all `runs`."""
    leads = process.rank == 0
    for _, folder in runs if leads else ():
        print(f"run folder: {folder.path}", flush=True)
    from qdhuac.training import display as displays
    from qdhuac.training import loggers
    from qdhuac.training.signals import Stop

    display: displays.Progress = displays.Silent()
    warnings: list[str] = []
    # Signals are caught from here on, also while JAX is still being loaded.
    with Stop(lambda: display.note("stopping: finishing the current chunk, then saving ...")) as stop:
        from qdhuac.environment import prepare_jax
        from qdhuac.training import distributed
        from qdhuac.training.build import build, choose_backend
        from qdhuac.training.loop import Trainer

        prepare_jax()
        if process.of > 1:
            if not distributed.meet(process, _what_must_agree(process, *runs[0]), stop):
                if new:
                    runs[0][1].remove()
                return stop.exit_code
            distributed.join(process)
        # The backend is recorded, so that a run goes on with the physics it began with.
        runs = [(choose_backend(settings), folder) for settings, folder in runs]
        first = runs[0][0]
        display = displays.make(first) if leads else display
        try:
            with contextlib.ExitStack() as stack:
                parts = build(first, task, algorithm)  # a model is on one device, whatever the run uses
                stack.enter_context(distributed.use(first.run.devices))
                trainer = Trainer(runs, *parts, display, stop)
                trainer.start() if new else trainer.restore()
                for recorder in trainer.recorders:
                    recorder.folder.write_config(recorder.config)
                    if leads and log is not None:
                        recorder.log = loggers.make(log, recorder.folder.path, recorder.config)
                        stack.callback(recorder.log.close)
                try:
                    finished = trainer.run()
                finally:
                    warnings = [text for recorder in trainer.recorders for text in recorder.warnings if leads]
        except Exception as error:
            if isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in str(error):
                raise RunFailed(f"{path}: out of memory; lower replay.capacity or emitter.batch_size") from None
            raise
        finally:
            display.close()
            for text in warnings:
                print(f"warning: {text}", file=sys.stderr)
    if not finished and leads:
        print(f"saved; resume with: {_how_to_resume(first, path)}", flush=True)
    return 0 if finished else stop.exit_code


def _how_to_resume(settings: Config, path: Path) -> str:
    """The command that goes on with a run."""
    if settings.task.name == config.OWN:
        return f'qdhuac.resume(task, "{path}")'
    outside = f" --algorithm {settings.algorithm}" if ":" in settings.algorithm else ""
    outside += f" --set archive.kind={settings.archive.kind}" if ":" in settings.archive.kind else ""
    return f"qdhuac resume {path}{outside}"


def _what_must_agree(process: Process, settings: Config, folder: RunDir) -> dict[str, str]:
    """What must be the same in all processes of a run."""
    has = {"number of processes": str(process.of), "configuration": config.to_toml(settings)}
    has |= {f"version of {name}": version for name, version in versions().items()}
    if folder.checkpoints.exists():
        has["checkpoint"] = str(checkpoint.newest(folder.checkpoints).record.get("counters"))
    return has


def _done(settings: Config, record: dict[str, Any]) -> str:
    """The error of a run that has nothing left to do; empty if it has something left."""
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
