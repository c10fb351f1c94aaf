"""Short versions of the programs in this folder; `make test-resilience` runs the full ones."""

import json
import os
import subprocess
import sys
from pathlib import Path

import corrupt
import fuzz
import jax


def test_a_run_killed_at_random_instants_ends_like_one_that_was_not(tmp_path):
    """In a process of its own, because a process that has started JAX cannot be forked."""
    code = "import json, sys, pathlib, kill; print(json.dumps(kill.harass(3, pathlib.Path(sys.argv[1]))))"
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        cwd=Path(__file__).parent,
        env={**os.environ, "QDHUAC_CACHE": str(jax.config.jax_compilation_cache_dir)},
        check=True,
        stdout=subprocess.PIPE,
    )
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["went_on_from_a_valid_checkpoint"] == result["metrics_in_order"] == 3
    assert result["same_metrics_as_a_run_never_killed"]
    assert result["same_state_as_a_run_never_killed"]


def test_damage_to_a_file_is_never_read_as_a_value(tmp_path):
    result = corrupt.corrupt(250, tmp_path, seed=1)
    assert result["wrong"] == []
    verdicts = result["verdicts"]
    files = {"config.toml", "metrics.jsonl", "history.jsonl", "repertoire.safetensors"}
    assert verdicts.keys() == {"checkpoint", *files}
    assert sum(v.get("told", 0) for v in verdicts.values()) > 200


def test_mutated_commands_and_configurations_are_refused_in_one_line_or_work(tmp_path):
    for name, times, trace in (("accepted", 200, False), ("traced", 25, True)):
        (tmp_path / name).mkdir()
        result = fuzz.fuzz(times, tmp_path / name, seed=times, trace=trace)
        assert result["wrong"] == []
        assert result["refused"] > result["works"] > 0
