"""Totals of a run, and the metrics of a generation whose updates are unfinished. Does not need JAX."""

from __future__ import annotations

import dataclasses
from typing import Any

from qdhuac.config import RunConfig
from qdhuac.errors import UserError
from qdhuac.store.checkpoint import Checkpoint


@dataclasses.dataclass
class Counters:
    """Totals since the start of a run, as Python numbers."""

    generation: int = 0
    env_steps: int = 0
    gradient_updates: int = 0
    qd_score: float = 0.0
    qd_score_auc: float = 0.0
    wall_s: float = 0.0
    failures: dict[str, int] = dataclasses.field(default_factory=dict)  # by source
    warnings: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict)  # by symptom, see metrics.symptoms


@dataclasses.dataclass
class Pending:
    """A generation whose updates are unfinished, and what is known of its metrics."""

    record: dict[str, Any]
    times: dict[str, float]  # seconds of each phase
    learnt: int = 0  # updates made so far
    means: dict[str, float | None] = dataclasses.field(default_factory=dict)  # summed over the updates
    sums: dict[str, float | None] = dataclasses.field(default_factory=dict)


def read(saved: Checkpoint) -> tuple[Counters, Pending | None]:
    """The counters in a checkpoint, and its unfinished generation. Raises UserError if they are of another version."""
    if not saved.record:  # generation 0
        return Counters(), None
    try:
        counters, pending = saved.record["counters"], saved.record["pending"]
        return Counters(**counters), Pending(**pending) if pending else None
    except (KeyError, TypeError):
        raise UserError(f"{saved.path}: has other counters than this version of qdhuac") from None


def finished(goal: RunConfig, counters: Counters, pending: Pending | None) -> bool:
    """True if a run has reached its goal. While updates of its last generation are pending, it has not."""
    steps_reached = pending is None and 0 < goal.env_steps <= counters.env_steps
    return 0 < goal.generations <= counters.generation or steps_reached
