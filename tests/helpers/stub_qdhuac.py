"""Stands in for `python -m qdhuac.cli` in tests of studies: train and resume without physics, in a moment.

STUB_FAIL: part of a folder's name; that run fails. STUB_HANG: that run does half of its work, of which it saves the
first half, and waits for a signal, upon which it saves, or for a file `go`.
"""

import argparse
import os
import signal
import sys
import time
from pathlib import Path

from qdhuac.algorithms import specs
from qdhuac.store import checkpoint
from qdhuac.store.run_folder import REPORT, RunDir


def lines(done, goal, stop):
    step = goal // 4
    for i in range(done // step + 1, stop // step + 1):
        yield {
            "generation": i,
            "env_steps": i * step,
            "gradient_updates": i,
            "qd_score": 1.0 * i,
            "coverage": 0.1,
            "max_fitness": 2.0 * i,
            "qd_score_auc": 3.0 * i,
            **dict.fromkeys(("archive_size", "archive_qd_score", "archive_mean_fitness"), i),
            "wall_s": 30.0 * i,
            "process": os.getpid(),
        }


def save(folder):
    rows = folder.read_metrics()
    record = {"counters": {name: rows[-1][name] for name in ("generation", "env_steps")}}
    checkpoint.save(folder.checkpoints, checkpoint.name(len(rows), 0), record, folder.texts(), None)


def main():
    parser = argparse.ArgumentParser()
    commands = parser.add_subparsers(dest="command")
    train = commands.add_parser("train")
    train.add_argument("--config", type=Path)
    train.add_argument("--run-dir", type=Path)
    resume = commands.add_parser("resume")
    resume.add_argument("run_dir", type=Path)
    resume.add_argument("--env-steps", type=int)
    arguments = parser.parse_args()
    new, path = arguments.command == "train", arguments.run_dir
    if new:
        settings = specs.from_toml(arguments.config.read_text())
        folder = RunDir.create(path, settings)
    else:
        folder = RunDir.open(path)
        folder.lock()
        settings = folder.read_config()
        folder.restore(checkpoint.newest(folder.checkpoints).texts)
    goal = settings.run.env_steps
    done = (folder.read_metrics() or [{"env_steps": 0}])[-1]["env_steps"]
    if os.environ.get("STUB_FAIL", "no run") in path.name:
        print("qdhuac: error: the wheels came off", file=sys.stderr)
        return 1
    if new and os.environ.get("STUB_HANG", "no run") in path.name:
        for line in lines(done, goal, goal // 2):
            folder.append_metrics(line)
            if line["generation"] == 1:
                save(folder)
        done = goal // 2

        def stop(number, _):
            save(folder)
            sys.exit(128 + number)

        signal.signal(signal.SIGTERM, stop)
        signal.signal(signal.SIGINT, stop)
        (path / "waiting").write_text(str(os.getpid()))
        for _ in range(4000):  # gives up some day
            if not (path / "go").exists():
                time.sleep(0.05)
    for line in lines(done, goal, goal):
        folder.append_metrics(line)
    (path / REPORT).write_text("done")
    return 0


if __name__ == "__main__":
    sys.exit(main())
