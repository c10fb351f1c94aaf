"""Any Gymnasium environment with continuous actions as a task, simulated in processes of its own.

Every policy runs from its first step to its last in one process, so that nothing waits for the slowest environment of
a batch. The result does not depend on the number of processes.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from qdhuac.errors import UserError, check_callable, check_number, check_whole
from qdhuac.learning.policy import Policy
from qdhuac.learning.run_policy import act, layers_of
from qdhuac.tasks import checks as own
from qdhuac.tasks import gym_pool, gym_worker
from qdhuac.tasks.base import TaskSpec, Trajectory
from qdhuac.tasks.gym_worker import Features, Make, Rows, Simulator
from qdhuac.types import Array, Evaluation, Exploration, Genotype, Transition

Describe = Callable[[np.ndarray], Any]  # to D numbers


def mean_of_steps(features: np.ndarray) -> np.ndarray:
    """Descriptor: the mean of each feature over the first episode. [T, F] -> [F]"""
    return features.mean(0)


class GymnasiumTask:
    """A `Task`. `make` is the name of an environment or a function that makes one.

    `features(env)` is called after each step with the unwrapped environment and gives a list of numbers;
    `describe(features)` makes the descriptor from those of the first episode [T, F]. `make` and `features` must be
    functions of a module, as other processes call them. There are `workers` processes, by default one per core; 0: the
    episodes are simulated in this process. An episode that takes longer than `deadline` seconds in another process ends
    the run with an error.
    """

    def __init__(
        self,
        make: Make,
        features: Features,
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
        deadline: float = 600.0,
    ) -> None:
        spec = TaskSpec(descriptor_bounds, episode_length, reward_offset, support, after_termination, store_contacts)
        if not isinstance(make, str):
            check_callable("make", make)
        check_callable("features", features)
        check_callable("describe", describe)
        check_whole("workers", 0 if workers is None else workers, 0)
        check_number("deadline", deadline, above=0)
        self.describe = describe
        self._bounds = bounds = spec.descriptor_bounds
        self._pool = _pool(make, features, workers, deadline)
        # What is wrong is told here and now, by an environment in this process.
        self._local = Simulator(make, features)
        self._local.reset(0)
        seen = self._local.look()
        self._descriptor(seen[None], "after a reset")
        if store_contacts:
            own.check_contacts(len(seen), bounds)
        space = self._local.env.action_space
        self.policy = Policy(self._local.obs_size, self._local.action_size, hidden)
        self.spec = dataclasses.replace(spec, action_bounds=(space.low.tolist(), space.high.tolist()))

    def evaluate(self, genotypes: Genotype, key: Array, exploration: Exploration | None = None) -> Evaluation:
        """One evaluation of each genotype."""
        genotypes, exploration = jax.tree.map(np.asarray, (genotypes, exploration))
        layers, batch = layers_of(genotypes), len(jax.tree.leaves(genotypes)[0])
        seeds = np.asarray(jax.random.randint(key, (batch,), 0, 2**31 - 1))
        jobs: list[Any] = []
        for i in range(batch):
            head = None
            if exploration is not None and exploration.active[i]:
                head = exploration.head["kernel"][i], exploration.head["bias"][i]
            network = [(kernel[i], bias[i]) for kernel, bias in layers]
            stop = self.spec.after_termination == "stop"
            jobs.append((network, head, int(seeds[i]), self.spec.episode_length, stop))
        if self._pool is None:
            found = [gym_worker.episode(self._local, *job) for job in jobs]
        else:
            found = self._pool.run([gym_worker.request(*job) for job in jobs])
        rows = Rows(*(np.stack(column) for column in zip(*found, strict=True)))
        descriptor = np.stack(
            [self._descriptor(r.features[r.living], f"of individual {i}") for i, r in enumerate(found)]
        )
        contacts = jnp.asarray(rows.features) if self.spec.contacts else None
        columns = (rows.obs, rows.action, rows.reward, rows.terminal, rows.next_obs)
        return Evaluation(
            fitness=jnp.asarray(np.where(rows.living, rows.reward, 0.0).sum(1, dtype=np.float32)),
            descriptor=jnp.asarray(descriptor),
            steps=jnp.asarray(rows.valid.sum(1), jnp.int32),
            transitions=Transition(*map(jnp.asarray, columns))._replace(contacts=contacts),
            valid=jnp.asarray(rows.valid),
        )

    def __enter__(self) -> GymnasiumTask:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()  # processes that are left to Python's end are ended with noise

    @property
    def model(self) -> Any:
        """The environment's `mujoco.MjModel`; refused if it has none."""
        env = self._local.env.unwrapped
        if not (hasattr(env, "model") and hasattr(env, "data") and hasattr(env.data, "qpos")):
            raise UserError(f"{type(env).__name__}: has no MuJoCo model, so there is nothing to draw")
        return env.model

    def episode(self, genotype: Genotype, key: Array) -> Trajectory:
        """The first episode of one genotype, of an environment that is simulated by MuJoCo."""
        model, env = self.model, self._local.env.unwrapped
        layers = layers_of(jax.tree.map(np.asarray, genotype))
        obs = self._local.reset(int(jax.random.randint(key, (), 0, 2**31 - 1)))
        poses, rewards, features = [env.data.qpos.copy()], [], []
        for _ in range(self.spec.episode_length):
            obs, reward, terminated, truncated = self._local.step(act(layers, obs))
            poses.append(env.data.qpos.copy())
            rewards.append(reward)
            features.append(self._local.look())
            if terminated or truncated:
                break
        contacts = np.array(features) if self.spec.contacts else np.zeros((len(rewards), 0))
        return Trajectory(np.array(poses), np.array(rewards), contacts, _seconds_per_step(env, model))

    def close(self) -> None:
        """End the processes."""
        if self._pool is not None:
            self._pool.close()

    def _descriptor(self, features: np.ndarray, whose: str) -> np.ndarray:
        """What `describe` makes of the features; refused if it is not a descriptor."""
        found = np.asarray(self.describe(features), np.float32)
        own.check_shape(f"descriptor {whose}", found.shape, self._bounds)
        return found


def _pool(make: Make, features: Features, workers: int | None, deadline: float) -> gym_pool.Pool | None:
    """The processes; None if there are to be none, or by default for functions of a notebook."""
    functions: dict[str, Callable[..., Any]] = {"features": features}
    if not isinstance(make, str):
        functions["make"] = make
    if workers is None and any(map(gym_pool.only_here, functions.values())):
        workers = 0
    if workers == 0:
        return None
    places = {name: gym_pool.place(name, function) for name, function in functions.items()}
    wanted = {"make": make, "script": gym_pool.script(), **places}
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return gym_pool.Pool(wanted, workers or cores, deadline)


def _seconds_per_step(env: Any, model: Any) -> float:
    """How long an action lasts: environments of Gymnasium say so, others take one physics step."""
    return float(env.dt if hasattr(env, "dt") else model.opt.timestep)
