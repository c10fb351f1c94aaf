"""Start and resume runs, for the command line and for `qdhuac.train` and `qdhuac.resume`."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict, Unpack

from qdhuac import config
from qdhuac.algorithms import specs
from qdhuac.algorithms.specs import AlgorithmSpec
from qdhuac.config import Config
from qdhuac.environment import versions
from qdhuac.errors import RunFailed, UserError, os_errors_as
from qdhuac.store import checkpoint
from qdhuac.store.run_folder import RunDir
from qdhuac.tasks import bundle
from qdhuac.training import counters, loggers

if TYPE_CHECKING:
    from qdhuac.tasks.base import Task

SEED = "seed-"  # the folders of runs side by side: this and their seed


class Process(NamedTuple):
    """One of several processes that make a run together. Process 0 keeps the run folder."""

    rank: int
    of: int
    address: str  # of process 0, HOST:PORT


ALONE = Process(0, 1, "")


class Options(TypedDict, total=False):
    """Options of `train` and `resume`."""

    process: Process  # which of several processes this is
    log: str | loggers.Logger | None  # the name of a logger, or one of the user's own
    task: Task | None  # one of the user's own; None: the one of the configuration


def train(settings: Config, path: Path, *, seeds: int | None = None, **options: Unpack[Options]) -> int:
    """Train a new run in the folder `path`.

    Args:
        settings: the configuration.
        path: a folder that does not exist yet.
        seeds: if given, train this many runs side by side, in folders of `path`.
        options: see `Options`.

    Returns:
        The exit code: 0, or that of the signal that stopped the run.
    """
    loggers.check(options.get("log"))
    specs.archive(settings.archive.kind)  # refuses an archive that cannot be imported
    if settings.task.file:
        sha256 = bundle.digest(bundle.collect(Path(settings.task.file)))
        settings = config.replace(settings, {"task.sha256": sha256})
    with contextlib.ExitStack() as stack:
        if options.get("process", ALONE).rank:  # what it writes is not kept
            path = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "run"
        wanted = {path: settings}
        if seeds is not None:
            if os.path.lexists(path):
                raise UserError(f"--run-dir {path}: exists already; name a new folder, or: qdhuac resume {path}")
            numbers = range(settings.run.seed, settings.run.seed + seeds)
            each = [specs.validate(config.replace(settings, {"run.seed": n})) for n in numbers]
            wanted = {path / f"{SEED}{one.run.seed}": one for one in each}
        runs: list[tuple[Config, RunDir]] = []
        try:
            for where, one in wanted.items():
                folder = stack.enter_context(RunDir.create(where, one))
                runs.append((config.with_task_file(one, where), folder))
            return _run(runs, path, True, options)
        except UserError:
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
    algorithm: AlgorithmSpec | None = None,
    check: Callable[[RunDir, Config], None] = lambda folder, settings: None,
    **options: Unpack[Options],
) -> int:
    """Continue the run in the folder `path`, or the runs that were started side by side in it. Returns as `train`.

    Args:
        path: the folder.
        changes: configuration keys of section `run`. For a run with an archive of the user's own also `archive.kind`:
            a stored name is never imported, so the user gives it again.
        algorithm: the algorithm that the user has named again; needed if it is from outside of the package.
        check: called with the folder and the configuration of each run; may raise UserError.
        options: see `Options`.
    """
    loggers.check(options.get("log"))
    process = options.get("process", ALONE)
    with contextlib.ExitStack() as stack:
        if process.rank:
            RunDir.open((side_by_side(path) or [path])[0])  # refuses a folder that is not a run
            copy = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "run"
            with os_errors_as(RunFailed, f"{path}: cannot be copied to {copy.parent}"):
                path = Path(shutil.copytree(path, copy, symlinks=True))
        folders = [stack.enter_context(RunDir.open(one)) for one in side_by_side(path) or [path]]
        for folder in folders:
            folder.lock()
        runs = [(_change(folder.read_config(), changes, algorithm), folder) for folder in folders]
        done = [_done(settings, checkpoint.newest(folder.checkpoints)) for settings, folder in runs]
        if all(done):
            raise UserError(done[0])
        if len(runs) > 1 and (process.of > 1 or runs[0][0].run.devices > 1):
            raise UserError(f"{path}: runs side by side share one device; leave out --devices and --process")
        for settings, folder in runs:
            check(folder, settings)
        return _run(runs, path, False, options)


def side_by_side(path: Path) -> list[Path]:
    """Return the folders that `train --seeds` made in `path`, by seed, or no folders if it is a single run."""
    with contextlib.suppress(OSError, ValueError):  # not a possible path
        found = [one for one in path.glob(f"{SEED}*") if one.name.removeprefix(SEED).isdecimal()]
        return sorted(found, key=lambda one: int(one.name.removeprefix(SEED)))
    return []


def _change(settings: Config, changes: Mapping[str, Any], algorithm: AlgorithmSpec | None) -> Config:
    """The configuration that a resumed run continues with. Raises UserError for changes that are not possible."""
    name, kind = settings.algorithm, settings.archive.kind
    if algorithm is not None and algorithm.name != name:
        raise UserError(f"--algorithm {algorithm.name}: the run was trained with {name}")
    if name not in specs.ALGORITHMS:
        raise UserError(f"--algorithm: the run has one from outside of qdhuac; give it again: --algorithm {name}")
    if ":" in kind:
        changes = dict(changes)
        if changes.pop("archive.kind", None) != kind:
            raise UserError(f"--set: the run has an archive from outside of qdhuac; give it again: archive.kind={kind}")
    known = config.keys(settings)
    for key in changes:
        if key == "run.seed" or (key in known and not key.startswith("run.")):
            raise UserError(f"--set {key}: a resumed run can only change keys of section run other than run.seed")
    return specs.validate(config.replace(settings, changes))


def _run(runs: Sequence[tuple[Config, RunDir]], path: Path, new: bool, options: Options) -> int:
    """Train runs, which are all in `path`. This is the part that needs JAX."""
    process = options.get("process", ALONE)
    leads = process.rank == 0
    if leads:
        for _, folder in runs:
            print(f"run folder: {folder.path}", flush=True)
    from qdhuac.training import display as displays
    from qdhuac.training.signals import Stop

    display = displays.Progress()
    warnings: list[str] = []
    # Signals are caught before JAX is imported, which takes a while.
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
        # The backend is stored, so that a resumed run has the same physics.
        runs = [(choose_backend(settings), folder) for settings, folder in runs]
        first = runs[0][0]
        display = displays.make(first) if leads else display
        try:
            with contextlib.ExitStack() as stack:
                # Before `use`: the model of a task is on one device.
                parts = build(first, options.get("task"))
                stack.enter_context(distributed.use(first.run.devices))
                trainer = Trainer(runs, *parts, display, stop)
                trainer.start() if new else trainer.restore()
                for recorder in trainer.recorders:
                    recorder.folder.write_config(recorder.config)
                    if leads and (log := options.get("log")) is not None:
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
    """The command that continues a run."""
    if settings.task.name == config.OWN:
        return f'qdhuac.resume(task, "{path}")'
    outside = f" --algorithm {settings.algorithm}" if ":" in settings.algorithm else ""
    outside += f" --set archive.kind={settings.archive.kind}" if ":" in settings.archive.kind else ""
    return f"qdhuac resume {path}{outside}"


def _what_must_agree(process: Process, settings: Config, folder: RunDir) -> dict[str, str]:
    """What must be equal in all processes of a run, by name."""
    has = {"number of processes": str(process.of), "configuration": config.to_toml(config.with_task_file(settings, ""))}
    has |= {f"version of {name}": version for name, version in versions().items()}
    if folder.checkpoints.exists():
        has["checkpoint"] = str(checkpoint.newest(folder.checkpoints).record.get("counters"))
    return has


def _done(settings: Config, saved: checkpoint.Checkpoint) -> str:
    """The error of a run that has reached its goal; empty if it has not."""
    goal, (done, pending) = settings.run, counters.read(saved)
    if not counters.finished(goal, done, pending):
        return ""
    return (
        f"nothing left to do: the run has made {done.generation} generations and {done.env_steps} steps, and its goal "
        f"is run.generations={goal.generations}, run.env_steps={goal.env_steps} (0: none); "
        "give a larger --generations or --env-steps"
    )
