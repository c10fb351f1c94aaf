"""Runs that differ in nothing but their seed, side by side in one program. Each has a run folder like any other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from qdhuac.config import replace
from qdhuac.errors import RunFailed
from qdhuac.store.arrays import flatten
from qdhuac.training.display import Progress, Silent
from qdhuac.training.loop import Runner
from qdhuac.training.recorder import Books, Pending, timed
from qdhuac.types import Evaluation


class Seeds:
    """Runners that have been started or restored, from here on in step; `S` of them."""

    def __init__(self, runners: Sequence[Runner], progress: Progress) -> None:
        first = runners[0]
        self.runners, self.task, self.stop, self.progress = list(runners), first.task, first.stop, progress
        self._chunk = first.config.run.chunk
        self._ask = jax.jit(jax.vmap(first.ring.ask))
        self._tell = jax.jit(jax.vmap(first.ring.tell), donate_argnums=0)
        self._learn = jax.jit(jax.vmap(first.ring.learn), donate_argnums=0)
        self._saved: set[int] = set()  # runs that have reached their goal and are not looked at any more

    @property
    def books(self) -> list[Books]:
        """Of the runs that still go on."""
        return [runner.books for i, runner in enumerate(self.runners) if i not in self._saved]

    def run(self) -> bool:
        """Until all goals are reached (True) or a stop signal came (False); the states are saved either way."""
        if not self._catch_up():
            return False
        self.state = _stack([runner.state for runner in self.runners])
        for runner in self.runners:
            del runner.state  # it would be in memory twice
            runner.books.start_clock()
        self._save_finished()
        while self.books:
            if self.books[0].pending is None:
                self._collect()
            if self.books[0].pending is not None and self._learn_what_is_owed():
                self.progress.generation(_mean([books.end_generation() for books in self.books]))
                self._check_budget()
            self._save_finished()
            if self.stop:
                break
            self._save_if_due()
        self.progress.phase("saving")
        self._save([i for i in range(len(self.runners)) if i not in self._saved])
        return not self.books

    def _catch_up(self) -> bool:
        """Saved one after the other, they may have stopped at different moments: those behind go on alone first."""
        level = max(r.counters.generation + (r.books.pending is not None) for r in self.runners)
        for runner in self.runners:
            if runner.counters.generation < level and not runner.books.finished:
                config = runner.books.config
                runner.books.config = replace(config, {"run.generations": level})
                reached = runner.run()
                runner.books.config = config
                if not reached:
                    return False
        return True

    def _collect(self) -> None:
        """Ask, evaluate, tell; a stop signal ends it before the states have changed."""
        pending = [Pending({}) for _ in self.runners]
        with timed(self.progress, pending, "ask"):
            emission, keys = jax.block_until_ready(self._ask(self.state))
        if self.stop:
            return
        with timed(self.progress, pending, "evaluate"):
            evaluation = jax.block_until_ready(self._evaluate(emission, keys))
        if self.stop:
            return
        with timed(self.progress, pending, "tell"):
            self.state, record, newcomers = self._tell(self.state, emission, evaluation)
            told = jax.device_get((record, newcomers))
        for i, runner in enumerate(self.runners):
            if i not in self._saved:
                runner.books.unsaved = True
                runner.books.told(pending[i], *_one(told, i))

    def _evaluate(self, emission: Any, keys: Any) -> Evaluation:
        """As one run would evaluate its own: all at once, or one run after the other."""
        genotypes, exploration, runs = emission.genotypes, emission.exploration, len(self.runners)
        if not getattr(self.task, "takes_runs", False):
            return _stack([self.task.evaluate(_one(genotypes, i), keys[i], _one(exploration, i)) for i in range(runs)])
        # One long batch, not a vmap: that would turn the branches of a rollout into both ways at every step.
        genotypes, exploration = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), (genotypes, exploration))
        found = self.task.evaluate(genotypes, keys, exploration)
        return jax.tree.map(lambda x: x.reshape(runs, -1, *x.shape[1:]), found)

    def _learn_what_is_owed(self) -> bool:
        """The generation's updates, in chunks; False if a stop signal came before the last one."""
        while True:
            owed = np.array([0 if i in self._saved else r.books.owed for i, r in enumerate(self.runners)])
            if not owed.any():
                return True
            if self.stop:
                return False
            self._save_if_due()
            updates = np.minimum(owed, self._chunk).astype(np.int32)
            pending = [books.pending for books in self.books if books.pending is not None]
            done = pending[0].learnt
            with timed(self.progress, pending, "learn", done, done + int(owed.max())):
                self.state, metrics = self._learn(self.state, updates)
                metrics = jax.device_get(metrics)
            for i, n in enumerate(updates):
                if n:
                    self.runners[i].books.unsaved = True
                    self.runners[i].books.learnt(_one(metrics, i), int(n))
            self._check_budget()

    # Saving

    def _save(self, which: Sequence[int]) -> None:
        for i in which:
            if self.runners[i].books.unsaved:
                self.runners[i].books.save(flatten(_one(self.state, i)))

    def _save_finished(self) -> None:
        done = [i for i, r in enumerate(self.runners) if i not in self._saved and r.books.finished]
        self._save(done)
        self._saved |= set(done)

    def _save_if_due(self) -> None:
        if any(books.due for books in self.books):
            self.progress.phase("saving")
            self._save([i for i in range(len(self.runners)) if i not in self._saved])

    def _check_budget(self) -> None:
        """One run beyond its budget of failures ends all of them."""
        for runner in self.runners:
            if text := runner.books.too_many_failures:
                self._save([i for i in range(len(self.runners)) if i not in self._saved])
                raise RunFailed(f"{runner.folder.path}: {text}")


class OneOfSeveral(Silent):
    """What one of the runs reports to: its notes are shown under its name."""

    def __init__(self, display: Progress, name: str) -> None:
        self._display, self._name = display, name

    def note(self, text: str) -> None:
        self._display.note(f"{self._name}: {text}")


def _mean(lines: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Of every number that all lines have; whole numbers stay whole."""
    mean = dict(lines[0])
    for name, value in mean.items():
        values = [line[name] for line in lines if line.get(name) is not None]
        if len(values) == len(lines):
            mean[name] = (round if isinstance(value, int) else float)(sum(values) / len(values))
    return mean


def _stack(trees: Sequence[Any]) -> Any:
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)


def _one(tree: Any, i: int) -> Any:
    return jax.tree.map(lambda leaf: leaf[i], tree)
