"""The robots of `locomotion` on MuJoCo's C engine: the same tasks, several times as fast as MJX on a CPU.

Resets and noise are drawn as in `locomotion`, so that a key starts the same episodes on both engines;
``docs/backends.md`` says how closely they agree from there on.

A batch is cut into small groups, and one thread runs a group from its first step to its last: engine and matrix
products work without the interpreter's lock, no thread waits for another within an episode, and the weights of a few
policies stay in the processor's cache. Shapes in comments: ``n`` policies in a group.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from qdhuac.config import check_choice
from qdhuac.errors import UserError
from qdhuac.learning.policy import LOG_STD_RANGE, Policy
from qdhuac.quiet import quiet_imports
from qdhuac.tasks.engine import Robot, Simulation
from qdhuac.tasks.locomotion import OMNI_REACH, SPECS, check_contacts, final_position, make_brax
from qdhuac.tasks.rollout import AFTER_TERMINATION, share_of_steps
from qdhuac.types import Array, Evaluation, Exploration, Genotype, Transition

with quiet_imports():
    import mujoco

# With fewer policies in a group the interpreter is what takes the time, with more it is fetching their weights.
GROUP_SIZES = (4, 16)


class NativeLocomotion:
    """A `Task`: what `Locomotion` is on MJX. Nothing is compiled except the drawing of random numbers."""

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
        self.obs_size = self.robot.observe(Simulation(self.robot.model, 1)).shape[1]
        self.action_size = int(self.robot.model.nu)
        self.policy = Policy(self.obs_size, self.action_size, tuple(hidden))
        size = 2 if self.spec.omni else len(self.spec.feet)
        low, high = (-OMNI_REACH, OMNI_REACH) if self.spec.omni else (0.0, 1.0)
        self.descriptor_bounds = ((low,) * size, (high,) * size)

        self._restarts = self.spec.can_terminate and after_termination == "reset"
        self._stops = self.spec.can_terminate and after_termination == "stop"
        self._draw = jax.jit(self._draws, static_argnums=(1, 2))
        self._summary = jax.jit(self._summarise)

    def evaluate(self, genotypes: Genotype, key: Array, exploration: Exploration | None = None) -> Evaluation:
        """One evaluation of each genotype. The result does not depend on the number of threads."""
        policies = BatchedPolicy.of(self.policy, genotypes, exploration)
        draws = jax.tree.map(np.asarray, self._draw(key, len(policies), exploration is not None))
        rows = Rows.empty(len(policies), self)
        groups = split(len(policies), self.threads)
        with _unstable_is_no_news(), ThreadPoolExecutor(min(self.threads, len(groups))) as pool:
            list(pool.map(lambda group: self._run(group, policies[group], draws, rows), groups))
        return self._evaluation(rows)

    def _run(self, who: Any, act: BatchedPolicy, draws: Draws, rows: Rows) -> None:
        """All steps of one group; `who` selects its rows, a slice or, after a robot has stopped, indices."""
        robot, sim = self.robot, Simulation(self.robot.model, len(act))
        ended = np.zeros(len(act), bool)  # the first episode is over
        # A body that explodes overflows on its way; the values themselves tell, and are rejected downstream.
        with np.errstate(all="ignore"):
            sim.restart(np.arange(len(act)), draws.qpos[0, who], draws.qvel[0, who])
            obs, x = robot.observe(sim), robot.progress(sim)
            for t in range(self.episode_length):
                action = act(obs, None if draws.noise is None else draws.noise[t, who])
                sim.ctrl[:] = robot.controls(action)
                sim.step(robot.frames)
                after, x_after, died = robot.observe(sim), robot.progress(sim), robot.failed(sim)
                rows.obs[who, t], rows.action[who, t], rows.next_obs[who, t] = obs, action, after
                rows.gain[who, t], rows.terminal[who, t], rows.living[who, t] = x_after - x, died, ~ended
                rows.features[who, t] = sim.xpos[:, 1, :2] if self.spec.omni else robot.clearance(sim)
                obs, x = after, x_after
                if not died.any():
                    continue
                if self._restarts and t + 1 < self.episode_length:
                    ended |= died
                    ids = np.flatnonzero(died)
                    sim.restart(ids, draws.qpos[t + 1, who][ids], draws.qvel[t + 1, who][ids])
                    obs[ids], x[ids] = robot.observe(sim)[ids], robot.progress(sim)[ids]
                if self._stops:
                    go_on = ~died
                    if not go_on.any():
                        return
                    who = np.arange(who.start, who.stop)[go_on] if isinstance(who, slice) else who[go_on]
                    sim, act, ended, obs, x = sim[go_on], act[go_on], ended[go_on], obs[go_on], x[go_on]

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
        return Draws(qpos, qvel, jax.lax.map(noises, times) if explore else None)


class Draws(NamedTuple):
    """What is random: where episodes begin if they begin at that step, and the noise of exploration."""

    qpos: Any  # [T or 1, B, nq]
    qvel: Any  # [T or 1, B, nv]
    noise: Any  # [T, B, action_size] or None


class Rows(NamedTuple):
    """What every step leaves behind; rows that are never simulated stay zero. [B, T, ...]"""

    obs: np.ndarray
    action: np.ndarray
    next_obs: np.ndarray
    gain: np.ndarray  # metres forward
    terminal: np.ndarray
    living: np.ndarray  # the step belongs to the first episode
    features: np.ndarray  # how high each foot is above the floor, or where the torso is

    @classmethod
    def empty(cls, batch: int, task: NativeLocomotion) -> Rows:
        def zeros(*shape: int, dtype: Any = np.float32) -> np.ndarray:
            return np.zeros((batch, task.episode_length, *shape), dtype)

        obs, action, size = (task.obs_size,), (task.action_size,), len(task.descriptor_bounds[0])
        return cls(zeros(*obs), zeros(*action), zeros(*obs), zeros(), zeros(), zeros(dtype=bool), zeros(size))


@dataclasses.dataclass
class BatchedPolicy:
    """`Policy.act` and `Policy.sample` in NumPy, one policy per row of the observations."""

    layers: list[tuple[np.ndarray, np.ndarray]]  # kernels [n, inputs, outputs], biases [n, 1, outputs]
    head: tuple[np.ndarray, np.ndarray] | None = None
    active: np.ndarray | None = None  # [n]

    @classmethod
    def of(cls, policy: Policy, genotypes: Genotype, exploration: Exploration | None) -> BatchedPolicy:
        def arrays(layer: Any) -> tuple[np.ndarray, np.ndarray]:
            return np.asarray(layer["kernel"]), np.asarray(layer["bias"])[:, None]

        layers = [arrays(genotypes[f"Dense_{i}"]) for i in range(len(policy.hidden) + 1)]
        if exploration is None:
            return cls(layers)
        return cls(layers, arrays(exploration.head), np.asarray(exploration.active))

    def __len__(self) -> int:
        return len(self.layers[0][0])

    def __getitem__(self, some: Any) -> BatchedPolicy:
        return BatchedPolicy(*jax.tree.map(lambda x: x[some], (self.layers, self.head, self.active)))

    def __call__(self, obs: np.ndarray, noise: np.ndarray | None) -> np.ndarray:
        """Actions [n, action_size] in (-1, 1); the noise counts where exploration is active."""
        x = obs[:, None]
        for kernel, bias in self.layers[:-1]:
            x = np.matmul(x, kernel)
            x += bias
            np.maximum(x, 0.0, out=x)
        kernel, bias = self.layers[-1]
        action = np.matmul(x, kernel)
        action += bias
        if self.head is not None and self.active is not None and noise is not None and self.active.any():
            low, high = LOG_STD_RANGE
            log_std = low + 0.5 * (high - low) * (np.tanh(np.matmul(x, self.head[0]) + self.head[1]) + 1.0)
            action += np.where(self.active[:, None, None], np.exp(log_std) * noise[:, None], 0.0)
        return np.tanh(action, out=action)[:, 0]


def split(batch: int, threads: int) -> list[slice]:
    """Groups of equal size, give or take one, that keep all threads busy to the end."""
    smallest, largest = GROUP_SIZES
    count = min(threads * -(-batch // (threads * largest)), -(-batch // smallest))
    bounds = np.linspace(0, batch, count + 1).astype(int)
    return [slice(*pair) for pair in itertools.pairwise(bounds.tolist())]


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
