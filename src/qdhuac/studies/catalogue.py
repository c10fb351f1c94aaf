"""Every study as data: its runs, its figures and its tables. Free of JAX.

A run is an ordinary configuration. Two studies that ask for the same one share it: the configuration without its goal
is the run's identity, and its goal is the longest that any study of that scale asks for.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Mapping
from typing import Any

from qdhuac import config
from qdhuac.algorithms import specs
from qdhuac.config import Config, check_choice

SCALES = ("smoke", "laptop", "paper")
SEEDS = {"smoke": 2, "laptop": 3, "paper": 5}
FIRST_SEED = 100  # the presets were tuned on smaller ones, and reported seeds must not be used for tuning
MOST_SEEDS = 1000
TASKS = ("hopper", "walker2d", "halfcheetah", "ant", "humanoid")
SMOKE_STEPS = 600  # 5 generations of preset smoke

# Shared by all runs of a scale, as far as an algorithm has the key. The replay buffer holds the longest run.
# Steps are counted alike for all: at `laptop` an evaluation ends when the robot falls, in the paper it starts again.
_COMMON: dict[str, dict[str, Any]] = {
    "smoke": {"task.backend": "native"},
    "laptop": {"task.backend": "native", "task.after_termination": "stop", "replay.capacity": 120_000},
    "paper": {"task.after_termination": "reset"},
}


@dataclasses.dataclass(frozen=True)
class Setting:
    """One line of a figure: an algorithm with a preset (default: the scale's own) and some changes."""

    label: str
    algorithm: str = "qdhuac"
    changes: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    preset: str | None = None
    group: str = ""  # settings of a group share a figure of curves, and a line over `x`
    x: float = math.nan  # the value of what the study varies


@dataclasses.dataclass(frozen=True)
class Study:
    """A question: tasks x settings, up to `steps` environment steps. The first setting is the reference."""

    name: str
    title: str
    tasks: tuple[str, ...]
    settings: tuple[Setting, ...]
    steps: int
    figures: tuple[str, ...] = ("curves", "relative", "final")  # of `report.study_figures.FIGURES`
    tables: tuple[str, ...] = ("summary", "aggregate")  # of `studies.results.TABLES`
    varied: str = ""  # what `x` of the settings is


@dataclasses.dataclass(frozen=True)
class Run:
    """One run of a study."""

    label: str
    config: Config  # with the goal that all studies together ask for
    steps: int  # the study's horizon

    @property
    def task(self) -> str:
        return self.config.task.name

    @property
    def seed(self) -> int:
        return self.config.run.seed

    @property
    def fingerprint(self) -> str:
        """Hash of the configuration without its goal."""
        return fingerprint(self.config)

    @property
    def folder(self) -> str:
        """The name of its run folder."""
        return f"{self.task}-{self.config.algorithm}-s{self.seed}-{self.fingerprint[:8]}"

    @property
    def name(self) -> str:
        return f"{self.task}, {self.label}, seed {self.seed}"


def study(name: str, scale: str) -> Study:
    """The study of that name at that scale."""
    check_choice("study", name, STUDIES)
    check_choice("--scale", scale, SCALES)
    return STUDIES[name](scale)


def runs(name: str, scale: str, seeds: int) -> list[Run]:
    """The runs of a study: the first seed of everything first, so that an unfinished study is readable."""
    wanted, goals = study(name, scale), _goals(scale)
    configs = [(label, settings, goals[fingerprint(settings)]) for label, settings in _configs(wanted, scale)]
    return [
        Run(
            label,
            config.replace(settings, {"run.seed": seed, "run.env_steps": goal, "run.generations": 0}),
            wanted.steps,
        )
        for seed in range(FIRST_SEED, FIRST_SEED + seeds)
        for label, settings, goal in configs
    ]


def fingerprint(settings: Config) -> str:
    """SHA-256 of a configuration without its goal and the name of its preset."""
    values = config.to_dict(settings)
    del values["preset"]
    values["run"] = {k: v for k, v in values["run"].items() if k not in ("env_steps", "generations")}
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def _configs(wanted: Study, scale: str) -> list[tuple[str, Config]]:
    """Label and configuration of every task and setting of a study, without seed and goal."""
    found = []
    for task in wanted.tasks:
        for setting in wanted.settings:
            start = specs.make(setting.algorithm, setting.preset or scale)
            common = {key: value for key, value in _COMMON[scale].items() if key in config.keys(start)}
            settings = config.replace(start, {**common, **setting.changes, "task.name": task})
            found.append((setting.label, specs.validate(settings)))
    return found


def _goals(scale: str) -> dict[str, int]:
    """The goal of every configuration of a scale: the most steps that a study asks for."""
    goals: dict[str, int] = {}
    for make in STUDIES.values():
        wanted = make(scale)
        for _, settings in _configs(wanted, scale):
            identity = fingerprint(settings)
            goals[identity] = max(goals.get(identity, 0), wanted.steps)
    return goals


# The studies.

_REFERENCE = Setting("QDHUAC")
_NO_NORM = {"critic.batch_norm": False, "critic.weight_norm": "none"}


def _steps(scale: str, laptop: int, paper: int) -> int:
    return {"smoke": SMOKE_STEPS, "laptop": laptop, "paper": paper}[scale]


def _benchmark(scale: str) -> Study:
    original, matched = ("smoke", "smoke") if scale == "smoke" else ("original", "matched")
    utd = specs.make("qdhuac", scale).settings.learner.utd
    settings = (
        _REFERENCE,
        Setting("PGA-ME", "pga_me", preset=original, changes={"learner.utd": 0.03}),
        Setting("PGA-ME, matched updates", "pga_me", preset=matched, changes={"learner.utd": utd}),
        Setting("QD-PG", "qd_pg", preset=original),
        Setting("DCRL-ME", "dcrl_me", preset=original),
        Setting("DNS", "dns"),
    )
    return Study(
        "benchmark",
        "QDHUAC and its peers",
        TASKS,
        settings,
        _steps(scale, 60_000, 2_000_000),
        figures=("curves", "aggregate", "profiles", "kept", "archives"),
        tables=("summary", "aggregate", "efficiency", "kept"),
    )


def _latency(scale: str) -> Study:
    return Study(
        "latency",
        "What a target network would have predicted",
        ("halfcheetah",),
        (Setting("QDHUAC", changes={"learner.probe": True}),),
        _steps(scale, 40_000, 2_000_000),
        figures=("probe", "curves"),
        tables=("summary", "false_negatives"),
    )


def _utd(scale: str) -> Study:
    settings = tuple(
        Setting(f"{group}, UTD {utd:g}", changes={**norm, "learner.utd": utd}, group=group, x=utd)
        for group, norm in (("normalised", {}), ("unnormalised", _NO_NORM))
        for utd in (0.5, 1.0, 2.0, 4.0, 10.0)
    )
    return Study(
        "utd",
        "Updates per environment step",
        ("halfcheetah",),
        settings,
        _steps(scale, 30_000, 2_000_000),
        figures=("over", "curves"),
        varied="updates per step",
    )


def _normalisation(scale: str) -> Study:
    settings = (
        Setting("BN + WN"),
        Setting("BN only", changes={"critic.weight_norm": "none"}),
        # Without BN, projected columns would fix the scale of every layer: here WN keeps its gain.
        Setting("WN only", changes={"critic.batch_norm": False, "critic.weight_norm": "reparam"}),
        Setting("no norm", changes=_NO_NORM),
    )
    title = "Normalisation of the critic"
    return Study("normalisation", title, ("humanoid",), settings, _steps(scale, 40_000, 5_000_000))


def _archive(scale: str) -> Study:
    # The largest square grid with no more cells than DNS has places.
    cells = math.isqrt(specs.make("qdhuac", scale).archive.capacity) ** 2
    settings = (Setting("DNS"), Setting("MAP-Elites", changes={"archive.kind": "grid", "archive.capacity": cells}))
    return Study(
        "archive",
        "The archive inside QDHUAC",
        ("halfcheetah", "humanoid"),
        settings,
        _steps(scale, 40_000, 5_000_000),
        figures=("curves", "relative", "final", "kept", "archives"),
        tables=("summary", "aggregate", "kept"),
    )


def _target(scale: str) -> Study:
    settings = (Setting("no target network"), Setting("Polyak 0.005", changes={"learner.target_tau": 0.005}))
    title, steps = "QDHUAC with and without a target network", _steps(scale, 40_000, 2_000_000)
    return Study("target", title, ("halfcheetah",), settings, steps, tables=("summary", "aggregate", "efficiency"))


def _components(scale: str) -> Study:
    preset = specs.make("qdhuac", scale).settings
    start, critics = preset.emitter.exploration_rollouts, preset.critic.critics
    settings = (
        _REFERENCE,
        Setting("scalar critic", changes={"critic.kind": "scalar"}),
        Setting("uniform replay", changes={"replay.priority_exponent": 0.0}),
        Setting("plain MLP critic", changes={"critic.residual": False}),
        Setting("one critic" if critics == 2 else "two critics", changes={"critic.critics": 3 - critics}),
        Setting("no entropy term", changes={"learner.initial_temperature": 0.0}),
        Setting("no injection", changes={"emitter.inject_actor": False}),
        Setting("no gradient mutation", changes={"emitter.isoline_share": 1.0}),
        Setting(
            "gradient mutation as in PGA-ME",
            changes={"emitter.gradient_steps": 100, "emitter.gradient_learning_rate": 1e-3},
        ),
        *(
            Setting(f"exploring rollouts: {n}", changes={"emitter.exploration_rollouts": n})
            for n in range(4)
            if n != start
        ),
    )
    title = "What each part of QDHUAC is worth"
    return Study("components", title, ("halfcheetah",), settings, _steps(scale, 40_000, 2_000_000))


STUDIES = {
    "benchmark": _benchmark,
    "latency": _latency,
    "utd": _utd,
    "normalisation": _normalisation,
    "archive": _archive,
    "target": _target,
    "components": _components,
}
