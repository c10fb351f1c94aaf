"""The robots of `locomotion` on MuJoCo's C engine: the same tasks, several times as fast as MJX on a CPU.

Physics is MuJoCo's own; what Brax's environments do around each step is written once more in NumPy. Resets and noise
are drawn as in `locomotion`, so that a key starts the same episodes on both engines; ``docs/backends.md`` says how
closely they agree from there on.

A batch is cut into small groups, and one thread runs a group from its first step to its last: engine and matrix
products work without the interpreter's lock, no thread waits for another within an episode, and the weights of a few
policies stay in the processor's cache. Shapes in comments: ``n`` policies in a group.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from qdhuac.config import check_choice
from qdhuac.errors import UserError
from qdhuac.learning.policy import LOG_STD_RANGE, Policy
from qdhuac.quiet import quiet_imports
from qdhuac.tasks.locomotion import FLOOR, OMNI_REACH, SPECS, final_position, geom_ids, make_brax
from qdhuac.tasks.rollout import AFTER_TERMINATION, share_of_steps
from qdhuac.types import Array, Evaluation, Exploration, Genotype, Transition

with quiet_imports():
    import mujoco
    from mujoco.batch import Batch

# Fewer policies than the first would be spent on the interpreter, more than the second on fetching weights.
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
        threads: int | None = None,
    ) -> None:
        check_choice("task", name, SPECS)
        check_choice("after_termination", after_termination, AFTER_TERMINATION)
        if episode_length < 1:
            raise UserError(f"episode_length={episode_length!r}: must be at least 1")
        self.name, self.spec = name, SPECS[name]
        self.episode_length, self.after_termination = episode_length, after_termination
        self.reward_offset, self.support = self.spec.reward_offset, self.spec.support
        self.threads = threads or _cores()

        self.robot = Robot(make_brax(self.spec.robot, "mjx"), self.spec.robot, self.spec.feet)
        self.forward_weight = 0.0 if self.spec.omni else self.robot.forward_weight
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
        smallest, largest = GROUP_SIZES
        size = min(max(-(-len(policies) // self.threads), smallest), largest)
        groups = [slice(i, min(i + size, len(policies))) for i in range(0, len(policies), size)]
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
        robot = self.robot
        cost = robot.control_cost * np.square(robot.controls(rows.action)).sum(-1)
        reward = self.forward_weight / robot.dt * rows.gain + robot.healthy_reward - cost
        reward = np.where(rows.living if self._stops else True, reward, 0.0).astype(np.float32)
        features = rows.features if self.spec.omni else rows.features <= 0.0
        fitness, descriptor, steps, valid = self._summary(reward, features.astype(np.float32), rows.living)
        transitions = Transition(rows.obs, rows.action, reward, rows.terminal, rows.next_obs)
        return Evaluation(fitness, descriptor, steps, jax.tree.map(jnp.asarray, transitions), valid)

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

        def starts(t: Array) -> tuple[Array, Array]:
            return jax.vmap(self.robot.start)(jax.random.split(jax.random.fold_in(key_reset, t), batch))

        def noises(t: Array) -> Array:
            return jax.random.normal(jax.random.fold_in(key_noise, t), (batch, self.action_size))

        qpos, qvel = jax.vmap(starts)(times if self._restarts else times[:1])
        return Draws(qpos, qvel, jax.vmap(noises)(times) if explore else None)


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
        return (
            cls(layers)
            if exploration is None
            else cls(layers, arrays(exploration.head), np.asarray(exploration.active))
        )

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
        if self.head is not None and self.active is not None and self.active.any():
            low, high = LOG_STD_RANGE
            log_std = low + 0.5 * (high - low) * (np.tanh(np.matmul(x, self.head[0]) + self.head[1]) + 1.0)
            action += np.where(self.active[:, None, None], np.exp(log_std) * noise[:, None], 0.0)
        return np.tanh(action, out=action)[:, 0]


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


class Robot:
    """What a Brax environment on MJX does around its physics, for a group of simulations at once."""

    def __init__(self, env: Any, name: str, feet: tuple[str, ...]) -> None:
        self.model, self.frames, self.dt = engine_model(env), env._n_frames, float(env.dt)
        self.healthy_reward, self.control_cost = getattr(env, "_healthy_reward", 0.0), env._ctrl_cost_weight
        self.forward_weight = getattr(env, "_forward_reward_weight", 1.0)
        self._env, self._humanoid = env, name == "humanoid"
        observe: dict[str, Callable[[Simulation], np.ndarray]]
        observe = {"ant": _observe_ant, "halfcheetah": _observe_cheetah, "humanoid": self._observe_humanoid}
        failed: dict[str, Callable[[Simulation], np.ndarray]]
        failed = {"hopper": self._hopper_failed, "walker2d": self._walker_failed, "halfcheetah": _never_failed}
        self.observe, self.failed = observe.get(name, _observe_planar), failed.get(name, self._torso_failed)

        model = self.model
        floor, *self._feet = geom_ids(model, name, (FLOOR, *feet))
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
        if type(self._env).__name__ in ("Ant", "Halfcheetah"):
            return qpos, scale * jax.random.normal(key_qd, (sys.qd_size(),))
        return qpos, jax.random.uniform(key_qd, (sys.qd_size(),), minval=-scale, maxval=scale)

    def controls(self, action: np.ndarray) -> np.ndarray:
        """From [-1, 1] to the actuators' range, which only Humanoid does; the others clip."""
        return (action + 1.0) * (self._high - self._low) * 0.5 + self._low if self._humanoid else action

    def progress(self, sim: Simulation) -> np.ndarray:
        """What is rewarded when it grows: where the torso is, or Humanoid's centre of mass. [n]"""
        return (sim.subtree_com if self._humanoid else sim.xpos)[:, 1, 0].copy()

    def clearance(self, sim: Simulation) -> np.ndarray:
        """How high the lowest point of each foot, a sphere or a capsule, is above the floor. [n, feet]"""
        tilt = np.abs(sim.geom_axis_height.take(self._feet, axis=1))
        return sim.geom_height.take(self._feet, axis=1) - self._reach * tilt - self._radius

    def _observe_humanoid(self, sim: Simulation) -> np.ndarray:
        n = len(sim.qpos)
        # A body's velocity is given at the centre of mass of the whole: move it to that of the body.
        spin, arm = sim.cvel[:, 1:, :3], sim.xipos[:, 1:] - sim.subtree_com[:, 1:2]
        velocity = (sim.cvel[:, 1:, 3:] + np.cross(spin, arm)) * self._mass_share
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
    for name in ("timestep", "iterations", "ls_iterations", "tolerance", "ls_tolerance", "impratio"):
        setattr(model.opt, name, getattr(options, name))
    for name in ("solver", "integrator", "cone", "disableflags", "enableflags"):
        setattr(model.opt, name, int(getattr(options, name)))
    # MuJoCo would put a simulation that exploded back to its start as if nothing had happened.
    model.opt.disableflags |= mujoco.mjtDisableBit.mjDSBL_AUTORESET
    return model


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
