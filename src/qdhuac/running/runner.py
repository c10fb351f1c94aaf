"""The host loop: asks, evaluates, tells, lets learn, writes down. It never knows which algorithm it runs."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.metadata
import math
import os
import platform
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import qdhuac
from qdhuac.algorithms.base import screen
from qdhuac.analysis.metrics import PassiveGrid, archive_scores, auc_increment, scores
from qdhuac.config import LEARNING_ALGORITHMS, Config
from qdhuac.errors import RunFailed, UserError
from qdhuac.running import checkpoint, health, repertoire
from qdhuac.running.arrays import flatten, unflatten
from qdhuac.running.loggers import Logger
from qdhuac.running.progress import Progress, Silent
from qdhuac.running.rundir import COLUMNS, HISTORY, REPERTOIRE, RunDir
from qdhuac.running.stopping import Stop
from qdhuac.types import Algorithm, Array, Emission, Evaluation, Individuals, Task

PHASES = ("ask", "evaluate", "tell", "learn")


class RunState(NamedTuple):
    """What lives on the device: the algorithm's own state and the grid that every algorithm is measured on."""

    algorithm: Any
    grid: Array


@dataclasses.dataclass
class Counters:
    """What lives on the host, in Python's exact integers and doubles. `generation` counts written lines."""

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
    sums: dict[str, float | None] = dataclasses.field(default_factory=dict)
    times: dict[str, float] = dataclasses.field(default_factory=lambda: dict.fromkeys(PHASES, 0.0))


