"""The training loop: ask, evaluate, tell, learn, record and save until the goal is reached.

It trains a list of runs that differ only in their seeds. A single run is compiled as it is; several runs are compiled
as one program, mapped over the runs.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from qdhuac.config import OWN, Config
from qdhuac.errors import RunFailed, UserError
from qdhuac.store.arrays import flatten, unflatten
from qdhuac.store.run_folder import RunDir
from qdhuac.tasks.base import Task
from qdhuac.text import PHASES
from qdhuac.training import distributed
from qdhuac.training.display import Progress, mean
from qdhuac.training.program import Program
from qdhuac.training.recorder import Recorder
from qdhuac.training.signals import Stop
from qdhuac.types import Algorithm, Emission, Evaluation


class Trainer:
    """Trains runs: `start` or `restore`, then `run`.

    Args:
        runs: configuration and locked folder of each run.
        task, algorithm: the same for all runs.
        progress: shows phases, messages, and the mean metrics of the runs.
        stop: true once the runs shall stop.
    """

    def __init__(
        self,
        runs: Sequence[tuple[Config, RunDir]],
        task: Task,
        algorithm: Algorithm,
        progress: Progress | None = None,
        stop: Stop | None = None,
    ) -> None:
        self.task, self.algorithm = task, algorithm
        self.progress = progress if progress is not None else Progress()
        self.stop = stop if stop is not None else Stop()
        self._several = len(runs) > 1
        self.recorders = [Recorder(c, f, task, algorithm, self._warn(f.path.name)) for c, f in runs]
        self.state: Any = None  # of several runs: stacked along a new first axis

        program, over_runs = Program.of(task, algorithm), jax.vmap if self._several else lambda function: function
        self._shapes = jax.eval_shape(program.init, jax.random.key(0))
        self._places, every = distributed.placement(self._shapes), distributed.EVERYWHERE
        self._init = distributed.jit(program.init, self._places)
        self._ask = distributed.jit(over_runs(program.ask), (every, every))
        self._tell = distributed.jit(over_runs(program.tell), (self._places, every, every), donate_argnums=0)
        self._learn = distributed.jit(over_runs(program.learn), (self._places, every), donate_argnums=0)

    def start(self) -> None:
        """Begin at generation 0. Raises UserError if the states do not fit into memory."""
        distributed.require_memory(self._shapes, self._places, len(self.recorders))
        self.state = self._joined([self._initial(recorder) for recorder in self.recorders])

    def restore(self) -> None:
        """Continue from the newest intact checkpoints. Raises UserError if the runs are at different generations."""
        distributed.require_memory(self._shapes, self._places, len(self.recorders))
        states = []
        for recorder in self.recorders:
            found = recorder.restore()
            if found.arrays is None:  # generation 0
                states.append(self._initial(recorder))
            else:
                states.append(distributed.put(unflatten(self._shapes, found.arrays, str(found.path)), self._places))
        # A crash between two saves can do this. A single program needs all runs to be in the same phase.
        reached = {(r.counters.generation, r.pending is not None) for _, r in self._unfinished()}
        if len(reached) > 1:
            one = self.recorders[0].folder.path
            raise UserError(f"{one.parent}: its runs are not at the same generation; resume each alone, such as {one}")
        self.state = self._joined(states)

    def run(self) -> bool:
        """Train to the goal, and save.

        Returns:
            True, or False if the runs were stopped before.

        Raises:
            RunFailed: the runs have reached their goal, but a run has an empty archive.
        """
        for recorder in self.recorders:
            recorder.start_clock()
        while (going := self._unfinished()) and not self._stopped():
            if going[0][1].pending is None and not self._collect(going):
                break
            if not self._learn_what_is_owed(going):
                break
            self._end_generation(going)
            self._save_if_due()
        self.progress.phase("saving")
        self.save()
        finished = not self._unfinished()
        fitness = np.asarray(self.state.algorithm.archive.fitness)
        for i, recorder in enumerate(self.recorders if finished else ()):
            if not np.isfinite(self._one(fitness, i)).any():
                raise RunFailed(f"{recorder.folder.path}: nothing was ever archived; {recorder.failures}")
        return finished

    def save(self) -> None:
        """Write a checkpoint of each run that has changed since its last one."""
        for i, recorder in enumerate(self.recorders):
            if distributed.agreed(distributed.leads() and recorder.unsaved):
                arrays = flatten(distributed.gathered(self._one(self.state, i)))
                if distributed.leads():
                    recorder.save(arrays)

    # A generation. `going`: the unfinished runs with their indices.

    def _collect(self, going: Sequence[tuple[int, Recorder]]) -> bool:
        """Ask, evaluate and tell. False if a stop signal came before `tell`: the states have not changed."""
        times = dict.fromkeys(PHASES, 0.0)
        with self._timed("ask", times):
            emission, keys = jax.block_until_ready(self._ask(self.state))
        if self._stopped():
            return False
        with self._timed("evaluate", times):
            evaluation = self._evaluate(emission, keys)
        if self._stopped() or evaluation is None:
            return False
        with self._timed("tell", times):
            self.state, metrics, told = self._tell(self.state, emission, evaluation)
            metrics, told = jax.device_get((metrics, told))
        for i, recorder in going:
            recorder.told(self._one(metrics, i), self._one(told, i), dict(times))
        return True

    def _evaluate(self, emission: Emission, keys: Any) -> Evaluation | None:
        """Evaluate the genotypes of each run; None after a stop. If it fails, the runs are saved first."""
        alone = jax.process_count() == 1
        own = alone and self.recorders[0].config.task.name == OWN
        try:
            if not own:
                return self._simulate(emission, keys)
            return self.stop.interruptible(lambda: self._simulate(emission, keys), self._rescue)
        except (Exception, SystemExit) as error:
            if alone and any(recorder.counters.generation for recorder in self.recorders):
                self.save()
            if isinstance(error, SystemExit):
                raise RunFailed(f"the task called sys.exit({error})") from None
            raise

    def _simulate(self, emission: Emission, keys: Any) -> Evaluation:
        genotypes, exploration, runs = emission.genotypes, emission.exploration, range(len(self.recorders))
        if not self._several:
            found = self.task.evaluate(genotypes, keys, exploration)
        elif self.task.spec.takes_runs:
            # One batch, because under vmap both branches of a rollout would be computed at every step.
            flat = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), (genotypes, exploration))
            found = self.task.evaluate(flat[0], keys, flat[1])
            found = jax.tree.map(lambda x: x.reshape(len(runs), -1, *x.shape[1:]), found)
        else:
            each = [self.task.evaluate(*(self._one(x, i) for x in (genotypes, keys, exploration))) for i in runs]
            found = self._joined(each)
        return jax.block_until_ready(distributed.of_leader(found))

    def _rescue(self) -> None:
        """Save while the task hangs: the states do not change before its results are told."""
        self.save()
        self.progress.close()
        print("saved; the task does not return, so the process ends", flush=True)

    def _learn_what_is_owed(self, going: Sequence[tuple[int, Recorder]]) -> bool:
        """Make the updates of the generation in chunks. False if a stop signal came before the last one."""
        owed = np.zeros(len(self.recorders), np.int32)
        while True:
            for i, recorder in going:
                owed[i] = max(0, recorder.owed)
            if not owed.any():
                return True
            if self._stopped():
                return False
            self._save_if_due()
            updates = np.minimum(owed, going[0][1].config.run.chunk)
            pending = [recorder.pending for _, recorder in going if recorder.pending is not None]
            done = pending[0].learnt
            with self._timed("learn", *(one.times for one in pending), done=done, total=done + int(owed.max())):
                self.state, metrics = self._learn(self.state, updates if self._several else updates[0])
                metrics = jax.device_get(metrics)
            for i, recorder in going:
                if updates[i]:
                    recorder.learnt(self._one(metrics, i), int(updates[i]))
            self._check_failures(going)

    def _end_generation(self, going: Sequence[tuple[int, Recorder]]) -> None:
        """Write the metrics and show their mean."""
        self.progress.generation(mean([recorder.end_generation() for _, recorder in going]))
        self._check_failures(going)

    def _check_failures(self, going: Sequence[tuple[int, Recorder]]) -> None:
        """Save, and raise RunFailed, if a run has exceeded its budget of failures."""
        for _, recorder in going:
            if text := recorder.too_many_failures:
                self.save()
                raise RunFailed(f"{recorder.folder.path}: {text}")

    def _save_if_due(self) -> None:
        if distributed.agreed(distributed.leads() and any(recorder.due for recorder in self.recorders)):
            self.progress.phase("saving")
            self.save()

    # Runs

    def _unfinished(self) -> list[tuple[int, Recorder]]:
        """The runs that have not reached their goal, with their indices."""
        return [(i, recorder) for i, recorder in enumerate(self.recorders) if not recorder.finished]

    def _initial(self, recorder: Recorder) -> Any:
        return self._init(jax.random.key(recorder.config.run.seed))

    def _joined(self, trees: Sequence[Any]) -> Any:
        """Stack the trees of all runs."""
        return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees) if self._several else trees[0]

    def _one(self, tree: Any, i: int) -> Any:
        """The part of run `i` in a tree of all runs."""
        return jax.tree.map(lambda leaf: leaf[i], tree) if self._several else tree

    def _warn(self, name: str) -> Callable[[str], None]:
        """Shows the warnings of a run; if there are several runs, with its name."""
        return lambda text: self.progress.note(f"{name}: {text}" if self._several else text, warning=True)

    def _stopped(self) -> bool:
        return distributed.stopped(self.stop)

    @contextlib.contextmanager
    def _timed(self, phase: str, *times: dict[str, float], done: int = 0, total: int = 0) -> Iterator[None]:
        """Show the phase and add its duration to each of `times`."""
        self.progress.phase(PHASES[phase], done, total)
        before = time.monotonic()
        yield
        for one in times:
            one[phase] += time.monotonic() - before
