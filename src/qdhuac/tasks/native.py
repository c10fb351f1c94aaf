"""Tasks from files on MuJoCo's C engine: the same as on MJX, several times as fast on a CPU.

Resets and noise are drawn as on MJX, so that a key starts the same episodes on both engines; ``docs/backends.md``
says how closely they agree from there on.

Every policy runs from its first step to its last in one compiled call that needs no lock of the interpreter's: threads
do not wait for each other, and a policy's weights stay in the processor's cache.
"""

from __future__ import annotations

import contextlib
import os
import queue
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import mujoco
import numpy as np

from qdhuac.learning.run_policy import layers_of
from qdhuac.tasks import engine, measures
from qdhuac.tasks.base import Trajectory
from qdhuac.tasks.engine import Episodes, Network, Noise, Rows, Simulation
from qdhuac.tasks.mujoco_task import MujocoTask
from qdhuac.tasks.task_file import TaskFile
from qdhuac.types import Array, Evaluation, Exploration, Genotype, Transition


class NativeTask(MujocoTask):
    """A `Task`. JAX compiles nothing but the drawing of random numbers.

    `change` makes another model of the same sizes from the task's, such as a damaged one. The other arguments are those
    of `MujocoTask`.
    """

    backend = "native"

    def __init__(
        self,
        task: str | Path | TaskFile,
        *,
        threads: int | None = None,
        change: Callable[[Any], Any] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(task, **options)
        self.model = engine.native_model(self.model)
        if change is not None:
            self.model = change(self.model)
        self.threads = threads or _cores()
        after = self.spec.after_termination
        self._restarts = self.file.can_terminate and after == "reset"
        self._stops = self.file.can_terminate and after == "stop"
        self._simulations: queue.SimpleQueue[Simulation] = queue.SimpleQueue()
        for _ in range(self.threads):
            self._simulations.put(Simulation(self.model))
        v = self.file.variation
        self._noise = Noise(float(v.observation_noise), float(v.push), v.push_every)
        self._draw = jax.jit(self._draws, static_argnums=(1, 2))
        self._summary = jax.jit(self._summarise)

    def evaluate(self, genotypes: Genotype, key: Array, exploration: Exploration | None = None) -> Evaluation:
        """One evaluation of each genotype. The result does not depend on the number of threads."""
        genotypes, exploration = jax.tree.map(np.asarray, (genotypes, exploration))
        batch = len(jax.tree.leaves(genotypes)[0])
        rows, no_poses = self._empty_rows(batch), np.zeros((0, self.model.nq))
        exploring, episodes = jax.tree.map(np.asarray, self._draw(key, batch, exploration is not None))

        def one(i: int) -> None:
            explores = exploration is not None and exploration.active[i]
            noise = np.array(exploring[:, i] if explores else exploring[:, i, :0])
            self._run(self._network(i, genotypes, exploration), noise, episodes, i, self._stops, rows, no_poses)

        with _no_warnings(), ThreadPoolExecutor(min(self.threads, batch)) as pool:
            list(pool.map(one, range(batch)))
        return self._evaluation(rows)

    def episode(self, genotype: Genotype, key: Array) -> Trajectory:
        """The first episode of one genotype, with every pose."""
        network = self._network(0, jax.tree.map(lambda x: np.asarray(x)[None], genotype), None)
        exploring, episodes = jax.tree.map(np.asarray, self._draw(key, 1, False))
        rows, poses = self._empty_rows(1), np.zeros((self.spec.episode_length + 1, self.model.nq))
        with _no_warnings():
            steps = self._run(network, np.array(exploring[:, 0]), episodes, 0, True, rows, poses)
        exploded = ~np.isfinite(poses[1 : steps + 1]).all(axis=1)
        steps = int(exploded.argmax()) + 1 if exploded.any() else steps
        reward = self._reward(rows)[0, :steps]
        feet = len(self.plan.feet)
        return Trajectory(poses[: steps + 1], reward, rows.measured[0, :steps, :feet] <= 0.0, self.dt)

    def _run(
        self, network: Network, noise: Any, episodes: Episodes, i: int, stops: bool, rows: Rows, poses: np.ndarray
    ) -> int:
        """Simulate the policy of row `i`. Returns the number of steps."""
        mine = Rows(*(x[i] for x in rows))
        begins = Episodes(*(np.array(x[:, i]) for x in episodes))  # copies, so that engine.run is compiled once
        simulation = self._simulations.get()
        physics = (self.tables, simulation.addresses, simulation.fields, simulation.varied)
        try:
            return engine.run(*physics, network, noise, begins, self._noise, stops, mine, poses)
        finally:  # the other policies would wait for it for ever
            self._simulations.put(simulation)

    def _network(self, i: int, genotypes: Genotype, exploration: Exploration | None) -> Network:
        kernels, biases = zip(*((kernel[i], bias[i]) for kernel, bias in layers_of(genotypes)), strict=True)
        if exploration is None:  # the head is never looked at
            return Network(kernels, biases, (kernels[-1], biases[-1]))
        return Network(kernels, biases, (exploration.head["kernel"][i], exploration.head["bias"][i]))

    def _empty_rows(self, batch: int) -> Rows:
        def zeros(*shape: int, dtype: Any = np.float32) -> np.ndarray:
            return np.zeros((batch, self.spec.episode_length, *shape), dtype)

        obs, action = self.policy.obs_size, self.policy.action_size
        measured, change = len(self.plan.feet) + len(self.plan.numbers), len(self.plan.moving)
        flags = zeros(), zeros(dtype=bool)
        return Rows(zeros(obs), zeros(action), zeros(obs), *flags, zeros(measured), zeros(change))

    def _reward(self, rows: Rows) -> np.ndarray:
        """The reward of every step. [B, T]"""
        before = np.zeros_like(rows.action)
        before[:, 1:] = np.where(rows.terminal[:, :-1, None] > 0.5, 0.0, rows.action[:, :-1])
        return self.reward(rows.measured, rows.change, rows.action, before)

    def _evaluation(self, rows: Rows) -> Evaluation:
        reward = np.where(rows.living if self._stops else True, self._reward(rows), 0.0).astype(np.float32)
        features = measures.features(self.plan, rows.measured)
        fitness, descriptor, steps, valid = self._summary(reward, features, rows.living)
        columns = (rows.obs, rows.action, reward, rows.terminal, rows.next_obs)
        transitions = Transition(*map(jnp.asarray, columns))
        if self.spec.contacts:
            # Rows that were never simulated are zero throughout, as on MJX.
            contacts = jnp.where(valid[..., None], self.contacts(features), 0.0)
            transitions = transitions._replace(contacts=contacts)
        return Evaluation(fitness, descriptor, steps, transitions, valid)

    def _summarise(self, reward: Array, features: Array, living: Array) -> tuple[Array, ...]:
        """Fitness, descriptor, steps and valid rows."""
        valid = living if self._stops else jnp.ones_like(living)
        fitness = jnp.sum(jnp.where(living, reward, 0.0), axis=1)
        return fitness, jax.vmap(self.describe)(features, living), jnp.sum(valid, axis=1, dtype=jnp.int32), valid

    def _draws(self, key: Array, batch: int, explore: bool) -> tuple[Array, Episodes]:
        """The random numbers of an evaluation, as `rollout` draws them: noise of the actions, and episodes [T, B]."""
        key_reset, key_noise = jax.random.split(key)
        times = jnp.arange(self.spec.episode_length)

        def keys(t: Array) -> Array:
            return jax.random.split(jax.random.fold_in(key_reset, t), batch)

        def noises(t: Array) -> Array:
            return jax.random.normal(jax.random.fold_in(key_noise, t), (batch, self.policy.action_size))

        # A loop for the keys and one flat vmap for the draws compile in half the time of vmaps all the way.
        resets = jax.lax.map(keys, times if self._restarts else times[:1])
        starts = jax.vmap(self.start)(resets.reshape(-1))
        episodes = jax.tree.map(lambda x: x.reshape(*resets.shape, *x.shape[1:]), starts)
        noise = jax.lax.map(noises, times) if explore else jnp.zeros((self.spec.episode_length, batch, 0))
        return noise, Episodes(*episodes)


@contextlib.contextmanager
def _no_warnings() -> Iterator[None]:
    """Keeps MuJoCo from writing to stderr and to a log file that a simulation exploded: its numbers say so."""
    previous = mujoco.get_mju_user_warning()
    mujoco.set_mju_user_warning(lambda message: None)
    try:
        yield
    finally:
        mujoco.set_mju_user_warning(previous)


def _cores() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