class Runner:
    """One run. `start` or `restore`, then `run`."""

    def __init__(
        self,
        config: Config,
        task: Task,
        algorithm: Algorithm,
        folder: RunDir,
        progress: Progress | None = None,
        stop: Stop | None = None,
    ) -> None:
        self.config, self.task, self.algorithm, self.folder = config, task, algorithm, folder
        self.progress = progress or Silent()
        self.stop = stop if stop is not None else Stop()
        self.log: Logger | None = None
        self.counters = Counters()
        self.pending: Pending | None = None
        self.utd = config.learner.utd if config.algorithm in LEARNING_ALGORITHMS else 0.0
        self._grid = PassiveGrid.over(*task.descriptor_bounds)
        self._offset = task.reward_offset * task.episode_length
        self._critic = config.critic.on_support(*getattr(task, "support", (math.nan, math.nan)))
        self._init = jax.jit(self._fresh)
        self._ask = jax.jit(lambda s: (algorithm.ask(s.algorithm), jax.random.fold_in(s.algorithm.key, 1)))
        self._tell = jax.jit(self._tell_and_measure, donate_argnums=0)
        self._learn = jax.jit(self._learn_some, donate_argnums=0)
        self._clock = self._saved_at = time.monotonic()
        self._unsaved = True

    def start(self) -> None:
        """Begin at generation 0."""
        self._require_memory()
        self.state = self._init(jax.random.key(self.config.run.seed))

    def restore(self) -> None:
        """Go on from the newest intact checkpoint; the metrics file goes back to that moment."""
        found = checkpoint.load(self.folder.checkpoints)
        for text in found.damaged:
            self.progress.note(f"warning: damaged checkpoint {text}; going on from {found.path.name}")
        if found.arrays is None:
            self.start()
        else:
            template = self._init.eval_shape(jax.random.key(self.config.run.seed))
            self.state = unflatten(template, found.arrays, str(found.path))
            try:
                self.counters = Counters(**found.record["counters"])
                self.pending = Pending(**found.record["pending"]) if found.record["pending"] else None
            except (KeyError, TypeError):
                raise UserError(f"{found.path}: its manifest has other counters than this version of qdhuac") from None
            self._unsaved = False
        self.folder.restore(found.texts)
        if HISTORY not in found.texts and found.arrays is not None:
            # Of a version that recorded none: the history begins with everybody who is there now.
            archive = jax.device_get(self.state.algorithm.archive._replace(genotypes=None))
            self._write_history(self.counters.generation + (self.pending is not None), *_everybody(archive))
        try:
            checkpoint.set_aside(self.folder.checkpoints, found)
        except OSError as error:
            raise RunFailed(f"{self.folder.checkpoints}: cannot be changed ({error.strerror or error})") from None
        for text in self.folder.notes:
            self.progress.note(f"warning: {text}")

    @property
    def finished(self) -> bool:
        """The goal is reached."""
        goal, done = self.config.run, self.counters
        return 0 < goal.generations <= done.generation or (
            self.pending is None and 0 < goal.env_steps <= done.env_steps
        )

    def run(self) -> bool:
        """Until the goal (True) or a stop signal (False); the state is saved either way."""
        self._clock = self._saved_at = time.monotonic()
        while not self.finished:
            if self.pending is None:
                self.pending = self._collect()
            if self.pending is not None and self._learn_what_is_owed(self.pending):
                self._write_line(self.pending)
                self.pending = None
                self._check_budget()
            if self.stop:
                break
            self._save_if_due()
        self.progress.phase("saving")
        if self._unsaved:
            self.save()
        return self.finished

    def save(self) -> None:
        """A checkpoint of everything, and the repertoire beside it."""
        self._tick()
        done = self.counters
        arrays = flatten(self.state)
        record: dict[str, Any] = {
            "counters": dataclasses.asdict(done),
            "pending": dataclasses.asdict(self.pending) if self.pending else None,
            "versions": versions(),
            "arrays": {name: [str(array.dtype), *array.shape] for name, array in arrays.items()},
            "repertoire": self._metadata(),
        }
        name = checkpoint.name(done.generation + (self.pending is not None), done.gradient_updates)
        try:
            # The repertoire first: a crash between the two must not leave a finished run without it.
            repertoire.write(self.folder.path / REPERTOIRE, arrays, record["repertoire"])
            checkpoint.save(self.folder.checkpoints, name, record, self.folder.texts(), arrays)
        except OSError as error:
            raise RunFailed(
                f"{self.folder.path}: cannot save ({error.strerror or error}); the last checkpoint is intact"
            ) from None
        self._saved_at, self._unsaved = time.monotonic(), False

    # One generation

    def _collect(self) -> Pending | None:
        """Ask, evaluate, tell; None if a stop signal came before the state had changed."""
        pending = Pending({})
        with self._timed(pending, "ask"):
            emission, key = jax.block_until_ready(self._ask(self.state))
        if self.stop:
            return None
        with self._timed(pending, "evaluate"):
            evaluation = jax.block_until_ready(self.task.evaluate(emission.genotypes, key, emission.exploration))
        if self.stop:
            return None
        self._unsaved = True
        with self._timed(pending, "tell"):
            self.state, record, newcomers = self._tell(self.state, emission, evaluation)
            self._write_history(self.counters.generation + 1, *jax.device_get(newcomers))
            pending.record = {name: _plain(value) for name, value in jax.device_get(record).items()}
        steps, qd_score = pending.record.pop("steps"), pending.record["qd_score"] or 0.0
        self.counters.qd_score_auc += auc_increment(self.counters.qd_score, qd_score, steps)
        self.counters.env_steps += steps
        self.counters.qd_score = qd_score
        sources = {name[9:]: n for name, n in pending.record.items() if name.startswith("rejected_")}
        self._count_failures(pending.record.get("rejected", 0), sources)
        return pending

    def _learn_what_is_owed(self, pending: Pending) -> bool:
        """Updates up to `utd` per environment step, in chunks; False if a stop signal came before the last one."""
        at_start = self.counters.gradient_updates - pending.learnt
        total = math.floor(self.utd * self.counters.env_steps) - at_start
        while pending.learnt < total:
            if self.stop:
                return False
            self._save_if_due()
            n = min(self.config.run.chunk, total - pending.learnt)
            self._unsaved = True
            with self._timed(pending, "learn", pending.learnt, total):
                self.state, metrics = self._learn(self.state, np.int32(n))
                metrics = {name: _plain(value) for name, value in jax.device_get(metrics).items()}
            pending.learnt += n
            self.counters.gradient_updates += n
            for name, value in metrics.items():
                weighted = None if value is None else value * (1 if _is_count(name) else n)
                pending.sums[name] = _add(pending.sums.get(name, 0), weighted)
            tensors = {f"learner's {k[14:]}": v for k, v in metrics.items() if k.startswith("count_skipped_")}
            tensors = tensors or {"learner": metrics.get("skipped_updates") or 0}
            self._count_failures(sum(tensors.values()), tensors)
            self._check_budget()
        return True

    def _write_line(self, pending: Pending) -> None:
        self._tick()
        done, record = self.counters, pending.record
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
            **{name: value for name, value in record.items() if name not in first and not name.startswith("archive_")},
            **{
                name: total if total is None or _is_count(name) else total / pending.learnt
                for name, total in pending.sums.items()
            },
        }
        if pending.learnt:
            line |= self._look_after_health(line)
        try:
            self.folder.append_metrics(line)
        except OSError as error:
            raise RunFailed(
                f"{self.folder.path}: cannot write metrics ({error.strerror or error}); the last checkpoint is intact"
            ) from None
        if self.log:
            self.log.generation(line)
        self.progress.generation(line)

    def _write_history(self, generation: int, slots: np.ndarray, individuals: Individuals) -> None:
        """Who came into the archive, before the line of metrics: a checkpoint in mid-learning has it already."""
        columns = {"slot": slots, **individuals.provenance._asdict(), **individuals._asdict()}
        columns = {name: columns[name][slots >= 0] for name in COLUMNS}
        try:
            self.folder.append_history(generation, {name: _shortest(x) for name, x in columns.items()})
        except OSError as error:
            raise RunFailed(
                f"{self.folder.path}: cannot write history ({error.strerror or error}); the last checkpoint is intact"
            ) from None

    # What is compiled

    def _fresh(self, key: Array) -> RunState:
        return _strong(RunState(self.algorithm.init(key), self._grid.init()))

    def _tell_and_measure(
        self, state: RunState, emission: Emission, evaluation: Evaluation
    ) -> tuple[RunState, dict[str, Array], tuple[Array, Individuals]]:
        offspring, _, _ = screen(emission, evaluation)
        grid = self._grid.add(state.grid, offspring.fitness, offspring.descriptor)
        told, record = self.algorithm.tell(state.algorithm, emission, evaluation)
        record = {
            **scores(grid, self._offset),
            **archive_scores(told.archive.fitness, self._offset),
            **record,
            "steps": jnp.sum(evaluation.steps),
        }
        newcomers = _newcomers(state.algorithm.archive, told.archive, len(offspring.fitness))
        return _strong(RunState(told, grid)), record, newcomers

    def _learn_some(self, state: RunState, updates: Array) -> tuple[RunState, dict[str, Array]]:
        learnt, metrics = self.algorithm.learn(state.algorithm, updates)
        return _strong(state._replace(algorithm=learnt)), metrics

    # Bookkeeping

    def _count_failures(self, total: int, sources: dict[str, Any]) -> None:
        """Add to the failures, and to where they came from."""
        done = self.counters
        if not total:
            return
        done.failures += int(total)
        for source, n in sources.items():
            done.failures_by_source[source] = done.failures_by_source.get(source, 0) + int(n or 0)

    def _check_budget(self) -> None:
        """Beyond the budget of failures save and give up, naming where most of them came from."""
        done, budget = self.counters, self.config.run.failure_budget
        if done.failures > budget:
            self.save()
            worst = max(done.failures_by_source, key=done.failures_by_source.__getitem__)
            raise RunFailed(
                f"{done.failures} evaluations or updates were not finite (run.failure_budget={budget}), most of them "
                f"in: {worst} ({done.failures_by_source[worst]})"
            )

    def _look_after_health(self, line: dict[str, Any]) -> dict[str, int]:
        """Whether the learner has gone astray, for the metrics; each symptom is also told when it is first seen."""
        found = health.symptoms(line, self._critic.v_min, self._critic.v_max)
        for name, text in found.items():
            if name not in self.counters.warnings:
                self.counters.warnings[name] = {"first": line["generation"], "generations": 0}
                self.progress.note(f"warning: generation {line['generation']}: {text}")
            self.counters.warnings[name]["generations"] += 1
            self.counters.warnings[name]["last"] = text
        return {f"warning_{name}": int(name in found) for name in ("values", "gradients")}

    @property
    def warnings(self) -> list[str]:
        """What the user should know about the learner, at the end."""
        return [
            f"in {w['generations']} of {self.counters.generation} generations, first in {w['first']}: {w['last']}"
            for w in self.counters.warnings.values()
        ]

    def _require_memory(self) -> None:
        """Refuse a state that cannot fit, rather than be ended by the kernel when it has half filled up."""
        shapes = self._init.eval_shape(jax.random.key(0))  # what it traces, the first call uses again
        needed = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(shapes))
        present = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        if needed > present:
            raise UserError(
                f"the state of this run needs {needed / 1e9:.0f} GB, and this machine has {present / 1e9:.0f} GB; "
                "lower replay.capacity or archive.capacity"
            )

    def _save_if_due(self) -> None:
        run, done = self.config.run, self.counters
        by_time = time.monotonic() - self._saved_at >= 60 * run.checkpoint_minutes
        every = run.checkpoint_generations
        by_count = every > 0 and self.pending is None and done.generation % every == 0
        if self._unsaved and (by_time or by_count) and not self.finished:
            self.progress.phase("saving")
            self.save()

    def _tick(self) -> None:
        now = time.monotonic()
        self.counters.wall_s += now - self._clock
        self._clock = now

    @contextlib.contextmanager
    def _timed(self, pending: Pending, phase: str, done: int = 0, total: int = 0) -> Iterator[None]:
        self.progress.phase({"evaluate": "evaluating", "learn": "learning"}.get(phase, f"{phase}ing"), done, total)
        before = time.monotonic()
        yield
        pending.times[phase] += time.monotonic() - before

    def _metadata(self) -> dict[str, Any]:
        """What a reader of the repertoire has to know."""
        policy = getattr(self.task, "policy", None)
        return {
            "task": dataclasses.asdict(self.config.task),
            "algorithm": self.config.algorithm,
            "policy": dataclasses.asdict(policy) if policy is not None else None,
            "descriptor_bounds": self.task.descriptor_bounds,
            "reward_offset": self.task.reward_offset,
            "generation": self.counters.generation,
            "env_steps": self.counters.env_steps,
            "versions": versions(),
        }


