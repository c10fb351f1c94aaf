"""The configuration of a run: frozen dataclasses, TOML in and out, validation with one-line errors.

A configuration has sections that every run has (`task`, `policy`, `archive`, `run`) and those of its algorithm, which
stand in `settings`. `qdhuac.algorithms.specs` knows which those are. Imports nothing heavy, so that a bad configuration
is refused before JAX is loaded.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import os
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, get_type_hints

import tomli_w

from qdhuac.errors import UserError
from qdhuac.keys import check_choice as check_choice
from qdhuac.keys import check_range, convert, key, require

TASK_FOLDER = "task"  # of a run folder: copies of a task file and of what it names
OWN = "own"  # a task of the user's, given from Python
BACKENDS = ("auto", "native", "mjx")


@dataclasses.dataclass(frozen=True)
class TaskConfig:
    name: str = key("halfcheetah", "the robot and its task")
    backend: str = key("auto", "the physics engine; 'auto': native on a CPU, mjx on an accelerator", choices=BACKENDS)
    episode_length: int = key(1000, "steps of an episode", ge=1, le=100_000)
    after_termination: str = key(
        "reset",
        "when a robot falls early: 'reset' starts it again until its steps are used up, 'stop' ends its simulation",
        choices=("reset", "stop"),
    )
    descriptor: str = key("", "one of the descriptors of the task's file; empty: the usual one")
    vary: bool = key(False, "each episode draws masses, friction, noise and so on as the task's file says")
    file: str = key("", "the path of a task file, for a task that is not part of the package")
    sha256: str = key("", "hash of that file and of those that it names; set when a run begins")


@dataclasses.dataclass(frozen=True)
class ArchiveConfig:
    kind: str = key("dns", "dns, grid, cvt, or package.module:NAME of an archive of your own")
    capacity: int = key(250, "individuals that the archive holds at most", ge=1, le=1_000_000)
    neighbours: int = key(7, "nearest fitter neighbours that dns averages novelty over", ge=1, le=1_000_000)


@dataclasses.dataclass(frozen=True)
class PolicyConfig:
    hidden: tuple[int, ...] = key((256, 256), "widths of the policy's hidden layers", ge=1, le=65_536)


@dataclasses.dataclass(frozen=True)
class RunConfig:
    seed: int = key(0, "seed of everything random", ge=0, le=2**31 - 1)
    generations: int = key(0, "stop after so many generations; 0: no such bound", ge=0, le=10**12)
    env_steps: int = key(300_000, "stop after so many environment steps; 0: no such bound", ge=0, le=10**12)
    checkpoint_minutes: float = key(5.0, "wall time between checkpoints; there is always one at the end", ge=0)
    checkpoint_generations: int = key(0, "also after every so many generations; 0: by time alone", ge=0, le=10**12)
    chunk: int = key(4, "learner updates between two checks of signals and the clock", ge=1, le=1_000_000)
    devices: int = key(1, "spread rollouts, minibatches and the replay buffer over so many devices", ge=1, le=100_000)
    failure_budget: int = key(
        100, "non-finite evaluations and updates that a run may have; more end it", ge=0, le=10**12
    )


# Sections of algorithms. A section may be another one with more keys or other defaults.


@dataclasses.dataclass(frozen=True)
class BatchConfig:
    """The size of a generation."""

    batch_size: int = key(10, "policies tried per generation", ge=1, le=1_000_000)


@dataclasses.dataclass(frozen=True)
class EmitterConfig(BatchConfig):
    """Evolution: nothing but Iso+Line children."""

    sigma_iso: float = key(0.005, "standard deviation of the isotropic noise", ge=0, le=10)
    sigma_line: float = key(0.1, "standard deviation along the line between two parents", ge=0, le=10)
    tournament: int = key(1, "a parent of Iso+Line is the fittest of so many drawn from the archive", ge=1, le=1000)


@dataclasses.dataclass(frozen=True)
class ActorCriticEmitterConfig(EmitterConfig):
    """Also gradient children, and the learner's actor."""

    isoline_share: float = key(0.5, "share of the offspring made by Iso+Line variation", ge=0, le=1)
    inject_actor: bool = key(True, "one of the offspring is the learner's actor")
    gradient_steps: int = key(10, "Adam steps of a gradient mutation", ge=1, le=100_000)
    gradient_learning_rate: float = key(5e-3, "Adam learning rate of a gradient mutation", gt=0, le=1)


@dataclasses.dataclass(frozen=True)
class ExploringEmitterConfig(ActorCriticEmitterConfig):
    """Also rollouts of the stochastic actor."""

    exploration_rollouts: int = key(0, "rollouts of the stochastic actor per generation: data only, not archived", ge=0)


