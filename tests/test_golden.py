"""Golden numbers: three small generations of each algorithm equal those in `golden.json`.

`python tests/test_golden.py` writes the file anew; a change that does so says why in its message. Rounding differs
between processors and learning amplifies it, so on a processor other than the file's only the first generation counts.
"""

import quick  # noqa: F401  # isort: skip  # before JAX

import hashlib
import json
import math
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


def processor():
    """Which rounding to expect: vendor, family, model and features of the processor."""
    lines = Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines()
    facts = dict(line.split(":", 1) for line in lines if ":" in line)
    facts = {name.strip(): value.strip() for name, value in facts.items()}
    features = hashlib.sha256(facts.get("flags", "").encode()).hexdigest()[:8]
    return " ".join([facts.get(name, "") for name in ("vendor_id", "cpu family", "model")] + [features])


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


def numbers(line):
    """JSON has null for what is no number."""
    return {name: math.nan if value is None else value for name, value in line.items()}


@pytest.mark.parametrize("algorithm", RUNS)
def test_three_generations_equal_the_stored_numbers(algorithm, tmp_path, monkeypatch):
    monkeypatch.setattr("qdhuac.report.run_page.write_report", lambda folder: "none")  # it would film the robot
    found, golden = train(algorithm, tmp_path), json.loads(GOLDEN.read_text())
    same = golden["processor"] == processor()
    assert len(found) == 3
    for line, known in zip(found if same else found[:1], golden["runs"][algorithm], strict=same):
        assert numbers(line) == pytest.approx(numbers(known), rel=1e-6 if same else 1e-4, abs=1e-9, nan_ok=True)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as where:
        runs = {name: train(name, where) for name in RUNS}
    GOLDEN.write_text(json.dumps({"processor": processor(), "runs": runs}, indent=1) + "\n")
    sys.stdout.write(f"written: {GOLDEN}\n")
