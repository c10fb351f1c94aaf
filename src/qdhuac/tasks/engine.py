"""MuJoCo's C engine, called from compiled code.

One compiled loop reads the tables of a robot, so that a whole episode - policy, physics, observation - runs without
the interpreter and without its lock.

Shapes in comments: ``T`` steps.
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
    ACTION,
    ANGLES,
    COM_VELOCITY,
    CTRL,
    CVEL,
    FIELDS,
    GEOM_XMAT,
    GEOM_XPOS,
    POWER,
    QFRC_ACTUATOR,
    QPOS,
    QVEL,
    SUBTREE_COM,
    XIPOS,
    XMAT,
)
from qdhuac.tasks.noise import MIX
from qdhuac.tasks.tables import Tables

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
    terminal: np.ndarray
    living: np.ndarray  # the step belongs to the first episode
    measured: np.ndarray  # after the step: how high each foot is above the floor, then the plan's numbers
    change: np.ndarray  # of numbers that reward follows


class Episodes(NamedTuple):
    """Where an episode begins if it begins at a step, and what differs in it; [T or 1, ...]"""

    qpos: np.ndarray
    qvel: np.ndarray
    factors: np.ndarray  # [T or 1, 0] unless episodes vary
    seed: np.ndarray  # uint32


class Noise(NamedTuple):
    """What disturbs an episode that varies."""

    observation: float  # standard deviation
    push: float  # metres per second
    push_every: int  # steps


class Network(NamedTuple):
    """The layers of one policy, and its log-std head if it explores."""

    kernels: tuple[np.ndarray, ...]  # [inputs, outputs]
    biases: tuple[np.ndarray, ...]
    head: tuple[np.ndarray, np.ndarray]


class Simulation:
    """One simulation and live views of its fields. As on MJX, all but the state lags a substep behind."""

    def __init__(self, model: Any) -> None:
        self.model, self.data = copy.copy(model), mujoco.MjData(model)
        views = [getattr(self.data, name).reshape(-1) for name in FIELDS]
        computed = (6 * (model.nbody - 1), 4 * model.nbody, model.nu, 1)
        self.fields = (*views, *(np.zeros(size) for size in computed))
        self.addresses = (np.uintp(self.model._address), np.uintp(self.data._address))
        # What an episode may vary: live views of the model, and copies of what they were.
        names = ("body_mass", "body_inertia", "geom_friction", "actuator_gainprm", "actuator_biasprm")
        live = [getattr(self.model, name).reshape(-1) for name in names]
        self.varied = (*live, *(view.copy() for view in live), self.model.body_subtreemass, self.model.body_parentid)


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
def vary(varied: Any, factors: np.ndarray) -> None:
    """Scales masses, friction and strength of a model from what they were."""
    mass, inertia, friction, gain, bias, mass_0, inertia_0, friction_0, gain_0, bias_0, below, parent = varied
    bodies, motors = len(mass), len(factors) - len(mass) - 2
    for body in range(bodies):
        mass[body] = mass_0[body] * factors[body]
        inertia[3 * body : 3 * body + 3] = inertia_0[3 * body : 3 * body + 3] * factors[body]
        below[body] = mass[body]
    for body in range(bodies - 1, 0, -1):
        below[parent[body]] += below[body]
    friction[:] = friction_0 * factors[bodies]
    per_motor = len(gain) // motors
    for motor in range(motors):
        strength, first = factors[bodies + 1 + motor], per_motor * motor
        gain[first] = gain_0[first] * strength
        bias[first : first + 3] = bias_0[first : first + 3] * strength


@compiled
def uniform(seed: int, step: int, index: int) -> float:
    """`qdhuac.tasks.noise.uniform`."""
    most = np.uint64(0xFFFFFFFF)
    x = np.uint64(seed) ^ ((np.uint64(step) * np.uint64(MIX[0])) & most)
    x ^= (np.uint64(index) * np.uint64(MIX[1])) & most
    x = ((x ^ (x >> np.uint64(16))) * np.uint64(MIX[2])) & most
    x = ((x ^ (x >> np.uint64(13))) * np.uint64(MIX[3])) & most
    return ((x ^ (x >> np.uint64(16))) >> np.uint64(8)) * 2.0**-24


@compiled
def restart(addresses: Any, fields: Any, qpos: np.ndarray, qvel: np.ndarray) -> None:
    """Puts a simulation into a state, with no memory of what it did before."""
    mj_reset(*addresses)
    fields[QPOS][:] = qpos
    fields[QVEL][:] = qvel
    mj_forward(*addresses)
    fields[ACTION][:] = 0.0


@compiled
def compute(task: Tables, fields: Any) -> None:
    """Fills the fields that MuJoCo does not have, as far as they are used."""
    com, velocity = fields[SUBTREE_COM], fields[COM_VELOCITY]
    for body in range(len(task.mass_share)):
        # A body's velocity is given at the centre of mass of the whole: move it to that of the body.
        spin = fields[CVEL][6 * (body + 1) : 6 * (body + 1) + 3]
        linear = fields[CVEL][6 * (body + 1) + 3 : 6 * (body + 2)]
        for i in range(3):
            j, k = (i + 1) % 3, (i + 2) % 3
            arm_j = fields[XIPOS][3 * (body + 1) + j] - com[3 * task.root[body] + j]
            arm_k = fields[XIPOS][3 * (body + 1) + k] - com[3 * task.root[body] + k]
            velocity[6 * body + i] = (linear[i] + spin[j] * arm_k - spin[k] * arm_j) * task.mass_share[body]
            velocity[6 * body + 3 + i] = spin[i]
    for body in task.angled:
        turn, angles = fields[XMAT][9 * body : 9 * body + 9], fields[ANGLES][4 * body : 4 * body + 4]
        angles[0] = np.arccos(min(max(turn[8], -1.0), 1.0))
        angles[1] = np.arcsin(min(max(-turn[6], -1.0), 1.0))
        angles[2] = np.arctan2(turn[7], turn[8])
        angles[3] = np.arctan2(turn[3], turn[0])
    if task.powered:
        fields[POWER][0] = np.sum(np.abs(fields[QFRC_ACTUATOR] * fields[QVEL]))


@compiled
def observe(task: Tables, fields: Any, sigma: float, seed: int, step: int, obs: np.ndarray) -> None:
    """Writes the observation after so many steps of an episode, with noise of a standard deviation."""
    compute(task, fields)
    for i in range(len(obs)):
        value, limit = fields[task.observed[i, 0]][task.observed[i, 1]], task.limit[i]
        if value > limit:
            value = limit
        elif value < -limit:
            value = -limit
        if sigma > 0.0:
            radius = np.sqrt(-2.0 * np.log1p(-uniform(seed, step, 2 * i)))
            value += sigma * radius * np.cos(2.0 * np.pi * uniform(seed, step, 2 * i + 1))
        obs[i] = value


@compiled
def failed(task: Tables, fields: Any) -> bool:
    """The robot fell."""
    for i in range(len(task.watched)):
        value, low, high = fields[task.watched[i, 0]][task.watched[i, 1]], task.bounds[i, 0], task.bounds[i, 1]
        if not (low < value < high):  # also where it is not a number
            return True
    return False


@compiled
def measure(task: Tables, fields: Any, measured: np.ndarray) -> None:
    """Writes how high the lowest point of each foot is above the floor, and the plan's numbers."""
    feet = len(task.feet)
    for i in range(feet):
        geom = task.feet[i]
        below, square = task.radius[i], 0.0
        for j in range(3):
            vertical = fields[GEOM_XMAT][9 * geom + 6 + j]
            below += task.half[i, j] * abs(vertical)
            square += (task.round[i, j] * vertical) ** 2
        measured[i] = fields[GEOM_XPOS][3 * geom + 2] - below - np.sqrt(square)
    for i in range(len(task.numbers)):
        measured[feet + i] = fields[task.numbers[i, 0]][task.numbers[i, 1]]


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
def step(task: Tables, addresses: Any, fields: Any, action: np.ndarray) -> None:
    """One environment step of the physics, with an action that has its effect now."""
    for i in range(len(action)):
        fields[CTRL][i] = task.control[i, 0] * action[i] + task.control[i, 1]
    for _ in range(task.frames):
        mj_step(*addresses)


