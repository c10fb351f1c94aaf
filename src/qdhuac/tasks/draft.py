"""A first task file for a MuJoCo model, written by looking at the model. Free of JAX."""

from __future__ import annotations

import dataclasses
import functools
import json
import re
from pathlib import Path
from typing import Any, Literal

import mujoco
import numpy as np

from qdhuac.errors import UserError
from qdhuac.tasks.model import load, motor_names
from qdhuac.tasks.tables import plan, tables
from qdhuac.tasks.task_file import Actions, Reset, TaskFile

ACTION_TIME = 0.02  # seconds
NEAR = 0.01  # metres above the floor at which a geom still counts as touching it
MOST_FEET = 8
SCALES = {"position": 0.5, "range": 1.0, "control": 1.0}
KINDS = ("SPHERE", "CAPSULE", "ELLIPSOID", "CYLINDER", "BOX")  # of geoms that can be feet
SHAPES = [int(getattr(mujoco.mjtGeom, f"mjGEOM_{kind}")) for kind in KINDS]
FREE, SLIDE = int(mujoco.mjtJoint.mjJNT_FREE), int(mujoco.mjtJoint.mjJNT_SLIDE)


def draft(path: Path, folder: Path) -> str:
    """The text of a task file in `folder` for the model at `path`, in this folder or below it."""
    try:
        inside = path.resolve().relative_to(folder.resolve())
    except ValueError:
        raise UserError(f"{path}: the model must be in the folder of the task file, {folder}, or below it") from None
    seen = Look(path)
    lines = [*_head(seen, inside), *_actions(seen), *_observation(seen), *_reward(seen), *_end(seen)]
    return "\n".join([*lines, *_limbs(seen), *_descriptors(seen)]) + "\n"


