"""Damaged task files and models: each is refused with one line, quickly, and nothing outside of the folder is read."""

import copy
import random
import tomllib

import pytest
import tomli_w

from qdhuac.errors import UserError
from qdhuac.tasks import bundle, model, tables, task_file

MODEL = """<mujoco>
  <worldbody>
    <geom name="floor" type="plane" size="5 5 5"/>
    <body name="trunk" pos="0 0 0.3">
      <freejoint name="root"/>
      <geom name="shell" type="box" size="0.1 0.1 0.05"/>
      <site name="top" pos="0 0 0.05"/>
      <body name="leg">
        <joint name="hip" axis="0 1 0"/>
        <geom name="foot" type="capsule" size="0.02" fromto="0 0 0 0 0 -0.25"/>
      </body>
    </body>
  </worldbody>
  <actuator><motor name="hip" joint="hip" gear="5" ctrlrange="-1 1"/></actuator>
  <sensor><gyro name="spin" site="top"/></sensor>
  <keyframe><key name="stand" qpos="0 0 0.28 1 0 0 0 0"/></keyframe>
</mujoco>
"""
TASK = """
title = "One leg"
model = "robot.xml"
frames = 4
support = [-10.0, 200.0]
actions = { kind = "position", scale = [0.5], stiffness = 5.0, damping = 0.1 }
observation = [{ field = "qpos", skip = 2 }, { field = "qvel", limit = 20.0 }, { sensor = "spin", axis = "x" }]
reward = [
    { term = "velocity", body = "trunk", axis = "x" },
    { term = "alive", weight = 0.5 },
    { term = "distance", site = "top", point = [1.0, 0.0, 0.3], weight = 0.1 },
    { term = "energy", weight = 0.01 },
]
healthy = [{ body = "trunk", axis = "z", low = 0.1, high = 1.0 }]
reset = { noise = 0.01, velocity = "normal", keyframe = "stand" }
variation = { mass = [0.9, 1.1], delay = [0, 1] }
limbs = { leg = ["hip"] }

[descriptors]
feet = [{ kind = "contact", geom = "foot" }]
posture = [
    { kind = "mean", joint = "hip", low = -1.0, high = 1.0 },
    { kind = "final", body = "trunk", axis = "y", low = -5.0, high = 5.0 },
]
"""


def built(path):
    """What every command does with a task file before it simulates anything."""
    bundle.collect(path)
    found = task_file.read(path)
    loaded = model.load(found)
    for name in found.descriptors:
        tables.tables(found, loaded, tables.plan(found, loaded, name))


def places(values, at=()):
    """The path to every key of a task, such as ("reward", 0, "weight")."""
    for key, value in values.items() if isinstance(values, dict) else enumerate(values):
        if isinstance(value, dict | list):
            yield from places(value, (*at, key))
        if isinstance(key, str):
            yield (*at, key)


def put(values, place, value):
    for key in place[:-1]:
        values = values[key]
    values[place[-1]] = value


def get(values, place):
    for key in place:
        values = values[key]
    return values


def removed(chance, values):
    """A key without which there is no task."""
    del values[chance.choice(("model", "frames", "observation", "reward", "descriptors"))]


def emptied(chance, values):
    values[chance.choice(("model", "observation", "reward", "descriptors"))] = []


def of_another_type(chance, values):
    place = chance.choice([place for place in places(values) if place[:1] != ("limbs",)])
    value = get(values, place)
    others = [other for other in ("text", 3.5, True, [["x"]], {"x": 1}) if not isinstance(other, type(value))]
    number = isinstance(value, int | float) and not isinstance(value, bool)
    put(values, place, chance.choice([other for other in others if not (number and other == 3.5)]))


def misspelt(chance, values):
    """A key that there is not."""
    place = chance.choice(
        [place for place in places(values) if place[0] not in ("limbs", "descriptors") or len(place) > 2]
    )
    if place[0] == "limbs":
        place = ("limbs",)
    table = get(values, place[:-1])
    table[place[-1] + chance.choice(("s", "_", " "))] = table.pop(place[-1])


def unknown(chance, values):
    """A name of something that the model does not have, or a word that the file does not know."""
    words = ("body", "joint", "site", "sensor", "geom", "field", "axis", "term", "kind", "keyframe", "velocity")
    place = chance.choice([place for place in places(values) if place[-1] in words])
    put(
        values,
        place,
        chance.choice(("", "Trunk", "nobody", "\u2603", "x" * 1000)[place[-1] in ("field", "axis", "keyframe") :]),
    )


def out_of_range(chance, values):
    part = chance.choice(values["observation"])
    part[chance.choice(("skip", "count"))] = chance.choice((-1, 9, 10**6, 2**70))


def without_bounds(chance, values):
    one = chance.choice([*values["healthy"], *values["descriptors"]["posture"]])
    one["low"], one["high"] = chance.choice(((1.0, 1.0), (2.0, -2.0), (0.0, float("nan")), (0.0, float("-inf"))))


def huge(chance, values):
    numbers = [place for place in places(values) if type(get(values, place)) in (int, float)]
    put(values, chance.choice(numbers), chance.choice((1e300, float("nan"), float("inf"), -(10**40))))


