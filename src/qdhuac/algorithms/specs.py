"""The registry: every algorithm, archive and emitter, what each is for, and where its builder is. Free of JAX.

A new algorithm is one entry here and one file. An algorithm from outside of the package is an `AlgorithmSpec` of its
own, given to `qdhuac.train` as it is or to the command line as `--algorithm package.module:NAME`; an archive likewise,
as `archive.kind`. Such a module is imported only because the user named it, never because a stored file does.
"""

from __future__ import annotations

import dataclasses
import importlib
import sys
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qdhuac import config as configuration
from qdhuac.config import (
    OWN,
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
    check_choice,
    require,
)
from qdhuac.errors import UserError
from qdhuac.tasks.task_file import TASKS, builtin

if TYPE_CHECKING:
    from qdhuac.tasks.base import Task

Values = Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class AlgorithmSpec:
    """One algorithm of the registry."""

    name: str
    title: str  # as figures and tables call it
    purpose: str  # one line
    settings: type  # a dataclass whose fields are dataclasses: the sections of its configuration
    build: str  # "module:function" from settings, task and archive to an `Algorithm`
    presets: Mapping[str, Values]  # what each changes in the defaults
    needs: tuple[str, ...] = ()  # of a task: "transitions", "contacts", "bounds"
    check: Callable[[Config], None] = lambda config: None  # refuses combinations of keys


@dataclasses.dataclass(frozen=True)
class ArchiveSpec:
    """One archive of the registry."""

    name: str
    purpose: str
    build: str  # "module:function" from an `ArchiveConfig` and the bounds of the descriptor to an `Archive`
    on_cells: bool = True  # it needs finite bounds


@dataclasses.dataclass(frozen=True)
class EmitterSpec:
    """One emitter of the registry, with its title for figures and tables."""

    name: str
    title: str
    purpose: str


# Settings: the sections that are an algorithm's own.


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


# The hyperparameters of the baselines' original implementations.
_EMITTER = ActorCriticEmitterConfig(sigma_line=0.05, gradient_steps=100, gradient_learning_rate=1e-3)
_UNIFORM = ReplayConfig(priority_exponent=0.0)


@dataclasses.dataclass(frozen=True)
class PGAMESettings:
    emitter: ActorCriticEmitterConfig = _EMITTER
    critic: MLPCriticConfig = MLPCriticConfig()
    learner: TD3Config = TD3Config()
    replay: ReplayConfig = _UNIFORM


@dataclasses.dataclass(frozen=True)
class QDPGSettings:
    emitter: ActorCriticEmitterConfig = dataclasses.replace(_EMITTER, isoline_share=0.3)
    critic: MLPCriticConfig = MLPCriticConfig()
    learner: TD3Config = TD3Config()
    replay: ReplayConfig = _UNIFORM
    novelty: NoveltyConfig = NoveltyConfig()


@dataclasses.dataclass(frozen=True)
class DCRLMESettings:
    emitter: ActorCriticEmitterConfig = _EMITTER
    critic: MLPCriticConfig = MLPCriticConfig()
    learner: ConditionedTD3Config = ConditionedTD3Config()
    replay: ReplayConfig = _UNIFORM


# Presets. What a preset does not name keeps its default; QDHUAC's defaults are the paper's Table 1.

_PAPER: Values = {"run.env_steps": 2_000_000}
_LAPTOP: Values = {"task.after_termination": "stop", "run.env_steps": 210_000, "run.chunk": 50}
_SMOKE: Values = {
    "task.episode_length": 20,
    "archive.capacity": 16,
    "emitter.batch_size": 6,
    "policy.hidden": (16, 16),
    "run.env_steps": 0,
    "run.generations": 5,
    "run.chunk": 50,
}
_LAPTOP_LEARNER: Values = {
    **_LAPTOP,
    "critic.width": 128,
    "critic.initial_value": 0.0,
    "learner.batch_size": 128,
    "learner.utd": 1.0,
}
_SMOKE_LEARNER: Values = {
    **_SMOKE,
    "critic.width": 16,
    "critic.blocks": 1,
    "learner.batch_size": 16,
    "learner.utd": 0.1,
    "replay.capacity": 2_000,
}
_CELLS: Values = {"archive.kind": "cvt", "archive.capacity": 1024}
_BASELINE: Values = {**_CELLS, "run.chunk": 50}
# `original`: the horizon of the paper; `matched`: as many updates per environment step, and as many steps, as QDHUAC
# has in `laptop`.
_BASELINES: Mapping[str, Values] = {
    "laptop": {**_BASELINE, **_LAPTOP},
    "paper": {**_BASELINE, **_PAPER},
    "smoke": {**_BASELINE, **_SMOKE_LEARNER},
    "original": {**_BASELINE, **_PAPER},
    "matched": {**_BASELINE, **_LAPTOP, "learner.utd": 1.0},
}


