"""The environment that a process runs in: versions, optional packages, silence about known chatter, JAX's set-up.

Imports nothing heavy.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import io
import os
import platform
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import qdhuac
from qdhuac.errors import UserError

# Versions

COMPUTING = ("numpy", "jax", "jaxlib", "mujoco", "mujoco-mjx")


def versions() -> dict[str, str]:
    """Of qdhuac, Python, and the packages that decide whether a result can be had again."""
    packages = {name: importlib.metadata.version(name) for name in COMPUTING}
    return {"qdhuac": qdhuac.__version__, "python": platform.python_version(), **packages}


# Optional packages


def require(module: str, extra: str) -> Any:
    """Import an optional package; a UserError that says how to install it if it is missing."""
    try:
        return importlib.import_module(module)
    except ImportError:
        raise UserError(f"{module}: not installed; make setup-{extra} or pip install '.[{extra}]' gets it") from None


# Known chatter of MJX and MuJoCo. Importing MJX prints that warp is missing, and MuJoCo reports a deprecated model
# attribute on stderr and in a file MUJOCO_LOG.TXT that it drops into the working directory. Whatever is not on these
# lists still reaches the user.

_PRINTED = ("Failed to import warp", "Failed to import mujoco_warp")
_MUJOCO = ("compiler attribute 'settotalmass' is deprecated",)


@contextlib.contextmanager
def quiet_imports() -> Iterator[None]:
    """Around the first import of MJX: drop its lines about missing optional packages."""
    captured = io.StringIO()
    try:
        with contextlib.redirect_stdout(captured):
            yield
    finally:
        for line in captured.getvalue().splitlines(keepends=True):
            if not line.startswith(_PRINTED):
                sys.stdout.write(line)


@contextlib.contextmanager
def quiet_models() -> Iterator[None]:
    """Around the loading of a model: known messages of MuJoCo are dropped, others become Python warnings."""
    with quiet_imports():
        import mujoco

    messages: list[str] = []
    # A handler of our own keeps MuJoCo from writing to stderr and to its log file. It only collects, because an
    # exception must not cross MuJoCo's C frames.
    previous = mujoco.get_mju_user_warning()
    mujoco.set_mju_user_warning(messages.append)
    try:
        yield
    finally:
        mujoco.set_mju_user_warning(previous)
    for message in messages:
        if not message.startswith(_MUJOCO):
            warnings.warn(f"MuJoCo: {message.strip()}", stacklevel=3)


# JAX

_OFF = ("", "0", "off", "none")
# An update is a chain of small operations: in the order that uses the least memory they run 5 to 10 % faster on CPUs
# than in the order that could run most of them side by side.
_XLA_FLAG = "--xla_cpu_enable_concurrency_optimized_scheduler"


def cache_folder() -> Path | None:
    """Where compiled programs are kept between runs; QDHUAC_CACHE names another folder, or is `off`."""
    wanted = os.environ.get("QDHUAC_CACHE")
    if wanted is not None:
        return None if wanted.lower() in _OFF else Path(wanted).expanduser()
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "qdhuac" / "jax"


def prepare_jax() -> None:
    """Set XLA's flags and turn on the persistent compilation cache, so that a task compiles once per machine."""
    flags = os.environ.get("XLA_FLAGS", "")
    if _XLA_FLAG not in flags:
        os.environ["XLA_FLAGS"] = f"{flags} {_XLA_FLAG}=false".strip()

    import jax

    folder = cache_folder()
    if folder is None or not is_writable(folder):
        return  # it only saves time: a read-only home must not stop a run
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)


def is_writable(folder: Path) -> bool:
    """The folder exists, or could be made, and can be written to."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):
        return False
    return os.access(folder, os.W_OK | os.X_OK)
