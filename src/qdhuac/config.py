"""The configuration of a run: frozen dataclasses, TOML in and out, validation with one-line errors.

Imports nothing heavy, so that a bad configuration is refused before JAX is loaded.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import tomllib
import types
from collections.abc import Iterable, Mapping
from typing import Any, get_args, get_type_hints

import tomli_w

from qdhuac.errors import UserError

TASKS = ("hopper", "walker2d", "halfcheetah", "ant", "humanoid", "ant_omni", "humanoid_omni")
OWN = "own"  # a task of the user's, given from Python
BACKENDS = ("auto", "native", "mjx", "spring", "positional", "generalized")
BASELINES = ("pga_me", "qd_pg", "dcrl_me")  # those with a TD3 learner
LEARNING_ALGORITHMS = ("qdhuac", *BASELINES)
PRESET_NAMES = ("laptop", "paper", "smoke", "original", "matched")
BASELINE_PRESETS = ("original", "matched")
ALGORITHMS = ("qdhuac", "dns", "map_elites", *BASELINES)


def key(
    default: Any,
    doc: str,
    *,
    ge: float | None = None,
    gt: float | None = None,
    le: float | None = None,
    choices: tuple[str, ...] | None = None,
) -> Any:
    """A configuration key with its meaning and its allowed values."""
    return dataclasses.field(default=default, metadata={"doc": doc, "ge": ge, "gt": gt, "le": le, "choices": choices})


@dataclasses.dataclass(frozen=True)
class TaskConfig:
    name: str = key("halfcheetah", "the robot and what it is asked to do", choices=(*TASKS, OWN))
    backend: str = key("auto", "the physics engine; 'auto': native on a CPU, mjx on an accelerator", choices=BACKENDS)
    episode_length: int = key(1000, "steps of an episode", ge=1, le=100_000)
    after_termination: str = key(
        "reset",
        "when a robot falls early: 'reset' starts it again until its steps are used up, 'stop' ends its simulation",
        choices=("reset", "stop"),
    )


@dataclasses.dataclass(frozen=True)
class EmitterConfig:
    batch_size: int = key(10, "policies tried per generation", ge=1, le=1_000_000)
    isoline_share: float = key(0.5, "share of the offspring made by Iso+Line variation", ge=0, le=1)
    sigma_iso: float = key(0.005, "standard deviation of the isotropic noise", ge=0, le=10)
    sigma_line: float = key(0.1, "standard deviation along the line between two parents", ge=0, le=10)
    tournament: int = key(1, "a parent of Iso+Line is the fittest of so many drawn from the archive", ge=1, le=1000)
    inject_actor: bool = key(True, "one of the offspring is the learner's actor")
    gradient_steps: int = key(10, "Adam steps of a gradient mutation", ge=1, le=100_000)
    gradient_learning_rate: float = key(5e-3, "Adam learning rate of a gradient mutation", gt=0, le=1)
    exploration_rollouts: int = key(0, "rollouts of the stochastic actor per generation: data only, not archived", ge=0)


@dataclasses.dataclass(frozen=True)
class ArchiveConfig:
    kind: str = key("dns", "Dominated Novelty Search, a regular grid, or CVT cells", choices=("dns", "grid", "cvt"))
    capacity: int = key(250, "individuals that the archive holds at most", ge=1, le=1_000_000)
    neighbours: int = key(7, "DNS: nearest fitter neighbours that novelty is averaged over", ge=1, le=1_000_000)


@dataclasses.dataclass(frozen=True)
class PolicyConfig:
    hidden: tuple[int, ...] = key((256, 256), "widths of the policy's hidden layers", ge=1, le=65_536)


@dataclasses.dataclass(frozen=True)
class CriticConfig:
    kind: str = key(
        "categorical",
        "QDHUAC's distribution over returns, the same network with one 'scalar' value, or the plain 'mlp' of TD3",
        choices=("categorical", "scalar", "mlp"),
    )
    width: int = key(512, "width of the residual blocks, or of an mlp's layers", ge=1, le=65_536)
    blocks: int = key(2, "residual blocks, or hidden layers of an mlp", ge=0, le=100)
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
class LearnerConfig:
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
    probe: bool = key(False, "QDHUAC: log what a Polyak target that never trains would have predicted")
    target_noise: float = key(0.2, "TD3: standard deviation of the noise on the target's action", ge=0, le=10)
    target_noise_clip: float = key(0.5, "TD3: that noise is clipped to +- this", ge=0, le=10)
    lengthscale: float = key(
        0.1, "DCRL-ME: distance from the wanted descriptor (bounds at -1 and 1) at which rewards count 1/e", gt=0
    )


@dataclasses.dataclass(frozen=True)
class ReplayConfig:
    capacity: int = key(1_000_000, "transitions kept", ge=1, le=1_000_000_000)
    priority_exponent: float = key(0.6, "sampling probability ~ priority ** exponent; 0 is uniform", ge=0, le=1)
    importance_beta: float = key(0.0, "importance weights (N p)**-beta; 0 is none", ge=0, le=1)


@dataclasses.dataclass(frozen=True)
class NoveltyConfig:
    """QD-PG's archive of foot contacts, from which its diversity critic takes its rewards."""

    capacity: int = key(
        10_000, "QD-PG: states that the novelty archive holds; the oldest make room", ge=1, le=10_000_000
    )
    threshold: float = key(0.1, "QD-PG: a state is added if it is farther than this from all others", ge=0)
    neighbours: int = key(5, "QD-PG: nearest states that novelty is averaged over", ge=1, le=1000)


