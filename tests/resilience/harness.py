"""Shared by these programs: the command in a separate process, and storage of results."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path

RESULTS = Path(__file__).parents[2] / "results/reliability"
# One thread, so that the order of floating-point additions cannot vary.
ONE_THREAD = {"XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false", "OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}


def start(*arguments: object, log: Path | None = None, **environment: str) -> subprocess.Popen:
    """The command `qdhuac` with these arguments; its output goes to `log`."""
    output = log.open("ab") if log else subprocess.DEVNULL
    try:
        return subprocess.Popen(
            [sys.executable, "-m", "qdhuac.cli", *map(str, arguments)],
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **environment},
        )
    finally:
        if log:
            output.close()


def metrics(folder: Path) -> list[dict]:
    """The lines of a run's metrics without what depends on the clock."""
    rows = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [{k: v for k, v in r.items() if k not in ("wall_s", "crc") and not k.startswith("time_")} for r in rows]


def state_hash(folder: Path) -> str:
    """Of every array in the newest checkpoint."""
    from qdhuac.store import checkpoint

    arrays = checkpoint.load(folder / "checkpoints").arrays
    assert arrays is not None
    return hashlib.sha256(b"".join(name.encode() + arrays[name].tobytes() for name in sorted(arrays))).hexdigest()


def write(name: str, result: dict) -> None:
    """Store a result, with machine and time."""
    import jax

    from qdhuac import __version__

    model = next((line for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line), "?")
    origin = {
        "command": f"python tests/resilience/{name}.py",
        "date": time.strftime("%Y-%m-%d"),
        "machine": f"{model.split(':')[-1].strip()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}",
        "versions": {"qdhuac": __version__, "jax": jax.__version__, "python": platform.python_version()},
    }
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps({**origin, **result}, indent=1) + "\n")
    print(json.dumps(result, indent=1))
