"""What the browser needs to draw a robot: the shapes of its geoms, and their poses in each frame of an episode."""

from __future__ import annotations

from typing import Any

import mujoco
import numpy as np

from qdhuac.tasks.base import Trajectory
from qdhuac.view.video import every

FPS = 30.0  # most frames per second; the page interpolates between them
NAMES = ("sphere", "capsule", "ellipsoid", "cylinder", "box")
SHAPES = {int(getattr(mujoco.mjtGeom, f"mjGEOM_{name.upper()}")): name for name in NAMES}


def drawn(model: Any) -> list[int]:
    """The geoms to draw: all with a shape that are not transparent. The page draws a floor of its own."""
    return [g for g in range(model.ngeom) if model.geom_type[g] in SHAPES and model.geom_rgba[g, 3] > 0]


def shapes(model: Any) -> list[dict[str, Any]]:
    """The shape, MuJoCo's three sizes, and the colour (red, green, blue from 0 to 1) of each drawn geom."""
    sizes, colours = model.geom_size.tolist(), model.geom_rgba[:, :3].tolist()
    return [{"shape": SHAPES[model.geom_type[g]], "size": sizes[g], "colour": colours[g]} for g in drawn(model)]


def poses(model: Any, trajectory: Trajectory) -> tuple[np.ndarray, float]:
    """Position and rotation (x, y, z, w) of each drawn geom [frames, geoms, 7], and seconds per frame."""
    stride = every(trajectory.dt, FPS)
    qpos, geoms = trajectory.qpos[::stride], drawn(model)
    out = np.zeros((len(qpos), len(geoms), 7), np.float32)
    data, quaternion = mujoco.MjData(model), np.zeros(4)
    for t, pose in enumerate(qpos):
        data.qpos[:] = pose
        mujoco.mj_kinematics(model, data)
        out[t, :, :3] = data.geom_xpos[geoms]
        for i, geom in enumerate(geoms):
            mujoco.mju_mat2Quat(quaternion, data.geom_xmat[geom])
            out[t, i, 3:] = np.roll(quaternion, -1)
    return out, stride * trajectory.dt