@dataclasses.dataclass(frozen=True)
class RunConfig:
    seed: int = key(0, "seed of everything random", ge=0, le=2**31 - 1)
    generations: int = key(0, "stop after so many generations; 0: no such bound", ge=0, le=10**12)
    env_steps: int = key(300_000, "stop after so many environment steps; 0: no such bound", ge=0, le=10**12)
    checkpoint_minutes: float = key(5.0, "wall time between checkpoints; there is always one at the end", ge=0)
    checkpoint_generations: int = key(0, "also after every so many generations; 0: by time alone", ge=0, le=10**12)
    chunk: int = key(4, "learner updates between two looks at signals and the clock", ge=1, le=1_000_000)
    devices: int = key(1, "spread rollouts, minibatches and the replay buffer over so many devices", ge=1, le=100_000)
    failure_budget: int = key(100, "non-finite evaluations or updates after which the run gives up", ge=0, le=10**12)


@dataclasses.dataclass(frozen=True)
class Config:
    """A whole run. Sections are rooms of the package; `train --set section.key=value` reaches every key."""

    algorithm: str = key("qdhuac", "the algorithm", choices=ALGORITHMS)
    preset: str = key("laptop", "the preset that the other values started from", choices=PRESET_NAMES)
    task: TaskConfig = TaskConfig()
    emitter: EmitterConfig = EmitterConfig()
    archive: ArchiveConfig = ArchiveConfig()
    policy: PolicyConfig = PolicyConfig()
    critic: CriticConfig = CriticConfig()
    learner: LearnerConfig = LearnerConfig()
    replay: ReplayConfig = ReplayConfig()
    novelty: NoveltyConfig = NoveltyConfig()
    run: RunConfig = RunConfig()


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


def keys() -> dict[str, dataclasses.Field[Any]]:
    """Every configuration key by its dotted name."""
    out: dict[str, dataclasses.Field[Any]] = {}
    for top in dataclasses.fields(Config):
        if dataclasses.is_dataclass(top.default):
            out |= {f"{top.name}.{f.name}": f for f in dataclasses.fields(top.default)}
        else:
            out[top.name] = top
    return out


