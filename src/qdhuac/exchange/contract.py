"""What each observation and each action of a robot is, by the names of its MuJoCo model."""

from __future__ import annotations

import math
from typing import Any

import jax
import numpy as np

from qdhuac.config import check_choice
from qdhuac.environment import quiet_imports
from qdhuac.tasks import engine
from qdhuac.tasks.mjx import SPECS, make_brax

with quiet_imports():
    import mujoco

_FREE = ("x", "y", "z", "qw", "qx", "qy", "qz"), ("vx", "vy", "vz", "wx", "wy", "wz")
_INERTIA = ("xx", "yy", "zz", "xy", "xz", "yz", "mx", "my", "mz", "mass")
_SPATIAL = ("vx", "vy", "vz", "wx", "wy", "wz")


def interface(task: str, backend: str) -> dict[str, Any]:
    """Names and ranges of observations and actions, and how often a second the policy acts."""
    check_choice("task", task, SPECS)
    robot = SPECS[task].robot
    env = make_brax(robot, "mjx" if backend == "native" else backend)
    model = env.sys.mj_model
    entries, limits = engine.observed_entries(robot, model)
    observations = [_range(_name(entry, model), -limit, limit) for entry, limit in zip(entries, limits, strict=True)]
    if backend not in ("native", "mjx"):
        # Brax's own engines observe the same but for Humanoid, of which they know less.
        size = int(jax.eval_shape(env.reset, jax.random.key(0)).obs.shape[-1])
        if size != len(observations):
            observations = unnamed(size, 0)["observations"]
    stretched = robot == "humanoid"  # its actions are stretched to the range of the actuators
    actions = []
    for i in range(model.nu):
        low, high = model.actuator_ctrlrange[i] if stretched else (-1.0, 1.0)
        name = model.actuator(i).name or _joint(model, model.actuator_trnid[i, 0])
        actions.append(_range(name, -1.0, 1.0) | {"control_low": float(low), "control_high": float(high)})
    return {"control_rate_hz": round(1.0 / float(env.dt), 3), "observations": observations, "actions": actions}


def unnamed(
    obs_size: int, action_size: int, action_bounds: tuple[list[float], list[float]] | None = None
) -> dict[str, Any]:
    """The same for a task of the user's own, of which the run folder knows sizes and perhaps what actions stand for."""
    observations = [_range(f"obs_{i}", -math.inf, math.inf) for i in range(obs_size)]
    actions = [_range(f"action_{i}", -1.0, 1.0) for i in range(action_size)]
    if action_bounds is not None:
        for action, low, high in zip(actions, *action_bounds, strict=True):
            action |= {"control_low": low, "control_high": high}
    return {"control_rate_hz": None, "observations": observations, "actions": actions}


def _range(name: str, low: float, high: float) -> dict[str, Any]:
    """An entry of the contract; a bound that is not there is null."""
    return {"name": name, "low": low if np.isfinite(low) else None, "high": high if np.isfinite(high) else None}


def _name(entry: engine.Entry, model: Any) -> str:
    """Such as `qpos/root/z`, `qvel/knee`, `cinert/torso/mass`."""
    field, at = entry
    if field == engine.QPOS:
        return f"qpos/{_coordinate(model, at, model.jnt_qposadr, _FREE[0])}"
    if field in (engine.QVEL, engine.QFRC_ACTUATOR):
        return f"{engine.FIELDS[field]}/{_coordinate(model, at, model.jnt_dofadr, _FREE[1])}"
    if field == engine.COM_VELOCITY:
        return f"com_velocity/{_body(model, at // 6 + 1)}/{_SPATIAL[at % 6]}"
    parts = _INERTIA if field == engine.CINERT else "xyz"
    return f"{engine.FIELDS[field]}/{_body(model, at // len(parts))}/{parts[at % len(parts)]}"


def _coordinate(model: Any, at: int, addresses: np.ndarray, parts: tuple[str, ...]) -> str:
    """The joint that a coordinate belongs to, and which part of it in a joint that moves freely."""
    joint = int(np.searchsorted(addresses, at, side="right")) - 1
    name = _joint(model, joint)
    is_free = model.jnt_type[joint] == mujoco.mjtJoint.mjJNT_FREE
    return f"{name}/{parts[at - addresses[joint]]}" if is_free else name


def _joint(model: Any, index: int) -> str:
    return model.joint(index).name or f"joint_{index}"


def _body(model: Any, index: int) -> str:
    return model.body(index).name or f"body_{index}"
