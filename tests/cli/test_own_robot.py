"""A robot of the user's from a file: every command works on its run, wherever the folder is moved."""

import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

import qdhuac
from qdhuac import cli

sys.path.insert(0, str(Path(__file__).parents[1] / "tasks"))
from test_task_file import write


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run whose task file is gone, in a folder that was moved."""
    folder = tmp_path_factory.mktemp("cart")
    low_high = "low = -5.0, high = 5.0"
    descriptors = f"""{{ pole = [{{ kind = "mean", joint = "hinge", {low_high} }}],
    where = [{{ kind = "final", body = "cart", axis = "x", {low_high}, label = "end of the way" }},
             {{ kind = "range", joint = "rail", {low_high} }}] }}""".replace("\n", " ")
    reward = '[{ term = "velocity", joint = "rail" }, { term = "control", weight = 0.1 }]'
    path = write(folder, descriptors=descriptors, reward=reward, variation="{ mass = [0.5, 2.0] }")
    options = ["--algorithm", "dns", "--preset", "smoke", "--generations", "2", "--descriptor", "where"]
    assert cli.main(["train", "--task", str(path), "--run-dir", str(folder / "first"), *options]) == 0
    for file in (path, folder / "cart.xml"):
        file.unlink()
    return (folder / "first").rename(folder / "moved")


@pytest.fixture
def copy(trained, tmp_path):
    return Path(shutil.copytree(trained, tmp_path / "run"))


def test_the_run_holds_the_files_of_its_task(trained):
    assert sorted(path.name for path in (trained / "task").iterdir()) == ["cart.toml", "cart.xml"]
    run = qdhuac.load(trained)
    assert (run.config.task.name, run.config.task.descriptor) == ("cart", "where")
    assert run.metadata["labels"] == ["end of the way", "range rail"]
    assert 'file = "task/cart.toml"' in (trained / "config.toml").read_text()
    assert "end of the way" in (trained / "report.html").read_text()


def test_a_run_goes_on_and_can_be_started_again(copy, tmp_path):
    assert cli.main(["resume", str(copy), "--generations", "3"]) == 0
    again = ["train", "--config", str(copy / "config.toml"), "--run-dir", str(tmp_path / "again")]
    assert cli.main([*again, "--generations", "3"]) == 0
    one, other = qdhuac.load(copy), qdhuac.load(tmp_path / "again")
    np.testing.assert_array_equal(one.fitness, other.fitness)


def test_policies_are_evaluated_exported_and_adapted(copy, capsys):
    assert cli.main(["evaluate", str(copy), "--episodes", "2"]) == 0
    assert cli.main(["evaluate", str(copy), "--episodes", "2", "--vary"]) == 0
    assert "with variation" in capsys.readouterr().out
    assert json.loads((copy / "evaluation.json").read_text())["vary"] is True
    assert cli.main(["export", str(copy)]) == 0
    (contract,) = copy.glob("*/contract.json")
    names = [one["name"] for one in json.loads(contract.read_text())["observations"]]
    assert names == ["qpos/rail", "qpos/side", "qpos/hinge", "qvel/rail", "qvel/side", "qvel/hinge"]
    assert cli.main(["adapt", str(copy), "--damage", "push=0.5", "mass:pole=2", "--trials", "2"]) == 0


def test_changed_files_are_refused(copy, refused):
    model = copy / "task" / "cart.xml"
    model.write_text(model.read_text().replace('mass="2"', 'mass="3"'))
    for command in ("resume", "evaluate", "adapt", "export"):
        more = {"resume": ["--generations", "3"], "adapt": ["--damage", "push=0.5"]}.get(command, [])
        assert "has changed since the run began" in refused(command, str(copy), *more)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--task", "none.toml"], ["none.toml", "no such"]),
        (["--task", "cart.toml", "--descriptor", "speed"], ["task.descriptor 'speed'", "choose from: where"]),
        (["--task", "ant", "--descriptor", "speed"], ["task.descriptor 'speed'", "choose from: feet, position"]),
        (["--task", "cart.toml", "--algorithm", "qd_pg"], ["cart", "foot contacts"]),
        (["--task", "cart.toml"], ["critic.v_min", "normalise_rewards=true"]),
    ],
)
def test_bad_input_is_one_line(tmp_path, monkeypatch, refused, options, words):
    monkeypatch.chdir(tmp_path)
    write(tmp_path)
    message = refused("train", *options, "--preset", "smoke", "--run-dir", "run")
    assert all(word in message for word in words), message
    assert not Path("run").exists()