def replace(config: Config, values: Mapping[str, Any]) -> Config:
    """The configuration with some dotted keys changed; unknown names and wrong types are refused."""
    known = keys()
    for name, value in values.items():
        if name not in known:
            close = difflib.get_close_matches(name, known, n=3, cutoff=0.4)
            raise UserError(f"unknown key {name!r}; did you mean {', '.join(close) or 'one of: ' + ', '.join(known)}?")
        section, _, leaf = name.rpartition(".")
        owner = getattr(config, section) if section else config
        changed: Any = dataclasses.replace(owner, **{leaf: _convert(name, value, get_type_hints(type(owner))[leaf])})
        config = dataclasses.replace(config, **{section: changed}) if section else changed
    return config


def validate(config: Config) -> Config:
    """The configuration itself, or a UserError that names the first bad key and what is allowed."""
    for name, field in keys().items():
        section, _, leaf = name.rpartition(".")
        value = getattr(getattr(config, section) if section else config, leaf)
        for item in value if isinstance(value, tuple) else (value,):
            _check_range(name, item, field.metadata)
    e, c, learner = config.emitter, config.critic, config.learner
    _require(config.run.generations or config.run.env_steps, "run.generations and run.env_steps: one must be above 0")
    if not math.isnan(c.v_min) and not math.isnan(c.v_max):
        _require(c.v_min < c.v_max, f"critic.v_min={c.v_min}: must be below critic.v_max={c.v_max}")
    _require(
        config.preset not in BASELINE_PRESETS or config.algorithm in BASELINES,
        f"preset={config.preset!r}: is for the algorithms {', '.join(BASELINES)}; {config.algorithm} has: "
        + ", ".join(p for p in PRESET_NAMES if p not in BASELINE_PRESETS),
    )
    if config.algorithm in BASELINES:
        _check_baseline(config)
    _require(
        not learner.probe or config.algorithm == "qdhuac",
        f"learner.probe=true: needs algorithm qdhuac, not {config.algorithm}",
    )
    if config.algorithm == "qdhuac":
        _require(c.kind != "mlp", "critic.kind='mlp': algorithm qdhuac needs 'categorical' or 'scalar'")
        _require(
            not (c.batch_norm and learner.batch_size < 2),
            "learner.batch_size=1: batch normalisation needs at least 2 (or critic.batch_norm=false)",
        )
    if config.algorithm in LEARNING_ALGORITHMS:
        spoken_for = e.exploration_rollouts + e.inject_actor
        _require(
            spoken_for < e.batch_size,
            f"emitter.exploration_rollouts={e.exploration_rollouts}: with the injected actor it must leave room in "
            f"emitter.batch_size={e.batch_size}",
        )
        first_fill = min(e.batch_size * config.task.episode_length, config.replay.capacity)
        _require(
            learner.batch_size <= first_fill,
            f"learner.batch_size={learner.batch_size}: the replay buffer holds at most {first_fill} transitions after "
            "the first generation",
        )
    sizes = {"learner.batch_size": learner.batch_size, "replay.capacity": config.replay.capacity}
    sizes = sizes if config.algorithm in LEARNING_ALGORITHMS else {}
    if config.task.backend not in ("auto", "native"):  # native simulates outside of JAX
        sizes["emitter.batch_size"] = e.batch_size
    for name, size in sizes.items():
        devices = config.run.devices
        _require(size % devices == 0, f"{name}={size}: run.devices={devices} do not divide it")
    kind = config.archive.kind
    if config.algorithm == "dns":
        _require(kind == "dns", f"archive.kind={kind!r}: algorithm dns needs 'dns'")
    if config.algorithm == "map_elites":
        _require(kind != "dns", "archive.kind='dns': algorithm map_elites needs 'grid' or 'cvt'")
    return config


