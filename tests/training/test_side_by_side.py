"""Several seeds in one program: each equals the run alone."""

from __future__ import annotations

import functools

import jax
import numpy as np
import pytest
from reach import STEPS, ReachTask
from runs import Notes, assert_same_run, lines
from toys import ToyTask, toy_algorithm, toy_config

from qdhuac import cli
from qdhuac.algorithms import specs
from qdhuac.algorithms.specs import build as build_algorithm
from qdhuac.config import replace
from qdhuac.errors import RunFailed, UserError
from qdhuac.store import checkpoint
from qdhuac.store.run_folder import RunDir
from qdhuac.training import distributed
from qdhuac.training.loop import Trainer
from qdhuac.training.signals import Stop

GENERATIONS = 3  # later a draw of the buffer may fall on the other side of a boundary, and the runs part
TASK = ReachTask()
SMALL = {"run.generations": GENERATIONS, "task.episode_length": STEPS, "learner.utd": 0.5}


@functools.cache
def config(seed):
    """QDHUAC with tiny networks on a point that moves on a line."""
    return specs.make("qdhuac", "smoke", {**SMALL, "run.seed": seed})


@functools.cache
def algorithm():
    return build_algorithm(config(0), TASK)


def trainer(place, *seeds, stop=None, again=False, progress=None, configs=config):
    runs = []
    for seed in seeds:
        path = place / f"seed-{seed}"
        runs.append((configs(seed), RunDir.open(path) if again else RunDir.create(path, configs(seed))))
        if again:
            runs[-1][1].lock()
    made = Trainer(runs, TASK, algorithm(), progress, stop)
    made.restore() if again else made.start()
    return made


def unlock(made):
    for recorder in made.recorders:
        recorder.folder.unlock()


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """Each seed by itself."""
    place = tmp_path_factory.mktemp("alone")
    for seed in range(3):
        assert trainer(place, seed).run()
    return place


def assert_same(place, alone):
    for seed in range(3):
        assert_same_run(place / f"seed-{seed}", alone / f"seed-{seed}")


def test_each_seed_equals_the_run_alone(tmp_path, alone):
    assert trainer(tmp_path, 0, 1, 2).run()
    assert_same(tmp_path, alone)
    assert lines(tmp_path / "seed-0") != lines(tmp_path / "seed-1")


class StopAfter(Stop):
    """Requests a stop at the n-th check."""

    def __init__(self, looks):
        super().__init__()
        self.looks = looks

    def __bool__(self):
        self.looks -= 1
        return self.looks < 0


@pytest.mark.parametrize(("looks", "generation", "learning"), [(2, 0, False), (3, 0, True), (6, 1, False)])
def test_stopped_and_resumed(tmp_path, alone, looks, generation, learning):
    before = trainer(tmp_path, 0, 1, 2, stop=StopAfter(looks))
    assert not before.run()
    assert {r.counters.generation for r in before.recorders} == {generation}
    assert {r.pending is not None for r in before.recorders} == {learning}
    unlock(before)
    assert trainer(tmp_path, 0, 1, 2, again=True).run()
    assert_same(tmp_path, alone)


def test_runs_that_a_crash_left_at_different_points_are_resumed_alone(tmp_path):
    first = trainer(tmp_path, 0, stop=StopAfter(9))
    assert not first.run()
    assert first.recorders[0].counters.generation > 0
    unlock(first)
    RunDir.create(tmp_path / "seed-1", config(1)).unlock()
    with pytest.raises(UserError, match=r"not at the same generation; resume each alone, such as .*seed-0$"):
        trainer(tmp_path, 0, 1, again=True)


def test_the_display_shows_the_mean_of_unfinished_runs(tmp_path):
    display = Notes()
    fewer = {0: config(0), **{seed: replace(config(seed), {"run.generations": 2}) for seed in (1, 2)}}
    assert trainer(tmp_path, 0, 1, 2, progress=display, configs=fewer.get).run()
    first, *others = (lines(tmp_path / f"seed-{seed}") for seed in range(3))
    assert [line["generation"] for line in display.seen] == [1, 2, 3]
    means = [np.mean([line["max_fitness"] for line in rows]) for rows in zip(first, *others, strict=False)]
    assert [line["max_fitness"] for line in display.seen] == pytest.approx([*means, first[2]["max_fitness"]])
    assert all(type(line[k]) is int for line in display.seen for k in ("env_steps", "gradient_updates", "archive_size"))


