"""Every study as data: which runs it consists of. Imports nothing heavy.

A run is an ordinary configuration. Two studies that ask for the same one share it: the configuration without its goal
is the run's identity, and its goal is the longest that any study of that scale asks for.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import math
from collections.abc import Mapping
from typing import Any

from qdhuac import config, presets
from qdhuac.config import Config, check_choice

SCALES = ("smoke", "laptop", "paper")
SEEDS = {"smoke": 2, "laptop": 3, "paper": 5}
FIRST_SEED = 100  # the presets were chosen with smaller ones, and what is reported must not have chosen itself
MOST_SEEDS = 1000
TASKS = ("hopper", "walker2d", "halfcheetah", "ant", "humanoid")
UTD = {"smoke": 0.1, "laptop": 1.0, "paper": 4.0}  # of QDHUAC's preset
SMOKE_STEPS = 600  # 5 generations of preset smoke

# What is the same in every run of a scale. A buffer that holds the longest run forgets nothing, and is small on disk.
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


@dataclasses.dataclass(frozen=True)
class Study:
    """A question: tasks x settings, as far as `steps` environment steps. The first setting is the reference."""

    name: str
    title: str
    tasks: tuple[str, ...]
    settings: tuple[Setting, ...]
    steps: int


@dataclasses.dataclass(frozen=True)
class Run:
    """One run of a study."""

    task: str
    label: str
    seed: int
    config: Config  # with the goal that all studies together ask for
    steps: int  # how far this study looks at it

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
    wanted = study(name, scale)
    return [
        Run(task, setting.label, seed, _with_goal(_config(setting, task, seed, scale), scale), wanted.steps)
        for seed in range(FIRST_SEED, FIRST_SEED + seeds)
        for task in wanted.tasks
        for setting in wanted.settings
    ]


def fingerprint(settings: Config) -> str:
    """SHA-256 of a configuration without its goal and the name of its preset."""
    values = config.to_dict(settings)
    del values["preset"]
    values["run"] = {k: v for k, v in values["run"].items() if k not in ("env_steps", "generations")}
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def arguments(run: Run) -> list[str]:
    """What `qdhuac train` needs to be told to make this run, its folder aside."""
    settings, start = run.config, presets.make(run.config.algorithm, run.config.preset)
    out = ["--task", run.task, "--algorithm", settings.algorithm, "--preset", settings.preset]
    out += ["--seed", str(run.seed), "--env-steps", str(settings.run.env_steps)]
    changed = []
    for key in sorted(config.keys(settings)):
        if "." not in key or key in ("task.name", "run.seed", "run.env_steps", "run.generations"):
            continue
        value, before = (config.get(c, key) for c in (settings, start))
        if repr(value) != repr(before):
            changed.append(f"{key}={json.dumps(value)}")
    return [*out, "--set", *changed] if changed else out


def _config(setting: Setting, task: str, seed: int, scale: str) -> Config:
    values = {**_COMMON[scale], **setting.changes, "task.name": task, "run.seed": seed}
    return presets.make(setting.algorithm, setting.preset or scale, values)


def _with_goal(settings: Config, scale: str) -> Config:
    # The seed does not matter for the goal, so that more seeds do not mean more to look through.
    steps = _longest(scale)[fingerprint(config.replace(settings, {"run.seed": 0}))]
    return config.replace(settings, {"run.env_steps": steps, "run.generations": 0})


@functools.cache
def _longest(scale: str) -> dict[str, int]:
    """For every configuration of a scale the most steps that a study asks for."""
    longest: dict[str, int] = {}
    for make in STUDIES.values():
        wanted = make(scale)
        for task in wanted.tasks:
            for setting in wanted.settings:
                mark = fingerprint(_config(setting, task, 0, scale))
                longest[mark] = max(longest.get(mark, 0), wanted.steps)
    return longest


# The studies. `scale` decides horizons, and the updates per step that `matched` means.

_REFERENCE = Setting("QDHUAC")
_NO_NORM = {"critic.batch_norm": False, "critic.weight_norm": "none"}


def _steps(scale: str, laptop: int, paper: int) -> int:
    return {"smoke": SMOKE_STEPS, "laptop": laptop, "paper": paper}[scale]


def _benchmark(scale: str) -> Study:
    original, matched = ("smoke", "smoke") if scale == "smoke" else ("original", "matched")
    settings = (
        _REFERENCE,
        Setting("PGA-ME", "pga_me", preset=original, changes={"learner.utd": 0.03}),
        Setting("PGA-ME, matched updates", "pga_me", preset=matched, changes={"learner.utd": UTD[scale]}),
        Setting("QD-PG", "qd_pg", preset=original),
        Setting("DCRL-ME", "dcrl_me", preset=original),
        Setting("DNS", "dns"),
    )
    return Study("benchmark", "QDHUAC and its peers", TASKS, settings, _steps(scale, 60_000, 2_000_000))


def _latency(scale: str) -> Study:
    settings = (Setting("QDHUAC", changes={"learner.probe": True}),)
    title = "What a target network would have predicted"
    return Study("latency", title, ("halfcheetah",), settings, _steps(scale, 40_000, 2_000_000))


def _utd(scale: str) -> Study:
    settings = tuple(
        Setting(f"{name}, UTD {utd:g}", changes={**norm, "learner.utd": utd})
        for name, norm in (("normalised", {}), ("unnormalised", _NO_NORM))
        for utd in (0.5, 1.0, 2.0, 4.0, 10.0)
    )
    return Study("utd", "Updates per environment step", ("halfcheetah",), settings, _steps(scale, 30_000, 2_000_000))


def _normalisation(scale: str) -> Study:
    settings = (
        Setting("BN + WN"),
        Setting("BN only", changes={"critic.weight_norm": "none"}),
        # Projected columns would take the scale away for good where no BN follows: here WN keeps its gain.
        Setting("WN only", changes={"critic.batch_norm": False, "critic.weight_norm": "reparam"}),
        Setting("no norm", changes=_NO_NORM),
    )
    title = "Normalisation of the critic"
    return Study("normalisation", title, ("humanoid",), settings, _steps(scale, 40_000, 5_000_000))


def _archive(scale: str) -> Study:
    # As many cells as DNS has places, as nearly as a square grid can.
    cells = math.isqrt(presets.make("qdhuac", scale).archive.capacity) ** 2
    settings = (Setting("DNS"), Setting("MAP-Elites", changes={"archive.kind": "grid", "archive.capacity": cells}))
    title = "The archive inside QDHUAC"
    return Study("archive", title, ("halfcheetah", "humanoid"), settings, _steps(scale, 40_000, 5_000_000))


def _target(scale: str) -> Study:
    settings = (Setting("no target network"), Setting("Polyak 0.005", changes={"learner.target_tau": 0.005}))
    title = "QDHUAC with and without a target network"
    return Study("target", title, ("halfcheetah",), settings, _steps(scale, 40_000, 2_000_000))


def _components(scale: str) -> Study:
    start = presets.make("qdhuac", scale).settings.emitter.exploration_rollouts
    critics = presets.make("qdhuac", scale).settings.critic.critics
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
