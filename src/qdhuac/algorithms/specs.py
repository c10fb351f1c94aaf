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
from qdhuac.algorithms import settings
from qdhuac.algorithms.settings import Values
from qdhuac.config import OWN, Config
from qdhuac.errors import UserError, shown
from qdhuac.keys import check_choice, require
from qdhuac.tasks.task_file import TASKS, builtin

if TYPE_CHECKING:
    from qdhuac.tasks.base import Task


@dataclasses.dataclass(frozen=True)
class AlgorithmSpec:
    """One algorithm of the registry."""

    name: str
    title: str  # as figures and tables call it
    purpose: str  # one line
    settings: type  # a dataclass whose fields are dataclasses: the sections of its configuration
    build: str  # "module:function" from settings, task and archive to an `Algorithm`
    presets: Mapping[str, Values]  # what each changes in the defaults
    needs: tuple[str, ...] = ()  # of a task: "transitions", "contacts"
    check: Callable[[Config], None] = lambda config: None  # refuses combinations of keys


@dataclasses.dataclass(frozen=True)
class ArchiveSpec:
    """One archive of the registry."""

    name: str
    purpose: str
    build: str  # "module:function" from an `ArchiveConfig` and the bounds of the descriptor to an `Archive`


@dataclasses.dataclass(frozen=True)
class EmitterSpec:
    """One emitter of the registry, with its title for figures and tables."""

    name: str
    title: str
    purpose: str


