"""Whether two run folders hold the same run, up to the order of additions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from qdhuac.store import checkpoint
from qdhuac.store.run_folder import RunDir

LEFT_OUT = ("wall_s", "time_", "devices")


def lines(path: Path) -> list[dict]:
    """Metrics without what may differ."""
    found = RunDir.open(path).read_metrics()
    return [{k: v for k, v in line.items() if not k.startswith(LEFT_OUT)} for line in found]


def assert_same_run(path: Path, wanted: Path) -> None:
    """Whole numbers are equal, others close."""
    for line, other in zip(lines(path), lines(wanted), strict=True):
        for name, value in other.items():
            assert line[name] == (None if value is None else pytest.approx(value, rel=2e-3, abs=1e-4)), name
    arrays, others = (checkpoint.load(one / "checkpoints").arrays for one in (path, wanted))
    assert arrays.keys() == others.keys()
    for name, value in others.items():
        if value.dtype.kind == "f":
            np.testing.assert_allclose(arrays[name], value, rtol=5e-3, atol=2e-3, err_msg=name)
        else:
            np.testing.assert_array_equal(arrays[name], value, err_msg=name)
