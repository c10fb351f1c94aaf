"""The books of one run: what it counts, writes down and saves. Everything of a run but its state on the device."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from qdhuac.config import Config
from qdhuac.environment import versions
from qdhuac.errors import RunFailed, UserError
from qdhuac.metrics import auc_increment, symptoms
from qdhuac.store import checkpoint, repertoire
from qdhuac.store.run_folder import COLUMNS, REPERTOIRE, RunDir
from qdhuac.training.display import Progress, Silent
from qdhuac.training.loggers import Logger
from qdhuac.types import Algorithm, Metrics, Task, Told

PHASES = ("ask", "evaluate", "tell", "learn")


@dataclasses.dataclass
class Counters:
    """In Python's exact integers and doubles. `generation` counts written lines."""

    generation: int = 0
    env_steps: int = 0
    gradient_updates: int = 0
    qd_score: float = 0.0
    qd_score_auc: float = 0.0
    wall_s: float = 0.0
    failures: int = 0
    failures_by_source: dict[str, int] = dataclasses.field(default_factory=dict)
    warnings: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict)  # by symptom, see health.py


@dataclasses.dataclass
class Pending:
    """A generation that has been told but not yet learnt from: what its line of metrics will say."""

    record: dict[str, Any]
    learnt: int = 0  # updates in `sums`
    means: dict[str, float | None] = dataclasses.field(default_factory=dict)  # times the updates they are over
    sums: dict[str, float | None] = dataclasses.field(default_factory=dict)
    times: dict[str, float] = dataclasses.field(default_factory=lambda: dict.fromkeys(PHASES, 0.0))


