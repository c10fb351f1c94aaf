"""MuJoCo's C engine, called from compiled code.

One compiled loop reads the tables of a robot, so that a whole episode - policy, physics, observation - runs without
the interpreter and without its lock. Shapes in comments: ``T`` steps.
"""

from __future__ import annotations

import copy
import ctypes
from pathlib import Path
from typing import Any, NamedTuple

import numba
import numpy as np

from qdhuac.environment import quiet_imports
from qdhuac.learning.run_policy import LOG_STD_RANGE
from qdhuac.tasks.model import (
    COM_VELOCITY,
    CTRL,
    CVEL,
    FIELDS,
    GEOM_XMAT,
    QPOS,
    QVEL,
    SUBTREE_COM,
    XIPOS,
    Tables,
)

with quiet_imports():
    import mujoco

# The engine's own functions: compiled code calls them by name, so their library must be open to all.
ctypes.CDLL(str(next(Path(mujoco.__file__).parent.glob("*mujoco.*[!y]"))), mode=ctypes.RTLD_GLOBAL)
_on_model_and_data = numba.types.void(numba.types.uintp, numba.types.uintp)
mj_step = numba.types.ExternalFunction("mj_step", _on_model_and_data)
mj_reset = numba.types.ExternalFunction("mj_resetData", _on_model_and_data)
mj_forward = numba.types.ExternalFunction("mj_forward", _on_model_and_data)


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


def native_model(model: Any) -> Any:
    """The model as the C engine needs it to simulate what MJX does."""
    model = copy.copy(model)
    # A line search of MJX tries one point to begin with and three per iteration; the C engine counts points. With one
    # solver iteration, as Ant and Humanoid have it, a search that ends earlier is different physics.
    model.opt.ls_iterations = 3 * model.opt.ls_iterations + 1
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
        if not (low < value < high):  # also where it is not a number
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
