"""What a study will cost: runs, steps, updates, and the time that they take on this machine."""

from __future__ import annotations

import dataclasses
import itertools
import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from qdhuac.config import Config
from qdhuac.store.run_folder import METRICS
from qdhuac.studies import local as jobs
from qdhuac.studies.catalogue import Run, arguments
from qdhuac.studies.folder import FINISHED, Found
from qdhuac.text import duration

BASELINES = ("pga_me", "qd_pg", "dcrl_me")
LEARNING_ALGORITHMS = ("qdhuac", *BASELINES)

INPUTS = {"hopper": 14, "walker2d": 23, "halfcheetah": 23, "ant": 35, "humanoid": 261}  # observation and action
START = 25.0  # seconds of a process before its first generation: imports and compilation
# 100 updates per generation; and few steps of gradient mutation, for which the time is scaled up again.
GENERATIONS, GRADIENT_STEPS = 3, 50
CALIBRATION = {
    "run.chunk": 100,
    "task.episode_length": 100,
    "learner.utd": 0.1,
    "emitter.gradient_steps": GRADIENT_STEPS,
}


@dataclasses.dataclass(frozen=True)
class Sample:
    """How long the parts of a run took."""

    family: str
    task: str
    work: float  # of one update
    ask: float  # seconds per environment step, as the next one
    step: float  # seconds per environment step
    update: float  # seconds per update


def family(config: Config) -> str:
    """Algorithms whose updates are alike."""
    return "td3" if config.algorithm in BASELINES else config.algorithm


def work(config: Config) -> float:
    """Multiplications of one update, up to a factor: what makes one configuration slower than another."""
    if config.algorithm not in LEARNING_ALGORITHMS:
        return 0.0
    c, first, policy = config.settings.critic, INPUTS[config.task.name], config.policy.hidden
    layers = c.blocks - 1 if config.algorithm != "qdhuac" else 2 * c.blocks
    critic = (
        first * c.width
        + layers * c.width**2
        + c.width * (c.atoms if config.algorithm == "qdhuac" and c.kind == "categorical" else 1)
    )
    actor = first * policy[0] + sum(a * b for a, b in itertools.pairwise(policy))
    learners = 2 if config.algorithm == "qd_pg" else 1
    lagging = 1.25 if config.settings.learner.target_tau and config.algorithm == "qdhuac" else 1.0
    return learners * config.settings.learner.batch_size * (c.critics * critic * lagging + 0.5 * actor)


def updates(run: Run) -> int:
    """Learner updates of a whole run."""
    learns = run.config.algorithm in LEARNING_ALGORITHMS
    return int(run.config.settings.learner.utd * run.config.run.env_steps) if learns else 0


def sample(config: Config, rows: Sequence[Mapping[str, Any]]) -> Sample | None:
    """What a run's metrics say about its speed; its first generation compiles, so it does not count."""
    parts = ("ask", "evaluate", "tell", "learn")
    needed = {"gradient_updates", *(f"time_{part}" for part in parts)}
    if len(rows) < 2 or any(needed - row.keys() for row in rows):
        return None
    first, later = rows[0], rows[1:]
    done = later[-1]["gradient_updates"] - first["gradient_updates"]
    steps = later[-1]["env_steps"] - first["env_steps"]
    time = {name: sum(row[f"time_{name}"] for row in later) for name in parts}
    return Sample(
        family(config),
        config.task.name,
        work(config),
        time["ask"] / steps,
        (time["evaluate"] + time["tell"]) / steps,
        time["learn"] / done if done else 0.0,
    )


def seconds(run: Run, found: Found, samples: Sequence[Sample]) -> float:
    """What is left to do for a run, on one core."""
    if found.state == FINISHED:
        return 0.0
    mine = [s for s in samples if s.family == family(run.config)]
    mine = [s for s in mine if s.task == run.task] or mine
    alike = [s for s in mine if s.work == work(run.config)] or mine
    share = 1.0 - min(1.0, found.steps / run.config.run.env_steps)

    def mean(values: list[float]) -> float:
        return sum(values) / len(values)

    update = mean([s.update * (work(run.config) / s.work if s.work else 0.0) for s in alike])
    whole = run.config.run.env_steps * mean([s.ask + s.step for s in alike]) + updates(run) * update
    return START + share * whole