def of_another_length(chance, values):
    place, value = chance.choice(
        (
            (("reset",), {"pose": [0.0] * 7}),
            (("actions", "scale"), [1.0, 2.0]),
            (("actions", "pose"), [0.1, 0.2]),
            (("reward", 2, "point"), [1.0]),
            (("reward", 0), {"term": "velocity", "body": "trunk"}),
            (("support",), [1.0]),
            (("support",), [3.0, 3.0]),
            (("variation", "mass"), [1.1, 0.9]),
            (("variation", "delay"), [0, 10**6]),
            (("actions", "delay"), -1),
            (("reset", "noise"), -1.0),
            (("descriptor",), "speed"),
            (("frames",), 0),
        )
    )
    put(values, place, value)


def elsewhere(chance, values):
    """A model that is not in the folder of the file."""
    values["model"] = chance.choice(
        ("../outside.xml", "/etc/passwd", "missing.xml", ".", "", "robot.xml/../../outside.xml")
    )


def on_a_bad_base(chance, values):
    values["base"] = chance.choice(("missing.toml", "../outside.toml", "task.toml", "", "/etc/passwd", 3))


IN_THE_FILE = (
    *(removed, emptied, of_another_type, misspelt, unknown, out_of_range, without_bounds, huge, of_another_length),
    *(elsewhere, on_a_bad_base),
)


def broken_text(chance, text):
    """Not TOML at all."""
    cut = chance.randrange(text.index("[{") + 3, text.index("reset"))
    return chance.choice(
        (text[:cut].encode(), b"\xff\xfe" + text.encode(), b"a = " + b"[" * 5000, b"\0", text.encode() * 2)
    )


BROKEN_MODELS = (
    lambda text: text.replace("<actuator>", "<!--").replace("</actuator>", "-->"),  # nothing to control
    lambda text: text[: len(text) // 2],
    lambda text: "",
    lambda text: "\0" * 100,
    lambda text: "not xml",
    lambda text: "<html/>",
    lambda text: '<!DOCTYPE m [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;">]>' + text.replace('"trunk"', '"&b;"'),
    lambda text: text.replace("capsule", "banana"),
    lambda text: text.replace('joint="hip"', 'joint="knee"'),
    lambda text: text.replace('size="0.02"', 'size="-1"'),
    lambda text: text.replace('name="leg"', 'name="trunk"'),
    lambda text: text.replace("<worldbody>", '<include file="missing.xml"/><worldbody>'),
    lambda text: text.replace("<worldbody>", '<include file="robot.xml"/><worldbody>'),
    lambda text: text.replace("<worldbody>", '<include file="../outside.xml"/><worldbody>'),
    lambda text: text.replace("<worldbody>", '<include file="/etc/passwd"/><worldbody>'),
    lambda text: text.replace("<worldbody>", '<asset><mesh name="m" file="missing.stl"/></asset><worldbody>'),
    lambda text: text.replace("<worldbody>", '<asset><mesh name="m" file="../outside.stl"/></asset><worldbody>'),
    lambda text: text.replace("<worldbody>", '<compiler meshdir="/"/><asset><mesh file="x.obj"/></asset><worldbody>'),
    lambda text: text.replace('name="floor" type="plane"', 'name="floor" type="plane" pos="0 0 1"'),
)


def folder(tmp_path):
    (tmp_path / "outside.xml").write_text("<mujoco><worldbody/></mujoco>")
    (tmp_path / "outside.toml").write_text(TASK)
    inside = tmp_path / "inside"
    inside.mkdir()
    (inside / "robot.xml").write_text(MODEL)
    (inside / "task.toml").write_text(TASK)
    return inside


def refusal(path):
    with pytest.raises(UserError) as refused:
        built(path)
    text = " ".join(str(refused.value).split())
    assert 10 < len(text) < 2000
    return text


def test_the_file_is_good_as_long_as_it_is_whole(tmp_path):
    built(folder(tmp_path) / "task.toml")


@pytest.mark.parametrize("damage", IN_THE_FILE, ids=lambda damage: damage.__name__)
@pytest.mark.parametrize("seed", range(7))
def test_a_damaged_task_file_is_refused(damage, seed, tmp_path):
    path, chance = folder(tmp_path) / "task.toml", random.Random(f"{damage.__name__} {seed}")
    whole = tomllib.loads(TASK)
    values = copy.deepcopy(whole)
    damage(chance, values)
    assert values != whole
    path.write_text(tomli_w.dumps(values))
    refusal(path)


@pytest.mark.parametrize("seed", range(5))
def test_a_file_that_is_not_toml_is_refused(seed, tmp_path):
    path = folder(tmp_path) / "task.toml"
    path.write_bytes(broken_text(random.Random(seed), TASK))
    assert str(path) in refusal(path)


@pytest.mark.parametrize("timestep", ["0", "-1"])
def test_a_model_whose_time_stands_still_is_refused(timestep, tmp_path):
    path = folder(tmp_path) / "task.toml"
    path.with_name("robot.xml").write_text(MODEL.replace("<worldbody>", f'<option timestep="{timestep}"/><worldbody>'))
    refusal(path)


@pytest.mark.parametrize("damage", range(len(BROKEN_MODELS)))
def test_a_damaged_model_is_refused(damage, tmp_path):
    path = folder(tmp_path) / "task.toml"
    text = BROKEN_MODELS[damage](MODEL)
    assert text != MODEL
    path.with_name("robot.xml").write_text(text)
    refusal(path)
