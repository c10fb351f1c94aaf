"""The host loop: asks, evaluates, tells, lets learn, writes down. It never knows which algorithm it runs."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from qdhuac import sharding as devices
from qdhuac.config import Config
from qdhuac.errors import RunFailed, UserError
from qdhuac.learning.replay import ReplayState
from qdhuac.store import checkpoint
from qdhuac.store.arrays import flatten, unflatten
from qdhuac.store.run_folder import RunDir
from qdhuac.training.display import Progress
from qdhuac.training.program import Ring
from qdhuac.training.recorder import Books, Counters, Pending, timed
from qdhuac.training.signals import Stop
from qdhuac.types import Algorithm, Task


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
        self.books = Books(config, task, algorithm, folder, progress)
        self.progress = self.books.progress
        self.stop = stop if stop is not None else Stop()
        self.ring = ring = Ring.of(task, algorithm)
        self.leads = jax.process_index() == 0  # of several processes, the one that keeps the run folder
        several = devices.count() > 1
        self._places = _places(jax.eval_shape(ring.init, jax.random.key(0))) if several else None

        def compiled(function: Any, *places: Any, **options: Any) -> Any:
            if several:
                options["out_shardings"] = places if len(places) > 1 else places[0]
            return jax.jit(function, **options)

        every = devices.EVERYWHERE
        self._init = compiled(ring.init, self._places)
        self._ask = compiled(ring.ask, every, every)
        self._tell = compiled(ring.tell, self._places, every, every, donate_argnums=0)
        self._learn = compiled(ring.learn, self._places, every, donate_argnums=0)

    @property
    def counters(self) -> Counters:
        """What has been done so far."""
        return self.books.counters

    def start(self, runs: int = 1) -> None:
        """Begin at generation 0, as one of so many runs side by side."""
        self._require_memory(runs)
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
            self.state = devices.put(unflatten(template, found.arrays, str(found.path)), self._places)
        self.books.reopen(found)
        try:
            checkpoint.set_aside(self.folder.checkpoints, found)
        except OSError as error:
            raise RunFailed(f"{self.folder.checkpoints}: cannot be changed ({error.strerror or error})") from None
        for text in self.folder.notes:
            self.progress.note(f"warning: {text}")

    def run(self) -> bool:
        """Until the goal (True) or a stop signal (False); the state is saved either way."""
        books = self.books
        books.start_clock()
        while not books.finished:
            if books.pending is None:
                self._collect()
            if books.pending is not None and self._learn_what_is_owed(books.pending):
                books.end_generation()
                self._check_budget()
            if self.stopped:
                break
            self._save_if_due()
        self.progress.phase("saving")
        if devices.agreed(self.leads and books.unsaved):
            self.save()
        return books.finished

    @property
    def stopped(self) -> bool:
        """A signal came, here or in another process of the same run."""
        if jax.process_count() == 1:
            return bool(self.stop)
        # What all agree on, and nothing else: a signal that comes meanwhile is for the next time.
        self.stop.elsewhere = devices.agreed(self.stop.signal or 0) or None
        return self.stop.elsewhere is not None

    def save(self) -> None:
        """A checkpoint of everything, and the repertoire beside it."""
        arrays = flatten(devices.gathered(self.state))
        if self.leads:
            self.books.save(arrays)

    # One generation

    def _collect(self) -> None:
        """Ask, evaluate, tell; a stop signal ends it before the state has changed."""
        pending = Pending({})
        with timed(self.progress, [pending], "ask"):
            emission, key = jax.block_until_ready(self._ask(self.state))
        if self.stopped:
            return
        with timed(self.progress, [pending], "evaluate"), self._kept():
            evaluation = self.task.evaluate(emission.genotypes, key, emission.exploration)
            evaluation = jax.block_until_ready(devices.of_leader(evaluation))
        if self.stopped:
            return
        self.books.unsaved = True
        with timed(self.progress, [pending], "tell"):
            self.state, record, newcomers = self._tell(self.state, emission, evaluation)
            record, newcomers = jax.device_get((record, newcomers))
            self.books.told(pending, record, newcomers)

    @contextlib.contextmanager
    def _kept(self) -> Iterator[None]:
        """Whatever a task of the user's own does, what has been learnt so far is not lost."""
        try:
            yield
        except Exception:
            if self.counters.generation and self.books.unsaved and jax.process_count() == 1:
                self.save()
            raise

    def _learn_what_is_owed(self, pending: Pending) -> bool:
        """The generation's updates, in chunks; False if a stop signal came before the last one."""
        while (owed := self.books.owed) > 0:
            if self.stopped:
                return False
            self._save_if_due()
            n = min(self.config.run.chunk, owed)
            self.books.unsaved = True
            with timed(self.progress, [pending], "learn", pending.learnt, pending.learnt + owed):
                self.state, metrics = self._learn(self.state, np.int32(n))
                metrics = jax.device_get(metrics)
            self.books.learnt(metrics, n)
            self._check_budget()
        return True

    # Bookkeeping

    def _check_budget(self) -> None:
        """Beyond the budget of failures save and give up."""
        if text := self.books.too_many_failures:
            self.save()
            raise RunFailed(text)

    def _require_memory(self, runs: int) -> None:
        """Refuse states that cannot fit, rather than be ended when they have half filled up."""
        shapes = self._init.eval_shape(jax.random.key(0))  # what it traces, the first call uses again
        sizes = jax.tree.map(lambda leaf: leaf.size * leaf.dtype.itemsize, shapes)
        present, where = devices.memory()
        if present is None:
            present, where = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), "this machine"
        elif self._places is not None:
            cut = lambda size, place: size // (devices.count() if place == devices.CUT else 1)  # noqa: E731
            sizes = jax.tree.map(cut, sizes, self._places)
        needed = runs * sum(jax.tree.leaves(sizes))
        if needed > present:
            whose = "the state of this run needs" if runs == 1 else f"the states of these {runs} runs need"
            raise UserError(
                f"{whose} {needed / 1e9:.0f} GB, and {where} has {present / 1e9:.0f} GB; "
                "lower replay.capacity or archive.capacity"
            )

    def _save_if_due(self) -> None:
        if devices.agreed(self.leads and self.books.due):
            self.progress.phase("saving")
            self.save()


def _places(state: Any) -> Any:
    """Where the parts of a state live on several devices: the rows of a replay buffer are cut, the rest is on all."""

    def place(part: Any) -> Any:
        if isinstance(part, ReplayState):
            return jax.tree.map(lambda _: devices.EVERYWHERE, part)._replace(rows=devices.CUT)
        return devices.EVERYWHERE

    return jax.tree.map(place, state, is_leaf=lambda part: isinstance(part, ReplayState))
