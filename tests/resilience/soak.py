"""A long run at smoke scale with frequent saves: memory and open files must stay where they were."""

from __future__ import annotations

import os
import signal
import statistics
import sys
import tempfile
import time
from pathlib import Path

import harness

INTERVAL = 5.0  # seconds between two looks


def look(pid: int) -> dict[str, int]:
    """Resident kilobytes, open files and threads of a process."""
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    files = len(os.listdir(f"/proc/{pid}/fd"))
    return {"rss_kb": int(status["VmRSS"].split()[0]), "files": files, "threads": int(status["Threads"])}


def soak(minutes: float, folder: Path) -> dict:
    """Train for so long, look every few seconds, stop with SIGTERM."""
    often = ("--set", "run.checkpoint_minutes=0.25")
    train = ("train", "--preset", "smoke", "--generations", 10**9, "--run-dir", folder, *often)
    process = harness.start(*train, log=folder.with_suffix(".log"))
    while process.poll() is None and not ((folder / "metrics.jsonl").exists() and harness.metrics(folder)):
        time.sleep(INTERVAL)  # until the first generation has been compiled
    began, seen = time.monotonic(), []
    while time.monotonic() - began < 60 * minutes:
        time.sleep(INTERVAL)
        if process.poll() is not None:
            raise SystemExit(f"ended with {process.returncode}: {folder.with_suffix('.log').read_text()[-2000:]}")
        seen.append({"minute": (time.monotonic() - began) / 60} | look(process.pid))
    process.send_signal(signal.SIGTERM)
    code = process.wait(timeout=120)
    rows = harness.metrics(folder)

    def window(start: float, end: float, key: str) -> list[int]:
        return [s[key] for s in seen if start * minutes <= s["minute"] < end * minutes]

    early, late = (statistics.median(window(*part, "rss_kb")) for part in ((0.2, 0.4), (0.8, 1.0)))
    return {
        "minutes": minutes,
        "exit_code": code,
        "generations": len(rows),
        "in_order": [row["generation"] for row in rows] == list(range(1, len(rows) + 1)),
        "rss_mb_after_a_third": round(early / 1024, 1),
        "rss_mb_at_the_end": round(late / 1024, 1),
        "metrics_file_mb": round((folder / "metrics.jsonl").stat().st_size / 2**20, 1),
        "open_files": sorted({s["files"] for s in seen if s["minute"] > 0.2 * minutes}),
        "threads": sorted({s["threads"] for s in seen if s["minute"] > 0.2 * minutes}),
        "rss_mb_each_minute": [
            round(statistics.median(s["rss_kb"] for s in seen if int(s["minute"]) == m) / 1024, 1)
            for m in sorted({int(s["minute"]) for s in seen})
        ],
    }


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as where:
        harness.write("soak", soak(float(sys.argv[1]) if len(sys.argv) > 1 else 31.0, Path(where) / "run"))