def versions() -> dict[str, str]:
    """What decides whether a result can be had again."""
    packages = {name: importlib.metadata.version(name) for name in ("jax", "jaxlib", "brax", "mujoco", "mujoco-mjx")}
    return {"qdhuac": qdhuac.__version__, "python": platform.python_version(), "numpy": np.__version__, **packages}


def _newcomers(before: Individuals, after: Individuals, most: int) -> tuple[Array, Individuals]:
    """The slots [most] that changed hands, -1 where there are no more, and who is there now, without genotypes."""
    (slots,) = jnp.nonzero(before.provenance.id != after.provenance.id, size=most, fill_value=-1)
    return slots, jax.tree.map(lambda x: x[slots], after._replace(genotypes=None))


def _everybody(archive: Individuals) -> tuple[np.ndarray, Individuals]:
    """The occupied slots as `_newcomers` gives them."""
    slots = np.arange(len(archive.fitness))
    return np.where(np.isfinite(archive.fitness), slots, -1), archive


def _shortest(values: np.ndarray) -> list[Any]:
    """For JSON: of each float the fewest digits that give it back."""
    if values.dtype.kind == "f":
        return np.array([float(str(v)) for v in values.reshape(-1)]).reshape(values.shape).tolist()
    return values.tolist()


def _strong(tree: Any) -> Any:
    """Without weak types, which a checkpoint does not keep: a resumed run must be the same program."""

    def strong(x: Array) -> Array:
        return x if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else jax.lax.convert_element_type(x, x.dtype)

    return jax.tree.map(strong, tree)


def _is_count(name: str) -> bool:
    """Sums over a chunk; every other number that `learn` returns is a mean over it."""
    return name == "skipped_updates" or name.startswith("count_")


def _plain(value: Any) -> int | float | None:
    """A scalar for JSON, which has no nan and no infinity."""
    number = value.item()
    return None if isinstance(number, float) and not math.isfinite(number) else number


def _add(total: float | None, value: float | None) -> float | None:
    return None if total is None or value is None else total + value
