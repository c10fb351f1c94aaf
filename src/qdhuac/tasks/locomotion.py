"""The robots of the package as tasks: what is common to the C engine and MJX.

*Uni-directional* tasks run forward; their descriptor is, per foot, the share of steps with that foot on the ground.
*Omni-directional* tasks (``*_omni``) only have to stay alive and cheap; their descriptor is where they end up.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import mujoco
import numpy as np

from qdhuac.config import check_choice
from qdhuac.errors import UserError
from qdhuac.learning.policy import Policy
from qdhuac.tasks import robots
from qdhuac.tasks.base import TaskSpec
from qdhuac.tasks.model import load, seconds_per_step, tables
from qdhuac.tasks.rollout import AFTER_TERMINATION, final_value, share_of_steps
from qdhuac.types import Array


class Locomotion:
    """A robot, its model and its tables; an engine adds `evaluate`."""

    takes_runs = False

    def __init__(
        self,
        name: str,
        *,
        episode_length: int = 1000,
        after_termination: str = "reset",
        hidden: tuple[int, ...] = (256, 256),
        store_contacts: bool = False,
    ) -> None:
        self.robot = robots.robot(name)
        check_choice("after_termination", after_termination, AFTER_TERMINATION)
        if episode_length < 1:
            raise UserError(f"episode_length={episode_length!r}: must be at least 1")
        if store_contacts and self.robot.omni:
            raise UserError(f"task {name!r}: its descriptor is not made of foot contacts, so there are none to store")
        self.model = load(self.robot)
        self.tables = tables(self.robot, self.model)
        self.policy = Policy(len(self.tables.observed), int(self.model.nu), tuple(hidden))
        self.spec = TaskSpec(
            self.robot.descriptor_bounds,
            episode_length,
            self.robot.reward_offset,
            self.robot.support,
            after_termination,
            store_contacts,
            takes_runs=self.takes_runs,
        )
        self.dt = seconds_per_step(self.robot, self.model)

    def start(self, key: Array) -> tuple[Array, Array]:
        """Where an episode begins, in JAX. [nq], [nv]"""
        reset, model = self.robot.reset, self.model
        _, key_q, key_qd = jax.random.split(key, 3)
        pose = jnp.asarray(reset.pose or model.qpos0, jnp.float32)
        qpos = pose + jax.random.uniform(key_q, (model.nq,), minval=-reset.noise, maxval=reset.noise)
        if model.jnt_type[0] == mujoco.mjtJoint.mjJNT_FREE:  # its rotation is a unit quaternion
            qpos = qpos.at[3:7].divide(jnp.linalg.norm(qpos[3:7]))
        if reset.velocity == "normal":
            return qpos, reset.noise * jax.random.normal(key_qd, (model.nv,))
        return qpos, jax.random.uniform(key_qd, (model.nv,), minval=-reset.noise, maxval=reset.noise)

    def reward(self, gain: Any, action: Any) -> Any:
        """For metres of progress [...] and actions [..., action_size]; NumPy or JAX."""
        weights, control = self.robot.reward, self.tables.control
        cost = weights.control * ((action * control[:, 0] + control[:, 1]) ** 2).sum(-1)
        return weights.forward / self.dt * gain + weights.alive - cost

    @property
    def describe(self) -> Callable[[Array, Array], Array]:
        """From the features of all steps [T, F] and which of them belong to the first episode [T] to the descriptor."""
        return self._final_position if self.robot.omni else share_of_steps

    def _final_position(self, positions: Array, living: Array) -> Array:
        """Where the first episode ended, within the descriptor's bounds. [T, 2], [T] -> [2]"""
        end = final_value(positions, living)
        low, high = map(np.asarray, self.spec.descriptor_bounds)
        # A robot that exploded is nowhere: clipping would turn an infinity into an ordinary place.
        return jnp.where(jnp.isfinite(end), jnp.clip(end, low, high), jnp.nan)