ALGORITHMS: dict[str, AlgorithmSpec] = {
    spec.name: spec
    for spec in (
        AlgorithmSpec(
            "qdhuac",
            "QDHUAC",
            "quality-diversity with a target-free distributional critic at a high update-to-data ratio",
            settings.QDHUACSettings,
            "qdhuac.algorithms.qdhuac:build",
            settings.QDHUAC,
            ("transitions",),
            settings.check_target_free,
        ),
        AlgorithmSpec(
            "actor",
            "learner alone",
            "QDHUAC's learner without evolution: every rollout is the exploring actor's",
            settings.ActorSettings,
            "qdhuac.algorithms.actor:build",
            settings.ACTOR,
            ("transitions",),
            settings.check_target_free,
        ),
        AlgorithmSpec(
            "dns",
            "DNS",
            "Dominated Novelty Search: evolution, no learner, local competition without a grid",
            settings.EvolutionSettings,
            "qdhuac.algorithms.evolution:build",
            settings.EVOLUTION,
            check=settings.check_dns,
        ),
        AlgorithmSpec(
            "map_elites",
            "MAP-Elites",
            "evolution, no learner, one elite per cell of descriptor space",
            settings.EvolutionSettings,
            "qdhuac.algorithms.evolution:build",
            settings.MAP_ELITES,
            check=settings.check_map_elites,
        ),
        AlgorithmSpec(
            "pga_me",
            "PGA-ME",
            "MAP-Elites with gradient children of a TD3 critic",
            settings.PGAMESettings,
            "qdhuac.algorithms.pga_me:build",
            settings.BASELINES,
            ("transitions",),
            settings.check_learning,
        ),
        AlgorithmSpec(
            "qd_pg",
            "QD-PG",
            "MAP-Elites with gradient children for quality and for the novelty of states",
            settings.QDPGSettings,
            "qdhuac.algorithms.qd_pg:build",
            settings.BASELINES,
            ("transitions", "contacts"),
            settings.check_qd_pg,
        ),
        AlgorithmSpec(
            "dcrl_me",
            "DCRL-ME",
            "PGA-ME whose critic and actor are told what behaviour is wanted",
            settings.DCRLMESettings,
            "qdhuac.algorithms.dcrl_me:build",
            settings.BASELINES,
            ("transitions",),
            settings.check_learning,
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
    """The algorithm of that name. One from outside of the package is registered from here on.

    Args:
        wanted: a name in `ALGORITHMS`; `package.module:NAME`, which is imported, as only the user can ask for; or a
            specification. One that is not the package's is registered as `own:NAME`, so that its stored runs are known
            to be from outside.

    Raises:
        UserError: an unknown name, or one that cannot be imported.
    """
    if not isinstance(wanted, str | AlgorithmSpec):
        raise UserError(f"algorithm={shown(wanted)}: expected a name or an AlgorithmSpec")
    if isinstance(wanted, str) and ":" not in wanted:
        check_choice("algorithm", wanted, ALGORITHMS)
        return ALGORITHMS[wanted]
    if isinstance(wanted, str):
        name, spec = wanted, _imported("algorithm", wanted, AlgorithmSpec)
    elif wanted is ALGORITHMS.get(wanted.name):
        return wanted
    else:
        name, spec = wanted.name if ":" in wanted.name else f"own:{wanted.name}", wanted
    ALGORITHMS[name] = dataclasses.replace(spec, name=name)
    return ALGORITHMS[name]


def archive(wanted: str) -> ArchiveSpec:
    """The archive of that name, or `package.module:NAME`."""
    if ":" in wanted:
        return _imported("archive.kind", wanted, ArchiveSpec)
    check_choice("archive.kind", wanted, ARCHIVES)
    return ARCHIVES[wanted]


def builder(where: str) -> Callable[..., Any]:
    """Import the function that `module:function` names, and with it JAX."""
    module, _, name = where.partition(":")
    return getattr(importlib.import_module(module), name)


def build(config: Config, task: Task) -> Any:
    """The algorithm of a configuration.

    Args:
        config: as `make` returns it.
        task: what the algorithm has to know of the task: its `spec` and `policy`.

    Returns:
        An `Algorithm`: pure functions `init`, `ask`, `tell` and `learn`.
    """
    made = builder(archive(config.archive.kind).build)(config.archive, task.spec.descriptor_bounds)
    return builder(ALGORITHMS[config.algorithm].build)(config.settings, task, made)


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
    if not isinstance(preset, str) or preset not in spec.presets:
        raise UserError(f"unknown preset {preset!r} of {spec.name}; choose from: {', '.join(spec.presets)}")
    start = Config(algorithm=spec.name, preset=preset, settings=spec.settings())
    made = configuration.replace(start, {**spec.presets[preset], **(overrides or {})})
    if made.task.file:
        made = configuration.replace(made, {"task.name": Path(made.task.file).stem})
    return validate(made)


def validate(config: Config) -> Config:
    """The configuration itself, or a UserError that names the first bad key and what is allowed."""
    configuration.check_ranges(config)
    if not config.task.file:
        check_choice("task.name", config.task.name, (*TASKS, OWN))
        if config.task.name != OWN:
            builtin(config.task.name).dimensions(config.task.descriptor)
    if ":" not in config.archive.kind:
        check_choice("archive.kind", config.archive.kind, ARCHIVES)
    if config.algorithm in ALGORITHMS:
        ALGORITHMS[config.algorithm].check(config)
    split = ["learner.batch_size", "replay.capacity"]  # over devices
    if config.task.backend not in ("auto", "native"):  # native simulates outside of JAX
        split.append("emitter.batch_size")
    known, devices = configuration.keys(config), config.run.devices
    for name in split:
        size = configuration.get(config, name) if name in known else 0
        require(size % devices == 0, f"{name}={size}: must be divisible by run.devices={devices}")
    return config


def from_toml(text: str, where: str = "the configuration") -> Config:
    """The inverse of `config.to_toml`, validated; missing keys take their defaults, unknown ones are refused.

    The sections of an algorithm that is not registered are kept as they are: reading a file imports nothing.

    Args:
        text: the content of a TOML file.
        where: the name of the file, for errors.

    Raises:
        UserError: the text is not TOML, or not a valid configuration.
    """
    try:
        return _from_dict(tomllib.loads(text))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where}: not valid TOML ({error})") from None
    except UserError as error:
        raise UserError(f"{where}: {error}") from None


def _from_dict(data: Values) -> Config:
    name = data.get("algorithm", "qdhuac")
    if not (isinstance(name, str) and ":" in name):
        check_choice("algorithm", name, ALGORITHMS)
    known = ALGORITHMS.get(name)
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
    return validate(configuration.replace(start, values))


def _imported(what: str, wanted: str, kind: type) -> Any:
    module, _, name = wanted.partition(":")
    if "" not in sys.path:
        sys.path.insert(0, "")  # modules in the working folder, as for `python -m`
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise UserError(f"{what}={wanted!r}: cannot be imported ({error})") from None
    if not isinstance(found, kind):
        raise UserError(f"{what}={wanted!r}: expected a qdhuac {kind.__name__}, got {type(found).__name__}")
    return found
