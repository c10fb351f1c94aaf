"""Brax's robots on MuJoCo's C engine: the model that MJX steps, and what the environments do around each step.

Written once more in NumPy, over a group of simulations. Shapes in comments: ``n`` simulations.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from qdhuac.quiet import quiet_imports
from qdhuac.tasks.locomotion import FLOOR, TaskSpec, geom_ids
from qdhuac.types import Array

with quiet_imports():
    import mujoco
    from mujoco.batch import Batch


class Simulation:
    """A group of simulations and live views of their fields. As on MJX, all but the state lags a substep behind."""

    def __init__(self, model: Any, size: int) -> None:
        self.model, self.batch = model, Batch(model, size, nthread=1)
        self.qpos, self.qvel, self.ctrl = (self.batch.bind(name) for name in ("qpos", "qvel", "ctrl"))
        self.xpos, self.xipos, self.subtree_com = (self.batch.bind(name) for name in ("xpos", "xipos", "subtree_com"))
        self.cinert, self.cvel = self.batch.bind("cinert"), self.batch.bind("cvel")
        self.qfrc_actuator = self.batch.bind("qfrc_actuator")
        self.geom_height = self.batch.bind("geom_xpos")[:, :, 2]
        self.geom_axis_height = self.batch.bind("geom_xmat")[:, :, 8]

    def __getitem__(self, some: np.ndarray) -> Simulation:
        """Some of the simulations, without their derived fields."""
        chosen = Simulation(self.model, int(some.sum()))
        chosen.batch.state[:] = self.batch.state[some]
        return chosen

    def restart(self, ids: np.ndarray, qpos: np.ndarray, qvel: np.ndarray) -> None:
        """Puts some simulations into a state, with no memory of what they did before."""
        self.batch.state[ids] = 0.0
        self.qpos[ids], self.qvel[ids] = qpos, qvel
        self.batch.forward(ids)

    def step(self, frames: int) -> None:
        self.batch.step(nstep=frames)


View = Callable[[Simulation], np.ndarray]


class Robot:
    """What a Brax environment on MJX does around its physics, for a group of simulations at once."""

    def __init__(self, env: Any, spec: TaskSpec) -> None:
        name = spec.robot
        self.model, self.frames = engine_model(env), env._n_frames
        self._per_metre = 0.0 if spec.omni else getattr(env, "_forward_reward_weight", 1.0) / float(env.dt)
        self._healthy_reward, self._control_cost = getattr(env, "_healthy_reward", 0.0), env._ctrl_cost_weight
        self._env, self._humanoid = env, name == "humanoid"
        self._gaussian = name in ("halfcheetah", "ant")  # velocities at a reset; the others' are uniform
        kinds: dict[str, tuple[View, View]] = {
            "hopper": (_observe_planar, self._hopper_failed),
            "walker2d": (_observe_planar, self._walker_failed),
            "halfcheetah": (_observe_cheetah, _never_failed),
            "ant": (_observe_ant, self._torso_failed),
            "humanoid": (self._observe_humanoid, self._torso_failed),
        }
        self.observe, self.failed = kinds[name]  # [n, obs_size] float32, [n] bool

        model = self.model
        floor, *self._feet = geom_ids(model, name, (FLOOR, *spec.feet))
        if model.geom_pos[floor].any() or model.geom_quat[floor, 0] != 1.0:
            raise ValueError(f"robot {name!r}: its floor is not the plane z = 0")
        round_ends = (mujoco.mjtGeom.mjGEOM_SPHERE, mujoco.mjtGeom.mjGEOM_CAPSULE)
        if not np.isin(model.geom_type[self._feet], round_ends).all():
            raise ValueError(f"robot {name!r}: a foot is neither a sphere nor a capsule")
        self._radius, self._reach = model.geom_size[self._feet, :2].T  # a sphere's reach is 0
        self._low, self._high = model.actuator_ctrlrange.T.astype(np.float32)
        self._mass_share = model.body_mass[1:, None] / model.body_mass[1:].sum()

    def start(self, key: Array) -> tuple[Array, Array]:
        """Where an episode begins, as the environment's `reset` draws it, in JAX. [nq], [nv]"""
        sys, scale = self._env.sys, self._env._reset_noise_scale
        _, key_q, key_qd = jax.random.split(key, 3)
        qpos = sys.init_q + jax.random.uniform(key_q, (sys.q_size(),), minval=-scale, maxval=scale)
        if self.model.jnt_type[0] == mujoco.mjtJoint.mjJNT_FREE:  # MJX does this when it computes positions
            qpos = qpos.at[3:7].divide(jnp.linalg.norm(qpos[3:7]))
        if self._gaussian:
            return qpos, scale * jax.random.normal(key_qd, (sys.qd_size(),))
        return qpos, jax.random.uniform(key_qd, (sys.qd_size(),), minval=-scale, maxval=scale)

    def controls(self, action: np.ndarray) -> np.ndarray:
        """From [-1, 1] to the actuators' range, which only Humanoid does; the others clip."""
        return (action + 1.0) * (self._high - self._low) * 0.5 + self._low if self._humanoid else action

    def progress(self, sim: Simulation) -> np.ndarray:
        """What is rewarded when it grows: where the torso is, or Humanoid's centre of mass. [n]"""
        return (sim.subtree_com if self._humanoid else sim.xpos)[:, 1, 0].copy()

    def reward(self, gain: np.ndarray, action: np.ndarray) -> np.ndarray:
        """For metres of progress [...] and actions [..., action_size]."""
        cost = self._control_cost * np.square(self.controls(action)).sum(-1)
        return self._per_metre * gain + self._healthy_reward - cost

    def clearance(self, sim: Simulation) -> np.ndarray:
        """How high the lowest point of each foot, a sphere or a capsule, is above the floor. [n, feet]"""
        tilt = np.abs(sim.geom_axis_height.take(self._feet, axis=1))
        return sim.geom_height.take(self._feet, axis=1) - self._reach * tilt - self._radius

    def _observe_humanoid(self, sim: Simulation) -> np.ndarray:
        n = len(sim.qpos)
        # A body's velocity is given at the centre of mass of the whole: move it to that of the body.
        spin, arm = sim.cvel[:, 1:, :3], sim.xipos[:, 1:] - sim.subtree_com[:, 1:2]
        turn = spin.take((1, 2, 0), 2) * arm.take((2, 0, 1), 2) - spin.take((2, 0, 1), 2) * arm.take((1, 2, 0), 2)
        velocity = (sim.cvel[:, 1:, 3:] + turn) * self._mass_share
        inertia = sim.cinert[:, 1:].take((0, 3, 4, 3, 1, 5, 4, 5, 2, 9), axis=2)  # symmetric 3 x 3, then the mass
        com_velocity = np.concatenate((velocity, spin), axis=2)
        parts = (sim.qpos[:, 2:], sim.qvel, inertia.reshape(n, -1), com_velocity.reshape(n, -1), sim.qfrc_actuator)
        return np.concatenate(parts, axis=1, dtype=np.float32, casting="same_kind")

    def _torso_failed(self, sim: Simulation) -> np.ndarray:
        (low, high), z = self._env._healthy_z_range, sim.xpos[:, 1, 2]
        return (z < low) | (z > high)

    def _walker_failed(self, sim: Simulation) -> np.ndarray:
        (low, high), z = self._env._healthy_z_range, sim.xpos[:, 1, 2]
        (least, most), angle = self._env._healthy_angle_range, sim.qpos[:, 2]
        return ~((low < z) & (z < high) & (least < angle) & (angle < most))

    def _hopper_failed(self, sim: Simulation) -> np.ndarray:
        least, most = self._env._healthy_state_range
        state = np.concatenate((sim.qpos[:, 2:], sim.qvel), axis=1)
        return self._walker_failed(sim) | ~((least < state) & (state < most)).all(1)


