"""Stopped and resumed, an algorithm ends like one that was not, to the bit. `test_baselines.py` has the others."""

import functools

import pytest
from reach import STEPS, ReachTask
from runs import OneRun, StopAt, lines, same_state

from qdhuac.algorithms import specs
from qdhuac.algorithms.specs import build as build_algorithm
from qdhuac.store.run_folder import RunDir
from qdhuac.training.signals import Stop

SMALL = {"task.episode_length": STEPS, "run.generations": 3, "run.chunk": 20}


@functools.cache
def made(algorithm):
    """Configuration and algorithm; QDHUAC's learner has everything that may be in its state."""
    learning = {"learner.utd": 1.0, "learner.target_tau": 0.1}
    learning |= {f"learner.{name}": True for name in ("probe", "normalise_observations", "normalise_rewards")}
    config = specs.make(algorithm, "smoke", SMALL | (learning if algorithm == "qdhuac" else {}))
    return config, build_algorithm(config, ReachTask())


def run(algorithm, folder, again=False, **watched):
    config, algorithm = made(algorithm)
    with RunDir.open(folder) if again else RunDir.create(folder, config) as place:
        runner = OneRun(config, ReachTask(), algorithm, place, **watched)
        runner.restore() if again else runner.start()
        runner.run()
    return runner


@pytest.mark.parametrize(
    ("algorithm", "phase", "done"),
    [
        ("qdhuac", "learning", 20),
        ("qdhuac", "asking", 0),
        ("dns", "evaluating", 0),
        ("map_elites", "telling", 0),
    ],
)
def test_stopped_and_resumed_equals_uninterrupted(algorithm, phase, done, tmp_path):
    whole = run(algorithm, tmp_path / "whole")
    stop = Stop()
    part = run(algorithm, tmp_path / "part", stop=stop, progress=StopAt(stop, phase, 2, done))
    assert part.counters.generation < 3
    assert (part.recorder.pending is not None) == (phase == "learning")
    rest = run(algorithm, tmp_path / "part", again=True)
    assert lines(tmp_path / "part") == lines(tmp_path / "whole")
    assert same_state(whole.state, rest.state)
