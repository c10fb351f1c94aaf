"""Long runs at smoke scale with frequent saves and a minute asleep: memory, files and checkpoints must not grow."""

from __future__ import annotations

import os
import signal
import statistics
import sys
import tempfile
import time
from pathlib import Path

import harness

INTERVAL = 2.0  # seconds between two looks
RUNS = {"dns": 10_000, "qdhuac": 2_000}  # generations of each


def look(pid: int, folder: Path) -> dict[str, int]:
    """Resident kilobytes, open files and threads of a process, and bytes of its checkpoints."""
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    saved = sum(path.stat().st_size for path in folder.glob("checkpoints/*/*.safetensors"))
    files = len(os.listdir(f"/proc/{pid}/fd"))
    return {
        "rss_kb": int(status["VmRSS"].split()[0]),
        "files": files,
        "threads": int(status["Threads"]),
        "saved": saved,
    }


def soak(algorithm: str, generations: int, folder: Path, asleep: float) -> dict:
    """Train, look every few seconds, and stop the process for `asleep` seconds half-way, as a laptop that is closed."""
    often = ("--set", "run.checkpoint_minutes=0.25")
    goal = ("--algorithm", algorithm, "--preset", "smoke", "--generations", generations, "--run-dir", folder)
    log, slept, seen = folder.with_suffix(".log"), False, []
    process = harness.start("train", *goal, *often, log=log)
    try:
        while process.poll() is None:
            rows = (folder / "metrics.jsonl").read_bytes().count(b"\n") if (folder / "metrics.jsonl").exists() else 0
            try:
                seen.append({"share": rows / generations} | look(process.pid, folder))
            except (OSError, KeyError):  # it has just ended, or replaced a checkpoint
                continue
            if not slept and rows > generations / 2:
                process.send_signal(signal.SIGSTOP)
                time.sleep(asleep)
                process.send_signal(signal.SIGCONT)
                slept = True
            time.sleep(INTERVAL)
    finally:
        process.kill()
    if process.returncode != 0 or not slept:
        raise SystemExit(f"ended with {process.returncode}: {log.read_text()[-2000:]}")
    rows = harness.metrics(folder)

    def window(name: str, start: float, end: float) -> float:
        return statistics.median(s[name] for s in seen if start <= s["share"] <= end)

    texts = sum((folder / name).stat().st_size for name in ("metrics.jsonl", "history.jsonl"))
    return {
        "generations": len(rows),
        "in_order": [row["generation"] for row in rows] == list(range(1, generations + 1)),
        "seconds_asleep": asleep,
        "rss_mb_by_tenth": [round(window("rss_kb", i / 10, (i + 1) / 10) / 1024, 1) for i in range(10)],
        "checkpoints_kb_early_and_late": [round(window("saved", *part) / 1024) for part in ((0.3, 0.5), (0.8, 1.0))],
        "metrics_and_history_bytes_per_generation": round(texts / len(rows)),
        "log_bytes": log.stat().st_size,
        "open_files": sorted({s["files"] for s in seen if s["share"] > 0.2}),
        "threads": sorted({s["threads"] for s in seen if s["share"] > 0.2}),
    }


if __name__ == "__main__":
    share = float(sys.argv[1]) if len(sys.argv) > 1 else 1.0  # of the generations
    with tempfile.TemporaryDirectory() as where:
        results = {
            name: soak(name, int(share * generations), Path(where) / name, 60.0 * share)
            for name, generations in RUNS.items()
        }
        harness.write("soak", results)
