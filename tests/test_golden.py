"""Golden numbers: three small generations of each algorithm stay what they were when `golden.json` was written.

`python tests/test_golden.py` writes the file anew; a change that does so says why in its message.
"""

import json
import sys
import tempfile
from pathlib import Path

import pytest

from qdhuac import cli

GOLDEN = Path(__file__).with_name("golden.json")
# One robot that falls and one that cannot, so that both kinds of episodes are there.
RUNS = {
    "qdhuac": ("walker2d", "learner.probe=true", "emitter.exploration_rollouts=1"),
    "pga_me": ("hopper",),
    "qd_pg": ("walker2d",),
    "dcrl_me": ("halfcheetah",),
    "dns": ("halfcheetah",),
    "map_elites": ("hopper",),
}
CLOCKS = ("wall_s", "time_")


def train(algorithm, folder):
    """The lines of metrics of three generations, without what a clock said."""
    task, *settings = RUNS[algorithm]
    run = Path(folder) / algorithm
    options = ["--task", task, "--algorithm", algorithm, "--preset", "smoke", "--backend", "native"]
    options += ["--generations", "3", "--run-dir", str(run), "--set", "learner.utd=0.3", *settings]
    if algorithm in ("dns", "map_elites"):
        options = options[: options.index("--set")]
    assert cli.main(["train", *options]) == 0
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if k != "crc" and not k.startswith(CLOCKS)} for line in lines]


@pytest.mark.parametrize("algorithm", RUNS)
def test_three_generations_are_what_they_were(algorithm, tmp_path, monkeypatch):
    monkeypatch.setattr("qdhuac.report.run_page.write_report", lambda folder: "none")  # it would film the robot
    found = train(algorithm, tmp_path)
    for line, golden in zip(found, json.loads(GOLDEN.read_text())[algorithm], strict=True):
        known = {k: v for k, v in golden.items() if v is not None}
        assert {k: line[k] for k in known} == pytest.approx(known, rel=1e-6, abs=1e-9)
        assert all(line.get(k) is None for k in golden.keys() - known.keys())


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as where:
        GOLDEN.write_text(json.dumps({name: train(name, where) for name in RUNS}, indent=1) + "\n")
    sys.stdout.write(f"written: {GOLDEN}\n")
