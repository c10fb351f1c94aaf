"""Runs on a task that is not part of the package: what `train` and `resume` are on the command line."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from qdhuac import config
from qdhuac.algorithms import specs
from qdhuac.algorithms.specs import AlgorithmSpec
from qdhuac.config import Config
from qdhuac.environment import require
from qdhuac.errors import UserError
from qdhuac.report.run_page import write_report
from qdhuac.store import repertoire
from qdhuac.store.run import Policy, Run, load_run
from qdhuac.store.run_folder import RunDir
from qdhuac.tasks.base import Task
from qdhuac.tasks.checks import watched
from qdhuac.training import launch
from qdhuac.training.loggers import Logger


def train(
    task: Task,
    run_dir: str | os.PathLike[str],
    *,
    algorithm: str | AlgorithmSpec = "qdhuac",
    preset: str = "laptop",
    settings: Mapping[str, Any] | None = None,
    log: str | Logger | None = None,
) -> Run:
    """Train on a task of your own and write the report.

    Args:
        task: how a policy is evaluated; see `qdhuac.tasks.Task`.
        run_dir: a folder that does not exist yet.
        algorithm: one of `qdhuac.algorithms.ALGORITHMS`, or `package.module:NAME` of one of your own, or its
            `AlgorithmSpec`.
        preset: one of the algorithm's presets.
        settings: values of configuration keys, such as `{"run.env_steps": 50_000}`.
        log: "tensorboard", "wandb", or any object with `generation(line)` and `close()`: metrics go there as well.

    Returns:
        The run, as `qdhuac.load` reads it. It has reached its goal.

    Raises:
        UserError: an option or a result of the task is not what it must be; nothing has been trained.
        RunFailed: the run cannot continue, such as when the disk is full; what was trained is saved.
        KeyboardInterrupt: Ctrl-C; the run is saved first. A loop around this call ends too.
        SystemExit: SIGTERM or a closed terminal; the run is saved first.
    """
    spec = specs.algorithm(algorithm)
    with watched(task) as checked:
        fixed: dict[str, Any] = {
            "task.name": config.OWN,
            "task.episode_length": checked.spec.episode_length,
            "task.after_termination": checked.spec.after_termination,
        }
        if checked.policy is not None:
            fixed["policy.hidden"] = list(checked.policy.hidden)
        for key in fixed.keys() & (settings or {}).keys():
            raise UserError(f"settings: {key} is decided by the task, which has {fixed[key]!r}")
        made = specs.make(spec, preset, {**(settings or {}), **fixed})
        code = launch.train(made, Path(run_dir), task=checked, log=log, algorithm=spec)
    return _unless_stopped(code, run_dir)


def resume(
    task: Task,
    run_dir: str | os.PathLike[str],
    settings: Mapping[str, Any] | None = None,
    *,
    algorithm: str | AlgorithmSpec | None = None,
    log: str | Logger | None = None,
) -> Run:
    """Continue a run of `train`, also beyond its first goal. Raises what `train` raises.

    Args:
        task: the task that the run was started with.
        run_dir: the folder of the run.
        settings: keys of section `run` that change, such as `{"run.env_steps": 100_000}`. An archive of your own is
            given again as `archive.kind`: a name that is stored in a file is never imported.
        algorithm: given again if it is one of your own, for the same reason.
        log: as for `train`.

    Returns:
        The run, as `qdhuac.load` reads it.
    """
    spec = None if algorithm is None else specs.algorithm(algorithm)

    def check(folder: RunDir, made: Config) -> None:
        if made.task.name != config.OWN:
            raise UserError(f"{folder.path}: its task is {made.task.name!r}; go on with: qdhuac resume {folder.path}")
        if made.task.episode_length != task.spec.episode_length:
            was, now = made.task.episode_length, task.spec.episode_length
            raise UserError(f"task.episode_length: the run has {was}, the task has {now}")
        _check_spaces(folder, task)

    with watched(task) as checked:
        code = launch.resume(Path(run_dir), settings or {}, check=check, task=checked, log=log, algorithm=spec)
    return _unless_stopped(code, run_dir)


def evaluate(task: Task, run_dir: str | os.PathLike[str], *, episodes: int = 8, seed: int = 0) -> dict[str, Any]:
    """Evaluate the archive of a run again, as `qdhuac evaluate` does; `evaluation.json` is written to the run folder.

    Returns:
        The stored archive beside its re-evaluation, as a whole and per individual.
    """
    from qdhuac.training import evaluation

    run = _run_of(task, run_dir)
    with watched(task) as checked:
        return evaluation.evaluate(checked, run, episodes=episodes, seed=seed)


def render(
    task: Task,
    run_dir: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    policy: Policy | None = None,
    seed: int = 0,
    seconds: float | None = None,
) -> None:
    """Film an episode of the best policy of a run, or of another one, as an .mp4 or .gif.

    The task needs a MuJoCo model: see `qdhuac.tasks.Viewable`.
    """
    from qdhuac.view import trajectory, video

    run = _run_of(task, run_dir)
    video.check_output(Path(output))
    video.choose_library()
    print(video.render(trajectory.viewable(task), run, policy or run.best, Path(output), seed, seconds))


def show(task: Task, run_dir: str | os.PathLike[str], port: int = 8080) -> None:
    """Show a run in the browser until Ctrl-C. The task needs a MuJoCo model: see `qdhuac.tasks.Viewable`."""
    from qdhuac.view import explorer, trajectory

    require("plotly", "view")
    explorer.serve(trajectory.viewable(task), _run_of(task, run_dir), port)


def _run_of(task: Task, run_dir: str | os.PathLike[str]) -> Run:
    """The run, if it has individuals and the task is like the one that it was trained on."""
    run = load_run(run_dir)
    run.require_individuals()
    _check_spaces(run.folder, task)
    return run


def _unless_stopped(code: int, run_dir: str | os.PathLike[str]) -> Run:
    """The run and its report. One that was stopped stops its caller too, who may be in the middle of a loop."""
    if code == 128 + signal.SIGINT:
        raise KeyboardInterrupt(f"{os.fspath(run_dir)} is saved")
    if code:
        raise SystemExit(code)
    run = load_run(run_dir)
    print(f"report: {write_report(run.folder)}", flush=True)
    return run


def _check_spaces(folder: RunDir, task: Task) -> None:
    """Refuse a task whose observations, actions or descriptors are not those that the run began with."""
    try:
        metadata = repertoire.find(folder)[1]
    except UserError:  # nothing has been saved yet
        return
    now = {
        **({} if task.policy is None else dataclasses.asdict(task.policy)),
        "descriptor_bounds": task.spec.descriptor_bounds,
        "action_bounds": task.spec.action_bounds,
    }
    trained = {**metadata, **(metadata.get("policy") or {})}
    for name, value in now.items():
        plain = json.loads(json.dumps(value))  # as it was stored: lists, not tuples
        if name in trained and trained[name] != plain:
            raise UserError(f"{name}: the run was trained with {trained[name]}, but the task has {plain}")
