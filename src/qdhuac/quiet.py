"""Keeps the known chatter of Brax, MJX and MuJoCo from the user, and nothing else.

Importing MJX prints that warp is missing, loading a Brax system warns that Brax is unmaintained, and MuJoCo reports
a deprecated model attribute on stderr and in a file MUJOCO_LOG.TXT that it drops into the working directory.
Whatever is not on the lists below still reaches the user.
"""

from __future__ import annotations

import contextlib
import io
import sys
import warnings
from collections.abc import Iterator

_PRINTED = ("Failed to import warp", "Failed to import mujoco_warp")
_WARNED = ("Brax System",)
_MUJOCO = ("compiler attribute 'settotalmass' is deprecated",)


@contextlib.contextmanager
def quiet_imports() -> Iterator[None]:
    """Around the first import of MJX or Brax: drops its lines about missing optional packages."""
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
    """Around the loading of a model: known warnings are dropped, others become Python warnings."""
    with quiet_imports():
        import mujoco

    messages: list[str] = []
    # A handler of our own keeps MuJoCo from writing to stderr and to its log file. It only collects, because an
    # exception must not cross MuJoCo's C frames.
    previous = mujoco.get_mju_user_warning()
    mujoco.set_mju_user_warning(messages.append)
    try:
        with warnings.catch_warnings():
            for message in _WARNED:
                warnings.filterwarnings("ignore", message=message)
            yield
    finally:
        mujoco.set_mju_user_warning(previous)
    for message in messages:
        if not message.startswith(_MUJOCO):
            warnings.warn(f"MuJoCo: {message.strip()}", stacklevel=3)