class Look:
    """What there is to see of a model at its start."""

    def __init__(self, path: Path) -> None:
        none: dict[str, Any] = {"observation": (), "reward": (), "descriptors": {"none": ()}}
        self.facts = TaskFile(name=path.stem, model=path, frames=1, **none)
        self.model = m = load(self.facts)
        self.frames = max(1, round(ACTION_TIME / m.opt.timestep))
        self.keyframe = next((m.key(i).name for i in range(m.nkey) if m.key(i).name), "")
        self.pose = np.array(m.key(self.keyframe).qpos if self.keyframe else m.qpos0)
        driven = m.actuator_trnid[m.actuator_trntype == mujoco.mjtTrn.mjTRN_JOINT, 0]
        mine = np.isin(m.body_rootid[m.jnt_bodyid], m.body_rootid[m.jnt_bodyid[driven]]) | (not len(driven))
        free = m.jnt_bodyid[mine & (m.jnt_type == FREE)]  # not that of things that lie around
        level = mine & (m.jnt_type == SLIDE) & (m.jnt_limited == 0) & (np.abs(m.jnt_axis[:, 2]) < 0.01)
        self.base = "free" if len(free) else "planar" if level.any() else "fixed"
        self.root = int(free[0] if len(free) else m.jnt_bodyid[level][0] if level.any() else self._last_body(driven))
        if not m.body(self.root).name:
            what = "moves" if self.base != "fixed" else "is the last of the arm"
            raise UserError(f"{path}: the body that {what}, number {self.root}, needs a name")
        flat = (m.geom_pos[:, 2] == 0) & (m.geom_quat[:, 0] == 1) & (m.geom_bodyid == 0)
        self.floors = np.flatnonzero(flat & (m.geom_type == mujoco.mjtGeom.mjGEOM_PLANE))
        # What policies do not see of the position: how far the robot went.
        self.skip = 2 * int(m.jnt_type[0] == FREE) if self.base == "free" else int(level[: np.argmin(level)].sum())
        ranged = bool(np.all(m.actuator_ctrlrange[:, 0] < m.actuator_ctrlrange[:, 1]))
        servos = np.all((m.actuator_biastype == mujoco.mjtBias.mjBIAS_AFFINE) & (m.actuator_biasprm[:, 1] < 0))
        around = servos and not (self.base == "fixed" and ranged)
        self.actions: Literal["position", "range", "control"] = (
            "position" if around else "range" if ranged else "control"
        )
        self._bend()
        self.data = self._at(self.pose)
        self._stand()
        self.moved = not self.keyframe and not np.array_equal(self.pose, m.qpos0)

    def _at(self, pose: np.ndarray) -> Any:
        data = mujoco.MjData(self.model)
        data.qpos[:] = pose
        mujoco.mj_forward(self.model, data)
        return data

    def _last_body(self, driven: np.ndarray) -> int:
        """The body at the end of the longest chain of those whose joints are `driven`."""
        m, depth = self.model, [0]
        for parent in m.body_parentid[1:]:
            depth.append(depth[parent] + 1)
        roots = m.body_rootid[m.jnt_bodyid[driven]] if len(driven) else m.body_rootid
        return int(np.argmax(np.where(np.isin(m.body_rootid, roots), depth, -1)))

    def _bend(self) -> None:
        """Move joints that start outside of their ranges to the nearest end."""
        for joint in np.flatnonzero((self.model.jnt_limited > 0) & (self.model.jnt_type >= SLIDE)):
            at = self.model.jnt_qposadr[joint]
            self.pose[at] = np.clip(self.pose[at], *self.model.jnt_range[joint])

    def _stand(self) -> None:
        """Put a free robot on the floor, unless a keyframe says where it is."""
        near = self.heights()
        if self.base == "free" and not self.keyframe and near and abs(min(near.values())) > NEAR:
            joint = np.flatnonzero(self.model.jnt_type == FREE)[0]
            self.pose[self.model.jnt_qposadr[joint] + 2] += round(0.001 - min(near.values()), 4)
            self.data = self._at(self.pose)

    def heights(self) -> dict[int, float]:
        """How high the geoms that can touch the floor are above it."""
        m, found = self.model, {}
        for geom in range(m.ngeom) if len(self.floors) else ():
            floor = self.floors[0]
            types, affinities = m.geom_contype[[geom, floor]], m.geom_conaffinity[[floor, geom]]
            if m.geom_bodyid[geom] and (types & affinities).any():
                found[geom] = mujoco.mj_geomDistance(m, self.data, int(floor), geom, 100.0, None)
        return found

    @functools.cached_property
    def feet(self) -> list[int]:
        """Geoms that touch the floor at the start, or are about to, of each body the lowest."""
        lowest: dict[int, int] = {}
        heights = self.heights() if self.stands else {}
        highest = max(0.0, min(heights.values(), default=0.0)) + NEAR
        for geom, height in sorted(heights.items(), key=lambda pair: pair[1]):
            if height < highest and self.model.geom_type[geom] in SHAPES:
                lowest.setdefault(int(self.model.geom_bodyid[geom]), geom)
        return sorted(lowest.values())

    @property
    def height(self) -> float:
        """Of the root at the start."""
        return float(self.data.xpos[self.root, 2])

    @property
    def stands(self) -> bool:
        """The robot can fall: it moves up and down, above a floor."""
        vertical = (self.model.jnt_type == SLIDE) & (np.abs(self.model.jnt_axis[:, 2]) > 0.5)
        return self.height > 0 and len(self.floors) > 0 and (self.base == "free" or bool(vertical.any()))

    @property
    def upright(self) -> bool:
        """The z-axis of the root points up at the start."""
        return bool(self.data.xmat[self.root, 8] > 0.9)

    @property
    def speed(self) -> float:
        """Metres per second that such a robot may reach, as a guess from its size."""
        return _rounded(4.0 * self.height) if self.height > 0.02 else 1.0

    @functools.cached_property
    def power(self) -> float:
        """Mean mechanical power of random motions, in watts."""
        rng, m, powers = np.random.default_rng(0), self.model, []
        actions = Actions(kind=self.actions, scale=SCALES[self.actions])
        facts = dataclasses.replace(self.facts, actions=actions, reset=Reset(pose=tuple(self.pose)))
        factor, offset = tables(facts, m, plan(facts, m)).control.T
        previous = mujoco.get_mju_user_warning()
        mujoco.set_mju_user_warning(lambda message: None)  # a model that explodes is for `task check` to report
        for _ in range(8):
            data, action = self._at(self.pose), np.zeros(m.nu)
            for _ in range(100):
                action = np.clip(0.8 * action + 0.5 * rng.normal(size=m.nu), -1, 1)
                data.ctrl[:] = factor * action + offset
                mujoco.mj_step(m, data, self.frames)
                powers.append(np.abs(data.qfrc_actuator * data.qvel).sum())
        mujoco.set_mju_user_warning(previous)
        known = [power for power in powers if np.isfinite(power)]
        return max(float(np.mean(known)) if known else 1.0, 1e-3)


