"""Any Gymnasium environment with continuous actions as a task, simulated in processes of its own.

Every policy runs from its first step to its last in one process, so that nothing waits for the slowest environment of
a batch. The result does not depend on the number of processes.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from qdhuac.errors import RunFailed, UserError
from qdhuac.learning.policy import Policy
from qdhuac.tasks import checks as own
from qdhuac.tasks import gym_worker
from qdhuac.tasks.gym_worker import Features, Make, Rows, Simulator
from qdhuac.types import Array, Evaluation, Exploration, Genotype, Task, Transition

Describe = Callable[[np.ndarray], Any]  # to D numbers


def mean_of_steps(features: np.ndarray) -> np.ndarray:
    """Descriptor: the mean of each feature over the first episode. [T, F] -> [F]"""
    return features.mean(0)


class GymnasiumTask(Task):
    """A `Task`. `make` is the name of an environment or a function that makes one.

    `features(env)` is called after each step with the unwrapped environment and gives a list of numbers;
    `describe(features)` makes the descriptor from those of the first episode [T, F]. Both, and `make`, must be
    functions of a module, as other processes call them.
    """

    def __init__(
        self,
        make: Make,
        features: Features | None = None,
        *,
        descriptor_bounds: tuple[Sequence[float], Sequence[float]],
        support: tuple[float, float],
        describe: Describe = mean_of_steps,
        episode_length: int = 1000,
        after_termination: str = "stop",
        reward_offset: float = 0.0,
        hidden: tuple[int, ...] = (256, 256),
        store_contacts: bool = False,
        workers: int | None = None,
    ) -> None:
        bounds = own.check_options(descriptor_bounds, episode_length, after_termination, support, hidden)
        if not callable(features):
            raise UserError("features: missing; give a function from the environment to what the descriptor is made of")
        if not callable(describe):
            raise UserError("describe: missing; give a function from the features of an episode to the descriptor")
        if workers is not None and (type(workers) is not int or workers < 1):
            raise UserError(f"workers={workers!r}: expected a whole number from 1")
        self.descriptor_bounds, self.support, self.reward_offset = bounds, support, reward_offset
        self.episode_length, self.after_termination = episode_length, after_termination
        self.describe, self.store_contacts = describe, store_contacts
        self._make, self._features = make, features
        self._workers = workers if workers is not None else len(os.sched_getaffinity(0))
        self._pool: ProcessPoolExecutor | None = None
        for name, function in (("make", make), ("features", features)):
            if self._workers > 1 and "<" in getattr(function, "__qualname__", ""):
                raise UserError(f"{name}: other processes cannot call a lambda or a local function; or set workers=1")
        # What is wrong is told here and now, by an environment in this process.
        self._local = Simulator(make, features)
        self._local.reset(0)
        seen = self._local.look()
        self._descriptor(seen[None], "after a reset")
        if store_contacts:
            own.check_contacts(len(seen), bounds)
        self.obs_size, self.action_size = self._local.obs_size, self._local.action_size
        space = self._local.env.action_space
        self.action_bounds = space.low.tolist(), space.high.tolist()
        self.policy = Policy(self.obs_size, self.action_size, tuple(hidden))

    def evaluate(self, genotypes: Genotype, key: Array, exploration: Exploration | None = None) -> Evaluation:
        """One evaluation of each genotype."""
        genotypes, exploration = jax.tree.map(np.asarray, (genotypes, exploration))
        layers = [genotypes[f"Dense_{n}"] for n in range(len(self.policy.hidden) + 1)]
        batch = len(layers[0]["bias"])
        seeds = np.asarray(jax.random.randint(key, (batch,), 0, 2**31 - 1))
        jobs = []
        for i in range(batch):
            head = None
            if exploration is not None and exploration.active[i]:
                head = exploration.head["kernel"][i], exploration.head["bias"][i]
            network = [(layer["kernel"][i], layer["bias"][i]) for layer in layers]
            jobs.append((network, head, int(seeds[i]), self.episode_length, self.after_termination == "stop"))
        found = self._simulate(jobs)
        rows = Rows(*(np.stack(column) for column in zip(*found, strict=True)))
        descriptor = np.stack(
            [self._descriptor(r.features[r.living], f"of individual {i}") for i, r in enumerate(found)]
        )
        contacts = jnp.asarray(rows.features) if self.store_contacts else None
        columns = (rows.obs, rows.action, rows.reward, rows.terminal, rows.next_obs)
        return Evaluation(
            fitness=jnp.asarray(np.where(rows.living, rows.reward, 0.0).sum(1, dtype=np.float32)),
            descriptor=jnp.asarray(descriptor),
            steps=jnp.asarray(rows.valid.sum(1), jnp.int32),
            transitions=Transition(*map(jnp.asarray, columns))._replace(contacts=contacts),
            valid=jnp.asarray(rows.valid),
        )

    def close(self) -> None:
        """End the processes."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
            self._pool = None

    def _simulate(self, jobs: list[Any]) -> list[Rows]:
        if self._workers < 2:
            return [gym_worker.episode(self._local, *job) for job in jobs]
        if self._pool is None:
            # Not forked: a copy of a process in which JAX has threads may hang.
            self._pool = ProcessPoolExecutor(
                self._workers,
                multiprocessing.get_context("spawn"),
                initializer=gym_worker.start,
                initargs=(self._make, self._features),
            )
        try:
            return list(self._pool.map(gym_worker.work, *zip(*jobs, strict=True)))
        except BrokenProcessPool:
            self._pool = None
            raise RunFailed(
                "a process that simulates has died; the environment crashed, or `make` or `features` is not a "
                "function of a module, or the script lacks: if __name__ == '__main__'"
            ) from None

    def _descriptor(self, features: np.ndarray, whose: str) -> np.ndarray:
        """What `describe` makes of the features; refused if it is not a descriptor."""
        found = np.asarray(self.describe(features), np.float32)
        own.check_shape(f"descriptor {whose}", found.shape, self.descriptor_bounds)
        return found
