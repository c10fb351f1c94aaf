"""The MuJoCo model of a task file, and the numbers of its simulation by name. Free of JAX."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from qdhuac.config import check_choice
from qdhuac.environment import quiet_imports, quiet_models
from qdhuac.errors import UserError
from qdhuac.tasks.task_file import (
    OF_A_BODY,
    OF_A_JOINT,
    WHOLE,
    Part,
    TaskFile,
    near,
)

with quiet_imports():
    import mujoco

# The fields of a simulation that are read or written, flat, by their place in `NAMES`; the last four are computed here.
FIELDS = (
    *("qpos", "qvel", "ctrl", "xpos", "xipos", "subtree_com", "xmat", "site_xpos"),
    *("sensordata", "cinert", "cvel", "qfrc_actuator", "geom_xpos", "geom_xmat"),
)
NAMES = (*FIELDS, "com_velocity", "angles", "action", "power")
QPOS, QVEL, CTRL, XPOS, XIPOS, SUBTREE_COM, XMAT, SITE_XPOS = range(8)
SENSORDATA, CINERT, CVEL, QFRC_ACTUATOR, GEOM_XPOS, GEOM_XMAT = range(8, 14)
COM_VELOCITY, ANGLES, ACTION, POWER = range(14, 18)
ANGLE_NAMES = ("tilt", "pitch", "roll", "yaw")  # of each body in `angles`


class Entry(NamedTuple):
    """A number of the simulation."""

    field: int
    at: int


def load(task: TaskFile) -> Any:
    """The task's `mujoco.MjModel`."""
    with quiet_models():
        try:
            model = mujoco.MjModel.from_xml_path(str(task.model))
        except ValueError as error:
            raise UserError(f"{task.model}: {' '.join(str(error).split())}") from None
    if not model.opt.timestep > 0:
        raise UserError(f"{task.model}: option timestep={model.opt.timestep:g}: must be above 0")
    if not model.nu:
        raise UserError(f"{task.model}: has no actuators, so there is nothing to control")
    for name in ("timestep", "tolerance", "ls_tolerance"):  # MJX has single precision: both engines take the same step
        setattr(model.opt, name, np.float32(getattr(model.opt, name)))
    if task.actions.stiffness:
        _make_servos(model, task.actions.stiffness, task.actions.damping)
    return model


def _make_servos(model: Any, stiffness: float, damping: float) -> None:
    """Turn motors into actuators that hold a position; the torque that a motor had is the most that a servo has."""
    most = np.abs(model.actuator_gear[:, :1]) * np.abs(model.actuator_ctrlrange).max(1, keepdims=True)
    limited = (model.actuator_ctrllimited > 0) & (most[:, 0] > 0)
    model.actuator_forcerange[limited] = (most * (-1.0, 1.0))[limited]
    model.actuator_forcelimited[limited] = 1
    model.actuator_ctrllimited[:] = 0
    model.actuator_gear[:, 0] = 1.0
    model.actuator_biastype[:] = mujoco.mjtBias.mjBIAS_AFFINE
    model.actuator_gainprm[:, 0] = stiffness
    model.actuator_biasprm[:, :3] = 0.0, -stiffness, -damping


def seconds_per_step(task: TaskFile, model: Any) -> float:
    """How long an action lasts."""
    return float(np.float32(task.frames * model.opt.timestep))


def start_pose(task: TaskFile, model: Any) -> np.ndarray:
    """Where an episode begins, before noise. [nq]"""
    if task.reset.keyframe:
        keys = [model.key(i).name for i in range(model.nkey)]
        return model.key_qpos[_index(task.reset.keyframe, keys, "keyframe")].copy()
    if task.reset.pose and len(task.reset.pose) != model.nq:
        raise UserError(f"reset: pose: expected {model.nq} numbers, as qpos has, got {len(task.reset.pose)}")
    return np.array(task.reset.pose or model.qpos0)


def entries(part: Part, model: Any) -> list[Entry]:
    """The numbers that a part is."""
    of = [name for name in ("body", "joint", "site", "sensor") if getattr(part, name)]
    if len(of) > 1:
        raise UserError(f"expected one of body, joint, site and sensor, got {' and '.join(of)}")
    field, whole = _all_of(part, model)
    if part.axis:
        if len(whole) != 3:
            raise UserError(f"axis={part.axis!r}: expected three numbers to choose from, there are {len(whole)}")
        whole = [whole["xyz".index(part.axis)]]
    end = part.skip + part.count if part.count else len(whole)
    if not 0 <= part.skip < end <= len(whole):
        raise UserError(f"skip={part.skip}, count={part.count}: out of range, there are {len(whole)} numbers")
    return [Entry(field, i) for i in whole[part.skip : end]]


