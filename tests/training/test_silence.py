"""A run that comes to nothing says so while it happens and at the end."""

import numpy as np
import pytest
from runs import Notes
from toys import ToyLearner, ToyTask, toy_algorithm

from qdhuac.errors import RunFailed


class Hopeless(ToyTask):
    def evaluate(self, genotypes, key, exploration=None):
        found = super().evaluate(genotypes, key, exploration)
        return found._replace(descriptor=found.descriptor * np.nan)


class Broken(ToyLearner):
    broken = True


def test_evaluations_that_are_all_rejected_are_reported_and_an_empty_archive_is_a_failure(make_runner):
    runner = make_runner(task=Hopeless(), progress=Notes())
    with pytest.raises(
        RunFailed, match=r"nothing was ever archived; 36 evaluations .* most of them in: descriptor \(36"
    ):
        runner.run()
    said = "every evaluation was rejected; not finite was most often the descriptor"
    assert runner.progress.said == [f"generation 1: {said}"]
    assert runner.recorder.warnings == [f"in 6 of 6 generations, first in 1: {said}"]


def test_updates_that_are_all_skipped_are_reported(make_runner):
    options = {"learning": True, "algorithm": toy_algorithm(Broken), "run__failure_budget": 10**6}
    runner = make_runner(progress=Notes(), **options)
    assert runner.run()
    said = "every update was skipped; not finite was most often the critic"
    assert runner.progress.said == [f"generation 1: {said}"]
    assert runner.recorder.warnings == [f"in 6 of 6 generations, first in 1: {said}"]


def test_a_healthy_run_is_quiet_even_where_some_evaluations_are_rejected(make_runner):
    runner = make_runner(learning=True, task=ToyTask(poison="fitness"), progress=Notes())
    assert runner.run()
    assert runner.progress.said == []


def test_a_stop_before_the_first_individual_is_not_a_failure(make_runner):
    runner = make_runner()
    runner.stop.request()
    assert not runner.run()


def test_time_is_measured_with_a_clock_that_cannot_be_set(make_runner, monkeypatch):
    """The time of day jumps back by an hour at every look."""
    now = iter(range(10**9, 0, -3600))
    monkeypatch.setattr("time.time", lambda: next(now))
    runner = make_runner(run__checkpoint_minutes=30.0)
    assert runner.run()
    assert [line["generation"] for line in runner.folder.read_metrics()] == [1, 2, 3, 4, 5, 6]
    assert 0 <= runner.counters.wall_s < 1000
    assert len(list((runner.folder.path / "checkpoints").iterdir())) == 2  # the first and the last
