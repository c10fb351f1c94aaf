"""`qdhuac study` in a separate process, with stubs for runs, and what its runs have done."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import qdhuac
from qdhuac.studies import catalogue
from qdhuac.studies.folder import FINISHED, look

HELPERS = Path(__file__).parent
STUDY = ["study", "target", "--scale", "smoke", "--root"]
PATHS = os.pathsep.join([str(HELPERS), str(Path(qdhuac.__file__).parents[1])])


def runs(seeds=2):
    return catalogue.runs("target", "smoke", seeds)


def begin(root, *more, **environment):
    """The study `target` in a process; its output is text."""
    words = [sys.executable, str(HELPERS / "stub_cluster.py"), *STUDY, str(root), *more]
    environment = {**os.environ, "PYTHONPATH": PATHS, **environment}
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


def until(true, *processes):
    deadline = time.monotonic() + 180
    while not true():
        assert time.monotonic() < deadline
        assert all(process.poll() is None for process in processes), processes[0].communicate()
        time.sleep(0.05)


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def waiting(root):
    """The processes of the runs that wait, by folder."""
    found = {path.parent.name: path.read_text() for path in (root / "runs").glob("*/waiting")}
    return {name: int(text) for name, text in found.items() if text}


def begun(root, run):
    """The command of each process of a run: train, resume or report."""
    lines = (root / "logs" / f"{run.folder}.log").read_text().splitlines()
    return [line.split()[3] for line in lines if line.startswith("$ ")]


def generations(root, run):
    """The generations in the newest checkpoint of a run, and how many checkpoints there are."""
    names = sorted(path.name for path in (root / "runs" / run.folder / "checkpoints").iterdir())
    return int(names[-1].split("-")[0]), len(names)


def processes(root, run):
    """The process that made each generation of a finished run; each generation is there once."""
    found = look(root, run)
    assert found.state == FINISHED
    assert [row["generation"] for row in found.rows] == [1, 2, 3, 4]
    return [row["process"] for row in found.rows]