def _head(seen: Look, inside: Path) -> list[str]:
    m = seen.model
    base = {"free": "moves freely", "planar": "slides along the ground", "fixed": "is mounted"}[seen.base]
    least, best = (1.0, 100.0) if seen.base == "fixed" else (2.0, 250.0)
    return [
        f"# A first task for {inside}, which has {m.nu} actuators and {base}. docs/task-file.md describes every key.",
        f"title = {_text(inside.stem)}",
        f"model = {_text(inside.as_posix())}",
        f"frames = {seen.frames}  # steps of the physics per action, of {m.opt.timestep:.6g} s each",
        f"support = [{-0.4 * best:g}, {best:g}]  # discounted returns to expect, as a guess",
        f"reward_offset = {least:g}  # per step, so that no policy counts less than nothing",
        "",
    ]


def _actions(seen: Look) -> list[str]:
    what = {
        "position": "The actuators hold positions: actions of -1 and 1 are so far from those at the start.",
        "range": "Actions of -1 and 1 are the ends of the actuators' ranges.",
        "control": "The actuators have no ranges: they are told the action times the scale.",
    }[seen.actions]
    scale = "" if seen.actions == "range" else f", scale = {SCALES[seen.actions]}"
    return [f"# {what}", f'actions = {{ kind = "{seen.actions}"{scale} }}', ""]


def _observation(seen: Look) -> list[str]:
    found = ["# What a policy sees: positions, without where the robot is on the ground, and velocities."]
    if not seen.skip:
        found = ["# What a policy sees: positions and velocities."]
    parts = [f'{{ field = "qpos", skip = {seen.skip} }}' if seen.skip else '{ field = "qpos" }']
    parts.append('{ field = "qvel", limit = 50.0 }')
    if seen.model.nsensordata:
        found.append('# The model also has sensors: add { field = "sensordata" }, or { sensor = "NAME" }.')
    return [*found, f"observation = [{', '.join(parts)}]", ""]


def _reward(seen: Look) -> list[str]:
    name = _text(seen.model.body(seen.root).name)
    if seen.base == "fixed":
        lines = ["# Cheap motions to anywhere.", "reward = [", '    { term = "alive" },']
    else:
        lines = [
            f"# To move along x: {seen.speed:g} m/s is worth 2 per step.",
            "reward = [",
            f'    {{ term = "velocity", body = {name}, axis = "x", weight = {_rounded(2.0 / seen.speed):g} }},',
            '    { term = "alive", weight = 0.5 },',
        ]
    cost = f'    {{ term = "energy", weight = {_rounded(0.2 / seen.power, 1):g} }},'
    return [*lines, f"{cost}  # random motions take {seen.power:.2g} W", "]", ""]


def _end(seen: Look) -> list[str]:
    name, found = _text(seen.model.body(seen.root).name), []
    if seen.stands:
        found = ["# An episode ends when the robot falls.", "healthy = ["]
        found.append(f'    {{ body = {name}, axis = "z", low = {_rounded(0.5 * seen.height):g} }},')
        if seen.upright:
            found.append(f'    {{ body = {name}, field = "tilt", high = 1.0 }},')
        found += ["]", ""]
    reset = ["noise = 0.02"]
    if seen.keyframe:
        reset.append(f"keyframe = {_text(seen.keyframe)}")
    elif seen.moved:
        found.append("# The model's own start has joints outside of their ranges, or is not on the floor.")
        reset.append(f"pose = [{', '.join(f'{x:.6g}' for x in seen.pose)}]")
    return [*found, f"reset = {{ {', '.join(reset)} }}", ""]