@dataclasses.dataclass(frozen=True)
class CriticConfig:
    """The residual critic of QDHUAC."""

    kind: str = key(
        "categorical",
        "a distribution over returns, or the same network with one 'scalar' value",
        choices=("categorical", "scalar"),
    )
    width: int = key(512, "width of the residual blocks", ge=1, le=65_536)
    blocks: int = key(2, "residual blocks", ge=0, le=100)
    residual: bool = key(True, "false: a block is two plain hidden layers, without the connection around it")
    critics: int = key(2, "independent critics; the target is the one with the lower mean", ge=1, le=2)
    batch_norm: bool = key(True, "batch normalisation in every layer")
    input_norm: bool = key(True, "batch normalisation of the raw observation and action")
    weight_norm: str = key(
        "project",
        "'reparam' is g v/|v|, 'project' puts each column back on the unit sphere after every step",
        choices=("none", "reparam", "project"),
    )
    norm_momentum: float = key(0.99, "share of the old running statistics kept per update", ge=0, le=1)
    atoms: int = key(101, "atoms of the return distribution", ge=2, le=10_000)
    v_min: float = key(math.nan, "lowest discounted return of the support, in raw units; nan takes the task's")
    v_max: float = key(math.nan, "highest discounted return of the support, in raw units; nan takes the task's")
    initial_value: float = key(
        math.nan,
        "value that the critic starts from, in raw units; nan: uniform over the support, a scalar critic in its middle",
    )

    def on_support(self, low: float, high: float) -> CriticConfig:
        """With a task's own range of returns where the configuration leaves it open."""
        return dataclasses.replace(
            self,
            v_min=low if math.isnan(self.v_min) else self.v_min,
            v_max=high if math.isnan(self.v_max) else self.v_max,
        )


@dataclasses.dataclass(frozen=True)
class MLPCriticConfig:
    """The plain critics of TD3."""

    width: int = key(256, "width of the critics' hidden layers", ge=1, le=65_536)
    blocks: int = key(2, "hidden layers of a critic", ge=0, le=100)
    critics: int = key(2, "independent critics; the target is the lower one", ge=1, le=2)


@dataclasses.dataclass(frozen=True)
class LearnerConfig:
    """QDHUAC's learner."""

    utd: float = key(4.0, "updates per environment step", gt=0, le=1000)
    batch_size: int = key(512, "transitions per update", ge=1, le=1_000_000)
    discount: float = key(0.99, "discount factor", ge=0, le=0.999999)
    reward_scale: float = key(0.01, "rewards and support are multiplied by this inside the learner", gt=0)
    critic_learning_rate: float = key(3e-4, "Adam learning rate of the critic", gt=0, le=1)
    actor_learning_rate: float = key(3e-4, "Adam learning rate of the actor", gt=0, le=1)
    temperature_learning_rate: float = key(3e-4, "Adam learning rate of the temperature", gt=0, le=1)
    initial_temperature: float = key(0.01, "entropy temperature at the start; 0: no entropy term, ever", ge=0, le=100)
    policy_delay: int = key(1, "critic updates per actor update", ge=1, le=1000)
    target_tau: float = key(0.0, "0: no target network; otherwise Polyak rate of one", ge=0, le=1)
    normalise_rewards: bool = key(
        False,
        "divide rewards by the running spread of returns instead of reward_scale; v_min, v_max (-5 and 5) and "
        "initial_value are then in spreads",
    )
    normalise_observations: bool = key(
        False, "the actor sees observations in standard deviations from their running mean; its genotype stays plain"
    )
    probe: bool = key(False, "log what a Polyak target that never trains would have predicted")


@dataclasses.dataclass(frozen=True)
class TD3Config:
    """TD3's learner; 300 critic updates for a generation of 10 x 1000 steps, as PGA-ME's authors have it."""

    utd: float = key(0.03, "updates per environment step", gt=0, le=1000)
    batch_size: int = key(256, "transitions per update", ge=1, le=1_000_000)
    discount: float = key(0.99, "discount factor", ge=0, le=0.999999)
    reward_scale: float = key(1.0, "rewards are multiplied by this inside the learner", gt=0)
    critic_learning_rate: float = key(3e-4, "Adam learning rate of the critics", gt=0, le=1)
    actor_learning_rate: float = key(3e-4, "Adam learning rate of the actor", gt=0, le=1)
    policy_delay: int = key(2, "critic updates per actor update", ge=1, le=1000)
    target_tau: float = key(0.005, "Polyak rate of the target networks", gt=0, le=1)
    target_noise: float = key(0.2, "standard deviation of the noise on the target's action", ge=0, le=10)
    target_noise_clip: float = key(0.5, "that noise is clipped to +- this", ge=0, le=10)


@dataclasses.dataclass(frozen=True)
class ConditionedTD3Config(TD3Config):
    """DCRL-ME's learner."""

    lengthscale: float = key(
        0.1, "distance from the wanted descriptor (bounds at -1 and 1) at which rewards count 1/e", gt=0
    )


@dataclasses.dataclass(frozen=True)
class ReplayConfig:
    capacity: int = key(1_000_000, "transitions kept", ge=1, le=1_000_000_000)
    priority_exponent: float = key(0.6, "sampling probability ~ priority ** exponent; 0 is uniform", ge=0, le=1)
    importance_beta: float = key(0.0, "importance weights (N p)**-beta; 0 is none", ge=0, le=1)


