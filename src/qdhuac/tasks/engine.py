"""Brax's robots on MuJoCo's C engine: the model that MJX steps, and what the environments do around each step.

A robot is a handful of tables: which numbers of the engine's state it observes, which ones tell that it fell, how high
its feet are. One compiled loop reads them, so that a whole episode - policy, physics, observation - runs without the
interpreter and without its lock. Shapes in comments: ``T`` steps.
"""

from __future__ import annotations

import copy
import ctypes
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numba
import numpy as np

from qdhuac.environment import quiet_imports
from qdhuac.learning.policy import LOG_STD_RANGE
from qdhuac.tasks.mjx import FLOOR, TaskSpec, geom_ids
from qdhuac.types import Array

with quiet_imports():
    import mujoco

# The engine's own functions: compiled code calls them by name, so their library must be open to all.
ctypes.CDLL(str(next(Path(mujoco.__file__).parent.glob("*mujoco.*[!y]"))), mode=ctypes.RTLD_GLOBAL)
_on_model_and_data = numba.types.void(numba.types.uintp, numba.types.uintp)
mj_step = numba.types.ExternalFunction("mj_step", _on_model_and_data)
mj_reset = numba.types.ExternalFunction("mj_resetData", _on_model_and_data)
mj_forward = numba.types.ExternalFunction("mj_forward", _on_model_and_data)

# The fields of a simulation that are read or written, flat, by their place in `Simulation.fields`.
FIELDS = (
    *("qpos", "qvel", "ctrl", "xpos", "xipos", "subtree_com"),
    *("cinert", "cvel", "qfrc_actuator", "geom_xpos", "geom_xmat"),
)
QPOS, QVEL, CTRL, XPOS, XIPOS, SUBTREE_COM, CINERT, CVEL, QFRC_ACTUATOR, GEOM_XPOS, GEOM_XMAT = range(len(FIELDS))
COM_VELOCITY = len(FIELDS)  # computed here: the velocities of Humanoid's bodies at their own centres of mass


class Entry(NamedTuple):
    """A number of the simulation."""

    field: int
    at: int


class Tables(NamedTuple):
    """A robot as the compiled loop sees it. Columns of integers are `Entry`s."""

    frames: int  # physics steps per environment step
    observed: np.ndarray  # [obs_size, 2]
    limit: np.ndarray  # [obs_size] what an observation is clipped to
    watched: np.ndarray  # [n, 2] numbers that must stay in range
    bounds: np.ndarray  # [n, 2]
    strict: bool  # a number on its bound, or one that is not a number, is out of range
    progress: np.ndarray  # [2] what is rewarded when it grows
    features: np.ndarray  # [d, 2] what the descriptor is made of: heights of feet, or where the torso is
    tilt: np.ndarray  # [d] index of the vertical part of a foot's axis in its rotation
    reach: np.ndarray  # [d] half of the length of a foot; a sphere's is 0
    radius: np.ndarray  # [d]
    control: np.ndarray  # [action_size, 2] factor and offset from an action to an actuator
    mass_share: np.ndarray  # [bodies] Humanoid's; empty for the others


class Rows(NamedTuple):
    """What the steps of an episode leave behind; rows that are never simulated stay zero. [T, ...], or [B, T, ...]"""

    obs: np.ndarray
    action: np.ndarray
    next_obs: np.ndarray
    gain: np.ndarray  # metres forward
    terminal: np.ndarray
    living: np.ndarray  # the step belongs to the first episode
    features: np.ndarray  # how high each foot is above the floor, or where the torso is


class Network(NamedTuple):
    """The layers of one policy, and its log-std head if it explores."""

    kernels: tuple[np.ndarray, ...]  # [inputs, outputs]
    biases: tuple[np.ndarray, ...]
    head: tuple[np.ndarray, np.ndarray]


class Simulation:
    """One simulation and live views of its fields. As on MJX, all but the state lags a substep behind."""

    def __init__(self, model: Any) -> None:
        self.model, self.data = model, mujoco.MjData(model)
        views = [getattr(self.data, name).reshape(-1) for name in FIELDS]
        self.fields = (*views, np.zeros(6 * (model.nbody - 1)))
        self.addresses = (np.uintp(model._address), np.uintp(self.data._address))


