"""An algorithm, an archive and an emitter from outside the package: imported only if the user names them."""

import dataclasses
import sys

import outside
import pytest
from reach import ReachTask
from runs import lines

import qdhuac
from qdhuac import cli
from qdhuac.algorithms import specs
from qdhuac.errors import UserError
from qdhuac.training.build import build

ARCHIVE = {"archive.kind": "outside:NEWEST"}
GOAL = {"run.generations": 3}


@pytest.fixture(autouse=True)
def registry(monkeypatch):
    """A registry of the test's own, since naming an algorithm from outside registers it."""
    monkeypatch.setattr(specs, "ALGORITHMS", dict(specs.ALGORITHMS))


@pytest.fixture
def reach(monkeypatch):
    """Let the command line build a toy instead of a robot."""
    monkeypatch.setattr("qdhuac.training.build.build_task", lambda settings: ReachTask())


def test_from_python(tmp_path, monkeypatch):
    options = {"algorithm": outside.SPEC, "preset": "smoke"}
    settings = {**ARCHIVE, "nudge.size": 0.2}
    qdhuac.train(ReachTask(), tmp_path / "whole", settings=settings, **options)
    run = qdhuac.train(ReachTask(), tmp_path / "part", settings=settings | GOAL, **options)
    assert run.config.algorithm == "own:nudge"
    assert run.config.settings.nudge == outside.NudgeConfig(size=0.2)
    assert run.metadata["operators"] == ["random", "nudge"]
    assert sorted(run.archive["provenance/id"]) == list(range(2, 18))  # the newest 16 of 18
    more = {"run.generations": 5}
    for given, asked in (
        ({"algorithm": "dns"}, r"--algorithm dns: the run was trained with own:nudge"),
        ({"algorithm": outside.SPEC}, r"give it again: archive\.kind=outside:NEWEST"),
    ):
        with pytest.raises(UserError, match=asked):
            qdhuac.resume(ReachTask(), tmp_path / "part", more, **given)
    with monkeypatch.context() as elsewhere:
        elsewhere.delitem(specs.ALGORITHMS, "own:nudge")  # another process
        elsewhere.setitem(sys.modules, "outside", None)  # where the module cannot be imported
        assert qdhuac.load(tmp_path / "part").config.settings["nudge"] == {"batch_size": 6, "size": 0.2}
        asked = "the run has one from outside of qdhuac; give it again: --algorithm own:nudge"
        with pytest.raises(UserError, match=asked):
            qdhuac.resume(ReachTask(), tmp_path / "part", more)
        assert cli.main(["export", str(tmp_path / "part"), "--output", str(tmp_path / "policies")]) == 0
    qdhuac.resume(ReachTask(), tmp_path / "part", more | ARCHIVE, algorithm=outside.SPEC)
    assert lines(tmp_path / "part") == lines(tmp_path / "whole")


def test_from_the_command_line(tmp_path, monkeypatch, reach, capsys, refused):
    given = ["--algorithm", "outside:SPEC", "--set", "archive.kind=outside:NEWEST"]
    folder = tmp_path / "run"
    assert cli.main(["train", "--preset", "smoke", "--run-dir", str(folder), *given, "nudge.size=0.3"]) == 0
    assert len(lines(folder)) == 5

    with monkeypatch.context() as elsewhere:
        elsewhere.delitem(specs.ALGORITHMS, "outside:SPEC")  # another process
        elsewhere.setitem(sys.modules, "outside", None)  # where the module cannot be imported
        run = qdhuac.load(folder)
        assert run.config.algorithm == "outside:SPEC"
        assert run.best.fitness == run.fitness.max()
        assert cli.main(["report", str(folder)]) == 0
        assert "cannot be imported" in refused("resume", str(folder), "--generations", "7", *given)
        assert "give it again: --algorithm outside:SPEC" in refused("resume", str(folder), "--generations", "7")
    assert cli.main(["resume", str(folder), "--generations", "7", *given]) == 0
    assert len(lines(folder)) == 7


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["--algorithm", "outside:NOTHING"], "algorithm='outside:NOTHING': cannot be imported"),
        (["--algorithm", "outside:NEWEST"], "expected a qdhuac AlgorithmSpec, got ArchiveSpec"),
        (["--set", "archive.kind=outside:SPEC"], "expected a qdhuac ArchiveSpec, got AlgorithmSpec"),
        (["--set", "archive.kind=nowhere:A"], "archive.kind='nowhere:A': cannot be imported"),
    ],
)
def test_an_outside_name_that_does_not_exist_is_refused(tmp_path, refused, given, words):
    assert words in refused("train", "--preset", "smoke", "--run-dir", str(tmp_path / "run"), *given)
    assert not list(tmp_path.iterdir())


def test_the_task_has_what_an_algorithm_from_outside_needs_of_it():
    spec = dataclasses.replace(specs.ALGORITHMS["dns"], name="own:dns", needs=("contacts",))
    for outside_spec, contacts in ((spec, True), (dataclasses.replace(spec, needs=()), False)):
        config = specs.make(outside_spec, "smoke", {"task.name": "walker2d", "task.backend": "native"})
        assert build(config)[0].spec.contacts == contacts