def samples(
    root: Path, scale: str, runs: Sequence[Run], found: Sequence[Found], calibrate: bool = True
) -> list[Sample]:
    """Timings from the runs that are there; of families that have none, three short generations of the first run."""
    have = [s for run, f in zip(runs, found, strict=True) if (s := sample(run.config, f.rows))]
    if not calibrate:
        return have
    lacking: dict[str, Run] = {}
    for run, f in zip(runs, found, strict=True):
        if f.state != FINISHED and family(run.config) not in {s.family for s in have}:
            lacking.setdefault(family(run.config), run)
    for name, run in lacking.items():
        measured = sample(run.config, _calibrate(root / "calibration" / f"{scale}-{name}", run))
        if measured is not None:
            # Mutations are asked for once per generation, which is shorter here; where robots fall it always is.
            falls = run.config.task.after_termination == "stop" and run.task != "halfcheetah"
            many = 1.0 if falls else CALIBRATION["task.episode_length"] / run.config.task.episode_length
            many *= run.config.settings.emitter.gradient_steps / GRADIENT_STEPS if measured.work else 1.0
            have.append(dataclasses.replace(measured, ask=many * measured.ask))
    return have


def table(runs: Sequence[Run], found: Sequence[Found], timings: Sequence[Sample], jobs_: int) -> list[str]:
    """The cost as lines of text."""
    finished = sum(f.state == FINISHED for f in found)
    started = sum(f.state != FINISHED and f.steps > 0 for f in found)
    left = [(run, f) for run, f in zip(runs, found, strict=True) if f.state != FINISHED]
    known = {s.family for s in timings}
    out = [
        f"runs: {len(runs)}, of which {finished} finished and {started} begun",
        f"environment steps: {sum(r.config.run.env_steps for r in runs):,}, "
        f"left {sum(r.config.run.env_steps - f.steps for r, f in left):,}",
        f"updates: {sum(updates(r) for r in runs):,}, "
        f"left {sum(int(updates(r) * (1 - f.steps / r.config.run.env_steps)) for r, f in left):,}",
    ]
    if any(family(r.config) not in known for r, _ in left):
        return [*out, "time left: unknown, as some algorithms have not been timed yet"]
    total = sum(seconds(r, f, timings) for r, f in left)
    longest = max((seconds(r, f, timings) for r, f in left), default=0.0)
    wall = max(total / jobs_, longest)
    return [*out, f"time left: about {duration(wall)} with {jobs_} jobs ({duration(total)} of one core)"]


def _calibrate(folder: Path, run: Run) -> list[dict[str, Any]]:
    """The metrics of three short generations, made anew unless they are there; none if that fails."""
    if len(rows := _lines(folder)) >= GENERATIONS:
        return rows
    shutil.rmtree(folder, ignore_errors=True)
    print(f"calibration: three short generations of {run.config.algorithm}", flush=True)
    words = arguments(run)
    words[words.index("--env-steps") : words.index("--env-steps") + 2] = ["--generations", str(GENERATIONS)]
    values = [f"{key}={value}" for key, value in CALIBRATION.items()]
    core = next(iter(jobs.cores()), None)
    folder.parent.mkdir(parents=True, exist_ok=True)
    words = [*jobs.COMMAND, "train", *words, "--run-dir", str(folder), "--set", *values]
    log = folder.with_suffix(".log")
    with log.open("wb") as out:
        process = jobs.start(words, core, out)
        try:
            process.wait()
        except KeyboardInterrupt:
            process.terminate()
            process.wait()
            raise
    if process.returncode != 0:
        print(f"calibration failed: {jobs.last_line(log)} (see {log})", flush=True)
        return []
    shutil.rmtree(folder / "checkpoints", ignore_errors=True)
    return _lines(folder)


def _lines(folder: Path) -> list[dict[str, Any]]:
    try:
        return [json.loads(line) for line in (folder / METRICS).read_text().splitlines()]
    except (OSError, ValueError):
        return []
