"""What decides whether a result can be had again. Imports nothing heavy."""

from __future__ import annotations

import importlib.metadata
import platform

import qdhuac

PACKAGES = ("numpy", "jax", "jaxlib", "brax", "mujoco", "mujoco-mjx")


def versions() -> dict[str, str]:
    """Of qdhuac, Python, and the packages that compute."""
    packages = {name: importlib.metadata.version(name) for name in PACKAGES}
    return {"qdhuac": qdhuac.__version__, "python": platform.python_version(), **packages}