class Books:
    """Counters, metrics, history, checkpoints and warnings of one run."""

    def __init__(
        self, config: Config, task: Task, algorithm: Algorithm, folder: RunDir, progress: Progress | None = None
    ) -> None:
        self.config, self.task, self.folder = config, task, folder
        self.progress = progress or Silent()
        self.log: Logger | None = None
        self.counters = Counters()
        self.pending: Pending | None = None
        self.unsaved = True
        self._utd, self._operators = algorithm.updates_per_step, algorithm.operators
        self._range = getattr(algorithm, "value_range", (math.nan, math.nan))
        self.start_clock()

    @property
    def finished(self) -> bool:
        """The goal is reached."""
        goal, done = self.config.run, self.counters
        return 0 < goal.generations <= done.generation or (
            self.pending is None and 0 < goal.env_steps <= done.env_steps
        )

    def start_clock(self) -> None:
        """The run goes on from now."""
        self._clock = self._saved_at = time.monotonic()

    def reopen(self, found: checkpoint.Checkpoint) -> None:
        """Go back to the moment of a checkpoint."""
        if found.arrays is not None:
            try:
                self.counters = Counters(**found.record["counters"])
                self.pending = Pending(**found.record["pending"]) if found.record["pending"] else None
            except (KeyError, TypeError):
                raise UserError(f"{found.path}: its manifest has other counters than this version of qdhuac") from None
            self.unsaved = False
        self.folder.restore(found.texts)

    # One generation

    def told(self, pending: Pending, metrics: Metrics, newcomers: Told) -> None:
        """The offspring have competed: `metrics` and `newcomers` are what is known of them, as arrays."""
        self.write_history(self.counters.generation + 1, newcomers)
        means, sums, failures = ({name: _plain(value) for name, value in part.items()} for part in metrics)
        steps, qd_score = int(sums.pop("steps") or 0), means["qd_score"] or 0.0
        rejected = {f"rejected_{name}": n for name, n in failures.items()}
        pending.record = {**means, "rejected": sum(failures.values()), **rejected, **sums}
        self.counters.qd_score_auc += auc_increment(self.counters.qd_score, qd_score, steps)
        self.counters.env_steps += steps
        self.counters.qd_score = qd_score
        self._count_failures(failures)
        self.pending = pending

    @property
    def owed(self) -> int:
        """Updates that are still to be made in this generation, for `utd` per environment step in all."""
        return math.floor(self._utd * self.counters.env_steps) - self.counters.gradient_updates

    def learnt(self, metrics: Metrics, updates: int) -> None:
        """So many updates have been made, with these metrics, as arrays."""
        assert self.pending is not None
        self.pending.learnt += updates
        self.counters.gradient_updates += updates
        means, sums, failures = ({name: _plain(value) for name, value in part.items()} for part in metrics)
        for name, value in means.items():
            self.pending.means[name] = _add(self.pending.means.get(name, 0), None if value is None else value * updates)
        for name, value in (sums | {f"count_skipped_{name}": n for name, n in failures.items()}).items():
            self.pending.sums[name] = _add(self.pending.sums.get(name, 0), value)
        self._count_failures({f"learner's {name}": n for name, n in failures.items()})

    def end_generation(self) -> dict[str, Any]:
        """Write its line of metrics, and return it."""
        assert self.pending is not None
        self._tick()
        done, pending, record = self.counters, self.pending, self.pending.record
        done.generation += 1
        first = ("qd_score", "coverage", "max_fitness")
        line = {
            "generation": done.generation,
            "env_steps": done.env_steps,
            "gradient_updates": done.gradient_updates,
            **{name: record[name] for name in first},
            "qd_score_auc": done.qd_score_auc,
            **{name: value for name, value in record.items() if name.startswith("archive_")},
            "wall_s": round(done.wall_s, 3),
            **{f"time_{phase}": round(seconds, 4) for phase, seconds in pending.times.items()},
            "devices": self.config.run.devices,
            **{name: value for name, value in record.items() if name not in first and not name.startswith("archive_")},
            **{name: total if total is None else total / pending.learnt for name, total in pending.means.items()},
            **pending.sums,
        }
        if pending.learnt:
            line |= self._look_after_health(line)
        with self._writing("metrics"):
            self.folder.append_metrics(line)
        if self.log:
            self.log.generation(line)
        self.progress.generation(line)
        self.pending = None
        return line

    def write_history(self, generation: int, told: Told) -> None:
        """Who came into the archive, before the line of metrics: a checkpoint in mid-learning has it already."""
        individuals = told.individuals
        columns = {"slot": told.slots, **individuals.provenance._asdict(), **individuals._asdict()}
        came = told.slots >= 0
        columns = {name: columns[name][came] for name in COLUMNS}
        with self._writing("history"):
            self.folder.append_history(generation, {name: _shortest(x) for name, x in columns.items()})

    # Saving

    @property
    def due(self) -> bool:
        """It is time for a checkpoint; after the first generation always, so that there is something to look at."""
        run, done = self.config.run, self.counters
        by_time = time.monotonic() - self._saved_at >= 60 * run.checkpoint_minutes
        every = run.checkpoint_generations
        by_count = done.generation == 1 or (every > 0 and done.generation % every == 0)
        return self.unsaved and (by_time or (by_count and self.pending is None)) and not self.finished

    def save(self, arrays: dict[str, Any]) -> None:
        """A checkpoint of everything, and the repertoire beside it; `arrays` are the state."""
        self._tick()
        done = self.counters
        record: dict[str, Any] = {
            "counters": dataclasses.asdict(done),
            "pending": dataclasses.asdict(self.pending) if self.pending else None,
            "versions": versions(),
            "arrays": {name: [str(array.dtype), *array.shape] for name, array in arrays.items()},
            "repertoire": self._metadata(),
        }
        name = checkpoint.name(done.generation + (self.pending is not None), done.gradient_updates)
        with self._writing():
            # The repertoire first: a crash between the two must not leave a finished run without it.
            repertoire.write(self.folder.path / REPERTOIRE, arrays, record["repertoire"])
            checkpoint.save(self.folder.checkpoints, name, record, self.folder.texts(), arrays)
        self._saved_at, self.unsaved = time.monotonic(), False

    @contextmanager
    def _writing(self, what: str = "") -> Iterator[None]:
        try:
            yield
        except OSError as error:
            action = f"write {what}" if what else "save"
            raise RunFailed(
                f"{self.folder.path}: cannot {action} ({error.strerror or error}); the last checkpoint is intact"
            ) from None

    # Bookkeeping

    @property
    def too_many_failures(self) -> str:
        """Beyond the budget of failures what to tell, naming where most of them came from; else empty."""
        done, budget = self.counters, self.config.run.failure_budget
        if done.failures <= budget:
            return ""
        worst = max(done.failures_by_source, key=done.failures_by_source.__getitem__)
        return (
            f"{done.failures} evaluations or updates were not finite (run.failure_budget={budget}), most of them "
            f"in: {worst} ({done.failures_by_source[worst]})"
        )

    @property
    def warnings(self) -> list[str]:
        """What the user should know about the learner, at the end."""
        return [
            f"in {w['generations']} of {self.counters.generation} generations, first in {w['first']}: {w['last']}"
            for w in self.counters.warnings.values()
        ]

    def _count_failures(self, sources: Mapping[str, Any]) -> None:
        """Add to the failures, and to where they came from."""
        done = self.counters
        for source, n in sources.items():
            if n:
                done.failures += int(n)
                done.failures_by_source[source] = done.failures_by_source.get(source, 0) + int(n)

    def _look_after_health(self, line: dict[str, Any]) -> dict[str, int]:
        """Whether the learner has gone astray, for the metrics; each symptom is also told when it is first seen."""
        found = symptoms(line, *self._range)
        for name, text in found.items():
            if name not in self.counters.warnings:
                self.counters.warnings[name] = {"first": line["generation"], "generations": 0}
                self.progress.note(f"warning: generation {line['generation']}: {text}")
            self.counters.warnings[name]["generations"] += 1
            self.counters.warnings[name]["last"] = text
        return {f"warning_{name}": int(name in found) for name in ("values", "gradients")}

    def _tick(self) -> None:
        now = time.monotonic()
        self.counters.wall_s += now - self._clock
        self._clock = now

    def _metadata(self) -> dict[str, Any]:
        """What a reader of the repertoire has to know."""
        policy = getattr(self.task, "policy", None)
        return {
            "task": dataclasses.asdict(self.config.task),
            "algorithm": self.config.algorithm,
            "operators": self._operators,
            "policy": dataclasses.asdict(policy) if policy is not None else None,
            "descriptor_bounds": self.task.descriptor_bounds,
            "action_bounds": getattr(self.task, "action_bounds", None),
            "reward_offset": self.task.reward_offset,
            "generation": self.counters.generation,
            "env_steps": self.counters.env_steps,
            "versions": versions(),
        }


@contextmanager
def timed(progress: Progress, pending: Sequence[Pending], phase: str, done: int = 0, total: int = 0) -> Iterator[None]:
    """Tell what is going on now, and note how long it took."""
    progress.phase({"evaluate": "evaluating", "learn": "learning"}.get(phase, f"{phase}ing"), done, total)
    before = time.monotonic()
    yield
    for one in pending:
        one.times[phase] += time.monotonic() - before


def _shortest(values: np.ndarray) -> list[Any]:
    """For JSON: of each float the fewest digits that give it back."""
    if values.dtype.kind == "f":
        return np.array([float(str(v)) for v in values.reshape(-1)]).reshape(values.shape).tolist()
    return values.tolist()


def _plain(value: Any) -> int | float | None:
    """A scalar for JSON, which has no nan and no infinity."""
    number = value.item()
    return None if isinstance(number, float) and not math.isfinite(number) else number


def _add(total: float | None, value: float | None) -> float | None:
    return None if total is None or value is None else total + value