def _limbs(seen: Look) -> list[str]:
    """Actuators by the part of the robot that they move, for damage; only where there are several parts."""
    m = seen.model
    groups: dict[int, list[str]] = {}
    for i, name in enumerate(motor_names(m)):
        if m.actuator_trntype[i] == mujoco.mjtTrn.mjTRN_JOINT and name:
            body = int(m.jnt_bodyid[m.actuator_trnid[i, 0]])
            while m.body_parentid[body] not in (0, seen.root):
                body = int(m.body_parentid[body])
            groups.setdefault(body, []).append(name)
    if len(groups) < 2:
        return []
    lines = []
    for body, motors in groups.items():
        name = m.body(body).name or f"limb_{body}"
        name += "_limb" if name in motor_names(m) else ""  # a name means one thing
        lines.append(f"{_key(name)} = [{', '.join(map(_text, motors))}]")
    return ["# What `qdhuac adapt` can damage as one.", "[limbs]", *lines, ""]


def _descriptors(seen: Look) -> list[str]:
    """What policies are to differ in; the first is used unless `--descriptor` names another one."""
    m, name = seen.model, _text(seen.model.body(seen.root).name)
    found = ["# What policies are to differ in: the first, or that of --descriptor.", "[descriptors]"]
    if seen.base == "fixed":
        sites = [m.site(i).name for i in range(m.nsite) if m.site_bodyid[i] == seen.root and m.site(i).name]
        what = f"site = {_text(sites[0])}" if sites else f"body = {name}"
        low, high = _reach(seen, m.site(sites[0]).id if sites else -1)
        return [*found, "hand = [", *_finals(what, low, high), "]"]
    feet = [m.geom(geom).name for geom in seen.feet]
    if feet and all(feet) and len(feet) <= MOST_FEET:
        found += ["feet = [", *(f'    {{ kind = "contact", geom = {_text(foot)} }},' for foot in feet), "]"]
    elif len(feet) > MOST_FEET:
        found.append(f"# {len(feet)} geoms touch the floor at the start, too many for shares of steps on the floor.")
    elif feet:
        bodies = ", ".join(m.body(m.geom_bodyid[geom]).name or "?" for geom in seen.feet if not m.geom(geom).name)
        found.append(f"# For shares of steps on the floor, name the geoms that touch it, of: {bodies}")
    else:
        found.append("# No geom of a simple shape touches a floor at the start, so there is nothing to call feet.")
    reach = 10.0 * seen.speed
    ways = 2 if seen.base == "free" or (sum(m.jnt_type == SLIDE) > 1 and not seen.stands) else 1
    found += ["position = [", *_finals(f"body = {name}", [-reach] * ways, [reach] * ways), "]"]
    if seen.stands:
        least, most = _rounded(0.5 * seen.height), _rounded(1.5 * seen.height)
        found.append("posture = [")
        found.append(f'    {{ kind = "mean", body = {name}, axis = "z", low = {least:g}, high = {most:g} }},')
        if seen.upright:
            found.append(f'    {{ kind = "mean", body = {name}, field = "pitch", low = -0.8, high = 0.8 }},')
        found.append("]")
    return found


def _finals(what: str, low: list[float], high: list[float]) -> list[str]:
    return [
        f'    {{ kind = "final", {what}, axis = "{axis}", low = {a:g}, high = {b:g} }},'
        for axis, a, b in zip("xyz", low, high, strict=False)
    ]


def _reach(seen: Look, site: int) -> tuple[list[float], list[float]]:
    """Where a hand, a site or else the last body, can be."""
    m, rng, places = seen.model, np.random.default_rng(0), []
    low, high = np.where(m.jnt_limited[:, None] > 0, m.jnt_range, (-np.pi, np.pi)).T
    for _ in range(500):
        data = seen.data
        for joint, address in enumerate(m.jnt_qposadr):
            data.qpos[address] = rng.uniform(low[joint], high[joint])
        mujoco.mj_kinematics(m, data)
        places.append(data.site_xpos[site].copy() if site >= 0 else data.xpos[seen.root].copy())
    found = np.percentile(places, (1, 99), axis=0)
    step = 10.0 ** np.floor(np.log10(max(np.ptp(found, axis=0).max(), 1e-3) / 10.0))
    low, high = np.floor(found[0] / step), np.ceil(found[1] / step)
    return (step * low).tolist(), (step * np.maximum(high, low + 1.0)).tolist()  # also where it cannot move


def _rounded(value: float, digits: int = 2) -> float:
    return float(f"{value:.{digits - 1}e}")


def _key(name: str) -> str:
    return name if re.fullmatch(r"[\w-]+", name, re.ASCII) else _text(name)


def _text(value: str) -> str:
    return json.dumps(value, ensure_ascii=False)
