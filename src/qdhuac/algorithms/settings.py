"""The configuration sections of each algorithm, its presets, and the combinations of keys that it refuses.

`qdhuac.algorithms.specs` gathers them in the registry. Does not import JAX.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from qdhuac.config import (
    ActorCriticEmitterConfig,
    BatchConfig,
    ConditionedTD3Config,
    Config,
    CriticConfig,
    EmitterConfig,
    ExploringEmitterConfig,
    LearnerConfig,
    MLPCriticConfig,
    NoveltyConfig,
    ReplayConfig,
    TD3Config,
)
from qdhuac.keys import require
from qdhuac.tasks.task_file import TASKS, builtin

Values = Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class EvolutionSettings:
    emitter: EmitterConfig = EmitterConfig()


@dataclasses.dataclass(frozen=True)
class TargetFreeSettings:
    """QDHUAC's learner."""

    critic: CriticConfig = CriticConfig()
    learner: LearnerConfig = LearnerConfig()
    replay: ReplayConfig = ReplayConfig()


@dataclasses.dataclass(frozen=True)
class ActorSettings(TargetFreeSettings):
    emitter: BatchConfig = BatchConfig(batch_size=1)


@dataclasses.dataclass(frozen=True)
class QDHUACSettings(TargetFreeSettings):
    emitter: ExploringEmitterConfig = ExploringEmitterConfig()


@dataclasses.dataclass(frozen=True)
class PGAMESettings:
    """The baselines with a TD3 learner, with the hyperparameters of their original implementations."""

    emitter: ActorCriticEmitterConfig = ActorCriticEmitterConfig(
        sigma_line=0.05, gradient_steps=100, gradient_learning_rate=1e-3
    )
    critic: MLPCriticConfig = MLPCriticConfig()
    learner: TD3Config = TD3Config()
    replay: ReplayConfig = ReplayConfig(priority_exponent=0.0)


@dataclasses.dataclass(frozen=True)
class QDPGSettings(PGAMESettings):
    emitter: ActorCriticEmitterConfig = dataclasses.replace(PGAMESettings.emitter, isoline_share=0.3)
    novelty: NoveltyConfig = NoveltyConfig()


@dataclasses.dataclass(frozen=True)
class DCRLMESettings(PGAMESettings):
    learner: ConditionedTD3Config = ConditionedTD3Config()


# Presets. What a preset does not name keeps its default; QDHUAC's defaults are the paper's Table 1.

PAPER: Values = {"run.env_steps": 2_000_000}
LAPTOP: Values = {"task.after_termination": "stop", "run.env_steps": 210_000, "run.chunk": 50}
SMOKE: Values = {
    "task.episode_length": 20,
    "archive.capacity": 16,
    "emitter.batch_size": 6,
    "policy.hidden": (16, 16),
    "run.env_steps": 0,
    "run.generations": 5,
    "run.chunk": 50,
}
LAPTOP_LEARNER: Values = {
    **LAPTOP,
    "critic.width": 128,
    "critic.initial_value": 0.0,
    "learner.batch_size": 128,
    "learner.utd": 1.0,
}
SMOKE_LEARNER: Values = {
    **SMOKE,
    "critic.width": 16,
    "critic.blocks": 1,
    "learner.batch_size": 16,
    "learner.utd": 0.1,
    "replay.capacity": 2_000,
}
SMOKE_TARGET_FREE: Values = {**SMOKE_LEARNER, "critic.atoms": 21}
CELLS: Values = {"archive.kind": "cvt", "archive.capacity": 1024}
_BASELINE: Values = {**CELLS, "run.chunk": 50}
EVOLUTION = {"laptop": LAPTOP, "paper": PAPER, "smoke": SMOKE}
MAP_ELITES = {name: {**CELLS, **values} for name, values in EVOLUTION.items()}
ACTOR: Mapping[str, Values] = {
    "laptop": LAPTOP_LEARNER,
    "paper": PAPER,
    "smoke": {**SMOKE_TARGET_FREE, "emitter.batch_size": 1},
}
QDHUAC: Mapping[str, Values] = {
    "laptop": {
        **LAPTOP_LEARNER,
        "emitter.exploration_rollouts": 2,
        "emitter.gradient_steps": 1000,
        "emitter.gradient_learning_rate": 1e-3,
    },
    "paper": PAPER,
    "smoke": SMOKE_TARGET_FREE,
}
# `original`: the horizon of the paper; `matched`: as many updates per environment step, and as many steps, as QDHUAC
# has in `laptop`.
BASELINES: Mapping[str, Values] = {
    "laptop": {**_BASELINE, **LAPTOP},
    "paper": {**_BASELINE, **PAPER},
    "smoke": {**_BASELINE, **SMOKE_LEARNER},
    "original": {**_BASELINE, **PAPER},
    "matched": {**_BASELINE, **LAPTOP, "learner.utd": 1.0},
}


# Combinations of keys that are refused.


def check_dns(config: Config) -> None:
    """DNS is evolution with its own archive."""
    require(config.archive.kind == "dns", f"archive.kind={config.archive.kind!r}: algorithm dns needs 'dns'")


def check_map_elites(config: Config) -> None:
    """MAP-Elites is evolution with an archive of cells."""
    require(config.archive.kind != "dns", "archive.kind='dns': algorithm map_elites needs 'grid' or 'cvt'")


def check_learning(config: Config) -> None:
    """Algorithms with a learner need room for the actor in the batch, and a full minibatch after one generation."""
    e, learner, replay = config.settings.emitter, config.settings.learner, config.settings.replay
    explorers = getattr(e, "exploration_rollouts", 0)
    require(
        explorers + getattr(e, "inject_actor", False) < e.batch_size,
        f"emitter.exploration_rollouts={explorers}: with the injected actor it must leave room in "
        f"emitter.batch_size={e.batch_size}",
    )
    first_fill = min(e.batch_size * config.task.episode_length, replay.capacity)
    require(
        learner.batch_size <= first_fill,
        f"learner.batch_size={learner.batch_size}: the replay buffer holds at most {first_fill} transitions after "
        "the first generation",
    )


def check_target_free(config: Config) -> None:
    """The support must not be empty, and batch normalisation needs more than one transition."""
    c, learner = config.settings.critic, config.settings.learner
    # Comparisons with nan, which takes the task's own support, are false.
    require(not c.v_min >= c.v_max, f"critic.v_min={c.v_min}: must be below critic.v_max={c.v_max}")
    require(
        not (c.batch_norm and learner.batch_size < 2),
        "learner.batch_size=1: batch normalisation needs at least 2 (or critic.batch_norm=false)",
    )
    check_learning(config)


def check_qd_pg(config: Config) -> None:
    """QD-PG's two learners share a buffer, and its novelty is that of foot contacts."""
    exponent, task = config.settings.replay.priority_exponent, config.task.name
    require(
        exponent == 0,
        f"replay.priority_exponent={exponent:g}: the two learners of qd_pg share one buffer and have no common "
        "priority, must be 0",
    )
    require(
        config.task.file or task not in TASKS or builtin(task).has_contacts(config.task.descriptor),
        f"task.name={task!r}: algorithm qd_pg needs a task whose descriptor is foot contacts; choose from: "
        + ", ".join(repr(name) for name in TASKS if builtin(name).has_contacts()),
    )
    check_learning(config)