class Robot:
    """What a Brax environment on MJX does around its physics."""

    def __init__(self, env: Any, spec: TaskSpec) -> None:
        name = spec.robot
        self.model = model = engine_model(env)
        self._env = env
        self._per_metre = 0.0 if spec.omni else getattr(env, "_forward_reward_weight", 1.0) / float(env.dt)
        self._healthy_reward, self._control_cost = getattr(env, "_healthy_reward", 0.0), env._ctrl_cost_weight
        self._gaussian = name in ("halfcheetah", "ant")  # velocities at a reset; the others' are uniform

        observed, limit = observed_entries(name, model)
        watched, bounds = _watched(name, env, model)
        torso = 3 * 1  # body 1
        features = [Entry(XPOS, torso), Entry(XPOS, torso + 1)]
        reach = radius = np.zeros(2)
        tilt = np.zeros(2, int)
        if not spec.omni:
            feet = _feet(name, model, spec)
            features = [Entry(GEOM_XPOS, 3 * foot + 2) for foot in feet]
            tilt = 9 * feet + 8
            radius, reach = model.geom_size[feet, :2].T
        # Humanoid's actions in [-1, 1] are stretched to the actuators' range; the others are clipped by the engine.
        low, high = model.actuator_ctrlrange.T if name == "humanoid" else (-np.ones(model.nu), np.ones(model.nu))
        self._control = np.stack([(high - low) / 2, (high + low) / 2], axis=1).astype(np.float32)
        self.tables = Tables(
            frames=int(env._n_frames),
            observed=np.array(observed),
            limit=np.array(limit, float),
            watched=np.array(watched, int).reshape(-1, 2),
            bounds=np.array(bounds, float).reshape(-1, 2),
            strict=name in ("hopper", "walker2d"),
            progress=np.array(Entry(SUBTREE_COM if name == "humanoid" else XPOS, torso)),
            features=np.array(features),
            tilt=np.ascontiguousarray(tilt),
            reach=np.ascontiguousarray(reach),
            radius=np.ascontiguousarray(radius),
            control=self._control,
            mass_share=model.body_mass[1:] / model.body_mass[1:].sum() if name == "humanoid" else np.zeros(0),
        )

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

    def reward(self, gain: np.ndarray, action: np.ndarray) -> np.ndarray:
        """For metres of progress [...] and actions [..., action_size]."""
        cost = self._control_cost * np.square(action * self._control[:, 0] + self._control[:, 1]).sum(-1)
        return self._per_metre * gain + self._healthy_reward - cost


def observed_entries(name: str, model: Any) -> tuple[list[Entry], list[float]]:
    """What a robot observes, and the absolute value that each entry is clipped to."""
    qpos = [Entry(QPOS, i) for i in range(model.nq)]
    qvel = [Entry(QVEL, i) for i in range(model.nv)]
    if name in ("hopper", "walker2d"):
        entries = [Entry(XPOS, 3 + 2), *qpos[2:], *qvel]
        return entries, [np.inf] * (len(entries) - model.nv) + [10.0] * model.nv
    entries = [*qpos[1 if name == "halfcheetah" else 2 :], *qvel]
    if name == "humanoid":
        bodies = range(1, model.nbody)
        # The symmetric 3 x 3 matrix of inertia, then the mass.
        entries += [Entry(CINERT, 10 * body + i) for body in bodies for i in (0, 3, 4, 3, 1, 5, 4, 5, 2, 9)]
        entries += [Entry(COM_VELOCITY, i) for i in range(6 * len(bodies))]
        entries += [Entry(QFRC_ACTUATOR, i) for i in range(model.nv)]
    return entries, [np.inf] * len(entries)


def _watched(name: str, env: Any, model: Any) -> tuple[list[Entry], list[tuple[float, float]]]:
    """Which numbers tell that a robot fell, and their healthy ranges."""
    if name == "halfcheetah":
        return [], []
    entries, bounds = [Entry(XPOS, 3 + 2)], [env._healthy_z_range]
    if name in ("hopper", "walker2d"):
        entries, bounds = [*entries, Entry(QPOS, 2)], [*bounds, env._healthy_angle_range]
    if name == "hopper":
        state = [Entry(QPOS, i) for i in range(2, model.nq)] + [Entry(QVEL, i) for i in range(model.nv)]
        entries, bounds = [*entries, *state], [*bounds, *[env._healthy_state_range] * len(state)]
    return entries, bounds


def _feet(name: str, model: Any, spec: TaskSpec) -> np.ndarray:
    """The geoms of the feet, of which height above the floor is a matter of centre, axis and radius."""
    floor, *feet = geom_ids(model, name, (FLOOR, *spec.feet))
    if model.geom_pos[floor].any() or model.geom_quat[floor, 0] != 1.0:
        raise ValueError(f"robot {name!r}: its floor is not the plane z = 0")
    if not np.isin(model.geom_type[feet], (mujoco.mjtGeom.mjGEOM_SPHERE, mujoco.mjtGeom.mjGEOM_CAPSULE)).all():
        raise ValueError(f"robot {name!r}: a foot is neither a sphere nor a capsule")
    return np.array(feet)


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


# From here on: compiled.


def compiled(function: Any) -> Any:
    """Compiled without the interpreter's lock, kept on disk for the next start where a folder can be written."""
    # Products may be fused with additions; nothing that would lose a nan or an infinity is allowed.
    try:
        return numba.njit(nogil=True, cache=True, fastmath={"contract"})(function)
    except RuntimeError:
        return numba.njit(nogil=True, fastmath={"contract"})(function)


@compiled
def restart(addresses: Any, fields: Any, qpos: np.ndarray, qvel: np.ndarray) -> None:
    """Puts a simulation into a state, with no memory of what it did before."""
    mj_reset(*addresses)
    fields[QPOS][:] = qpos
    fields[QVEL][:] = qvel
    mj_forward(*addresses)


