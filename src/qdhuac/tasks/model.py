"""A robot's MuJoCo model, and the tables by which both engines read its simulation. Free of JAX."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from qdhuac.config import check_choice
from qdhuac.environment import quiet_imports, quiet_models
from qdhuac.errors import UserError
from qdhuac.tasks.robots import Part, Robot

with quiet_imports():
    import mujoco

FLOOR = "floor"

# The fields of a simulation that are read or written, flat, by their place in `FIELDS`.
FIELDS = (
    *("qpos", "qvel", "ctrl", "xpos", "xipos", "subtree_com"),
    *("cinert", "cvel", "qfrc_actuator", "geom_xpos", "geom_xmat"),
)
QPOS, QVEL, CTRL, XPOS, XIPOS, SUBTREE_COM, CINERT, CVEL, QFRC_ACTUATOR, GEOM_XPOS, GEOM_XMAT = range(len(FIELDS))
COM_VELOCITY = len(FIELDS)  # computed here: the velocities of the bodies at their own centres of mass
NAMES = (*FIELDS, "com_velocity")
OF_A_BODY = (XPOS, XIPOS, SUBTREE_COM)  # what can be asked of one body


class Entry(NamedTuple):
    """A number of the simulation."""

    field: int
    at: int


class Tables(NamedTuple):
    """A robot as an engine sees it. Columns of integers are `Entry`s."""

    frames: int  # physics steps per environment step
    observed: np.ndarray  # [obs_size, 2]
    limit: np.ndarray  # [obs_size] what an observation is clipped to
    watched: np.ndarray  # [n, 2] numbers that must stay between their bounds
    bounds: np.ndarray  # [n, 2]
    progress: np.ndarray  # [2] what is rewarded when it grows
    features: np.ndarray  # [d, 2] what the descriptor is made of: heights of feet, or where the torso is
    tilt: np.ndarray  # [d] index of the vertical part of a foot's axis in its rotation
    reach: np.ndarray  # [d] half of the length of a foot; a sphere's is 0
    radius: np.ndarray  # [d]
    control: np.ndarray  # [action_size, 2] factor and offset from an action to an actuator
    mass_share: np.ndarray  # [bodies], empty unless `com_velocity` is observed


def load(robot: Robot) -> Any:
    """The robot's `mujoco.MjModel`."""
    with quiet_models():
        try:
            model = mujoco.MjModel.from_xml_path(str(robot.model))
        except ValueError as error:
            raise UserError(f"{robot.model}: {' '.join(str(error).split())}") from None
    for name in ("timestep", "tolerance", "ls_tolerance"):  # MJX has single precision: both engines take the same step
        setattr(model.opt, name, np.float32(getattr(model.opt, name)))
    return model


def seconds_per_step(robot: Robot, model: Any) -> float:
    """How long an action lasts."""
    return float(np.float32(robot.frames * model.opt.timestep))


def tables(robot: Robot, model: Any) -> Tables:
    """The tables of a robot; what its model does not have is refused by name."""
    observed = [(entry, part.limit) for part in robot.observation for entry in entries(part, model)]
    watched = [(entry, part.low, part.high) for part in robot.healthy for entry in entries(part, model)]
    (progress,) = entries(robot.reward.progress, model)
    if robot.omni:
        torso = 3 * body_id(model, robot.torso)
        features = [Entry(XPOS, torso), Entry(XPOS, torso + 1)]
        tilt, reach, radius = np.zeros(2, int), np.zeros(2), np.zeros(2)
    else:
        feet = feet_ids(robot, model)
        features = [Entry(GEOM_XPOS, 3 * foot + 2) for foot in feet]
        tilt = 9 * feet + 8
        radius, reach = model.geom_size[feet, :2].T
    low, high = model.actuator_ctrlrange.T if robot.stretch_actions else (-np.ones(model.nu), np.ones(model.nu))
    shares = model.body_mass[1:] / model.body_mass[1:].sum()
    return Tables(
        frames=robot.frames,
        observed=np.array([entry for entry, _ in observed]),
        limit=np.array([limit for _, limit in observed], float),
        watched=np.array([entry for entry, *_ in watched], int).reshape(-1, 2),
        bounds=np.array([bounds for _, *bounds in watched], float).reshape(-1, 2),
        progress=np.array(progress),
        features=np.array(features),
        tilt=np.ascontiguousarray(tilt),
        reach=np.ascontiguousarray(reach),
        radius=np.ascontiguousarray(radius),
        control=np.stack([(high - low) / 2, (high + low) / 2], axis=1).astype(np.float32),
        mass_share=shares if any(part.field == "com_velocity" for part in robot.observation) else np.zeros(0),
    )


def entries(part: Part, model: Any) -> list[Entry]:
    """The numbers that a part is."""
    bodies = range(1, model.nbody)
    sizes = {QPOS: model.nq, QVEL: model.nv, QFRC_ACTUATOR: model.nv, CINERT: 0, COM_VELOCITY: 6 * len(bodies)}
    check_choice("field", part.field, (NAMES[i] for i in (*sizes, *OF_A_BODY)))
    field = NAMES.index(part.field)
    if part.joint:
        joint = _index(part.joint, [model.joint(i).name for i in range(model.njnt)], "joint")
        return [Entry(field, int((model.jnt_qposadr if field == QPOS else model.jnt_dofadr)[joint]))]
    if field in OF_A_BODY:
        if not part.body or not part.axis:
            raise UserError(f"field {part.field!r}: expected the name of a body and an axis with it")
        return [Entry(field, 3 * body_id(model, part.body) + "xyz".index(part.axis))]
    if field == CINERT:  # of each body the symmetric 3 x 3 matrix of inertia, then the mass
        whole = [10 * body + i for body in bodies for i in (0, 3, 4, 3, 1, 5, 4, 5, 2, 9)]
    else:
        whole = list(range(sizes[field]))
    return [Entry(field, i) for i in whole[part.skip :]]


def body_id(model: Any, name: str) -> int:
    """The index of a body."""
    return _index(name, [model.body(i).name for i in range(model.nbody)], "body")


def geom_ids(model: Any, names: tuple[str, ...]) -> list[int]:
    """The indices of geoms."""
    known = [model.geom(i).name for i in range(model.ngeom)]
    return [_index(name, known, "geom") for name in names]


def feet_ids(robot: Robot, model: Any) -> np.ndarray:
    """The geoms of the feet, of which height above the floor is a matter of centre, axis and radius."""
    floor, *feet = geom_ids(model, (FLOOR, *robot.feet))
    if model.geom_pos[floor].any() or model.geom_quat[floor, 0] != 1.0:
        raise UserError(f"{robot.model}: its floor is not the plane z = 0")
    if not np.isin(model.geom_type[feet], (mujoco.mjtGeom.mjGEOM_SPHERE, mujoco.mjtGeom.mjGEOM_CAPSULE)).all():
        raise UserError(f"{robot.model}: a foot is neither a sphere nor a capsule")
    return np.array(feet)


def motor_names(model: Any) -> list[str]:
    """The motors; one without a name has that of its joint."""
    return [model.actuator(i).name or model.joint(model.actuator_trnid[i, 0]).name for i in range(model.nu)]


def _index(name: str, known: list[str], kind: str) -> int:
    if name not in known:
        raise UserError(f"{kind} {name!r}: the model has no such {kind}; it has: {', '.join(filter(None, known))}")
    return known.index(name)