@compiled
def run(
    task: Tables,
    addresses: Any,
    fields: Any,
    varied: Any,
    network: Network,
    exploring: np.ndarray,  # [T, action_size] noise of the actions, or [T, 0] without exploration
    episodes: Episodes,
    noise: Noise,
    stops: bool,
    rows: Rows,
    poses: np.ndarray,  # [T + 1, nq] filled with the start and the pose after each step, or [0, nq]
) -> int:
    """The steps of one policy: a new episode begins when one has ended, or `stops`. Returns the number of steps."""
    moving = len(task.moving)
    obs, before = rows.obs[0].copy(), np.zeros(moving)
    still = np.zeros_like(rows.action[0])
    ended = False  # the first episode is over
    begins, first, seed, sigma, delay = True, 0, np.uint32(0), 0.0, task.delay
    for t in range(len(rows.obs)):
        if begins:
            begins, first, seed = False, t, episodes.seed[t]
            if len(episodes.factors[t]) > 0:
                vary(varied, episodes.factors[t])
                sigma, delay = noise.observation, task.delay + int(episodes.factors[t][-1])
            restart(addresses, fields, episodes.qpos[t], episodes.qvel[t])
            observe(task, fields, sigma, seed, 0, obs)
            for i in range(moving):
                before[i] = fields[task.moving[i, 0]][task.moving[i, 1]]
            if t < len(poses):
                poses[t] = fields[QPOS]
        since = t - first
        act(network, obs, exploring[t], rows.action[t])
        if len(episodes.factors[first]) > 0 and noise.push > 0.0 and since > 0 and since % noise.push_every == 0:
            for i in range(len(task.pushed)):
                # Indices of observation noise are even and odd from 0: these are behind them.
                drawn = uniform(seed, since, 2 * len(obs) + i)
                fields[QVEL][task.pushed[i]] += noise.push * (2.0 * drawn - 1.0)
        step(task, addresses, fields, rows.action[t - delay] if since >= delay else still)
        fields[ACTION][:] = rows.action[t]
        rows.obs[t] = obs
        observe(task, fields, sigma, seed, since + 1, rows.next_obs[t])
        measure(task, fields, rows.measured[t])
        for i in range(moving):
            after = fields[task.moving[i, 0]][task.moving[i, 1]]
            rows.change[t, i] = after - before[i]
            before[i] = after
        rows.living[t] = not ended
        obs[:] = rows.next_obs[t]
        if t + 1 < len(poses):
            poses[t + 1] = fields[QPOS]
        if failed(task, fields):
            rows.terminal[t] = 1.0
            if stops:
                return t + 1
            begins = ended = t + 1 < len(episodes.qpos)
    return len(rows.obs)
