"""The tables by which both engines read a simulation, and what reward and descriptor are made of. Free of JAX."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from qdhuac.environment import quiet_imports
from qdhuac.errors import UserError
from qdhuac.tasks.model import (
    ANGLES,
    COM_VELOCITY,
    POWER,
    XMAT,
    XPOS,
    Entry,
    body_id,
    entries,
    feet_ids,
    single,
    start_pose,
)
from qdhuac.tasks.task_file import Dimension, Healthy, Observed, Part, TaskFile, Term

with quiet_imports():
    import mujoco


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
        return columns([single(part, model)])

    terms, found = [], []
    for i, term in enumerate(task.reward):
        try:
            if term.term == "velocity":
                moving.append(single(term, model))
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
