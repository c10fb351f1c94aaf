"""What the browser needs to draw a robot: the shapes of its geoms, and where they are in each frame of an episode."""

from __future__ import annotations

from typing import Any

import mujoco
import numpy as np

from qdhuac.tasks.base import Trajectory
from qdhuac.view.video import every

FPS = 30.0  # at most; the page moves smoothly between two frames
SHAPES = {
    int(mujoco.mjtGeom.mjGEOM_SPHERE): "sphere",
    int(mujoco.mjtGeom.mjGEOM_CAPSULE): "capsule",
    int(mujoco.mjtGeom.mjGEOM_ELLIPSOID): "ellipsoid",
    int(mujoco.mjtGeom.mjGEOM_CYLINDER): "cylinder",
    int(mujoco.mjtGeom.mjGEOM_BOX): "box",
}


def drawn(model: Any) -> list[int]:
    """The geoms that are drawn: all with a shape, unless they are transparent. The page has a floor of its own."""
    return [g for g in range(model.ngeom) if model.geom_type[g] in SHAPES and model.geom_rgba[g, 3] > 0]


def shapes(model: Any) -> list[dict[str, Any]]:
    """For each drawn geom its shape, MuJoCo's three sizes, and its colour (red, green, blue from 0 to 1)."""
    return [
        {
            "shape": SHAPES[model.geom_type[g]],
            "size": model.geom_size[g].tolist(),
            "colour": model.geom_rgba[g, :3].tolist(),
        }
        for g in drawn(model)
    ]


def poses(model: Any, trajectory: Trajectory) -> tuple[np.ndarray, float]:
    """Position, then rotation as x, y, z, w, of each drawn geom [frames, geoms, 7]; and seconds per frame."""
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