# Checks of what no single key can say.


def _check_evolution(config: Config) -> None:
    _check_devices(config, {})


def _check_dns(config: Config) -> None:
    kind = config.archive.kind
    require(kind == "dns", f"archive.kind={kind!r}: algorithm dns needs 'dns'")
    _check_devices(config, {})


def _check_map_elites(config: Config) -> None:
    require(config.archive.kind != "dns", "archive.kind='dns': algorithm map_elites needs 'grid' or 'cvt'")
    _check_devices(config, {})


def _check_learning(config: Config) -> None:
    """What all algorithms with a learner ask for."""
    e, learner, replay = config.settings.emitter, config.settings.learner, config.settings.replay
    if isinstance(e, ActorCriticEmitterConfig):
        explorers = e.exploration_rollouts if isinstance(e, ExploringEmitterConfig) else 0
        require(
            explorers + e.inject_actor < e.batch_size,
            f"emitter.exploration_rollouts={explorers}: with the injected actor it must leave room in "
            f"emitter.batch_size={e.batch_size}",
        )
    first_fill = min(e.batch_size * config.task.episode_length, replay.capacity)
    require(
        learner.batch_size <= first_fill,
        f"learner.batch_size={learner.batch_size}: the replay buffer holds at most {first_fill} transitions after "
        "the first generation",
    )
    _check_devices(config, {"learner.batch_size": learner.batch_size, "replay.capacity": replay.capacity})


def _check_devices(config: Config, sizes: Mapping[str, int]) -> None:
    """What is cut over devices must be divisible by their number."""
    if config.task.backend not in ("auto", "native"):  # native simulates outside of JAX
        sizes = {**sizes, "emitter.batch_size": config.settings.emitter.batch_size}
    for name, size in sizes.items():
        devices = config.run.devices
        require(size % devices == 0, f"{name}={size}: run.devices={devices} do not divide it")


def _check_target_free(config: Config) -> None:
    c, learner = config.settings.critic, config.settings.learner
    if c.v_min == c.v_min and c.v_max == c.v_max:  # not nan
        require(c.v_min < c.v_max, f"critic.v_min={c.v_min}: must be below critic.v_max={c.v_max}")
    require(
        not (c.batch_norm and learner.batch_size < 2),
        "learner.batch_size=1: batch normalisation needs at least 2 (or critic.batch_norm=false)",
    )
    _check_learning(config)


def _check_qd_pg(config: Config) -> None:
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
    _check_learning(config)


