"""`qdhuac task`: first task files from models, and what is wrong or odd about a task file."""

import shutil
import tomllib
from pathlib import Path

import pytest

from qdhuac import cli
from qdhuac.tasks import model, tables, task_file, trial
from qdhuac.view import video

ROBOTS = Path(task_file.__file__).parent / "robots"
FACTS = {  # base, actions, first descriptor and its size
    "quadruped": ("moves freely", "position", "feet", 4),
    "ant": ("moves freely", "range", "feet", 4),
    "hopper": ("slides along the ground", "range", "feet", 1),
    "arm": ("is mounted", "range", "hand", 3),
    "point_maze": ("slides along the ground", "range", "position", 2),
}
SLIDER = """<mujoco>
  <worldbody>
    <geom name="floor" type="plane" size="5 5 5"/>
    <body name="sled" pos="0 0 0.1">
      <joint name="x" type="slide" axis="1 0 0" damping="1"/>
      <geom name="runner" type="box" size="0.1 0.1 0.1" mass="1"/>
    </body>
  </worldbody>
  <actuator><motor name="push" joint="x" gear="5" ctrlrange="-1 1"/></actuator>
</mujoco>
"""
GOOD = """
model = "sled.xml"
frames = 5
support = [-200.0, 400.0]
reward_offset = 3.0
observation = [{ field = "qpos" }, { field = "qvel" }]
reward = [{ term = "velocity", body = "sled", axis = "x" }, { term = "control", weight = 0.1 }]
descriptors.place = [{ kind = "final", body = "sled", axis = "x", low = -5.0, high = 5.0 }]
reset.noise = 0.1
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(trial, "POLICIES", 8)
    monkeypatch.setattr(trial, "STEPS", 40)
    monkeypatch.setattr(video, "choose_library", lambda: None)  # drawing needs a process of its own
    monkeypatch.setattr(video, "strip", lambda drawn, episode, path: path.write_text(f"{drawn.nu} {len(episode.qpos)}"))
    Path("sled.xml").write_text(SLIDER)
    return tmp_path


@pytest.mark.parametrize("name", FACTS)
def test_a_first_task_file_fits_its_model(name, here):
    for path in ROBOTS.glob("*.xml"):
        shutil.copy(path, here)
    assert cli.main(["task", "new", f"{name}.xml"]) == 0
    text = Path(f"{name}.toml").read_text()
    base, actions, first, size = FACTS[name]
    assert base in text.splitlines()[0]
    found = task_file.read(Path(f"{name}.toml"))
    assert found.actions.kind == actions
    assert next(iter(found.descriptors)) == first
    assert len(found.dimensions()) == size
    loaded = model.load(found)
    for descriptor in found.descriptors:
        tables.tables(found, loaded, tables.plan(found, loaded, descriptor))
    assert not set(found.limbs) & set(model.motor_names(loaded))  # a name means one thing
    shipped = task_file.builtin(name)
    if first == "feet":
        assert {one.geom for one in found.dimensions()} == {one.geom for one in shipped.dimensions("feet")}
    for term in ("healthy", "limbs"):
        assert bool(getattr(found, term)) == bool(getattr(shipped, term)) or name in ("hopper", "arm")


def test_a_floating_robot_is_put_on_the_floor(here):
    Path("sled.xml").write_text(
        SLIDER.replace('<joint name="x" type="slide" axis="1 0 0" damping="1"/>', "<freejoint/>")
        .replace('joint="x"', 'body="sled"')
        .replace("motor", "adhesion")
        .replace('gear="5" ctrlrange="-1 1"', 'gain="1" ctrlrange="0 1"')
        .replace('pos="0 0 0.1"', 'pos="0 0 3"')
    )
    assert cli.main(["task", "new", "sled.xml", "--output", "free.toml"]) == 0
    assert tomllib.loads(Path("free.toml").read_text())["reset"]["pose"][2] == pytest.approx(0.1, abs=0.01)


def test_a_thing_that_lies_around_is_not_the_robot(here):
    cube = '<body name="cube" pos="1 0 0.1"><freejoint/><geom type="box" size="0.1 0.1 0.1"/></body>'
    arm = SLIDER.replace('type="slide"', 'type="hinge"').replace("<body", f"{cube}<body", 1)
    Path("sled.xml").write_text(arm)
    assert cli.main(["task", "new", "sled.xml"]) == 0
    found = task_file.read(Path("sled.toml"))
    assert [one.body for one in found.dimensions()] == ["sled"] * 3
    assert not found.healthy


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], ["ACTION"]),
        (["old"], ["old", "new", "check"]),
        (["new"], ["MODEL.xml"]),
        (["new", "robot.xml"], ["robot.xml", "no such file"]),
        (["new", "sled.xml", "--output", "sled.txt"], ["--output", "sled.txt", ".toml"]),
        (["new", "sled.xml", "--output", "nowhere/sled.toml"], ["--output", "folder that exists"]),
        (["new", "sled.xml", "--output", "sub/sled.toml"], ["sled.xml", "folder of the task file"]),
        (["new", "empty.xml"], ["empty.xml"]),
        (["new", "passive.xml"], ["passive.xml", "actuators"]),
        (["new", "nameless.xml"], ["nameless.xml", "body", "name"]),
        (["new", "there.xml"], ["there.toml", "exists", "--output"]),
        (["check"], ["FILE.toml"]),
        (["check", "missing.toml"], ["missing.toml", "no such"]),
        (["check", "sled.xml"], ["sled.xml", "TOML"]),
        (["check", "there.toml"], ["there.toml", "model"]),
        (["check", "there.toml", "--seed", "x"], ["--seed", "whole number"]),
    ],
)
def test_bad_input_is_refused_in_one_line(arguments, words, here, capsys):
    Path("sub").mkdir()
    Path("empty.xml").touch()
    Path("there.xml").write_text(SLIDER)
    Path("there.toml").touch()
    Path("passive.xml").write_text(SLIDER.replace("<actuator>", "<!--").replace("</actuator>", "-->"))
    Path("nameless.xml").write_text(SLIDER.replace('<body name="sled"', "<body"))
    before = sorted(here.rglob("*"))
    assert cli.main(["task", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert all(word in err for word in words)
    assert sorted(here.rglob("*")) == before


def checked(capsys, text=GOOD):
    Path("sled.toml").write_text(text)
    code = cli.main(["task", "check", "sled.toml"])
    out, err = capsys.readouterr()
    return code, out, err


def test_a_good_file_is_called_good(here, capsys):
    code, out, err = checked(capsys)
    assert (code, err) == (0, "")
    for words in (
        "1 degrees of freedom, 1 kg",
        "2 observations, 1 actions",
        "steps per second",
        "velocity:",
        "control:",
    ):
        assert words in out
    assert "descriptor place: final sled x: -" in out
    assert out.endswith("film strip: sled.png\nnothing odd\n")
    assert Path("sled.png").read_text() == "1 41"


@pytest.mark.parametrize(
    ("old", "new", "code", "words"),
    [
        ("reset.noise = 0.1", 'healthy = [{ field = "qpos", low = 0.5 }]', 1, "wrong: healthy: 0: is 0 at the start"),
        ("weight = 0.1", "weight = 1000.0", 0, "odd: reward: 1: control: outweighs"),
        (
            "low = -5.0, high = 5.0",
            "low = 50.0, high = 60.0",
            0,
            "odd: descriptors: place: 0: final sled x: never varies",
        ),
        ("low = -5.0, high = 5.0", "low = -0.01, high = 0.01", 0, "is at a bound in"),
        ("reward_offset = 3.0", "", 0, "odd: reward_offset=0: some policies count less than nothing"),
        ("[-200.0, 400.0]", "[1000.0, 2000.0]", 0, "odd: support=[1000.0, 2000.0]: random policies return"),
        ('axis = "x" }, {', 'axis = "y" }, {', 0, "odd: reward: 0: velocity: is always 0"),
    ],
)
def test_what_is_wrong_or_odd_is_said(old, new, code, words, here, capsys):
    assert old in GOOD
    found, _, err = checked(capsys, GOOD.replace(old, new))
    assert words in err
    assert found == code


def test_physics_that_explode_are_wrong(here, capsys):
    Path("sled.xml").write_text(
        SLIDER.replace('damping="1"', 'damping="-1e6"').replace("<worldbody>", '<option timestep="0.1"/><worldbody>', 1)
    )
    code, _, err = checked(capsys)
    assert code == 1
    assert "wrong: physics: 8 of 8 episodes are not finite" in err
