"""The MuJoCo model of a task file, and the tables by which both engines read its simulation. Free of JAX."""

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
    Dimension,
    Healthy,
    Observed,
    Part,
    TaskFile,
    Term,
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


class Tables(NamedTuple):
    """A task as an engine sees it. Columns of integers are `Entry`s."""

    frames: int  # physics steps per environment step
    observed: np.ndarray  # [obs_size, 2]
    limit: np.ndarray  # [obs_size] what an observation is clipped to
    watched: np.ndarray  # [n, 2] numbers that must stay between their bounds
    bounds: np.ndarray  # [n, 2]
    moving: np.ndarray  # [p, 2] numbers of which reward needs the change
    numbers: np.ndarray  # [k, 2] numbers that reward and descriptor are made of
    feet: np.ndarray  # [f] geoms of which the height above the floor is measured, and their shapes:
    half: np.ndarray  # [f, 3] half of a box's sides, or of a capsule's length
    round: np.ndarray  # [f, 3] half of the axes of an ellipsoid, or a cylinder's radius
    radius: np.ndarray  # [f] of a sphere or a capsule
    control: np.ndarray  # [action_size, 2] factor and offset from an action to an actuator
    delay: int  # steps until an action has its effect
    mass_share: np.ndarray  # [bodies], empty unless `com_velocity` is used
    root: np.ndarray  # [bodies] the body at the root of each, about whose centre of mass MuJoCo gives velocities
    angled: np.ndarray  # bodies whose angles are used
    powered: bool  # `power` is used
    pushed: np.ndarray  # velocities that pushes change


class Plan(NamedTuple):
    """What reward and descriptor are made of: columns of what is measured after each step, feet first."""

    terms: tuple[tuple[Term, list[int]], ...]  # the columns of a velocity are those of the changes
    dimensions: tuple[tuple[Dimension, list[int]], ...]
    feet: tuple[str, ...]
    numbers: list[Entry]
    moving: list[Entry]


def load(task: TaskFile) -> Any:
    """The task's `mujoco.MjModel`."""
    with quiet_models():
        try:
            model = mujoco.MjModel.from_xml_path(str(task.model))
        except ValueError as error:
            raise UserError(f"{task.model}: {' '.join(str(error).split())}") from None
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


def plan(task: TaskFile, model: Any, descriptor: str = "") -> Plan:
    """What reward and descriptor are made of; what the model does not have is refused by name."""
    dimensions = task.dimensions(descriptor)
    feet = tuple(dict.fromkeys(one.geom for one in dimensions if one.kind in ("contact", "frequency")))
    numbers: list[Entry] = []
    moving: list[Entry] = []

    def columns(entries: Sequence[Entry]) -> list[int]:
        numbers.extend(entries)
        return [len(feet) + len(numbers) - len(entries) + i for i in range(len(entries))]

    def column_of(part: Part) -> list[int]:
        return columns([_single(part, model)])

    terms, found = [], []
    for i, term in enumerate(task.reward):
        try:
            if term.term == "velocity":
                moving.append(_single(term, model))
                used = [len(moving) - 1]
            elif term.term == "upright":
                used = columns([Entry(XMAT, 9 * body_id(model, term.body) + 8)])
            elif term.term == "height":
                used = columns([Entry(XPOS, 3 * body_id(model, term.body) + 2)])
            elif term.term == "energy":
                used = columns([Entry(POWER, 0)])
            elif term.term in ("value", "distance", "force"):
                used = columns(entries(term, model))
                if term.term == "distance" and len(term.point) != len(used):
                    raise UserError(f"point: expected {len(used)} numbers, got {list(term.point)}")
            else:
                used = []
        except UserError as error:
            raise UserError(f"reward: {i}: {term.term}: {error}") from None
        terms.append((term, used))
    for i, one in enumerate(dimensions):
        try:
            if one.kind in ("contact", "frequency"):
                used = [feet.index(one.geom)]
            elif one.kind == "energy":
                used = columns([Entry(POWER, 0)])
            elif one.kind == "direction":
                body = body_id(model, one.body)
                used = columns([Entry(XPOS, 3 * body), Entry(XPOS, 3 * body + 1)])
            else:
                used = column_of(one)
        except UserError as error:
            raise UserError(f"descriptors: {i}: {one.kind}: {error}") from None
        found.append((one, used))
    return Plan(tuple(terms), tuple(found), feet, numbers, moving)


