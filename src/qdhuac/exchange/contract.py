"""The meaning of each observation and action of a robot, by the names in its MuJoCo model."""

from __future__ import annotations

import math
from typing import Any

import mujoco
import numpy as np

from qdhuac.config import Config
from qdhuac.tasks import model as m
from qdhuac.tasks.bundle import facts
from qdhuac.tasks.model import load, motor_names, seconds_per_step
from qdhuac.tasks.tables import plan, tables

_POSE, _MOTION = ("x", "y", "z", "qw", "qx", "qy", "qz"), ("vx", "vy", "vz", "wx", "wy", "wz")
_INERTIA = ("xx", "yy", "zz", "xy", "xz", "yz", "mx", "my", "mz", "mass")


def interface(config: Config) -> dict[str, Any]:
    """Names and ranges of the observations and actions of a run's task, and its control rate."""
    task = facts(config)
    model = load(task)
    found = tables(task, model, plan(task, model, config.task.descriptor))
    observations = [
        _range(_name(tuple(entry), model), -limit, limit)
        for entry, limit in zip(found.observed.tolist(), found.limit, strict=True)
    ]
    actions = []
    for name, (factor, offset) in zip(motor_names(model), found.control.tolist(), strict=True):
        low, high = offset - factor, offset + factor
        actions.append(_range(name, -1.0, 1.0) | {"control_low": low, "control_high": high})
    rate = 1.0 / seconds_per_step(task, model)
    return {"control_rate_hz": round(rate, 3), "observations": observations, "actions": actions}


def unnamed(obs_size: int, action_size: int, action_bounds: tuple[list[float], list[float]] | None) -> dict[str, Any]:
    """The same for a user's own task, of which the run folder knows only sizes and perhaps the bounds of actions."""
    observations = [_range(f"obs_{i}", -math.inf, math.inf) for i in range(obs_size)]
    actions = [_range(f"action_{i}", -1.0, 1.0) for i in range(action_size)]
    if action_bounds is not None:
        for action, low, high in zip(actions, *action_bounds, strict=True):
            action |= {"control_low": low, "control_high": high}
    return {"control_rate_hz": None, "observations": observations, "actions": actions}


def _range(name: str, low: float, high: float) -> dict[str, Any]:
    """An entry of the contract. A missing bound is null."""
    return {"name": name, "low": low if np.isfinite(low) else None, "high": high if np.isfinite(high) else None}


def _name(entry: tuple[int, int], model: Any) -> str:
    """The name of an observation, such as `qpos/root/z`, `qvel/knee` or `cinert/torso/mass`."""
    field, at = entry
    if field == m.SENSORDATA:
        sensor = int(np.searchsorted(model.sensor_adr, at, side="right")) - 1
        return f"sensor/{model.sensor(sensor).name or sensor}/{at - model.sensor_adr[sensor]}"
    if field in (m.CTRL, m.ACTION):
        return f"{m.NAMES[field]}/{motor_names(model)[at]}"
    if field == m.ANGLES:
        return f"{m.ANGLE_NAMES[at % 4]}/{_body(model, at // 4)}"
    if field == m.SITE_XPOS:
        return f"site_xpos/{model.site(at // 3).name or at // 3}/{'xyz'[at % 3]}"
    if field == m.QPOS:
        return f"qpos/{_coordinate(model, at, model.jnt_qposadr, _POSE)}"
    if field in (m.QVEL, m.QFRC_ACTUATOR):
        return f"{m.FIELDS[field]}/{_coordinate(model, at, model.jnt_dofadr, _MOTION)}"
    if field == m.COM_VELOCITY:
        return f"com_velocity/{_body(model, at // 6 + 1)}/{_MOTION[at % 6]}"
    parts = _INERTIA if field == m.CINERT else "xyz"
    return f"{m.FIELDS[field]}/{_body(model, at // len(parts))}/{parts[at % len(parts)]}"


def _coordinate(model: Any, at: int, addresses: np.ndarray, parts: tuple[str, ...]) -> str:
    """The joint of a coordinate, and for a free joint the part of it."""
    joint = int(np.searchsorted(addresses, at, side="right")) - 1
    name = model.joint(joint).name or f"joint_{joint}"
    is_free = model.jnt_type[joint] == mujoco.mjtJoint.mjJNT_FREE
    return f"{name}/{parts[at - addresses[joint]]}" if is_free else name


def _body(model: Any, index: int) -> str:
    return model.body(index).name or f"body_{index}"
