"""Trainers of one run, stops at a chosen moment, and whether two runs are the same."""

from __future__ import annotations

import signal
from pathlib import Path

import numpy as np
import pytest

from qdhuac.store import checkpoint
from qdhuac.store.arrays import flatten
from qdhuac.store.run_folder import RunDir
from qdhuac.training.display import Progress
from qdhuac.training.loop import Trainer

CLOCKS = ("wall_s", "time_")


class OneRun(Trainer):
    """The trainer of a single run."""

    def __init__(self, config, task, algorithm, folder, progress=None, stop=None):
        super().__init__([(config, folder)], task, algorithm, progress, stop)
        (self.recorder,) = self.recorders
        self.folder, self.counters = folder, self.recorder.counters

    def restore(self):
        super().restore()
        self.counters = self.recorder.counters


class StopAt(Progress):
    """Requests a stop when a phase has reached a given point for the nth time."""

    def __init__(self, stop, phase, nth, done=0):
        self.stop, self.at, self.left = stop, (phase, done), nth

    def phase(self, name, done=0, total=0):
        self.left -= (name, done) == self.at
        if self.left == 0 and not self.stop:
            self.stop.request(signal.SIGTERM)


class Notes(Progress):
    """Records every message and every generation."""

    def __init__(self):
        self.said, self.seen = [], []

    def note(self, text, *, warning=False):
        self.said.append(text)

    def generation(self, line):
        self.seen.append(line)


def lines(path: Path, left_out: tuple[str, ...] = CLOCKS) -> list[dict]:
    """The metrics of a run folder without what depends on the clock."""
    return [{k: v for k, v in line.items() if not k.startswith(left_out)} for line in RunDir.open(path).read_metrics()]


def same_state(one, other) -> bool:
    """Equal to the bit."""
    one, other = flatten(one), flatten(other)
    return one.keys() == other.keys() and all(one[k].tobytes() == other[k].tobytes() for k in one)


def assert_same_run(path: Path, wanted: Path) -> None:
    """Two run folders hold the same run up to the order of additions: whole numbers are equal, others close."""
    left_out = (*CLOCKS, "devices")
    for line, other in zip(lines(path, left_out), lines(wanted, left_out), strict=True):
        for name, value in other.items():
            assert line[name] == (None if value is None else pytest.approx(value, rel=2e-3, abs=1e-4)), name
    arrays, others = (checkpoint.load(one / "checkpoints").arrays for one in (path, wanted))
    assert arrays.keys() == others.keys()
    for name, value in others.items():
        if value.dtype.kind == "f":
            np.testing.assert_allclose(arrays[name], value, rtol=5e-3, atol=2e-3, err_msg=name)
        else:
            np.testing.assert_array_equal(arrays[name], value, err_msg=name)
