"""Tasks from files: what is common to the C engine and MJX."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import mujoco
import numpy as np

from qdhuac.config import check_choice
from qdhuac.errors import UserError
from qdhuac.learning.policy import Policy
from qdhuac.tasks import measures, task_file
from qdhuac.tasks.base import AFTER_TERMINATION, TaskSpec
from qdhuac.tasks.model import load, seconds_per_step, start_pose
from qdhuac.tasks.tables import plan, tables
from qdhuac.tasks.task_file import TaskFile
from qdhuac.types import Array


class Start(NamedTuple):
    """How an episode begins, in JAX."""

    qpos: Array  # [nq]
    qvel: Array  # [nv]
    # With `vary`: factors of masses [nbody], friction [1] and strength [nu], then the delay [1]; otherwise empty.
    factors: Array
    seed: Array  # uint32, of noise and pushes


class MujocoTask:
    """A task file's model and tables; an engine adds `evaluate`.

    Args:
        task: the name of a task of the package, the path of a task file, or what is in such a file.
        descriptor: one of those of the file; "": the usual one.
        episode_length: steps of an episode.
        after_termination: "reset" or "stop".
        hidden: widths of the policy's hidden layers.
        store_contacts: transitions carry which feet are on the ground.
        vary: each episode draws what the file's `variation` names.
    """

    takes_runs = False

    def __init__(
        self,
        task: str | Path | TaskFile,
        *,
        descriptor: str = "",
        episode_length: int = 1000,
        after_termination: str = "reset",
        hidden: tuple[int, ...] = (256, 256),
        store_contacts: bool = False,
        vary: bool = False,
    ) -> None:
        self.file = task if isinstance(task, TaskFile) else task_file.find(task)
        check_choice("after_termination", after_termination, AFTER_TERMINATION)
        if episode_length < 1:
            raise UserError(f"episode_length={episode_length!r}: must be at least 1")
        if store_contacts and not self.file.has_contacts(descriptor):
            raise UserError(
                f"task {self.file.name!r}: its descriptor is not made of foot contacts, so there are none to store"
            )
        self.model = load(self.file)
        self.plan = plan(self.file, self.model, descriptor)
        self.tables = tables(self.file, self.model, self.plan)
        self.vary = vary
        self.pose = start_pose(self.file, self.model)
        self.policy = Policy(len(self.tables.observed), int(self.model.nu), tuple(hidden))
        dimensions = [one for one, _ in self.plan.dimensions]
        low, high = zip(*(one.bounds for one in dimensions), strict=True)
        self.spec = TaskSpec(
            (low, high),
            episode_length,
            self.file.reward_offset,
            self.file.support,
            after_termination,
            store_contacts,
            takes_runs=self.takes_runs,
            labels=tuple(one.title for one in dimensions),
        )
        self.dt = seconds_per_step(self.file, self.model)

    def start(self, key: Array) -> Start:
        """Where an episode begins, and what is different in it."""
        reset, model = self.file.reset, self.model
        _, key_q, key_qd = jax.random.split(key, 3)
        pose = jnp.asarray(self.pose, jnp.float32)
        qpos = pose + jax.random.uniform(key_q, (model.nq,), minval=-reset.noise, maxval=reset.noise)
        for joint in np.flatnonzero(model.jnt_type == mujoco.mjtJoint.mjJNT_FREE):  # its rotation is a unit quaternion
            turn = slice(model.jnt_qposadr[joint] + 3, model.jnt_qposadr[joint] + 7)
            qpos = qpos.at[turn].divide(jnp.linalg.norm(qpos[turn]))
        if reset.velocity == "normal":
            qvel = reset.noise * jax.random.normal(key_qd, (model.nv,))
        else:
            qvel = jax.random.uniform(key_qd, (model.nv,), minval=-reset.noise, maxval=reset.noise)
        return Start(qpos, qvel, *self._variation(key))

    def _variation(self, key: Array) -> tuple[Array, Array]:
        """The factors and the seed of an episode."""
        if not self.vary:
            return jnp.zeros(0), jnp.uint32(0)
        v, model = self.file.variation, self.model
        bounds = np.repeat(
            np.array([v.mass, v.friction, v.strength, (v.delay[0], v.delay[1] + 1)], np.float32),
            [model.nbody, 1, model.nu, 1],
            axis=0,
        )
        key, key_seed = jax.random.split(jax.random.fold_in(key, 3))
        drawn = jax.random.uniform(key, (len(bounds),), minval=bounds[:, 0], maxval=bounds[:, 1])
        drawn = drawn.at[-1].set(jnp.clip(jnp.floor(drawn[-1]), *v.delay))
        return drawn, jax.random.bits(key_seed, dtype=jnp.uint32)

    def control(self, action: Any) -> Any:
        """Scaled actions, which the reward's cost of control is about; NumPy or JAX. [..., A]"""
        factor, offset = self.tables.control.T
        return action * factor + (0.0 if self.file.actions.kind == "position" else offset)

    def reward(self, measured: Any, change: Any, action: Any, before: Any) -> Any:
        """The reward of each step, in NumPy or JAX. [...]"""
        step = measures.Step(measured, change, self.control(action), action, before)
        return measures.reward(self.plan, step, self.dt)

    def contacts(self, features: Any) -> Any:
        """Which feet are on the ground, in the order of the descriptor. [..., M] -> [..., D]"""
        return features[..., np.array([columns[0] for _, columns in self.plan.dimensions])]

    def describe(self, features: Array, living: Array) -> Array:
        """The descriptor, from features of all steps [T, M] and which belong to the first episode [T]. [D]"""
        return measures.describe(self.plan, features, living, self.dt)
