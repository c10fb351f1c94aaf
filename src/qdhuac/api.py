"""Functions for tasks of the user's own: `qdhuac train`, `resume`, `evaluate`, `render` and `view` in Python."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
from collections.abc import Mapping
from typing import Any

from qdhuac import config
from qdhuac.algorithms import specs
from qdhuac.algorithms.specs import AlgorithmSpec
from qdhuac.config import Config
from qdhuac.environment import require
from qdhuac.errors import UserError, check_number, check_path, check_whole, shown
from qdhuac.report.run_page import write_report
from qdhuac.store import repertoire
from qdhuac.store.run import Policy, Run, load_run
from qdhuac.store.run_folder import RunDir
from qdhuac.tasks.base import Task
from qdhuac.tasks.checks import check_task, watched
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
    """Train on a task of your own, and write the report.

    Args:
        task: evaluates genotypes; see `qdhuac.tasks.Task`.
        run_dir: a folder that does not exist yet.
        algorithm: a name in `qdhuac.algorithms.ALGORITHMS`; for one of your own its `AlgorithmSpec`, or
            `package.module:NAME` of it.
        preset: one of the algorithm's presets.
        settings: values of configuration keys, such as `{"run.env_steps": 50_000}`.
        log: "tensorboard", "wandb", or an object with `generation(line)` and `close()`, which receives the metrics.

    Returns:
        The finished run, as `qdhuac.load` reads it.

    Raises:
        UserError: an argument or a result of the task is not valid.
        RunFailed: the run cannot continue, for example because the disk is full. The last checkpoint is intact.
        KeyboardInterrupt: Ctrl-C was pressed. The run is saved.
        SystemExit: SIGTERM was received or the terminal was closed. The run is saved.
    """
    path, settings = check_path("run_dir", run_dir), _values(settings)
    with watched(task) as checked:
        fixed: dict[str, Any] = {
            "task.name": config.OWN,
            "task.episode_length": checked.spec.episode_length,
            "task.after_termination": checked.spec.after_termination,
        }
        if checked.policy is not None:
            fixed["policy.hidden"] = list(checked.policy.hidden)
        for key in fixed.keys() & settings.keys():
            raise UserError(f"settings: {key} is decided by the task, which has {fixed[key]!r}")
        made = specs.make(algorithm, preset, {**settings, **fixed})
        code = launch.train(made, path, task=checked, log=log)
    return _unless_stopped(code, run_dir)


def resume(
    task: Task,
    run_dir: str | os.PathLike[str],
    settings: Mapping[str, Any] | None = None,
    *,
    algorithm: str | AlgorithmSpec | None = None,
    log: str | Logger | None = None,
) -> Run:
    """Continue a run of `train`, also beyond its first goal. Raises the errors of `train`.

    Args:
        task: the task that the run was started with.
        run_dir: the folder of the run.
        settings: new values of keys in section `run`, such as `{"run.env_steps": 100_000}`. An archive of your own
            must be given again as `archive.kind`, because a name in a file is never imported.
        algorithm: must be given again if it is one of your own, for the same reason.
        log: as for `train`.

    Returns:
        The finished run, as `qdhuac.load` reads it.
    """
    spec = None if algorithm is None else specs.algorithm(algorithm)
    path, settings = check_path("run_dir", run_dir), _values(settings)

    def check(folder: RunDir, made: Config) -> None:
        if made.task.name != config.OWN:
            raise UserError(f"{folder.path}: its task is {made.task.name!r}; go on with: qdhuac resume {folder.path}")
        if made.task.episode_length != task.spec.episode_length:
            was, now = made.task.episode_length, task.spec.episode_length
            raise UserError(f"task.episode_length: the run has {was}, the task has {now}")
        _check_spaces(folder, task)

    with watched(task) as checked:
        code = launch.resume(path, settings, check=check, task=checked, log=log, algorithm=spec)
    return _unless_stopped(code, run_dir)


def evaluate(task: Task, run_dir: str | os.PathLike[str], *, episodes: int = 8, seed: int = 0) -> dict[str, Any]:
    """Evaluate the archive of a run again, and write the result to `evaluation.json` in the run folder.

    Args:
        task: the task of the run, or one with the same spaces.
        run_dir: the folder of the run.
        episodes: how many of each individual.
        seed: seed of the episodes' starts.

    Returns:
        Metrics of the stored archive and of its re-evaluation, as a whole and per individual.
    """
    from qdhuac.training import evaluation

    check_whole("episodes", episodes, 1)
    check_whole("seed", seed, 0)
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
    """Film an episode of a policy.

    Args:
        task: a task with a MuJoCo model; see `qdhuac.tasks.Viewable`.
        run_dir: the folder of the run.
        output: a file that ends in .mp4 or .gif.
        policy: a policy of the run; None: the best.
        seed: seed of the episode's start.
        seconds: simulated time; None: the whole episode.
    """
    from qdhuac.view import trajectory, video

    check_whole("seed", seed, 0)
    if seconds is not None:
        check_number("seconds", seconds, above=0)
    if not (policy is None or isinstance(policy, Policy)):
        raise UserError(f"policy={shown(policy)}: expected a policy of the run, such as run.best")
    path = check_path("output", output)
    run = _run_of(task, run_dir)
    video.check_output(path)
    video.choose_library()
    print(video.render(trajectory.viewable(task), run, policy or run.best, path, seed, seconds))


def show(task: Task, run_dir: str | os.PathLike[str], port: int = 8080) -> None:
    """Explore a run in the browser until Ctrl-C. The task needs a MuJoCo model: see `qdhuac.tasks.Viewable`."""
    from qdhuac.view import explorer, trajectory

    check_whole("port", port, 0, 65_535)
    require("plotly", "view")
    explorer.serve(trajectory.viewable(task), _run_of(task, run_dir), port)


def _run_of(task: Task, run_dir: str | os.PathLike[str]) -> Run:
    """Read a run. Raises UserError if its archive is empty, or if the task does not fit."""
    check_task(task)
    run = load_run(run_dir)
    run.require_individuals()
    _check_spaces(run.folder, task)
    return run


def _values(settings: Any) -> Mapping[str, Any]:
    """The configuration keys. Raises UserError if these are not names and values."""
    if settings is not None and not (isinstance(settings, Mapping) and all(isinstance(key, str) for key in settings)):
        raise UserError(f"settings={shown(settings)}: expected keys and values, such as {{'run.env_steps': 50_000}}")
    return settings or {}


def _unless_stopped(code: int, run_dir: str | os.PathLike[str]) -> Run:
    """Return the run and write its report. A stop is raised, so that a loop over seeds ends too."""
    if code == 128 + signal.SIGINT:
        raise KeyboardInterrupt(f"{os.fspath(run_dir)} is saved")
    if code:
        raise SystemExit(code)
    run = load_run(run_dir)
    print(f"report: {write_report(run.folder)}", flush=True)
    return run


def _check_spaces(folder: RunDir, task: Task) -> None:
    """Raise UserError if the task has other observations, actions or descriptors than the run."""
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
        plain = json.loads(json.dumps(value))  # as it is stored: lists in place of tuples
        if name in trained and trained[name] != plain:
            raise UserError(f"{name}: the run was trained with {trained[name]}, but the task has {plain}")
