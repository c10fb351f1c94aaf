"""The 3-D scene: up to two robots side by side that walk on the spot while the floor moves under them."""

from __future__ import annotations

import contextlib
import io
import threading
import time
from typing import Any

import numpy as np

from qdhuac.viewing.trajectory import Trajectory, geom_poses

SIDES = ("left", "right")
GAP = 2.0  # metres between the two
FPS = 25.0
CELL = 0.5  # metres of a square of the floor


class Scene:
    """A viser server on this machine alone. `show` replaces one of the robots."""

    def __init__(self, model: Any, port: int) -> None:
        import viser

        self.model = model
        with contextlib.redirect_stdout(io.StringIO()):  # it praises itself even if it is asked not to
            self._server = viser.ViserServer(host="127.0.0.1", port=port, verbose=False)
        self._server.gui.configure_theme(control_layout="collapsible", show_logo=False, show_share_button=False)
        self._floor = self._server.scene.add_grid("/floor", width=20, height=20, cell_size=CELL, section_size=4 * CELL)
        self._shown: dict[str, tuple[Trajectory, np.ndarray, np.ndarray, list[Any]]] = {}
        self._lock, self._ended = threading.Lock(), threading.Event()

        @self._server.on_client_connect
        def _look_from_the_side(client: Any) -> None:
            client.camera.position, client.camera.look_at = (1.3, -3.2, 1.3), (0.0, 0.0, 0.5)

        threading.Thread(target=self._play, daemon=True).start()

    def show(self, side: str, trajectory: Trajectory | None) -> None:
        """Let a robot walk, from the beginning; None takes it away."""
        poses = geom_poses(self.model, trajectory.qpos) if trajectory is not None else None
        with self._lock:
            for handle in self._shown.pop(side, (None, None, None, []))[3]:
                handle.remove()
            if trajectory is None or poses is None:
                return
            self._shown[side] = (trajectory, *poses, self._bodies(side))
            self._began = time.monotonic()

    def close(self) -> None:
        """Stop the clock and the server."""
        self._ended.set()
        self._server.stop()

    def _bodies(self, side: str) -> list[Any]:
        """One mesh for each geom but the floor, in the order of the geoms."""
        scene, handles = self._server.scene, []
        for geom in range(self.model.ngeom):
            mesh = geom_mesh(self.model, geom)
            if mesh is None:
                continue
            colour = tuple(float(c) for c in self.model.geom_rgba[geom, :3])
            handles.append(scene.add_mesh_simple(f"/{side}/{geom}", mesh.vertices, mesh.faces, color=colour))
        return handles

    def _play(self) -> None:
        solid = [geom for geom in range(self.model.ngeom) if geom_mesh(self.model, geom) is not None]
        while not self._ended.wait(1 / FPS):
            with self._lock, self._server.atomic():
                for side, (trajectory, positions, rotations, handles) in self._shown.items():
                    t = int((time.monotonic() - self._began) / trajectory.dt) % len(positions)
                    torso = positions[t, solid[0]]
                    both = len(self._shown) > 1
                    away = np.array([-torso[0], -torso[1] + both * GAP * (SIDES.index(side) - 0.5), 0.0])
                    for geom, handle in zip(solid, handles, strict=True):
                        handle.position, handle.wxyz = positions[t, geom] + away, rotations[t, geom]
                    if side == next(iter(self._shown)):
                        self._floor.position = (-float(torso[0]) % (4 * CELL), -float(torso[1]) % (4 * CELL), 0.0)


def geom_mesh(model: Any, geom: int) -> Any:
    """The shape of a geom as a mesh; None for the floor and for what is invisible."""
    import mujoco
    import trimesh

    kind, size = mujoco.mjtGeom(model.geom_type[geom]), model.geom_size[geom]
    if model.geom_rgba[geom, 3] == 0:
        return None
    if kind == mujoco.mjtGeom.mjGEOM_SPHERE:
        return trimesh.creation.icosphere(subdivisions=2, radius=size[0])
    if kind == mujoco.mjtGeom.mjGEOM_CAPSULE:
        mesh = trimesh.creation.capsule(height=2 * size[1], radius=size[0], count=(16, 16))
        mesh.apply_translation(-mesh.bounds.mean(0))  # trimesh begins a capsule at its lower end
        return mesh
    if kind == mujoco.mjtGeom.mjGEOM_BOX:
        return trimesh.creation.box(extents=2 * size)
    return None
