"""The example of an emitter and an algorithm from outside of the package."""

import importlib.util
import json
from pathlib import Path

import jax
import numpy as np

import qdhuac
from qdhuac import cli
from qdhuac.emitters import Seen

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_noise_is_on_the_last_layer_alone():
    spec = importlib.util.spec_from_file_location("perturbed", EXAMPLES / "perturbed_actor.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    actor = {f"Dense_{i}": {"kernel": np.ones((16, 4)), "bias": np.ones(4)} for i in range(3)}
    emitter = module.PerturbedActor(lambda learner: learner)
    made = emitter.ask(jax.random.key(0), (), Seen(None, None, actor), 500)
    noise = np.asarray(made.genotypes["Dense_2"]["kernel"]) - 1.0
    np.testing.assert_allclose(np.std(noise), module.SIGMA / 4.0, rtol=0.02)
    for layer, name in (("Dense_0", "kernel"), ("Dense_1", "bias"), ("Dense_2", "bias")):
        np.testing.assert_array_equal(
            np.asarray(made.genotypes[layer][name]), np.ones((500, *actor[layer][name].shape))
        )


def test_the_command_line_trains_an_algorithm_from_outside_and_reading_its_run_needs_no_import(tmp_path, monkeypatch):
    monkeypatch.chdir(EXAMPLES)
    options = ["--algorithm", "perturbed_actor:SPEC", "--task", "hopper", "--preset", "smoke", "--generations", "3"]
    options += ["--set", "learner.utd=1e-6"]  # QDHUAC's learner, which is tested elsewhere, need not be compiled
    assert cli.main(["train", *options, "--run-dir", str(tmp_path / "run")]) == 0
    monkeypatch.chdir(tmp_path)  # from where the module cannot be imported
    run = qdhuac.load("run")
    assert "perturbed" in run.metadata["operators"]
    last = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["perturbed/tried"] == 1
    assert run.config.algorithm == "perturbed_actor:SPEC"
