"""The robots on MuJoCo's C engine: the same tasks as on MJX, several times as fast on a CPU.

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
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import mujoco
import numpy as np

from qdhuac.learning.run_policy import layers_of
from qdhuac.tasks import engine
from qdhuac.tasks.base import Trajectory
from qdhuac.tasks.engine import Network, Rows, Simulation
from qdhuac.tasks.locomotion import Locomotion
from qdhuac.types import Array, Evaluation, Exploration, Genotype, Transition


class NativeLocomotion(Locomotion):
    """A `Task`. JAX compiles nothing but the drawing of random numbers.

    `change` makes another model of the same sizes from the robot's, such as a damaged one.
    """

    backend = "native"

    def __init__(
        self,
        name: str,
        *,
        threads: int | None = None,
        change: Callable[[Any], Any] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(name, **options)
        self.model = engine.native_model(self.model)
        if change is not None:
            self.model = change(self.model)
        self.threads = threads or _cores()
        after = self.spec.after_termination
        self._restarts = self.robot.can_terminate and after == "reset"
        self._stops = self.robot.can_terminate and after == "stop"
        self._simulations: queue.SimpleQueue[Simulation] = queue.SimpleQueue()
        for _ in range(self.threads):
            self._simulations.put(Simulation(self.model))
        self._draw = jax.jit(self._draws, static_argnums=(1, 2))
        self._summary = jax.jit(self._summarise)

    def evaluate(self, genotypes: Genotype, key: Array, exploration: Exploration | None = None) -> Evaluation:
        """One evaluation of each genotype. The result does not depend on the number of threads."""
        genotypes, exploration = jax.tree.map(np.asarray, (genotypes, exploration))
        batch = len(jax.tree.leaves(genotypes)[0])
        draws = jax.tree.map(np.asarray, self._draw(key, batch, exploration is not None))
        rows = self._empty_rows(batch)

        def one(i: int) -> None:
            explores = exploration is not None and exploration.active[i]
            noise, qpos, qvel = (np.ascontiguousarray(x[:, i]) for x in draws)
            network, mine = self._network(i, genotypes, exploration), Rows(*(x[i] for x in rows))
            simulation = self._simulations.get()
            physics = (self.tables, simulation.addresses, simulation.fields)
            try:
                engine.run(*physics, network, noise if explores else noise[:, :0].copy(), qpos, qvel, self._stops, mine)
            finally:  # the other policies would wait for it for ever
                self._simulations.put(simulation)

        with _no_warnings(), ThreadPoolExecutor(min(self.threads, batch)) as pool:
            list(pool.map(one, range(batch)))
        return self._evaluation(rows)

    def episode(self, genotype: Genotype, key: Array) -> Trajectory:
        """The first episode of one genotype, with every pose."""
        t, simulation = self.tables, Simulation(self.model)
        physics = (simulation.addresses, simulation.fields)
        network = self._network(0, jax.tree.map(lambda x: np.asarray(x)[None], genotype), None)
        start = jax.tree.map(lambda x: np.array(x[0, 0], float), self._draw(key, 1, False)._replace(noise=None))
        rows = jax.tree.map(lambda x: x[0], self._empty_rows(1))
        silence, poses = np.zeros(0, np.float32), []
        with _no_warnings():
            engine.restart(*physics, start.qpos, start.qvel)
            poses.append(simulation.data.qpos.copy())
            engine.observe(t, simulation.fields, rows.obs[0])
            for i in range(self.spec.episode_length):
                before = simulation.fields[t.progress[0]][t.progress[1]]
                engine.act(network, rows.obs[i], silence, rows.action[i])
                engine.step(t, *physics, rows.action[i])
                engine.measure(t, simulation.fields, rows.features[i])
                engine.observe(t, simulation.fields, rows.next_obs[i])
                rows.gain[i] = simulation.fields[t.progress[0]][t.progress[1]] - before
                poses.append(simulation.data.qpos.copy())
                if i + 1 < len(rows.obs):
                    rows.obs[i + 1] = rows.next_obs[i]
                if not np.isfinite(poses[-1]).all() or engine.failed(t, simulation.fields):
                    break
        steps = len(poses) - 1
        contacts = rows.features[:steps] <= 0.0
        reward = self.reward(rows.gain[:steps], rows.action[:steps])
        return Trajectory(np.array(poses), reward, contacts[:, :0] if self.robot.omni else contacts, self.dt)

    def _network(self, i: int, genotypes: Genotype, exploration: Exploration | None) -> Network:
        kernels, biases = zip(*((kernel[i], bias[i]) for kernel, bias in layers_of(genotypes)), strict=True)
        if exploration is None:  # the head is never looked at
            return Network(kernels, biases, (kernels[-1], biases[-1]))
        return Network(kernels, biases, (exploration.head["kernel"][i], exploration.head["bias"][i]))

    def _empty_rows(self, batch: int) -> Rows:
        def zeros(*shape: int, dtype: Any = np.float32) -> np.ndarray:
            return np.zeros((batch, self.spec.episode_length, *shape), dtype)

        obs, action, size = (self.policy.obs_size,), (self.policy.action_size,), self.spec.descriptor_size
        return Rows(zeros(*obs), zeros(*action), zeros(*obs), zeros(), zeros(), zeros(dtype=bool), zeros(size))

    def _evaluation(self, rows: Rows) -> Evaluation:
        reward = np.where(rows.living if self._stops else True, self.reward(rows.gain, rows.action), 0.0)
        reward = reward.astype(np.float32)
        features = rows.features if self.robot.omni else rows.features <= 0.0
        features = features.astype(np.float32)
        fitness, descriptor, steps, valid = self._summary(reward, features, rows.living)
        columns = (rows.obs, rows.action, reward, rows.terminal, rows.next_obs)
        transitions = Transition(*map(jnp.asarray, columns))
        if self.spec.contacts:
            # Rows that were never simulated are zero throughout, as on the other engines.
            transitions = transitions._replace(contacts=jnp.where(valid[..., None], features, 0.0))
        return Evaluation(fitness, descriptor, steps, transitions, valid)

    def _summarise(self, reward: Array, features: Array, living: Array) -> tuple[Array, ...]:
        """Fitness, descriptor, steps and valid rows."""
        valid = living if self._stops else jnp.ones_like(living)
        fitness = jnp.sum(jnp.where(living, reward, 0.0), axis=1)
        return fitness, jax.vmap(self.describe)(features, living), jnp.sum(valid, axis=1, dtype=jnp.int32), valid

    def _draws(self, key: Array, batch: int, explore: bool) -> Draws:
        """The random numbers of an evaluation, as `rollout` draws them."""
        key_reset, key_noise = jax.random.split(key)
        times = jnp.arange(self.spec.episode_length)

        def keys(t: Array) -> Array:
            return jax.random.split(jax.random.fold_in(key_reset, t), batch)

        def noises(t: Array) -> Array:
            return jax.random.normal(jax.random.fold_in(key_noise, t), (batch, self.policy.action_size))

        # A loop for the keys and one flat vmap for the draws compile in half the time of vmaps all the way.
        resets = jax.lax.map(keys, times if self._restarts else times[:1])
        starts = jax.vmap(self.start)(resets.reshape(-1))
        qpos, qvel = (x.reshape(*resets.shape, -1) for x in starts)
        noise = jax.lax.map(noises, times) if explore else jnp.zeros((self.spec.episode_length, batch, 0))
        return Draws(noise, qpos, qvel)


class Draws(NamedTuple):
    """What is random: where episodes begin if they begin at that step, and the noise of exploration."""

    noise: Any  # [T, B, action_size], or [T, B, 0]
    qpos: Any  # [T or 1, B, nq]
    qvel: Any  # [T or 1, B, nv]


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