def _observe_planar(sim: Simulation) -> np.ndarray:
    parts = (sim.xpos[:, 1, 2:], sim.qpos[:, 2:], sim.qvel.clip(-10.0, 10.0))
    return np.concatenate(parts, axis=1, dtype=np.float32, casting="same_kind")


def _observe_cheetah(sim: Simulation) -> np.ndarray:
    return np.concatenate((sim.qpos[:, 1:], sim.qvel), axis=1, dtype=np.float32, casting="same_kind")


def _observe_ant(sim: Simulation) -> np.ndarray:
    return np.concatenate((sim.qpos[:, 2:], sim.qvel), axis=1, dtype=np.float32, casting="same_kind")


def _never_failed(sim: Simulation) -> np.ndarray:
    return np.zeros(len(sim.qpos), bool)


def engine_model(env: Any) -> Any:
    """The model that MJX steps, for the C engine: Brax overrides some options for MJX alone."""
    model, options = copy.copy(env.sys.mj_model), env.sys.opt
    for name in ("timestep", "iterations", "tolerance", "ls_tolerance", "impratio"):
        setattr(model.opt, name, getattr(options, name))
    for name in ("solver", "integrator", "cone", "disableflags", "enableflags"):
        setattr(model.opt, name, int(getattr(options, name)))
    # A line search of MJX tries one point to begin with and three per iteration; the C engine counts points. With one
    # solver iteration, as Brax has it for Ant and Humanoid, a search that ends earlier is different physics.
    model.opt.ls_iterations = 3 * options.ls_iterations + 1
    # MuJoCo would put a simulation that exploded back to its start as if nothing had happened.
    model.opt.disableflags |= mujoco.mjtDisableBit.mjDSBL_AUTORESET
    return model
