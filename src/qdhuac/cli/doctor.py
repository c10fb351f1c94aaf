"""Check this machine: versions, hardware, folders and tools."""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import os
import platform
import shutil
from collections.abc import Iterator

import qdhuac

PACKAGES = ("jax", "jaxlib", "numpy", "scipy", "optax", "mujoco", "mujoco-mjx", "safetensors", "matplotlib")
GOOD, MISSING, BAD = "[green]ok[/]", "[yellow]missing[/]", "[red]problem[/]"
Finding = tuple[str, str, str]  # what, state, detail


def add(parser: argparse.ArgumentParser) -> None:
    """`qdhuac doctor` has no options."""


def run(arguments: argparse.Namespace) -> int:
    """Print the findings. What is missing is not an error."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for heading in ("", "state", "detail"):
        table.add_column(heading, overflow="fold")
    for what, state, detail in (*_software(), *_hardware(), *_places(), *_tools()):
        table.add_row(escape(what), state, escape(detail))
    Console().print(table)
    return 0


def _software() -> Iterator[Finding]:
    good_python = platform.python_version_tuple()[:2] == ("3", "11")
    yield "python", GOOD if good_python else BAD, f"{platform.python_version()} (3.11 is supported)"
    yield "qdhuac", GOOD, qdhuac.__version__
    for name in PACKAGES:
        try:
            yield name, GOOD, importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            yield name, BAD, "not installed: run make setup"


def _hardware() -> Iterator[Finding]:
    yield "cores", GOOD, f"{len(os.sched_getaffinity(0))} of {os.cpu_count()} usable"
    pages, size = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    memory = pages * size / 2**30
    yield "memory", GOOD if memory >= 4 else BAD, f"{memory:.1f} GiB (a full replay buffer of Humanoid takes 2)"
    try:
        import jax

        devices = jax.devices()
        yield "devices", GOOD, ", ".join(f"{d.platform}:{d.id} {d.device_kind}" for d in devices)
    except Exception as error:  # a broken driver is a finding
        yield "devices", BAD, " ".join(str(error).split())


def _places() -> Iterator[Finding]:
    from qdhuac.environment import cache_folder, is_writable

    folder = cache_folder()
    if folder is None:
        yield "compilation cache", MISSING, "turned off by QDHUAC_CACHE: every start compiles again"
    elif is_writable(folder):
        size = sum(f.stat().st_size for f in folder.rglob("*") if f.is_file()) / 2**20
        yield "compilation cache", GOOD, f"{folder} ({size:.0f} MiB)"
    else:
        yield "compilation cache", BAD, f"{folder} is not writable: every start compiles again"
    here = os.getcwd()
    free = shutil.disk_usage(here).free / 2**30
    yield "working folder", GOOD if os.access(here, os.W_OK) else BAD, f"{here}, {free:.1f} GiB free"


def _tools() -> Iterator[Finding]:
    try:
        from imageio_ffmpeg import get_ffmpeg_exe

        yield "ffmpeg (videos)", GOOD, os.path.basename(get_ffmpeg_exe())
    except (ImportError, RuntimeError):
        yield "ffmpeg (videos)", MISSING, "make setup-view gets it"
    from ctypes.util import find_library

    libraries = [name for name in ("EGL", "OSMesa", "GL") if find_library(name)]
    yield "OpenGL (rendering)", GOOD if libraries else MISSING, ", ".join(libraries) or "no EGL, OSMesa or GL library"