def tables(task: TaskFile, model: Any, plan: Plan) -> Tables:
    """The tables of a task; what the model does not have is refused by name."""
    observed: list[tuple[Entry, Observed]] = []
    watched: list[tuple[Entry, Healthy]] = []
    parts: Any
    rows: Any
    for kind, parts, rows in (("observation", task.observation, observed), ("healthy", task.healthy, watched)):
        for i, part in enumerate(parts):
            try:
                rows.extend((entry, part) for entry in entries(part, model))
            except UserError as error:
                raise UserError(f"{kind}: {i}: {error}") from None
    read = [entry for entry, _ in (*observed, *watched)] + plan.numbers + plan.moving
    fields = {entry.field for entry in read}
    shares = model.body_mass[1:] / max(model.body_mass[1:].sum(), 1e-12)
    feet = feet_ids(plan.feet, model)
    return Tables(
        frames=task.frames,
        observed=_table([entry for entry, _ in observed]),
        limit=np.array([part.limit for _, part in observed], float),
        watched=_table([entry for entry, _ in watched]),
        bounds=np.array([(part.low, part.high) for _, part in watched], float).reshape(-1, 2),
        moving=_table(plan.moving),
        numbers=_table(plan.numbers),
        feet=feet,
        **_shapes(model, feet),
        control=_control(task, model),
        delay=task.actions.delay,
        mass_share=shares if COM_VELOCITY in fields else np.zeros(0),
        root=model.body_rootid[1:].astype(int),
        angled=np.array(sorted({entry.at // 4 for entry in read if entry.field == ANGLES}), int),
        powered=POWER in fields,
        pushed=_pushed(task, model),
    )


def _table(entries: Sequence[Entry]) -> np.ndarray:
    return np.array(entries, int).reshape(-1, 2)


def _shapes(model: Any, feet: np.ndarray) -> dict[str, np.ndarray]:
    """How far the lowest point of each geom can be below its centre."""
    half, rounded, radius = np.zeros((len(feet), 3)), np.zeros((len(feet), 3)), np.zeros(len(feet))
    for i, foot in enumerate(feet):
        kind, size = model.geom_type[foot], model.geom_size[foot]
        if kind == mujoco.mjtGeom.mjGEOM_BOX:
            half[i] = size
        elif kind == mujoco.mjtGeom.mjGEOM_ELLIPSOID:
            rounded[i] = size
        elif kind == mujoco.mjtGeom.mjGEOM_CYLINDER:
            rounded[i, :2], half[i, 2] = size[0], size[1]
        else:
            radius[i], half[i, 2] = size[0], size[1] if kind == mujoco.mjtGeom.mjGEOM_CAPSULE else 0.0
    return {"half": half, "round": rounded, "radius": radius}


def _control(task: TaskFile, model: Any) -> np.ndarray:
    """Factor and offset from an action to an actuator. [action_size, 2]"""
    given, size = task.actions, model.nu
    for name, value in (("scale", given.scale), ("pose", given.pose)):
        if isinstance(value, tuple) and len(value) not in ((size,) if name == "scale" else (0, size)):
            raise UserError(f"actions: {name}: expected {size} numbers, one per actuator, got {len(value)}")
    factor, offset = np.broadcast_to(np.asarray(given.scale, float), size), np.zeros(size)
    if given.kind == "range":
        low, high = model.actuator_ctrlrange.T
        if (low >= high).any():
            raise UserError("actions: kind='range': an actuator has no ctrlrange; give it one, or a scale")
        factor, offset = (high - low) / 2, (high + low) / 2
    elif given.kind == "position":
        offset = np.array(given.pose) if given.pose else _joint_pose(start_pose(task, model), model)
    return np.stack([factor, offset], axis=1).astype(np.float32)


def _joint_pose(qpos: np.ndarray, model: Any) -> np.ndarray:
    """The positions of the joints that the actuators move; 0 for those that move something else."""
    moves_joint = model.actuator_trntype == mujoco.mjtTrn.mjTRN_JOINT
    address = model.jnt_qposadr[np.where(moves_joint, model.actuator_trnid[:, 0], 0)]
    return np.where(moves_joint, qpos[address], 0.0)


def _pushed(task: TaskFile, model: Any) -> np.ndarray:
    """The velocities along the ground of a robot that is free to move."""
    free = model.jnt_dofadr[model.jnt_type == mujoco.mjtJoint.mjJNT_FREE][:1]
    slides = (model.jnt_type == mujoco.mjtJoint.mjJNT_SLIDE) & (np.abs(model.jnt_axis[:, 2]) < 1e-6)
    found = np.concatenate([free, free + 1]) if len(free) else model.jnt_dofadr[slides]
    if task.variation.push and not len(found):
        raise UserError("variation: push: the robot is not free to move along the ground")
    return found.astype(int)


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


def _single(part: Part, model: Any) -> Entry:
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