def test_command_line(tmp_path, monkeypatch, toys, capsys):
    monkeypatch.chdir(tmp_path)
    command = ["train", "--preset", "smoke", "--seed", "4", "--seeds", "2", "--run-dir", "both"]
    assert cli.main([*command, "--generations", "2"]) == 0
    found = [RunDir.open(tmp_path / "both" / f"seed-{n}") for n in (4, 5)]
    assert [folder.read_config().run.seed for folder in found] == [4, 5]
    assert cli.main(["resume", "both", "--generations", "3"]) == 0
    assert [len(folder.read_metrics()) for folder in found] == [3, 3]
    assert (tmp_path / "both" / "seed-5" / "report.html").exists()
    capsys.readouterr()
    assert cli.main(["resume", "both", "--generations", "3"]) == 2
    assert "nothing left to do" in capsys.readouterr().err
    assert cli.main(["resume", "both", "--generations", "4", "--devices", "2"]) == 2
    assert "share one device" in capsys.readouterr().err
    assert cli.main(command) == 2
    assert "exists already" in capsys.readouterr().err


def test_if_a_folder_cannot_be_made_none_is_left(tmp_path, monkeypatch, toys, capsys):
    make = RunDir.create

    def create(path, config):
        if path.name == "seed-1":
            raise UserError("no more room")
        return make(path, config)

    monkeypatch.setattr(RunDir, "create", create)
    assert cli.main(["train", "--preset", "smoke", "--seeds", "2", "--run-dir", str(tmp_path / "both")]) == 2
    assert "no more room" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def toy_trainer(place, task, **overrides):
    """Two toy runs; `overrides` have a value for each."""
    runs = []
    for i in range(2):
        settings = toy_config(run__seed=i, **{name: values[i] for name, values in overrides.items()})
        runs.append((settings, RunDir.create(place / f"seed-{i}", settings)))
    made = Trainer(runs, task, toy_algorithm())
    made.start()
    return made


def test_one_run_beyond_its_failure_budget_ends_all_and_all_are_saved(tmp_path):
    both = toy_trainer(tmp_path, ToyTask(poison="fitness"), run__failure_budget=(1, 9))
    with pytest.raises(RunFailed, match="seed-0: 2 evaluations or updates were not finite"):
        both.run()
    saved = [checkpoint.newest(one.folder.checkpoints).record["counters"] for one in both.recorders]
    assert [counters["generation"] for counters in saved] == [2, 2]


class Failing(ToyTask):
    """Raises an exception in its sixth evaluation, which is that of the second run's third generation."""

    calls = 0

    def evaluate(self, genotypes, key, exploration=None):
        self.calls += 1
        if self.calls == 6:
            raise ZeroDivisionError
        return super().evaluate(genotypes, key, exploration)


def test_an_exception_in_an_evaluation_saves_all_runs(tmp_path):
    both = toy_trainer(tmp_path, Failing())
    with pytest.raises(ZeroDivisionError):
        both.run()
    saved = [checkpoint.newest(one.folder.checkpoints).record["counters"] for one in both.recorders]
    assert [counters["generation"] for counters in saved] == [2, 2]


def test_states_that_do_not_fit_together_are_refused():
    shapes = {"rows": jax.ShapeDtypeStruct((1000, 1000), np.float32)}
    distributed.require_memory(shapes, distributed.placement(shapes), 1)
    with pytest.raises(UserError, match="the states of these 10000000 runs need"):
        distributed.require_memory(shapes, distributed.placement(shapes), 10**7)


@pytest.mark.parametrize("number", ["0", "-1", "1.5", "many"])
def test_bad_numbers_are_refused(tmp_path, monkeypatch, capsys, number):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["train", "--seeds", number]) == 2
    expected = f"argument --seeds: expected a whole number from 1 to 1000, got {number!r}"
    assert capsys.readouterr().err == f"qdhuac: error: {expected}\n"
    assert not list(tmp_path.iterdir())


def test_tasks_that_take_one_run_at_a_time(tmp_path, alone):
    runs = [(config(seed), RunDir.create(tmp_path / f"seed-{seed}", config(seed))) for seed in range(3)]
    together = Trainer(runs, TASK.changed(takes_runs=False), algorithm())
    together.start()
    assert together.run()
    assert_same(tmp_path, alone)