ALGORITHMS: dict[str, AlgorithmSpec] = {
    spec.name: spec
    for spec in (
        AlgorithmSpec(
            "qdhuac",
            "QDHUAC",
            "quality-diversity with a target-free distributional critic at a high update-to-data ratio",
            QDHUACSettings,
            "qdhuac.algorithms.qdhuac:build",
            {
                "laptop": {
                    **_LAPTOP_LEARNER,
                    "emitter.exploration_rollouts": 2,
                    "emitter.gradient_steps": 1000,
                    "emitter.gradient_learning_rate": 1e-3,
                },
                "paper": _PAPER,
                "smoke": {**_SMOKE_LEARNER, "critic.atoms": 21},
            },
            ("transitions",),
            _check_target_free,
        ),
        AlgorithmSpec(
            "actor",
            "learner alone",
            "QDHUAC's learner without evolution: every rollout is the exploring actor's",
            ActorSettings,
            "qdhuac.algorithms.actor:build",
            {
                "laptop": _LAPTOP_LEARNER,
                "paper": _PAPER,
                "smoke": {**_SMOKE_LEARNER, "critic.atoms": 21, "emitter.batch_size": 1},
            },
            ("transitions",),
            _check_target_free,
        ),
        AlgorithmSpec(
            "dns",
            "DNS",
            "Dominated Novelty Search: evolution, no learner, local competition without a grid",
            EvolutionSettings,
            "qdhuac.algorithms.evolution:build",
            {"laptop": _LAPTOP, "paper": _PAPER, "smoke": _SMOKE},
            check=_check_dns,
        ),
        AlgorithmSpec(
            "map_elites",
            "MAP-Elites",
            "evolution, no learner, one elite per cell of descriptor space",
            EvolutionSettings,
            "qdhuac.algorithms.evolution:build",
            {"laptop": {**_CELLS, **_LAPTOP}, "paper": {**_CELLS, **_PAPER}, "smoke": {**_CELLS, **_SMOKE}},
            check=_check_map_elites,
        ),
        AlgorithmSpec(
            "pga_me",
            "PGA-ME",
            "MAP-Elites with gradient children of a TD3 critic",
            PGAMESettings,
            "qdhuac.algorithms.pga_me:build",
            _BASELINES,
            ("transitions",),
            _check_learning,
        ),
        AlgorithmSpec(
            "qd_pg",
            "QD-PG",
            "MAP-Elites with gradient children for quality and for the novelty of states",
            QDPGSettings,
            "qdhuac.algorithms.qd_pg:build",
            _BASELINES,
            ("transitions", "contacts"),
            _check_qd_pg,
        ),
        AlgorithmSpec(
            "dcrl_me",
            "DCRL-ME",
            "PGA-ME whose critic and actor are told what behaviour is wanted",
            DCRLMESettings,
            "qdhuac.algorithms.dcrl_me:build",
            _BASELINES,
            ("transitions", "bounds"),
            _check_learning,
        ),
    )
}

ARCHIVES: dict[str, ArchiveSpec] = {
    spec.name: spec
    for spec in (
        ArchiveSpec(
            "dns",
            "Dominated Novelty Search: keeps the fittest and the most different of its neighbours",
            "qdhuac.archives.dns:build",
            on_cells=False,
        ),
        ArchiveSpec("grid", "one elite per box of a regular grid", "qdhuac.archives.grid:build_regular"),
        ArchiveSpec("cvt", "one elite per cell of a centroidal Voronoi tessellation", "qdhuac.archives.grid:build_cvt"),
    )
}

EMITTERS: dict[str, EmitterSpec] = {
    spec.name: spec
    for spec in (
        EmitterSpec("random", "random", "fresh genotypes while the archive is empty"),
        EmitterSpec("isoline", "Iso+Line", "a little noise, and a step along the line between two parents"),
        EmitterSpec("gradient", "gradient", "some Adam steps of a parent up the critic"),
        EmitterSpec("actor", "injected actor", "the learner's own policy"),
        EmitterSpec("explore", "exploring actor", "stochastic rollouts of the learner's policy, for their data alone"),
        EmitterSpec(
            "diversity", "diversity gradient", "QD-PG's steps up the critic of novelty, and that critic's actor"
        ),
    )
}


def preset_names() -> tuple[str, ...]:
    """Every preset that some algorithm of the package has."""
    return tuple(dict.fromkeys(name for spec in ALGORITHMS.values() for name in spec.presets))


def title(operator: str) -> str:
    """The title of an operator for figures and tables."""
    return EMITTERS[operator].title if operator in EMITTERS else operator


def algorithm(wanted: str | AlgorithmSpec) -> AlgorithmSpec:
    """The algorithm of that name; `package.module:NAME` is imported, as only the user can ask for.

    A spec that is not one of the package's is called `own:NAME`, so that its stored runs are known to be from outside.
    """
    if isinstance(wanted, AlgorithmSpec):
        inside = wanted is ALGORITHMS.get(wanted.name) or ":" in wanted.name
        return wanted if inside else dataclasses.replace(wanted, name=f"own:{wanted.name}")
    if ":" in wanted:
        return dataclasses.replace(_imported("algorithm", wanted, AlgorithmSpec), name=wanted)
    check_choice("algorithm", wanted, ALGORITHMS)
    return ALGORITHMS[wanted]


def archive(wanted: str) -> ArchiveSpec:
    """The archive of that name, or `package.module:NAME`."""
    if ":" in wanted:
        return _imported("archive.kind", wanted, ArchiveSpec)
    check_choice("archive.kind", wanted, ARCHIVES)
    return ARCHIVES[wanted]


