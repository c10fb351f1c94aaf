"""Several seeds in one program: each run is what it would be alone."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from reach import STEPS, ReachTask
from same_run import assert_same_run, lines

from qdhuac import cli, presets
from qdhuac.running.build import build_algorithm
from qdhuac.running.progress import Silent
from qdhuac.running.rundir import RunDir
from qdhuac.running.runner import Runner
from qdhuac.running.seeds import Seeds, means
from qdhuac.running.stopping import Stop

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


def test_the_display_shows_the_mean():
    display = Listener()
    first, second = means(display, ["seed-0", "seed-1"])
    first.generation({"generation": 3, "env_steps": 10, "max_fitness": 1.0, "nothing": None})
    assert not display.seen
    second.generation({"generation": 3, "env_steps": 10, "max_fitness": 2.0, "nothing": 1.0})
    assert display.seen == [{"generation": 3, "env_steps": 10, "max_fitness": 1.5, "nothing": 1.0}]
    second.note("careful")
    assert display.said == ["seed-1: careful"]


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


@pytest.mark.parametrize("number", ["0", "-1", "1.5", "many"])
def test_bad_numbers_are_refused(tmp_path, monkeypatch, capsys, number):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["train", "--seeds", number]) == 2
    assert capsys.readouterr().err.startswith(f"qdhuac: error: --seeds {number!r}: expected a whole number from 1")
    assert not list(tmp_path.iterdir())


def test_physics_in_jax_are_vmapped_and_others_go_in_turn(tmp_path):
    both = [runner(tmp_path / f"seed-{seed}", seed) for seed in range(2)]
    seeds = Seeds(both, Silent())
    seeds.state = jax.tree.map(lambda *x: jax.numpy.stack(x), *(one.state for one in both))
    emission, keys = seeds._ask(seeds.state)
    each = seeds._evaluate(emission, keys)
    object.__setattr__(seeds.task, "pure", True)
    at_once = seeds._evaluate(emission, keys)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), each, at_once)
