"""Videos of an individual. MuJoCo draws the frames, without a GPU in software. ffmpeg or Pillow encodes them."""

from __future__ import annotations

import contextlib
import ctypes
import io
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from qdhuac.environment import require
from qdhuac.errors import RunFailed, UserError, os_errors_as
from qdhuac.files import replace_file
from qdhuac.store import repertoire
from qdhuac.store.run import Policy, Run
from qdhuac.store.run_folder import REPERTOIRE
from qdhuac.tasks.base import Trajectory, Viewable

LIBRARIES = {"egl": "libEGL.so.1", "osmesa": "libOSMesa.so.8", "glfw": "libGL.so.1"}
PACKAGES = "EGL (libEGL.so.1; Debian: libegl1 and libgl1-mesa-dri) or OSMesa (libOSMesa.so.8; Debian: libosmesa6)"
FORMATS = (".mp4", ".gif")


def choose_library() -> None:
    """Choose the library that MuJoCo draws with, before MuJoCo is imported. Raise UserError if none is installed."""
    wanted = os.environ.get("MUJOCO_GL", "")
    if wanted and wanted not in LIBRARIES:
        raise UserError(f"MUJOCO_GL={wanted!r}: expected one of: {', '.join(LIBRARIES)}")
    for name in (wanted,) if wanted else ("egl", "osmesa"):
        with contextlib.suppress(OSError):
            ctypes.CDLL(LIBRARIES[name])
            os.environ["MUJOCO_GL"] = name
            return
    asked = f" (MUJOCO_GL={wanted} asks for {LIBRARIES[wanted]})" if wanted else ""
    raise UserError(f"no library to draw with{asked}: install {PACKAGES}")


def check_output(path: Path) -> None:
    """Raise UserError if no video can be written to this path."""
    if path.suffix.lower() not in FORMATS:
        raise UserError(f"--output {path}: expected a name that ends in {' or '.join(FORMATS)}")
    if path.is_dir() or not path.absolute().parent.is_dir() or not os.access(path.absolute().parent, os.W_OK):
        raise UserError(f"--output {path}: no file can be written there")


def frames(model: Any, qpos: np.ndarray, width: int, height: int) -> Iterator[np.ndarray]:
    """A picture [height, width, 3] of each pose: from the model's first camera, or one that follows the robot."""
    import mujoco

    model.vis.global_.offwidth, model.vis.global_.offheight = width, height
    data = mujoco.MjData(model)
    try:
        renderer = mujoco.Renderer(model, height, width)
    except Exception as error:  # its type depends on the library
        raise UserError(
            f"{os.environ.get('MUJOCO_GL')} cannot draw here ({type(error).__name__}: {error}); install {PACKAGES}"
        ) from None
    with renderer:
        camera = _camera(model)
        for costly in (mujoco.mjtRndFlag.mjRND_SHADOW, mujoco.mjtRndFlag.mjRND_REFLECTION):
            renderer.scene.flags[costly] = False
        for pose in qpos:
            data.qpos[:] = pose
            mujoco.mj_forward(model, data)
            renderer.update_scene(data, camera)
            yield renderer.render()


def _camera(model: Any) -> Any:
    """The model's first camera, or one at the side that follows the robot, as far off as it is large."""
    import mujoco

    camera = mujoco.MjvCamera()
    if model.ncam:
        camera.type, camera.fixedcamid = mujoco.mjtCamera.mjCAMERA_FIXED, 0
        return camera
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    mine = np.flatnonzero(model.body_rootid[model.geom_bodyid] == model.body_rootid[1])
    far = np.linalg.norm(data.geom_xpos[mine] - data.xpos[1], axis=1) + model.geom_rbound[mine]
    camera.type, camera.trackbodyid = mujoco.mjtCamera.mjCAMERA_TRACKING, 1
    camera.distance = 3.3 * max(far, default=1.0)
    camera.azimuth, camera.elevation = 90.0, -20.0
    return camera


def every(dt: float, most_fps: float) -> int:
    """Steps per frame, so that a second of simulated time has at most `most_fps` frames."""
    return max(1, round(1 / (dt * most_fps)))


def gif(pictures: Iterator[np.ndarray], seconds_per_frame: float) -> bytes:
    """Encode an animation that repeats."""
    from PIL import Image

    images = [Image.fromarray(p).quantize(64) for p in pictures]
    stream = io.BytesIO()
    duration = max(20, round(1000 * seconds_per_frame))
    images[0].save(stream, "GIF", save_all=True, append_images=images[1:], duration=duration, loop=0)
    return stream.getvalue()


def mp4(pictures: Iterator[np.ndarray], seconds_per_frame: float) -> bytes:
    """Encode a video that every browser plays (H.264)."""
    ffmpeg = require("imageio_ffmpeg", "view").get_ffmpeg_exe()
    first = next(pictures)
    source = f"-f rawvideo -pix_fmt rgb24 -s {first.shape[1]}x{first.shape[0]} -r {1 / seconds_per_frame:.6f} -i -"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "video.mp4"
        encoding = "-c:v libx264 -crf 23 -pix_fmt yuv420p -movflags +faststart"
        command = [ffmpeg, "-loglevel", "error", *source.split(), *encoding.split(), str(path)]
        content = b"".join(picture.tobytes() for picture in (first, *pictures))
        done = subprocess.run(command, input=content, capture_output=True, check=False)
        if done.returncode:
            raise RunFailed(f"ffmpeg could not write the video ({done.stderr.decode(errors='replace').strip()})")
        return path.read_bytes()


def strip(model: Any, trajectory: Trajectory, output: Path, pictures: int = 6) -> None:
    """Draw pictures of an episode beside each other into a PNG file."""
    image = require("PIL.Image", "view")
    poses = trajectory.qpos[np.isfinite(trajectory.qpos).all(axis=1)]
    chosen = poses[np.linspace(0, len(poses) - 1, pictures).astype(int)]
    stream = io.BytesIO()
    image.fromarray(np.hstack(list(frames(model, chosen, 240, 240)))).quantize(128).save(stream, "PNG", optimize=True)
    with os_errors_as(RunFailed, f"{output}: cannot be written"):
        replace_file(output, stream.getvalue())


def render(task: Viewable, run: Run, policy: Policy, output: Path, seed: int = 0, seconds: float | None = None) -> str:
    """Film an episode of a policy, or its first seconds.

    Args:
        task: the task of the run, or one with the same policies.
        run: the run.
        policy: one of its policies.
        output: a file that ends in .mp4 or .gif.
        seed: of the start of the episode.
        seconds: of simulated time; None: the whole episode.

    Returns:
        One line about the episode.
    """
    from qdhuac.training.evaluation import check_genotypes
    from qdhuac.view.trajectory import simulate

    genotypes = repertoire.genotypes(run.archive)
    check_genotypes(task, genotypes, str(run.folder.path / REPERTOIRE))
    shown = simulate(task, genotypes, policy.index, seed)
    end = None if seconds is None else round(seconds / shown.dt) + 1
    encode, fps, width, height = (gif, 20, 320, 240) if output.suffix.lower() == ".gif" else (mp4, 50, 640, 480)
    stride = every(shown.dt, fps)
    video = encode(frames(task.model, shown.qpos[:end:stride], width, height), stride * shown.dt)
    with os_errors_as(RunFailed, f"{output}: cannot be written"):
        replace_file(output, video)
    return (
        f"individual {policy.index} of {len(run)}: stored fitness {policy.fitness:.1f}, here "
        f"{shown.reward.sum():.1f} in {len(shown.reward)} steps"
    )
