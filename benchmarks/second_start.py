"""Seconds from the command to the first line of metrics: with nothing compiled before, and again.

    python benchmarks/second_start.py [--task halfcheetah ...] [--starts 3]

Preset `laptop` with 50 updates in its first generation, as the rest of the 10 000 are the learner's speed. One JSON
object per task; the first start fills an empty compilation cache, the others use it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", nargs="+", default=["halfcheetah"])
    parser.add_argument("--starts", type=int, default=3)
    arguments = parser.parse_args()
    for task in arguments.task:
        with tempfile.TemporaryDirectory() as place:
            seconds = [round(start(task, Path(place), i), 1) for i in range(arguments.starts)]
        load = round(os.getloadavg()[0], 1)
        print(json.dumps({"task": task, "first_s": seconds[0], "later_s": seconds[1:], "load": load}), flush=True)


def start(task: str, place: Path, number: int) -> float:
    """One run, ended as soon as its first generation is written."""
    run = place / str(number)
    options = ["--task", task, "--run-dir", run, "--set", "learner.utd=0.005", "--set", "run.generations=2"]
    before = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-m", "qdhuac.cli", "train", *map(str, options)],
        env={**os.environ, "QDHUAC_CACHE": str(place / "cache")},
        stdout=subprocess.DEVNULL,
    )
    try:
        while process.poll() is None:
            if (run / "metrics.jsonl").exists() and (run / "metrics.jsonl").stat().st_size:
                return time.monotonic() - before
            time.sleep(0.05)
        raise SystemExit(f"{task}: the run ended with code {process.returncode} before its first generation")
    finally:
        process.kill()
        process.wait()


if __name__ == "__main__":
    main()
