"""Every study as data: its runs, its figures and its tables. Does not import JAX.

A run is an ordinary configuration. Its identity is that configuration without the goal, so studies that ask for the
same run share it. Its goal is the most environment steps that any study of the same scale asks for.
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
from qdhuac.config import Config
from qdhuac.keys import check_choice

SEEDS = {"smoke": 2, "laptop": 3, "paper": 5}  # default number of seeds at each scale
SCALES = tuple(SEEDS)
FIRST_SEED = 100  # the presets were tuned on smaller seeds, which must not be reported
MOST_SEEDS = 1000
TASKS = ("hopper", "walker2d", "halfcheetah", "ant", "humanoid")

# Changes to all runs of a scale whose algorithm has the key. The replay buffer holds the longest run. All algorithms
# count steps alike: at `laptop` an evaluation ends when the robot falls, in the paper the robot starts again.
_COMMON: dict[str, dict[str, Any]] = {
    "smoke": {"task.backend": "native"},
    "laptop": {"task.backend": "native", "task.after_termination": "stop", "replay.capacity": 120_000},
    "paper": {"task.after_termination": "reset"},
}


@dataclasses.dataclass(frozen=True)
class Setting:
    """One line of a figure: an algorithm, a preset (by default the one named like the scale) and changes to it."""

    label: str
    algorithm: str = "qdhuac"
    changes: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    preset: str | None = None
    group: str = ""  # settings of one group share a figure of curves and are one line over `x`
    x: float = math.nan  # value of the quantity that the study varies


@dataclasses.dataclass(frozen=True)
class Study:
    """All combinations of tasks and settings, for `steps` environment steps. The first setting is the reference."""

    name: str
    title: str
    tasks: tuple[str, ...]
    settings: tuple[Setting, ...]
    steps: int
    figures: tuple[str, ...] = ("curves", "relative", "final")  # of `report.study_figures.FIGURES`
    tables: tuple[str, ...] = ("summary", "aggregate")  # of `report.study_tables.TABLES`
    varied: str = ""  # what `x` of the settings means


@dataclasses.dataclass(frozen=True)
class Run:
    """One run of a study."""

    label: str
    config: Config  # its goal may lie beyond the horizon
    steps: int  # horizon of the study

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
        """Name of the run folder."""
        return f"{self.task}-{self.config.algorithm}-s{self.seed}-{self.fingerprint[:8]}"

    @property
    def name(self) -> str:
        return f"{self.task}, {self.label}, seed {self.seed}"


def study(name: str, scale: str) -> Study:
    """The study of that name at that scale; UserError if either is unknown."""
    check_choice("study", name, STUDIES)
    check_choice("--scale", scale, SCALES)
    return STUDIES[name](scale)


def runs(name: str, scale: str, seeds: int) -> list[Run]:
    """The runs of a study. All settings of one seed come before the next seed, so an unfinished study is readable."""
    wanted, goals = study(name, scale), _goals(scale)
    configs, found = _configs(wanted, scale), []
    for seed in range(FIRST_SEED, FIRST_SEED + seeds):
        for label, settings in configs:
            goal = {"run.seed": seed, "run.env_steps": goals[fingerprint(settings)], "run.generations": 0}
            found.append(Run(label, config.replace(settings, goal), wanted.steps))
    return found


def fingerprint(settings: Config) -> str:
    """SHA-256 of a configuration without its goal and the name of its preset."""
    values = config.to_dict(settings)
    for key in ("env_steps", "generations"):
        del values["run"][key]
    del values["preset"]
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def _configs(wanted: Study, scale: str) -> list[tuple[str, Config]]:
    """Label and configuration, without seed and goal, for every task and setting of a study."""
    found = []
    for task in wanted.tasks:
        for setting in wanted.settings:
            start = specs.make(setting.algorithm, setting.preset or scale)
            common = {key: value for key, value in _COMMON[scale].items() if key in config.keys(start)}
            settings = config.replace(start, {**common, **setting.changes, "task.name": task})
            found.append((setting.label, specs.validate(settings)))
    return found


def _goals(scale: str) -> dict[str, int]:
    """For every configuration of a scale, by fingerprint, the most steps that a study asks for."""
    goals: dict[str, int] = {}
    for wanted in (make(scale) for make in STUDIES.values()):
        for _, settings in _configs(wanted, scale):
            identity = fingerprint(settings)
            goals[identity] = max(goals.get(identity, 0), wanted.steps)
    return goals


# The studies

_REFERENCE = Setting("QDHUAC")
_NO_NORM = {"critic.batch_norm": False, "critic.weight_norm": "none"}


def _steps(scale: str, laptop: int, paper: int) -> int:
    return {"smoke": 600, "laptop": laptop, "paper": paper}[scale]  # 600: five generations of preset smoke


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
    figures = ("curves", "aggregate", "profiles", "kept", "archives")
    tables = ("summary", "aggregate", "efficiency", "kept")
    steps = _steps(scale, 60_000, 2_000_000)
    return Study("benchmark", "QDHUAC and its peers", TASKS, settings, steps, figures, tables)


def _latency(scale: str) -> Study:
    settings = (Setting("QDHUAC", changes={"learner.probe": True}),)
    title, steps = "What a target network would have predicted", _steps(scale, 40_000, 2_000_000)
    figures, tables = ("probe", "curves"), ("summary", "false_negatives")
    return Study("latency", title, ("halfcheetah",), settings, steps, figures, tables)


def _utd(scale: str) -> Study:
    settings = tuple(
        Setting(f"{group}, UTD {utd:g}", changes={**norm, "learner.utd": utd}, group=group, x=utd)
        for group, norm in (("normalised", {}), ("unnormalised", _NO_NORM))
        for utd in (0.5, 1.0, 2.0, 4.0, 10.0)
    )
    title, steps = "Updates per environment step", _steps(scale, 30_000, 2_000_000)
    figures = ("over", "curves")
    return Study("utd", title, ("halfcheetah",), settings, steps, figures, varied="updates per step")


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
    # The largest square grid with no more cells than DNS has slots.
    cells = math.isqrt(specs.make("qdhuac", scale).archive.capacity) ** 2
    settings = (Setting("DNS"), Setting("MAP-Elites", changes={"archive.kind": "grid", "archive.capacity": cells}))
    tasks, steps = ("halfcheetah", "humanoid"), _steps(scale, 40_000, 5_000_000)
    figures = ("curves", "relative", "final", "kept", "archives")
    tables = ("summary", "aggregate", "kept")
    return Study("archive", "The archive inside QDHUAC", tasks, settings, steps, figures, tables)


def _target(scale: str) -> Study:
    settings = (Setting("no target network"), Setting("Polyak 0.005", changes={"learner.target_tau": 0.005}))
    title, steps = "QDHUAC with and without a target network", _steps(scale, 40_000, 2_000_000)
    return Study("target", title, ("halfcheetah",), settings, steps, tables=("summary", "aggregate", "efficiency"))


def _components(scale: str) -> Study:
    preset = specs.make("qdhuac", scale).settings
    critics, explorers = preset.critic.critics, preset.emitter.exploration_rollouts
    gradients = {"emitter.gradient_steps": 100, "emitter.gradient_learning_rate": 1e-3}
    settings = (
        _REFERENCE,
        Setting("scalar critic", changes={"critic.kind": "scalar"}),
        Setting("uniform replay", changes={"replay.priority_exponent": 0.0}),
        Setting("plain MLP critic", changes={"critic.residual": False}),
        Setting("one critic" if critics == 2 else "two critics", changes={"critic.critics": 3 - critics}),
        Setting("no entropy term", changes={"learner.initial_temperature": 0.0}),
        Setting("no injection", changes={"emitter.inject_actor": False}),
        Setting("no gradient mutation", changes={"emitter.isoline_share": 1.0}),
        Setting("gradient mutation as in PGA-ME", changes=gradients),
    )
    counts = [n for n in range(4) if n != explorers]
    exploring = [Setting(f"exploring rollouts: {n}", changes={"emitter.exploration_rollouts": n}) for n in counts]
    title, steps = "What each part of QDHUAC is worth", _steps(scale, 40_000, 2_000_000)
    return Study("components", title, ("halfcheetah",), (*settings, *exploring), steps)


STUDIES = {
    "benchmark": _benchmark,
    "latency": _latency,
    "utd": _utd,
    "normalisation": _normalisation,
    "archive": _archive,
    "target": _target,
    "components": _components,
}
