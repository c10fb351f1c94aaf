"""Configuration: presets, overrides, TOML there and back, refusals."""

import json
import math
import tomllib

import pytest

from qdhuac import config
from qdhuac.errors import UserError


@pytest.mark.parametrize("algorithm", config.ALGORITHMS)
@pytest.mark.parametrize("preset", config.PRESETS)
def test_toml_round_trip(algorithm, preset):
    before = config.make(
        algorithm, preset, {"policy.hidden": [7, 8], "run.seed": 3, "learner.discount": 0.123456789012}
    )
    after = config.from_toml(config.to_toml(before))
    # Compared as text, because nan (the task's own support) is not equal to itself.
    assert json.dumps(config.to_dict(after)) == json.dumps(config.to_dict(before))
    assert after.policy.hidden == (7, 8)
    assert math.isnan(after.critic.v_min)


def test_every_key_is_in_the_file_and_documented():
    data = tomllib.loads(config.to_toml(config.make()))
    for name, field in config.keys().items():
        section, _, leaf = name.rpartition(".")
        assert leaf in (data[section] if section else data)
        assert field.metadata["doc"]


def test_order_of_precedence():
    assert config.make("dns", "laptop").archive.capacity == 50
    assert config.make("map_elites", "laptop").archive.capacity == 1024
    assert config.make("map_elites", "laptop", {"archive.capacity": 9}).archive.capacity == 9


def test_assignments_are_read_as_toml_else_as_text():
    values = config.parse_assignments(
        ["run.seed=3", "policy.hidden=[8, 8]", "critic.batch_norm = false", "task.name=ant"]
    )
    assert values == {"run.seed": 3, "policy.hidden": [8, 8], "critic.batch_norm": False, "task.name": "ant"}


@pytest.mark.parametrize(
    ("assignment", "words"),
    [
        ("run.sede=1", ["run.sede", "run.seed"]),
        ("nonsense=1", ["nonsense", "run.seed"]),
        ("run.seed", ["run.seed", "section.key=value"]),
        ("run.seed=-1", ["run.seed", "at least 0"]),
        ("run.seed=1.5", ["run.seed", "whole number"]),
        ("run.seed=true", ["run.seed", "whole number"]),
        ("run.seed=" + "9" * 5000, ["run.seed"]),
        ("learner.utd=0", ["learner.utd", "above 0"]),
        ("learner.utd=nan", ["learner.utd", "above 0"]),
        ("learner.utd=" + "9" * 400, ["learner.utd"]),
        ("learner.reward_scale=inf", ["learner.reward_scale", "finite"]),
        ("critic.v_min=-inf", ["critic.v_min", "finite"]),
        ("critic.batch_norm=1", ["critic.batch_norm", "true or false"]),
        ("critic.weight_norm=maybe", ["critic.weight_norm", "none", "reparam", "project"]),
        ("policy.hidden=[]", ["policy.hidden", "[256, 256]"]),
        ("policy.hidden=[0]", ["policy.hidden", "at least 1"]),
        ("task.episode_length=2020-01-01", ["task.episode_length", "whole number"]),
        ("learner.batch_size=100000", ["learner.batch_size", "replay"]),
        ("run={a=1}", ["run"]),
    ],
)
def test_bad_values_are_named(assignment, words):
    with pytest.raises(UserError) as caught:
        config.make("qdhuac", "smoke", config.parse_assignments([assignment]))
    message = str(caught.value)
    assert "\n" not in message
    assert all(word in message for word in words), message


@pytest.mark.parametrize(
    "text", ["a = [", "algorithm = 3", "x = " + "[" * 5000, '[task]\nname = "moon"', "[nowhere]\na = 1"]
)
def test_bad_files_are_refused(text):
    with pytest.raises(UserError, match=r"^here: "):
        config.from_toml(text, "here")
