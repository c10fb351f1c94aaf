"""Configuration: presets, overrides, TOML there and back, refusals."""

import json
import math
import tomllib

import pytest

from qdhuac import config, presets
from qdhuac.errors import UserError


@pytest.mark.parametrize(
    ("algorithm", "preset"),
    [
        (algorithm, preset)
        for algorithm in config.ALGORITHMS
        for preset in presets.PRESETS
        if algorithm in config.BASELINES or preset not in config.BASELINE_PRESETS
    ],
)
def test_toml_round_trip(algorithm, preset):
    before = presets.make(
        algorithm, preset, {"policy.hidden": [7, 8], "run.seed": 3, "learner.discount": 0.123456789012}
    )
    after = config.from_toml(config.to_toml(before))
    # Compared as text, because nan (the task's own support) is not equal to itself.
    assert json.dumps(config.to_dict(after)) == json.dumps(config.to_dict(before))
    assert after.policy.hidden == (7, 8)
    assert math.isnan(after.critic.v_min)


def test_every_key_is_in_the_file_and_documented():
    data = tomllib.loads(config.to_toml(presets.make()))
    for name, field in config.keys().items():
        section, _, leaf = name.rpartition(".")
        assert leaf in (data[section] if section else data)
        assert field.metadata["doc"]


def test_order_of_precedence():
    assert presets.make("dns", "smoke").archive.capacity == 16
    assert presets.make("dns", "laptop").archive.capacity == 250
    assert presets.make("map_elites", "laptop").archive.capacity == 1024
    assert presets.make("map_elites", "laptop", {"archive.capacity": 9}).archive.capacity == 9


@pytest.mark.parametrize("algorithm", config.BASELINES)
def test_baselines_keep_their_own_hyperparameters_and_take_the_presets_steps(algorithm):
    made = {preset: presets.make(algorithm, preset) for preset in presets.PRESETS}
    assert {p: c.run.env_steps for p, c in made.items() if p != "smoke"} == {
        "laptop": 210_000,
        "paper": 2_000_000,
        "original": 2_000_000,
        "matched": 210_000,
    }
    # 300 critic steps for 10 x 1000 environment steps, except where QDHUAC's own number is asked for
    assert {p: c.learner.utd for p, c in made.items() if p != "smoke"} == {
        "laptop": 0.03,
        "paper": 0.03,
        "original": 0.03,
        "matched": presets.make("qdhuac", "laptop").learner.utd,
    }
    for preset in ("laptop", "paper", "original", "matched"):
        c = made[preset]
        assert (c.critic.kind, c.critic.width, c.critic.blocks, c.critic.critics) == ("mlp", 256, 2, 2)
        assert (c.learner.batch_size, c.learner.policy_delay, c.learner.target_tau) == (256, 2, 0.005)
        assert (c.learner.target_noise, c.learner.target_noise_clip, c.learner.reward_scale) == (0.2, 0.5, 1.0)
        assert (c.learner.critic_learning_rate, c.learner.actor_learning_rate) == (3e-4, 3e-4)
        assert (c.emitter.gradient_steps, c.emitter.gradient_learning_rate) == (100, 1e-3)
        assert (c.emitter.sigma_iso, c.emitter.sigma_line, c.emitter.exploration_rollouts) == (0.005, 0.05, 0)
        assert (c.archive.kind, c.archive.capacity, c.replay.priority_exponent) == ("cvt", 1024, 0.0)
    assert made["smoke"].critic.width == made["smoke"].learner.batch_size == made["smoke"].archive.capacity == 16


@pytest.mark.parametrize(
    ("algorithm", "preset", "values", "words"),
    [
        ("qdhuac", "original", {}, ["preset='original'", "pga_me", "qdhuac", "paper"]),
        ("map_elites", "matched", {}, ["preset='matched'", "dcrl_me", "map_elites"]),
        ("qdhuac", "smoke", {"critic.kind": "mlp"}, ["critic.kind='mlp'", "qdhuac", "'scalar'"]),
        ("pga_me", "smoke", {"critic.kind": "scalar"}, ["critic.kind='scalar'", "pga_me", "'mlp'"]),
        ("dcrl_me", "smoke", {"critic.kind": "categorical"}, ["critic.kind='categorical'", "dcrl_me", "'mlp'"]),
        ("pga_me", "smoke", {"learner.target_tau": 0}, ["learner.target_tau=0", "pga_me", "above 0"]),
        (
            "dcrl_me",
            "smoke",
            {"emitter.exploration_rollouts": 2},
            ["emitter.exploration_rollouts=2", "dcrl_me", "deterministic"],
        ),
        ("qd_pg", "smoke", {"replay.priority_exponent": 0.6}, ["replay.priority_exponent=0.6", "qd_pg", "must be 0"]),
        ("qd_pg", "smoke", {"task.name": "ant_omni"}, ["task.name='ant_omni'", "qd_pg", "foot contacts", "'ant'"]),
    ],
)
def test_impossible_combinations_are_refused_by_name(algorithm, preset, values, words):
    with pytest.raises(UserError) as caught:
        presets.make(algorithm, preset, values)
    message = str(caught.value)
    assert "\n" not in message
    assert all(word in message for word in words), message


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
        presets.make("qdhuac", "smoke", config.parse_assignments([assignment]))
    message = str(caught.value)
    assert "\n" not in message
    assert all(word in message for word in words), message


@pytest.mark.parametrize(
    "text", ["a = [", "algorithm = 3", "x = " + "[" * 5000, '[task]\nname = "moon"', "[nowhere]\na = 1"]
)
def test_bad_files_are_refused(text):
    with pytest.raises(UserError, match=r"^here: "):
        config.from_toml(text, "here")
