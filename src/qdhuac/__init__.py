"""qdhuac: many different, good policies for one robot, in few simulator steps."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import os

    from qdhuac.results import Run

__version__ = "0.1.0"


def load(run_dir: str | os.PathLike[str]) -> Run:
    """What a run has found: its archive, its policies and its metrics."""
    from qdhuac.results import load_run  # NumPy is only imported by those who ask for it

    return load_run(run_dir)
