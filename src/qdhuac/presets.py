"""Presets: what a run starts from, before `--set` changes it. Imports nothing heavy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from qdhuac.config import ALGORITHMS, Config, check_choice, replace, validate

# Each preset is what differs from the defaults of the configuration, which are the paper's Table 1.
PRESETS: dict[str, dict[str, Any]] = {
    "paper": {"run.env_steps": 2_000_000},
    "laptop": {
        "task.after_termination": "stop",
        "critic.width": 128,
        "critic.initial_value": 0.0,
        "learner.batch_size": 128,
        "learner.utd": 1.0,
        "emitter.exploration_rollouts": 2,
        "emitter.gradient_steps": 1000,
        "emitter.gradient_learning_rate": 1e-3,
        "run.env_steps": 210_000,
        "run.chunk": 50,
    },
    "smoke": {
        "task.episode_length": 20,
        "archive.capacity": 16,
        "emitter.batch_size": 6,
        "policy.hidden": (16, 16),
        "critic.width": 16,
        "critic.blocks": 1,
        "critic.atoms": 21,
        "learner.batch_size": 16,
        "learner.utd": 0.1,
        "replay.capacity": 2_000,
        "run.env_steps": 0,
        "run.generations": 5,
        "run.chunk": 50,
    },
    # For the baselines alone: their own hyperparameters, at the paper's horizon; and with as many updates per
    # environment step, and as many steps, as QDHUAC has in `laptop`.
    "original": {"run.env_steps": 2_000_000},
    "matched": {"task.after_termination": "stop", "learner.utd": 1.0, "run.env_steps": 210_000},
}
# The hyperparameters of the original implementations: 300 critic steps for a generation of 10 x 1000.
_BASELINE: dict[str, Any] = {
    "archive.kind": "cvt",
    "archive.capacity": 1024,
    "emitter.sigma_line": 0.05,
    "emitter.gradient_steps": 100,
    "emitter.gradient_learning_rate": 1e-3,
    "emitter.exploration_rollouts": 0,
    "critic.kind": "mlp",
    "critic.width": 256,
    "learner.utd": 0.03,
    "learner.batch_size": 256,
    "learner.reward_scale": 1.0,
    "learner.policy_delay": 2,
    "learner.target_tau": 0.005,
    "replay.priority_exponent": 0.0,
    "run.chunk": 50,
}
# What an algorithm changes in a preset: a baseline takes nothing but its steps, and what counts as one, from `laptop`
# and `paper`.
ALGORITHM_DEFAULTS: dict[str, dict[str, Any]] = {
    "map_elites": {"archive.kind": "cvt", "archive.capacity": 1024},
    "pga_me": _BASELINE,
    "qd_pg": {**_BASELINE, "emitter.isoline_share": 0.3},
    "dcrl_me": _BASELINE,
}
# These presets would mean nothing if an algorithm changed them: being tiny, and having QDHUAC's updates.
FIRM_PRESETS = ("smoke", "matched")


def make(algorithm: str = "qdhuac", preset: str = "laptop", overrides: Mapping[str, Any] | None = None) -> Config:
    """A validated configuration: defaults, the preset, the algorithm's own, a firm preset again, the overrides."""
    check_choice("algorithm", algorithm, ALGORITHMS)
    check_choice("preset", preset, tuple(PRESETS))
    firm = PRESETS[preset] if preset in FIRM_PRESETS else {}
    values = {**PRESETS[preset], **ALGORITHM_DEFAULTS.get(algorithm, {}), **firm, **(overrides or {})}
    return validate(replace(Config(algorithm=algorithm, preset=preset), values))
