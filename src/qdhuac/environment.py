"""Versions, optional packages, known messages of other packages, and the set-up of JAX. Imports nothing heavy."""

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
    """Return the versions of qdhuac, Python, and the packages that affect results."""
    packages = {name: importlib.metadata.version(name) for name in COMPUTING}
    return {"qdhuac": qdhuac.__version__, "python": platform.python_version(), **packages}


# Optional packages


def require(module: str, extra: str) -> Any:
    """Import an optional package. Raises UserError if it is missing, with the command that installs it."""
    try:
        return importlib.import_module(module)
    except ImportError:
        raise UserError(f"{module}: not installed; make setup-{extra} or pip install '.[{extra}]' gets it") from None


# Messages that are hidden: MJX prints that warp is missing when it is imported, and MuJoCo reports a deprecated
# attribute of models on stderr and in a file MUJOCO_LOG.TXT in the working directory. All other messages are shown.

_PRINTED = ("Failed to import warp", "Failed to import mujoco_warp")
_MUJOCO = ("compiler attribute 'settotalmass' is deprecated",)


@contextlib.contextmanager
def quiet_imports() -> Iterator[None]:
    """Hide what MJX prints about missing optional packages when it is imported."""
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
    """Hide known messages while MuJoCo loads a model, and turn others into Python warnings."""
    with quiet_imports():
        import mujoco

    messages: list[str] = []
    # The handler only collects messages, because an exception must not pass through MuJoCo's C code.
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
# An update is a chain of small operations. On CPUs they run 5 to 10 % faster in the order that needs the least memory
# than in the order that allows the most concurrency.
_XLA_FLAG = "--xla_cpu_enable_concurrency_optimized_scheduler"


def cache_folder() -> Path | None:
    """Return the folder of compiled programs. QDHUAC_CACHE names another folder, or is `off`: then None."""
    wanted = os.environ.get("QDHUAC_CACHE")
    if wanted is not None:
        return None if wanted.lower() in _OFF else Path(wanted).expanduser()
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "qdhuac" / "jax"


def prepare_jax() -> None:
    """Set XLA's flags, and keep compiled programs between runs."""
    flags = os.environ.get("XLA_FLAGS", "")
    if _XLA_FLAG not in flags:
        os.environ["XLA_FLAGS"] = f"{flags} {_XLA_FLAG}=false".strip()

    import jax

    folder = cache_folder()
    if folder is None or not is_writable(folder):
        return  # the cache only saves time
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)


def is_writable(folder: Path) -> bool:
    """True if files can be written to a folder, which is made if it does not exist."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):
        return False
    return os.access(folder, os.W_OK | os.X_OK)