def _all_of(part: Part, model: Any) -> tuple[int, list[int]]:
    """The field of a part, and the places in it before axis, skip and count."""
    if part.body:
        name = part.field or "xpos"
        check_choice("field of a body", name, OF_A_BODY)
        body = body_id(model, part.body)
        if name in ANGLE_NAMES:
            return ANGLES, [4 * body + ANGLE_NAMES.index(name)]
        return NAMES.index(name), [3 * body + i for i in range(3)]
    if part.joint:
        name = part.field or "qpos"
        check_choice("field of a joint", name, OF_A_JOINT)
        joint = _index(part.joint, [model.joint(i).name for i in range(model.njnt)], "joint")
        kind = model.jnt_type[joint]
        start = (model.jnt_qposadr if name == "qpos" else model.jnt_dofadr)[joint]
        sizes = {mujoco.mjtJoint.mjJNT_FREE: (7, 6), mujoco.mjtJoint.mjJNT_BALL: (4, 3)}.get(kind, (1, 1))
        return NAMES.index(name), [int(start) + i for i in range(sizes[name != "qpos"])]
    if part.field and (part.site or part.sensor):
        raise UserError(f"field={part.field!r}: leave it out, a site has its position and a sensor its readings")
    if part.site:
        site = _index(part.site, [model.site(i).name for i in range(model.nsite)], "site")
        return SITE_XPOS, [3 * site + i for i in range(3)]
    if part.sensor:
        sensor = _index(part.sensor, [model.sensor(i).name for i in range(model.nsensor)], "sensor")
        start = int(model.sensor_adr[sensor])
        return SENSORDATA, list(range(start, start + int(model.sensor_dim[sensor])))
    check_choice("field", part.field, WHOLE)
    field, bodies = NAMES.index(part.field), range(1, model.nbody)
    if field == CINERT:  # of each body the symmetric 3 x 3 matrix of inertia, then the mass
        return field, [10 * body + i for body in bodies for i in (0, 3, 4, 3, 1, 5, 4, 5, 2, 9)]
    whole = {QPOS: model.nq, SENSORDATA: model.nsensordata, CTRL: model.nu, ACTION: model.nu}
    return field, list(range(6 * len(bodies) if field == COM_VELOCITY else whole.get(field, model.nv)))


def single(part: Part, model: Any) -> Entry:
    """The one number that a part is."""
    found = entries(part, model)
    if len(found) != 1:
        raise UserError(f"expected one number, there are {len(found)}: name an axis, or skip and count")
    return found[0]


def body_id(model: Any, name: str) -> int:
    """The index of a body."""
    return _index(name, [model.body(i).name for i in range(model.nbody)], "body")


def geom_ids(model: Any, names: Sequence[str]) -> list[int]:
    """The indices of geoms."""
    known = [model.geom(i).name for i in range(model.ngeom)]
    return [_index(name, known, "geom") for name in names]


def feet_ids(names: Sequence[str], model: Any) -> np.ndarray:
    """The geoms of feet, of which height above the floor is a matter of centre, orientation and shape."""
    feet = geom_ids(model, names)
    flat = (model.geom_pos[:, 2] == 0) & (model.geom_quat[:, 0] == 1) & (model.geom_bodyid == 0)
    if feet and not (flat & (model.geom_type == mujoco.mjtGeom.mjGEOM_PLANE)).any():
        raise UserError("contacts need a floor: a geom of type plane at height 0 in the worldbody")
    kinds = ("SPHERE", "CAPSULE", "ELLIPSOID", "CYLINDER", "BOX")
    for name, foot in zip(names, feet, strict=True):
        if model.geom_type[foot] not in [int(getattr(mujoco.mjtGeom, f"mjGEOM_{kind}")) for kind in kinds]:
            raise UserError(f"geom {name!r}: a foot must be a {', '.join(kinds[:-1]).lower()} or box")
    return np.array(feet, int)


def motor_names(model: Any) -> list[str]:
    """The motors; one without a name has that of its joint."""
    return [model.actuator(i).name or model.joint(model.actuator_trnid[i, 0]).name for i in range(model.nu)]


def _index(name: str, known: list[str], kind: str) -> int:
    if name not in known:
        named = ", ".join(filter(None, known)) or "none with a name"
        hint = near(name, known)
        raise UserError(f"{kind} {name!r}: the model has no such {kind}{hint}; it has: {named}")
    return known.index(name)