@dataclasses.dataclass(frozen=True)
class NoveltyConfig:
    """QD-PG's archive of foot contacts, from which its diversity critic takes its rewards."""

    capacity: int = key(10_000, "states that the novelty archive holds; the oldest make room", ge=1, le=10_000_000)
    threshold: float = key(0.1, "a state is added if it is farther than this from all others", ge=0)
    neighbours: int = key(5, "nearest states that novelty is averaged over", ge=1, le=1000)


@dataclasses.dataclass(frozen=True)
class Config:
    """A whole run. `train --set section.key=value` reaches every key.

    `settings` is a dataclass of the algorithm's own sections. It is a plain mapping where a file names an algorithm
    from outside of the package, which reading a file never imports.
    """

    algorithm: str = key("qdhuac", "the algorithm")
    preset: str = key("laptop", "the preset that the other values started from")
    task: TaskConfig = TaskConfig()
    policy: PolicyConfig = PolicyConfig()
    archive: ArchiveConfig = ArchiveConfig()
    settings: Any = None
    run: RunConfig = RunConfig()


SHARED = ("task", "policy", "archive")  # sections of every configuration, before the algorithm's own; `run` comes last


def sections(config: Config) -> dict[str, Any]:
    """The sections of a configuration by name, in the order of its file."""
    own = {}
    if dataclasses.is_dataclass(config.settings):
        own = {field.name: getattr(config.settings, field.name) for field in dataclasses.fields(config.settings)}
    return {**{name: getattr(config, name) for name in SHARED}, **own, "run": config.run}


def keys(config: Config) -> dict[str, dataclasses.Field[Any]]:
    """Every key of a configuration by its dotted name."""
    top = {field.name: field for field in dataclasses.fields(Config) if field.name in ("algorithm", "preset")}
    return top | {
        f"{name}.{field.name}": field
        for name, section in sections(config).items()
        for field in dataclasses.fields(section)
    }


def get(config: Config, name: str) -> Any:
    """The value of a dotted key."""
    section, _, leaf = name.rpartition(".")
    return getattr(sections(config)[section] if section else config, leaf)


def replace(config: Config, values: Mapping[str, Any]) -> Config:
    """The configuration with some dotted keys changed; unknown names and wrong types are refused."""
    known = keys(config)
    for name, value in values.items():
        if name not in known:
            close = difflib.get_close_matches(name, known, n=3, cutoff=0.4)
            hint = f"did you mean {', '.join(close)}?" if close else "qdhuac train --help-keys lists its keys"
            raise UserError(f"unknown key {name!r} of algorithm {config.algorithm}; {hint}")
        section, _, leaf = name.rpartition(".")
        owner = sections(config)[section] if section else config
        changed: Any = dataclasses.replace(owner, **{leaf: convert(name, value, get_type_hints(type(owner))[leaf])})
        if not section:
            config = changed
        elif section in (*SHARED, "run"):
            config = dataclasses.replace(config, **{section: changed})
        else:
            config = dataclasses.replace(config, settings=dataclasses.replace(config.settings, **{section: changed}))
    return config


def check_ranges(config: Config) -> None:
    """Refuse the first key whose value is not allowed, naming what is."""
    for name, field in keys(config).items():
        value = get(config, name)
        for item in value if isinstance(value, tuple) else (value,):
            check_range(name, item, field)
    require(config.run.generations or config.run.env_steps, "run.generations and run.env_steps: one must be above 0")


def parse_assignments(assignments: Iterable[str]) -> dict[str, Any]:
    """`section.key=value` strings, as the command line takes them; values are read as TOML, else as text."""
    values: dict[str, Any] = {}
    for item in assignments:
        name, equals, text = item.partition("=")
        if not equals:
            raise UserError(f"--set {item!r}: expected section.key=value")
        name, text = name.strip(), text.strip()
        try:
            parsed = tomllib.loads(f"v = {text}")
            values[name] = parsed["v"] if parsed.keys() == {"v"} else text
        except (ValueError, RecursionError):  # not TOML, or a number with thousands of digits
            values[name] = text
    return values


def with_task_file(config: Config, folder: str | os.PathLike[str]) -> Config:
    """The configuration with the path of the copy of its task file in the folder of a run, if it has a task file."""
    if not config.task.file:
        return config
    path = Path(folder) / TASK_FOLDER / Path(config.task.file).name
    return dataclasses.replace(config, task=dataclasses.replace(config.task, file=path.as_posix()))


def to_dict(config: Config) -> dict[str, Any]:
    """Plain nested dictionaries, ready for TOML or JSON."""
    plain = {name: dataclasses.asdict(section) for name, section in sections(config).items()}
    if isinstance(config.settings, Mapping):
        run = plain.pop("run")
        plain |= {**config.settings, "run": run}
    plain["policy"]["hidden"] = list(plain["policy"]["hidden"])
    return {"algorithm": config.algorithm, "preset": config.preset, **plain}


def to_toml(config: Config) -> str:
    """The configuration as the text of a TOML file."""
    return tomli_w.dumps(to_dict(config))
