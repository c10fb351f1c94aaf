"""Several seeds in one program: each run is what it would be alone."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from reach import STEPS, ReachTask
from same_run import assert_same_run, lines
from toys import ToyTask

from qdhuac import cli, presets
from qdhuac.config import replace
from qdhuac.errors import RunFailed, UserError
from qdhuac.store import checkpoint
from qdhuac.store.run_folder import RunDir
from qdhuac.training.build import build_algorithm
from qdhuac.training.display import Silent
from qdhuac.training.loop import Runner
from qdhuac.training.side_by_side import OneOfSeveral, Seeds
from qdhuac.training.signals import Stop

GENERATIONS = 3  # later a draw of the buffer may fall on the other side of a boundary, and the runs part


def runner(place, seed, stop=None, again=False, progress=None):
    """QDHUAC with tiny networks on a point that moves on a line."""
    changes = {"run.seed": seed, "run.generations": GENERATIONS, "task.episode_length": STEPS, "learner.utd": 0.5}
    config = presets.make("qdhuac", "smoke", changes)
    folder = RunDir.open(place) if again else RunDir.create(place, config)
    if again:
        folder.lock()
    task = ReachTask()
    made = Runner(config, task, build_algorithm(config, task), folder, progress, stop)
    made.restore() if again else made.start()
    return made


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """Each seed by itself."""
    place = tmp_path_factory.mktemp("alone")
    for seed in range(3):
        assert runner(place / f"seed-{seed}", seed).run()
    return place


def assert_same(place, alone):
    for seed in range(3):
        assert_same_run(place / f"seed-{seed}", alone / f"seed-{seed}")


def test_each_run_is_what_it_would_be_alone(tmp_path, alone):
    together = [runner(tmp_path / f"seed-{seed}", seed) for seed in range(3)]
    assert Seeds(together, Silent()).run()
    assert_same(tmp_path, alone)
    assert lines(tmp_path / "seed-0") != lines(tmp_path / "seed-1")


class StopAfter(Stop):
    """Asks to stop at the n-th look."""

    def __init__(self, looks):
        super().__init__()
        self.looks = looks

    def __bool__(self):
        self.looks -= 1
        return self.looks < 0


@pytest.mark.parametrize("looks", [1, 5, 8])  # before the first is told, while learning, later
def test_stopped_and_resumed(tmp_path, alone, looks):
    stop = StopAfter(looks)
    before = [runner(tmp_path / f"seed-{seed}", seed, stop) for seed in range(3)]
    assert not Seeds(before, Silent()).run()
    for one in before:
        one.folder.unlock()
    rest = [runner(tmp_path / f"seed-{seed}", seed, again=True) for seed in range(3)]
    assert Seeds(rest, Silent()).run()
    assert_same(tmp_path, alone)


def test_those_behind_catch_up_first(tmp_path, alone):
    first = runner(tmp_path / "seed-0", 0, StopAfter(9))
    first.run()
    first.folder.unlock()
    assert first.counters.generation > 0
    rest = [runner(tmp_path / f"seed-{seed}", seed, again=seed == 0) for seed in range(3)]
    assert Seeds(rest, Silent()).run()
    assert_same(tmp_path, alone)


class Listener(Silent):
    def __init__(self):
        self.seen, self.said = [], []

    def generation(self, line):
        self.seen.append(line)

    def note(self, text):
        self.said.append(text)


def test_the_display_shows_the_mean_of_those_that_still_go_on(tmp_path):
    display = Listener()
    both = [runner(tmp_path / f"seed-{seed}", seed, progress=OneOfSeveral(display, f"seed-{seed}")) for seed in (0, 1)]
    both[1].books.config = replace(both[1].config, {"run.generations": 2})
    Seeds(both, display).run()
    first, second = (lines(one.folder.path) for one in both)
    assert [line["generation"] for line in display.seen] == [1, 2, 3]
    means = [(a["max_fitness"] + b["max_fitness"]) / 2 for a, b in zip(first, second, strict=False)]
    assert [line["max_fitness"] for line in display.seen] == pytest.approx([*means, first[2]["max_fitness"]])
    assert all(type(line[k]) is int for line in display.seen for k in ("env_steps", "gradient_updates", "archive_size"))
    both[1].progress.note("careful")
    assert display.said[-1] == "seed-1: careful"


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
    assert cli.main([*command[:-1], "new", "--set", "run.seed=0"]) == 0


def test_a_folder_that_cannot_be_made_leaves_nothing(tmp_path, monkeypatch, toys, capsys):
    make = RunDir.create

    def create(path, config):
        if path.name == "seed-1":
            raise UserError("no more room")
        return make(path, config)

    monkeypatch.setattr(RunDir, "create", create)
    assert cli.main(["train", "--preset", "smoke", "--seeds", "2", "--run-dir", str(tmp_path / "both")]) == 2
    assert "no more room" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_one_run_beyond_its_budget_ends_all_and_all_are_saved(make_runner):
    task = ToyTask(poison="fitness")
    both = [make_runner(f"seed-{i}", task=task, run__seed=i, run__failure_budget=i) for i in (1, 9)]
    with pytest.raises(RunFailed, match="seed-1: 2 evaluations or updates were not finite"):
        Seeds(both, Silent()).run()
    assert [checkpoint.newest(one.folder.checkpoints).record["counters"]["generation"] for one in both] == [2, 2]


def test_states_that_do_not_fit_together_are_refused(tmp_path):
    one = runner(tmp_path / "run", 0)
    with pytest.raises(UserError, match="the states of these 10000000 runs need"):
        one.start(10**7)


@pytest.mark.parametrize("number", ["0", "-1", "1.5", "many"])
def test_bad_numbers_are_refused(tmp_path, monkeypatch, capsys, number):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["train", "--seeds", number]) == 2
    assert capsys.readouterr().err.startswith(f"qdhuac: error: --seeds {number!r}: expected a whole number from 1")
    assert not list(tmp_path.iterdir())


def test_tasks_that_take_several_runs_and_others(tmp_path):
    both = [runner(tmp_path / f"seed-{seed}", seed) for seed in range(2)]
    seeds = Seeds(both, Silent())
    seeds.state = jax.tree.map(lambda *x: jax.numpy.stack(x), *(one.state for one in both))
    emission, keys = seeds._ask(seeds.state)
    at_once = seeds._evaluate(emission, keys)
    object.__setattr__(seeds.task, "takes_runs", False)
    each = seeds._evaluate(emission, keys)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), each, at_once)
