"""Counters, metrics, history and checkpoints of a run."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from qdhuac.config import Config, with_task_file
from qdhuac.environment import versions
from qdhuac.errors import RunFailed, os_errors_as
from qdhuac.metrics import auc_increment, symptoms
from qdhuac.store import checkpoint, repertoire
from qdhuac.store.run_folder import COLUMNS, REPERTOIRE, RunDir
from qdhuac.tasks.base import Task
from qdhuac.training.counters import Counters, Pending, finished, read
from qdhuac.training.loggers import Logger
from qdhuac.types import Algorithm, Metrics, Told


class Recorder:
    """Counts, writes and saves a run.

    Args:
        config: its configuration.
        folder: its run folder, which is locked.
        task, algorithm: what it trains.
        warn: called with each warning.
    """

    def __init__(
        self, config: Config, folder: RunDir, task: Task, algorithm: Algorithm, warn: Callable[[str], None]
    ) -> None:
        self.config, self.folder = config, folder
        self.log: Logger | None = None
        self.counters = Counters()
        self.pending: Pending | None = None
        self.unsaved = True
        self._task, self._algorithm, self._warn = task, algorithm, warn
        self.start_clock()

    @property
    def finished(self) -> bool:
        """The run has reached its goal."""
        return finished(self.config.run, self.counters, self.pending)

    def start_clock(self) -> None:
        """Measure wall time, and the time since the last checkpoint, from now on."""
        self._clock = self._saved_at = time.monotonic()

    def restore(self) -> checkpoint.Checkpoint:
        """Return to the newest intact checkpoint: counters, metrics and history. The caller restores the state."""
        found = checkpoint.load(self.folder.checkpoints)
        for text in found.damaged:
            self._warn(f"damaged checkpoint {text}; continuing from {found.path.name}")
        self.counters, self.pending = read(found)
        self.unsaved = found.arrays is None  # generation 0
        self.folder.restore(found.texts)
        with os_errors_as(RunFailed, f"{self.folder.checkpoints}: cannot be changed"):
            checkpoint.set_aside(self.folder.checkpoints, found)
        for text in self.folder.notes:
            self._warn(text)
        return found

    # One generation

    def told(self, metrics: Metrics, told: Told, times: dict[str, float]) -> None:
        """Record that the offspring have competed for the archive.

        Args:
            metrics: means, sums and failures of the batch, as NumPy arrays.
            told: which of the batch took which slot, as NumPy arrays.
            times: seconds of each phase.
        """
        self.unsaved = True
        self._write_history(told)
        means, sums, failures = _plain(metrics)
        steps, qd_score = int(sums.pop("steps") or 0), means["qd_score"] or 0.0
        rejected = {f"rejected_{name}": n for name, n in failures.items()}
        record = {**means, "rejected": sum(int(n or 0) for n in failures.values()), **rejected, **sums}
        self.counters.qd_score_auc += auc_increment(self.counters.qd_score, qd_score, steps)
        self.counters.env_steps += steps
        self.counters.qd_score = qd_score
        self._count_failures(failures)
        self.pending = Pending(record, times)

    @property
    def owed(self) -> int:
        """Updates that are still to be made: `updates_per_step` for each environment step, less those made."""
        return math.floor(self._algorithm.updates_per_step * self.counters.env_steps) - self.counters.gradient_updates

    def learnt(self, metrics: Metrics, updates: int) -> None:
        """Record `updates` updates with these metrics, as NumPy arrays."""
        assert self.pending is not None
        self.unsaved = True
        self.pending.learnt += updates
        self.counters.gradient_updates += updates
        means, sums, failures = _plain(metrics)
        for name, value in means.items():
            self.pending.means[name] = _add(self.pending.means.get(name, 0), None if value is None else value * updates)
        for name, value in (sums | {f"count_skipped_{name}": n for name, n in failures.items()}).items():
            self.pending.sums[name] = _add(self.pending.sums.get(name, 0), value)
        self._count_failures({f"learner's {name}": n for name, n in failures.items()})

    def end_generation(self) -> dict[str, Any]:
        """Write the metrics of the generation, and return them."""
        assert self.pending is not None
        self._tick()
        done, pending = self.counters, self.pending
        done.generation += 1
        line = {
            "generation": done.generation,
            "env_steps": done.env_steps,
            "gradient_updates": done.gradient_updates,
            "qd_score_auc": done.qd_score_auc,
            **pending.record,
            "wall_s": round(done.wall_s, 3),
            **{f"time_{phase}": round(seconds, 4) for phase, seconds in pending.times.items()},
            "devices": self.config.run.devices,
            **{name: total if total is None else total / pending.learnt for name, total in pending.means.items()},
            **pending.sums,
        }
        line |= self._check_health(line, pending.learnt)
        with self._writing("write metrics"):
            self.folder.append_metrics(line)
        if self.log:
            self.log.generation(line)
        self.pending = None
        return line

    def _write_history(self, told: Told) -> None:
        """Write which individuals entered the archive. Checkpoints between two updates have this line too."""
        individuals = told.individuals
        columns = {"slot": told.slots, **individuals.provenance._asdict(), **individuals._asdict()}
        came = told.slots >= 0
        columns = {name: columns[name][came] for name in COLUMNS}
        generation = self.counters.generation + 1
        with self._writing("write history"):
            self.folder.append_history(generation, {name: _shortest(x) for name, x in columns.items()})

    # Saving

    @property
    def due(self) -> bool:
        """A checkpoint is due: after the first generation, after an interval, or at the end."""
        run, done = self.config.run, self.counters
        by_time = time.monotonic() - self._saved_at >= 60 * run.checkpoint_minutes
        every = run.checkpoint_generations
        by_count = done.generation == 1 or (every > 0 and done.generation % every == 0)
        return self.unsaved and (self.finished or by_time or (by_count and self.pending is None))

    def save(self, arrays: dict[str, Any]) -> None:
        """Write a checkpoint with the `arrays` of the state, and the repertoire."""
        self._tick()
        done = self.counters
        record: dict[str, Any] = {
            "counters": dataclasses.asdict(done),
            "pending": dataclasses.asdict(self.pending) if self.pending else None,
            "repertoire": self._metadata(),
        }
        name = checkpoint.name(done.generation + (self.pending is not None), done.gradient_updates)
        with self._writing("save"):
            # First the repertoire, so that a crash between the two cannot leave a finished run without it.
            repertoire.write(self.folder.path / REPERTOIRE, arrays, record["repertoire"])
            checkpoint.save(self.folder.checkpoints, name, record, self.folder.texts(), arrays)
        self._saved_at, self.unsaved = time.monotonic(), False

    def _writing(self, action: str) -> AbstractContextManager[None]:
        return os_errors_as(RunFailed, f"{self.folder.path}: cannot {action}", "; the last checkpoint is intact")

    # Bookkeeping

    @property
    def too_many_failures(self) -> str:
        """The error of a run that has exceeded its budget of failures, with their main source; else empty."""
        return self.failures if sum(self.counters.failures.values()) > self.config.run.failure_budget else ""

    @property
    def failures(self) -> str:
        """How many evaluations and updates were rejected, and their main source."""
        counts, budget = self.counters.failures, self.config.run.failure_budget
        worst = max(counts, key=counts.__getitem__, default="none")
        bad = f"{sum(counts.values())} evaluations or updates were not finite (run.failure_budget={budget})"
        return f"{bad}, most of them in: {worst} ({counts.get(worst, 0)})"

    @property
    def warnings(self) -> list[str]:
        """Summaries of the symptoms, for the end of the run."""
        return [
            f"in {w['generations']} of {self.counters.generation} generations, first in {w['first']}: {w['last']}"
            for w in self.counters.warnings.values()
        ]

    def _count_failures(self, sources: Mapping[str, Any]) -> None:
        counts = self.counters.failures
        for source, n in sources.items():
            if n:
                counts[source] = counts.get(source, 0) + int(n)

    def _check_health(self, line: dict[str, Any], updates: int) -> dict[str, int]:
        """Check for symptoms, and warn once of each. Returns the metrics `warning_...` of the learner."""
        found = symptoms(line, *self._algorithm.value_range, updates)
        for name, text in found.items():
            if name not in self.counters.warnings:
                self.counters.warnings[name] = {"first": line["generation"], "generations": 0}
                self._warn(f"generation {line['generation']}: {text}")
            self.counters.warnings[name]["generations"] += 1
            self.counters.warnings[name]["last"] = text
        return {f"warning_{name}": int(name in found) for name in ("values", "gradients")} if updates else {}

    def _tick(self) -> None:
        now = time.monotonic()
        self.counters.wall_s += now - self._clock
        self._clock = now

    def _metadata(self) -> dict[str, Any]:
        """The metadata of the repertoire."""
        spec, policy = self._task.spec, self._task.policy
        return {
            "task": dataclasses.asdict(with_task_file(self.config, "").task),
            "algorithm": self.config.algorithm,
            "operators": self._algorithm.operators,
            "policy": None if policy is None else dataclasses.asdict(policy),
            "descriptor_bounds": spec.descriptor_bounds,
            "labels": spec.labels,
            "action_bounds": spec.action_bounds,
            "reward_offset": spec.reward_offset,
            "generation": self.counters.generation,
            "env_steps": self.counters.env_steps,
            "versions": versions(),
        }


def _shortest(values: np.ndarray) -> list[Any]:
    """A list for JSON. Floats have as few digits as their type needs to be read back exactly."""
    if values.dtype.kind == "f":
        return np.array([float(str(v)) for v in values.reshape(-1)]).reshape(values.shape).tolist()
    return values.tolist()


def _plain(metrics: Metrics) -> list[dict[str, Any]]:
    """Means, sums and failures as Python numbers; None in place of nan and infinity, which JSON does not have."""
    numbers = ({name: value.item() for name, value in part.items()} for part in metrics)
    return [{name: n if math.isfinite(n) else None for name, n in part.items()} for part in numbers]


def _add(total: float | None, value: float | None) -> float | None:
    return None if total is None or value is None else total + value
