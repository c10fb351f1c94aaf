"""The algorithms that `test_baselines.py` does not have: stopped and resumed, they end like one that was not."""

import signal

import pytest
from test_baselines import lines, run

from qdhuac.store.arrays import flatten
from qdhuac.training.display import Silent
from qdhuac.training.signals import Stop


class StopAt(Silent):
    """Asks for a stop in the second generation: in mid-learning, or while it is evaluated."""

    def __init__(self, stop, phase):
        self.stop, self.at, self.left = stop, phase, 2

    def phase(self, name, done=0, total=0):
        self.left -= (name, done) == self.at
        if self.left == 0 and not self.stop:
            self.stop.request(signal.SIGTERM)


@pytest.mark.parametrize(
    ("algorithm", "phase"),
    [
        ("qdhuac", ("learning", 60)),
        ("qdhuac", ("asking", 0)),
        ("dns", ("evaluating", 0)),
        ("map_elites", ("telling", 0)),
    ],
)
def test_stopped_and_resumed_equals_uninterrupted(algorithm, phase, tmp_path):
    values = {"run__generations": 3, "learner__target_tau": 0.0}
    whole = run(algorithm, tmp_path / "whole", **values)
    stop = Stop()
    part = run(algorithm, tmp_path / "part", stop=stop, progress=StopAt(stop, phase), **values)
    assert part.counters.generation < 3
    assert (part.books.pending is not None) == (phase[0] == "learning")
    part.folder.unlock()
    rest = run(algorithm, tmp_path / "part", again=True, **values)
    assert lines(rest) == lines(whole)
    one, other = flatten(whole.state), flatten(rest.state)
    assert one.keys() == other.keys()
    assert all(one[name].tobytes() == other[name].tobytes() for name in one)