@compiled
def observe(robot: Tables, fields: Any, obs: np.ndarray) -> None:
    """Writes the observation."""
    com, velocity = fields[SUBTREE_COM], fields[COM_VELOCITY]
    for body in range(len(robot.mass_share)):
        # A body's velocity is given at the centre of mass of the whole: move it to that of the body.
        spin = fields[CVEL][6 * (body + 1) : 6 * (body + 1) + 3]
        linear = fields[CVEL][6 * (body + 1) + 3 : 6 * (body + 2)]
        for i in range(3):
            j, k = (i + 1) % 3, (i + 2) % 3
            arm_j = fields[XIPOS][3 * (body + 1) + j] - com[3 + j]
            arm_k = fields[XIPOS][3 * (body + 1) + k] - com[3 + k]
            velocity[6 * body + i] = (linear[i] + spin[j] * arm_k - spin[k] * arm_j) * robot.mass_share[body]
            velocity[6 * body + 3 + i] = spin[i]
    for i in range(len(obs)):
        value, limit = fields[robot.observed[i, 0]][robot.observed[i, 1]], robot.limit[i]
        if value > limit:
            value = limit
        elif value < -limit:
            value = -limit
        obs[i] = value


@compiled
def failed(robot: Tables, fields: Any) -> bool:
    """The robot fell."""
    for i in range(len(robot.watched)):
        value, low, high = fields[robot.watched[i, 0]][robot.watched[i, 1]], robot.bounds[i, 0], robot.bounds[i, 1]
        if robot.strict:
            if not (low < value < high):
                return True
        elif value < low or value > high:
            return True
    return False


@compiled
def measure(robot: Tables, fields: Any, features: np.ndarray) -> None:
    """Writes how high the lowest point of each foot, a sphere or a capsule, is above the floor; or the position."""
    for i in range(len(features)):
        value = fields[robot.features[i, 0]][robot.features[i, 1]]
        if robot.reach[i] > 0.0:
            value -= robot.reach[i] * abs(fields[GEOM_XMAT][robot.tilt[i]])
        features[i] = value - robot.radius[i]


@compiled
def dense(kernel: np.ndarray, bias: np.ndarray, x: np.ndarray) -> np.ndarray:
    """A layer. Half of what a ReLU lets through is zero, and skipped."""
    y = bias.copy()
    for i in range(len(x)):
        if x[i] != 0.0:
            for j in range(len(y)):
                y[j] += x[i] * kernel[i, j]
    return y


@compiled
def act(network: Network, obs: np.ndarray, noise: np.ndarray, action: np.ndarray) -> None:
    """`Policy.act`, or with noise `Policy.sample`, of one observation."""
    x, last = obs, len(network.kernels) - 1
    for layer in range(last):
        x = dense(network.kernels[layer], network.biases[layer], x)
        for i in range(len(x)):
            if x[i] < 0.0:
                x[i] = 0.0
    action[:] = dense(network.kernels[last], network.biases[last], x)
    if len(noise) > 0:
        spread = dense(network.head[0], network.head[1], x)
        low, high = LOG_STD_RANGE
        for i in range(len(action)):
            log_std = low + 0.5 * (high - low) * (np.tanh(spread[i]) + 1.0)
            action[i] += np.exp(log_std) * noise[i]
    for i in range(len(action)):
        action[i] = np.tanh(action[i])


@compiled
def step(robot: Tables, addresses: Any, fields: Any, action: np.ndarray) -> None:
    """One environment step of the physics."""
    for i in range(len(action)):
        fields[CTRL][i] = robot.control[i, 0] * action[i] + robot.control[i, 1]
    for _ in range(robot.frames):
        mj_step(*addresses)


@compiled
def run(
    robot: Tables,
    addresses: Any,
    fields: Any,
    network: Network,
    noise: np.ndarray,  # [T, action_size], or [T, 0] without exploration
    qpos: np.ndarray,  # [T or 1, nq] where an episode begins if it begins at that step
    qvel: np.ndarray,  # [T or 1, nv]
    stops: bool,
    rows: Rows,
) -> None:
    """The steps of one policy: a new episode begins when one has ended, or `stops`."""
    restart(addresses, fields, qpos[0], qvel[0])
    ended = False  # the first episode is over
    obs = rows.obs[0].copy()
    observe(robot, fields, obs)
    x = fields[robot.progress[0]][robot.progress[1]]
    for t in range(len(rows.gain)):
        act(network, obs, noise[t], rows.action[t])
        step(robot, addresses, fields, rows.action[t])
        rows.obs[t] = obs
        observe(robot, fields, rows.next_obs[t])
        measure(robot, fields, rows.features[t])
        x_after = fields[robot.progress[0]][robot.progress[1]]
        rows.gain[t], rows.living[t] = x_after - x, not ended
        obs[:], x = rows.next_obs[t], x_after
        if not failed(robot, fields):
            continue
        rows.terminal[t] = 1.0
        if stops:
            return
        if t + 1 < len(qpos):
            ended = True
            restart(addresses, fields, qpos[t + 1], qvel[t + 1])
            observe(robot, fields, obs)
            x = fields[robot.progress[0]][robot.progress[1]]