def builder(where: str) -> Callable[..., Any]:
    """The function that `module:function` names. From here on JAX is needed."""
    module, _, name = where.partition(":")
    return getattr(importlib.import_module(module), name)


def build(config: Config, task: Task, outside: AlgorithmSpec | None = None) -> Any:
    """The algorithm of a configuration.

    Args:
        config: as `make` returns it.
        task: what the algorithm has to know of the task: its `spec` and `policy`.
        outside: the specification of an algorithm that is not part of the package.

    Returns:
        An `Algorithm`: pure functions `init`, `ask`, `tell` and `learn`.
    """
    spec = outside or algorithm(config.algorithm)
    made = builder(archive(config.archive.kind).build)(config.archive, task.spec.descriptor_bounds)
    return builder(spec.build)(config.settings, task, made)


def make(wanted: str | AlgorithmSpec = "qdhuac", preset: str = "laptop", overrides: Values | None = None) -> Config:
    """A configuration: the algorithm's defaults, then its preset, then the overrides.

    Args:
        wanted: the name of an algorithm, `package.module:NAME` of one of your own, or its specification.
        preset: one of the algorithm's presets, such as "laptop" or "smoke".
        overrides: values of configuration keys, such as `{"archive.capacity": 100}`.

    Raises:
        UserError: an unknown name, a value of the wrong type or out of range, or keys that do not go together.
    """
    spec = algorithm(wanted)
    if preset not in spec.presets:
        raise UserError(f"unknown preset {preset!r} of {spec.name}; choose from: {', '.join(spec.presets)}")
    start = Config(algorithm=spec.name, preset=preset, settings=spec.settings())
    made = configuration.replace(start, {**spec.presets[preset], **(overrides or {})})
    if made.task.file:
        made = configuration.replace(made, {"task.name": Path(made.task.file).stem})
    return validate(made, spec)


def validate(config: Config, spec: AlgorithmSpec | None = None) -> Config:
    """The configuration itself, or a UserError that names the first bad key and what is allowed."""
    configuration.check_ranges(config)
    if not config.task.file:
        check_choice("task.name", config.task.name, (*TASKS, OWN))
        if config.task.name != OWN:
            builtin(config.task.name).dimensions(config.task.descriptor)
    if ":" not in config.archive.kind:
        check_choice("archive.kind", config.archive.kind, ARCHIVES)
    spec = spec or ALGORITHMS.get(config.algorithm)
    if spec is not None:
        spec.check(config)
    return config


def from_toml(text: str, where: str = "the configuration", outside: AlgorithmSpec | None = None) -> Config:
    """The inverse of `config.to_toml`, validated; `where` names the file in an error."""
    try:
        return from_dict(tomllib.loads(text), outside)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where}: not valid TOML ({error})") from None
    except UserError as error:
        raise UserError(f"{where}: {error}") from None


def from_dict(data: Values, outside: AlgorithmSpec | None = None) -> Config:
    """The inverse of `config.to_dict`, validated; missing keys take their defaults, unknown ones are refused.

    `outside` is the algorithm if the user has named one from outside of the package. Without it the sections of such an
    algorithm are kept as they are: reading a file runs nobody's code.
    """
    name = data.get("algorithm", "qdhuac")
    known = outside if outside is not None and outside.name == name else ALGORITHMS.get(name)
    if known is None and not (isinstance(name, str) and ":" in name):
        check_choice("algorithm", name, ALGORITHMS)
    values: dict[str, Any] = {}
    unread: dict[str, Any] = {}
    for section, value in data.items():
        if known is None and section not in ("algorithm", "preset", *configuration.SHARED, "run"):
            unread[section] = value
        elif isinstance(value, Mapping):
            values |= {f"{section}.{leaf}": v for leaf, v in value.items()}
        else:
            values[section] = value
    start = Config(algorithm=name, settings=unread if known is None else known.settings())
    return validate(configuration.replace(start, values), known)


def _imported(what: str, wanted: str, kind: type) -> Any:
    module, _, name = wanted.partition(":")
    if "" not in sys.path:
        sys.path.insert(0, "")  # a module beside the one who calls, as for `python -m`
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise UserError(f"{what}={wanted!r}: cannot be imported ({error})") from None
    if not isinstance(found, kind):
        raise UserError(f"{what}={wanted!r}: expected a qdhuac {kind.__name__}, got {type(found).__name__}")
    return found
