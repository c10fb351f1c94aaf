"""The robots of `locomotion` on MuJoCo's C engine: the same tasks, several times as fast as MJX on a CPU.

Resets and noise are drawn as in `locomotion`, so that a key starts the same episodes on both engines;
``docs/backends.md`` says how closely they agree from there on.

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
import numpy as np

from qdhuac.config import check_choice
from qdhuac.environment import quiet_imports
from qdhuac.errors import UserError
from qdhuac.learning.policy import Policy
from qdhuac.tasks.engine import Network, Robot, Rows, Simulation, run
from qdhuac.tasks.mjx import OMNI_REACH, SPECS, check_contacts, final_position, make_brax
from qdhuac.tasks.rollout import AFTER_TERMINATION, share_of_steps
from qdhuac.types import Array, Evaluation, Exploration, Genotype, Task, Transition

with quiet_imports():
    import mujoco


class NativeLocomotion(Task):
    """A `Task`: what `Locomotion` is on MJX. JAX compiles nothing but the drawing of random numbers."""

    backend = "native"

    def __init__(
        self,
        name: str,
        *,
        episode_length: int = 1000,
        after_termination: str = "reset",
        hidden: tuple[int, ...] = (256, 256),
        store_contacts: bool = False,
        threads: int | None = None,
        change: Callable[[Any], Any] | None = None,  # from the robot's model to another one of the same sizes
    ) -> None:
        check_choice("task", name, SPECS)
        check_choice("after_termination", after_termination, AFTER_TERMINATION)
        if episode_length < 1:
            raise UserError(f"episode_length={episode_length!r}: must be at least 1")
        self.name, self.spec = name, SPECS[name]
        self.episode_length, self.after_termination = episode_length, after_termination
        self.store_contacts = check_contacts(name, store_contacts)
        self.reward_offset, self.support = self.spec.reward_offset, self.spec.support
        self.threads = threads or _cores()

        self.robot = Robot(make_brax(self.spec.robot, "mjx"), self.spec)
        if change is not None:
            self.robot.model = change(self.robot.model)
        self.obs_size = len(self.robot.tables.observed)
        self.action_size = int(self.robot.model.nu)
        self.policy = Policy(self.obs_size, self.action_size, tuple(hidden))
        size = 2 if self.spec.omni else len(self.spec.feet)
        low, high = (-OMNI_REACH, OMNI_REACH) if self.spec.omni else (0.0, 1.0)
        self.descriptor_bounds = ((low,) * size, (high,) * size)

        self._restarts = self.spec.can_terminate and after_termination == "reset"
        self._stops = self.spec.can_terminate and after_termination == "stop"
        self._simulations: queue.SimpleQueue[Simulation] = queue.SimpleQueue()
        for _ in range(self.threads):
            self._simulations.put(Simulation(self.robot.model))
        self._draw = jax.jit(self._draws, static_argnums=(1, 2))
        self._summary = jax.jit(self._summarise)

    def evaluate(self, genotypes: Genotype, key: Array, exploration: Exploration | None = None) -> Evaluation:
        """One evaluation of each genotype. The result does not depend on the number of threads."""
        genotypes, exploration = jax.tree.map(np.asarray, (genotypes, exploration))
        batch = len(genotypes["Dense_0"]["bias"])
        draws = jax.tree.map(np.asarray, self._draw(key, batch, exploration is not None))
        rows = self._empty_rows(batch)

        def one(i: int) -> None:
            explores = exploration is not None and exploration.active[i]
            noise, qpos, qvel = (np.ascontiguousarray(x[:, i]) for x in draws)
            network, mine = self._network(i, genotypes, exploration), Rows(*(x[i] for x in rows))
            simulation = self._simulations.get()
            physics = (self.robot.tables, simulation.addresses, simulation.fields)
            try:
                run(*physics, network, noise if explores else noise[:, :0].copy(), qpos, qvel, self._stops, mine)
            finally:  # the other policies would wait for it for ever
                self._simulations.put(simulation)

        with _unstable_is_no_news(), ThreadPoolExecutor(min(self.threads, batch)) as pool:
            list(pool.map(one, range(batch)))
        return self._evaluation(rows)

    def _network(self, i: int, genotypes: Genotype, exploration: Exploration | None) -> Network:
        layers = [genotypes[f"Dense_{n}"] for n in range(len(self.policy.hidden) + 1)]
        head = layers[-1] if exploration is None else exploration.head  # without exploration it is never looked at
        return Network(
            tuple(layer["kernel"][i] for layer in layers),
            tuple(layer["bias"][i] for layer in layers),
            (head["kernel"][i], head["bias"][i]),
        )

    def _empty_rows(self, batch: int) -> Rows:
        def zeros(*shape: int, dtype: Any = np.float32) -> np.ndarray:
            return np.zeros((batch, self.episode_length, *shape), dtype)

        obs, action, size = (self.obs_size,), (self.action_size,), len(self.descriptor_bounds[0])
        return Rows(zeros(*obs), zeros(*action), zeros(*obs), zeros(), zeros(), zeros(dtype=bool), zeros(size))

    def _evaluation(self, rows: Rows) -> Evaluation:
        reward = np.where(rows.living if self._stops else True, self.robot.reward(rows.gain, rows.action), 0.0)
        reward = reward.astype(np.float32)
        features = rows.features if self.spec.omni else rows.features <= 0.0
        features = features.astype(np.float32)
        fitness, descriptor, steps, valid = self._summary(reward, features, rows.living)
        columns = (rows.obs, rows.action, reward, rows.terminal, rows.next_obs)
        transitions = Transition(*map(jnp.asarray, columns))
        if self.store_contacts:
            # Rows that were never simulated are zero throughout, as on the other engines.
            transitions = transitions._replace(contacts=jnp.where(valid[..., None], features, 0.0))
        return Evaluation(fitness, descriptor, steps, transitions, valid)

    def _summarise(self, reward: Array, features: Array, living: Array) -> tuple[Array, ...]:
        """Fitness, descriptor, steps and valid rows."""
        describe = final_position if self.spec.omni else share_of_steps
        valid = living if self._stops else jnp.ones_like(living)
        fitness = jnp.sum(jnp.where(living, reward, 0.0), axis=1)
        return fitness, jax.vmap(describe)(features, living), jnp.sum(valid, axis=1, dtype=jnp.int32), valid

    def _draws(self, key: Array, batch: int, explore: bool) -> Draws:
        """The random numbers of an evaluation, those of `rollout` and of Brax's resets."""
        key_reset, key_noise = jax.random.split(key)
        times = jnp.arange(self.episode_length)

        def keys(t: Array) -> Array:
            return jax.random.split(jax.random.fold_in(key_reset, t), batch)

        def noises(t: Array) -> Array:
            return jax.random.normal(jax.random.fold_in(key_noise, t), (batch, self.action_size))

        # A loop for the keys and one flat vmap for the draws compile in half the time of vmaps all the way.
        resets = jax.lax.map(keys, times if self._restarts else times[:1])
        starts = jax.vmap(self.robot.start)(resets.reshape(-1))
        qpos, qvel = (x.reshape(*resets.shape, -1) for x in starts)
        noise = jax.lax.map(noises, times) if explore else jnp.zeros((self.episode_length, batch, 0))
        return Draws(noise, qpos, qvel)


class Draws(NamedTuple):
    """What is random: where episodes begin if they begin at that step, and the noise of exploration."""

    noise: Any  # [T, B, action_size], or [T, B, 0]
    qpos: Any  # [T or 1, B, nq]
    qvel: Any  # [T or 1, B, nv]


@contextlib.contextmanager
def _unstable_is_no_news() -> Iterator[None]:
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
