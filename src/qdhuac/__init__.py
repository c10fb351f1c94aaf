"""qdhuac: many different, good policies for one robot, in few simulator steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import os

    from qdhuac.store.run import Run
    from qdhuac.types import Task

__version__ = "0.1.0"


def load(run_dir: str | os.PathLike[str]) -> Run:
    """What a run has found: its archive, its policies and its metrics."""
    import warnings

    from qdhuac.store.run import load_run  # NumPy is only imported by those who ask for it

    run = load_run(run_dir)
    for text in run.folder.notes:  # such as that a damaged file was read from a checkpoint
        warnings.warn(text, stacklevel=2)
    return run


def train(task: Task, run_dir: str | os.PathLike[str], **options: Any) -> Run:
    """A new run on a task of your own; options: `algorithm`, `preset`, and `settings` with configuration keys."""
    from qdhuac import api as own

    return own.train(task, run_dir, **options)


def resume(task: Task, run_dir: str | os.PathLike[str], **options: Any) -> Run:
    """Go on with a run on a task of your own; `settings` may change its goal."""
    from qdhuac import api as own

    return own.resume(task, run_dir, **options)