def _check_baseline(config: Config) -> None:
    """What a TD3 baseline cannot be combined with."""
    name, e, learner = config.algorithm, config.emitter, config.learner
    _require(config.critic.kind == "mlp", f"critic.kind={config.critic.kind!r}: algorithm {name} needs 'mlp'")
    _require(learner.target_tau > 0, f"learner.target_tau=0: algorithm {name} needs target networks, so above 0")
    _require(
        e.exploration_rollouts == 0,
        f"emitter.exploration_rollouts={e.exploration_rollouts}: the actor of {name} is deterministic, must be 0",
    )
    if name == "qd_pg":
        _require(
            config.replay.priority_exponent == 0,
            f"replay.priority_exponent={config.replay.priority_exponent:g}: the two learners of qd_pg share one buffer "
            "and have no common priority, must be 0",
        )
        _require(
            not config.task.name.endswith("_omni"),
            f"task.name={config.task.name!r}: algorithm qd_pg needs a task whose descriptor is foot contacts, such as "
            f"{config.task.name.removesuffix('_omni')!r}",
        )


def check_choice(name: str, value: Any, choices: Iterable[str]) -> None:
    """Refuse a value that is not one of the choices, naming them all."""
    allowed = tuple(choices)
    if value not in allowed:
        raise UserError(f"unknown {name} {value!r}; choose from: {', '.join(allowed)}")


def to_dict(config: Config) -> dict[str, Any]:
    """Plain nested dictionaries, ready for TOML or JSON."""
    out = dataclasses.asdict(config)
    out["policy"]["hidden"] = list(out["policy"]["hidden"])
    return out


def to_toml(config: Config) -> str:
    """The configuration as the text of a TOML file."""
    return tomli_w.dumps(to_dict(config))


def from_toml(text: str, where: str = "the configuration") -> Config:
    """The inverse of `to_toml`, validated; `where` names the file in an error."""
    try:
        return from_dict(tomllib.loads(text))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where}: not valid TOML ({error})") from None
    except UserError as error:
        raise UserError(f"{where}: {error}") from None


def from_dict(data: Mapping[str, Any]) -> Config:
    """The inverse of `to_dict`, validated; missing keys take their defaults, unknown ones are refused."""
    values: dict[str, Any] = {}
    for name, value in data.items():
        if isinstance(value, Mapping):
            values |= {f"{name}.{leaf}": v for leaf, v in value.items()}
        else:
            values[name] = value
    return validate(replace(Config(), values))


def _convert(name: str, value: Any, hint: Any) -> Any:
    """The value as the key's type, or a UserError; an int is a float, a list of ints is a tuple."""
    if hint is float and isinstance(value, int | float) and not isinstance(value, bool):
        return float(value) if abs(value) < 1e300 or isinstance(value, float) else math.inf  # float(10**400) raises
    if hint is int and isinstance(value, float) and value.is_integer():
        return int(value)
    if hint in (int, str, bool) and type(value) is hint:
        return value
    is_tuple = isinstance(hint, types.GenericAlias) and get_args(hint)[0] is int
    if is_tuple and isinstance(value, list | tuple) and value and all(type(v) is int for v in value):
        return tuple(value)
    expected = (
        "a list of whole numbers, such as [256, 256]"
        if is_tuple
        else {int: "a whole number", float: "a number", str: "text", bool: "true or false"}[hint]
    )
    raise UserError(f"{name}={value!r}: expected {expected}")


def _check_range(name: str, value: Any, meta: Mapping[str, Any]) -> None:
    if meta["choices"] is not None:
        check_choice(name, value, meta["choices"])
    bounds = [
        (meta["ge"], "at least", lambda b: value >= b),
        (meta["gt"], "above", lambda b: value > b),
        (meta["le"], "at most", lambda b: value <= b),
    ]
    active = [(b, word, ok) for b, word, ok in bounds if b is not None]
    if isinstance(value, float) and math.isinf(value):
        raise UserError(f"{name}={value!r}: must be finite")
    if any(not ok(b) for b, _, ok in active):
        raise UserError(f"{name}={value!r}: must be {' and '.join(f'{word} {b}' for b, word, _ in active)}")


def _require(condition: Any, message: str) -> None:
    if not condition:
        raise UserError(message)
