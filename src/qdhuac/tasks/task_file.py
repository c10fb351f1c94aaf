"""A task as a file: what is observed, rewarded and described, in TOML beside a MuJoCo model. Free of JAX and MuJoCo.

`read` checks the file itself, and `qdhuac.tasks.tables` what it says against the model. `docs/task-file.md` describes
every key.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import math
import os
import tomllib
import types
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

from qdhuac import files
from qdhuac.config import check_choice, require
from qdhuac.errors import UserError, reason

FOLDER = Path(__file__).parent / "robots"
Limbs = Mapping[str, tuple[str, ...]]
HUGE = 1e30  # numbers from here on are mistakes
LONGEST_DELAY = 100
COSTS = ("control", "action_change", "energy", "distance", "force")  # terms that are subtracted


# What a part may name as its field, and of what. "com_velocity" is each body's share in the momentum per mass, then how
# it turns; "action" is the action before; "tilt" is the angle between the z-axis of a body and the vertical.
WHOLE = (*("qpos", "qvel", "ctrl", "qfrc_actuator", "sensordata", "cinert", "com_velocity", "action"),)
OF_A_BODY = ("xpos", "xipos", "subtree_com", "tilt", "pitch", "roll", "yaw")
OF_A_JOINT = ("qpos", "qvel", "qfrc_actuator")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Part:
    """Numbers of the simulation: a whole field of MuJoCo's data, or what a body, joint, site or sensor has of it."""

    field: str = ""  # one of `WHOLE`; with a body or a joint one of theirs
    body: str = ""  # its position unless a field is named
    joint: str = ""  # its position, in qpos, unless a field is named
    site: str = ""  # its position
    sensor: str = ""  # its readings
    axis: Literal["", "x", "y", "z"] = ""  # one of three numbers
    skip: int = 0  # leave out so many numbers at the start
    count: int = 0  # take so many; 0: all that are left


@dataclasses.dataclass(frozen=True, kw_only=True)
class Observed(Part):
    """A part of the observation."""

    limit: float = math.inf  # it is clipped to this absolute value


@dataclasses.dataclass(frozen=True, kw_only=True)
class Healthy(Part):
    """What must stay between two bounds: otherwise the episode ends."""

    low: float = -math.inf
    high: float = math.inf


@dataclasses.dataclass(frozen=True, kw_only=True)
class Term(Part):
    """A term of the reward of a step. Terms in `COSTS` are subtracted."""

    term: Literal[
        "velocity",  # change per second of one number
        "alive",  # 1
        "upright",  # cosine of the angle between the z-axis of `body` and the vertical
        "height",  # of `body`
        "value",  # sum of numbers
        "control",  # cost: sum of squares of the scaled actions
        "action_change",  # cost: sum of squares of the difference to the action before
        "energy",  # cost: mechanical power of the actuators, in watts
        "distance",  # cost: from a position to `point`
        "force",  # cost: sum of absolute readings of `sensor`
    ]
    weight: float = 1.0
    point: tuple[float, ...] = ()
    target: float = 0.0
    width: float = 0.0  # above 0: weight * exp(-((value - target) / width)^2) in place of weight * value


@dataclasses.dataclass(frozen=True, kw_only=True)
class Dimension(Part):
    """One dimension of a descriptor."""

    kind: Literal[
        "contact",  # share of steps with `geom` on the floor
        "frequency",  # how often per second `geom` comes down to the floor
        "mean",  # of a number over the episode
        "final",  # a number at the end
        "range",  # highest minus lowest
        "energy",  # mean mechanical power of the actuators, in watts
        "direction",  # angle of the way of `body` on the ground, from its start to its end
    ]
    geom: str = ""
    low: float = math.nan  # nan: that of the kind
    high: float = math.nan
    label: str = ""

    @property
    def bounds(self) -> tuple[float, float]:
        """Lowest and highest value; nan where the file has to say it."""
        usual = {"contact": (0.0, 1.0), "direction": (-math.pi, math.pi)}.get(self.kind, (math.nan, math.nan))
        low, high = (
            wanted if wanted == wanted else least for wanted, least in zip((self.low, self.high), usual, strict=True)
        )
        return low, high

    @property
    def title(self) -> str:
        """What figures call it."""
        of_a_geom = {"contact": f"{self.geom} on the floor", "frequency": f"steps of {self.geom} per second"}
        what = " ".join(filter(None, (self.sensor, self.site, self.joint, self.body, self.field, self.axis)))
        return self.label or of_a_geom.get(self.kind) or f"{self.kind} {what}".strip()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Actions:
    """What an action from -1 to 1 tells the actuators."""

    # control: scale * action. range: -1 and 1 are the ends of the control range. position: pose + scale * action.
    kind: Literal["control", "range", "position"] = "control"
    scale: float | tuple[float, ...] = 1.0
    pose: tuple[float, ...] = ()  # one number per actuator; that of the joints at the start unless it is given
    stiffness: float = 0.0  # above 0: motors become servos with so much torque per radian from the wanted position,
    damping: float = 0.0  # and so much against each radian per second
    delay: int = 0  # steps until an action has its effect


@dataclasses.dataclass(frozen=True, kw_only=True)
class Reset:
    """Where an episode begins."""

    noise: float = 0.0  # added to each number: uniform, up to this; for normal velocities their standard deviation
    velocity: Literal["uniform", "normal"] = "uniform"
    pose: tuple[float, ...] = ()  # of all joints; that of the model unless it is given
    keyframe: str = ""  # its pose is that of a keyframe of the model


Range = tuple[float, float]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Variation:
    """What differs from episode to episode with `task.vary`. Pairs are bounds between which draws are uniform."""

    mass: Range = (1.0, 1.0)  # a factor for each body
    friction: Range = (1.0, 1.0)  # a factor for all geoms
    strength: Range = (1.0, 1.0)  # a factor for each actuator
    delay: tuple[int, int] = (0, 0)  # further steps until an action has its effect
    observation_noise: float = 0.0  # standard deviation
    push: float = 0.0  # metres per second, at most so much in each direction along the ground
    push_every: int = 200  # steps between two pushes


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskFile:
    """All facts about a task."""

    name: str
    title: str = ""
    purpose: str = ""  # one line
    model: Path
    frames: int  # physics steps per action
    observation: tuple[Observed, ...]
    reward: tuple[Term, ...]
    descriptors: Mapping[str, tuple[Dimension, ...]]
    descriptor: str = ""  # the one that is used unless another is asked for; the first unless it is given
    healthy: tuple[Healthy, ...] = ()
    actions: Actions = Actions()
    reset: Reset = Reset()
    variation: Variation = Variation()
    limbs: Limbs = dataclasses.field(default_factory=dict)  # what is one leg or arm, by its actuators
    support: Range = (math.nan, math.nan)  # discounted returns to expect; nan: unknown
    reward_offset: float = 0.0  # per step, so that no policy counts less than nothing

    @property
    def can_terminate(self) -> bool:
        """An episode may end early."""
        return bool(self.healthy)

    def dimensions(self, descriptor: str = "") -> tuple[Dimension, ...]:
        """The dimensions of a descriptor; "": of the usual one."""
        name = descriptor or self.descriptor or next(iter(self.descriptors))
        check_choice("task.descriptor", name, self.descriptors)
        return self.descriptors[name]

    def has_contacts(self, descriptor: str = "") -> bool:
        """Every dimension is the share of steps with a geom on the floor."""
        return all(one.kind == "contact" for one in self.dimensions(descriptor))


@functools.cache
def builtin(name: str) -> TaskFile:
    """The facts about a task of the package."""
    check_choice("task", name, TASKS)
    return read(FOLDER / f"{name}.toml")


def find(task: str | Path) -> TaskFile:
    """The facts about the task of that name, or in a file with that path."""
    return read(Path(task)) if isinstance(task, Path) or task.endswith(".toml") else builtin(task)


def read(path: Path) -> TaskFile:
    """The facts in a file; a UserError names the key that is wrong."""
    values = _values(path)
    model = values.get("model", "")
    if not isinstance(model, str) or not model or Path(model).is_absolute() or ".." in Path(model).parts:
        raise UserError(f"{path}: model={model!r}: expected the path of an MJCF file in the folder of the file")
    found = _checked(TaskFile, {"name": path.stem, **values, "model": str(path.parent / model)}, f"{path}: ")
    _check(found, f"{path}: ")
    return dataclasses.replace(found, title=found.title or found.name)


def _check(found: TaskFile, where: str) -> None:
    """Refuse what no single key can say. `qdhuac.tasks.tables` checks the names against the model."""

    def check(condition: bool, message: str) -> None:
        require(condition, f"{where}{message}")

    check(1 <= found.frames <= 1000, f"frames={found.frames}: expected 1 to 1000")
    check(bool(found.observation), "observation: expected at least one part")
    check(bool(found.reward), "reward: expected at least one term")
    check(bool(found.descriptors), "descriptors: expected at least one")
    for name, dimensions in found.descriptors.items():
        check(bool(dimensions), f"descriptors: {name}: expected at least one dimension")
        for i, one in enumerate(dimensions):
            low, high = one.bounds
            finite = math.isfinite(low) and math.isfinite(high)
            check(finite and low < high, f"descriptors: {name}: {i}: expected a finite low below a finite high")
    if found.descriptor:
        check(found.descriptor in found.descriptors, f"descriptor={found.descriptor!r}: is not in descriptors")
    for i, healthy in enumerate(found.healthy):
        check(healthy.low < healthy.high, f"healthy: {i}: expected a low below a high")
    for i, term in enumerate(found.reward):
        check(term.width >= 0, f"reward: {i}: width={term.width}: must be at least 0")
    check(0 <= found.actions.delay <= LONGEST_DELAY, f"actions: delay: expected 0 to {LONGEST_DELAY} steps")
    check(found.actions.stiffness >= 0 <= found.actions.damping, "actions: stiffness and damping must be at least 0")
    check(found.reset.noise >= 0, f"reset: noise={found.reset.noise}: must be at least 0")
    check(not found.support[0] >= found.support[1], f"support={list(found.support)}: expected a low below a high")
    v = found.variation
    for name in ("mass", "friction", "strength"):
        low, high = getattr(v, name)
        check(0 < low <= high, f"variation: {name}: expected two factors above 0, the lower one first")
    check(0 <= v.delay[0] <= v.delay[1] <= LONGEST_DELAY, f"variation: delay: expected two from 0 to {LONGEST_DELAY}")
    check(v.push >= 0 and v.push_every >= 1, "variation: push must be at least 0, push_every at least 1")
    check(v.observation_noise >= 0, "variation: observation_noise: must be at least 0")


def _values(path: Path) -> dict[str, Any]:
    """The tables of a file, over those of its base."""
    values = _tables(path)
    base = values.pop("base", None)
    if base is None:
        return values
    if not isinstance(base, str) or Path(base).name != base or not base:
        raise UserError(f"{path}: base={base!r}: expected the name of a file in the same folder")
    below = _tables(path.parent / base)
    if "base" in below:
        raise UserError(f"{path}: base={base!r}: has a base itself")
    for key, value in values.items():
        both = isinstance(value, dict) and isinstance(below.get(key), dict)
        below[key] = below[key] | value if both else value
    return below


def base_of(path: Path) -> Path | None:
    """The file that a file builds on."""
    base = _tables(path).get("base")
    return None if base is None else path.parent / str(base)


def _tables(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(files.read(Path(os.path.realpath(path))).decode())
    except FileNotFoundError:
        raise UserError(f"{path}: no such task file") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: not valid TOML ({reason(error)})") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({reason(error)})") from None


_hints: Callable[[Any], dict[str, Any]] = functools.cache(get_type_hints)


def _checked(kind: Any, value: Any, where: str) -> Any:
    """The value as a type says: dataclasses from tables, tuples from lists."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is types.UnionType:  # one number, or a list of them
        return _checked(arguments[isinstance(value, list)], value, where)
    if dataclasses.is_dataclass(kind) and isinstance(value, dict):
        hints = _hints(kind)
        for key in value.keys() - hints.keys():
            raise UserError(f"{where}unknown key {key!r}{near(key, hints)}; expected some of: {', '.join(hints)}")
        for field in dataclasses.fields(kind):
            if field.name not in value and field.default is field.default_factory is dataclasses.MISSING:
                raise UserError(f"{where}{field.name}: missing")
        made = {key: _checked(hints[key], one, f"{where}{key}: ") for key, one in value.items()}
        return kind(**made)  # type: ignore[operator]
    if origin is Literal and value in arguments:
        return value
    if origin is tuple and isinstance(value, list):
        if arguments[-1] is Ellipsis:
            return tuple(_checked(arguments[0], one, f"{where}{i}: ") for i, one in enumerate(value))
        if len(arguments) == len(value):
            return tuple(_checked(one, v, where) for one, v in zip(arguments, value, strict=True))
        raise UserError(f"{where}expected {len(arguments)} numbers, got {value!r}")
    if origin is Mapping and isinstance(value, dict):
        made = {key: _checked(arguments[1], one, f"{where}{key}: ") for key, one in value.items()}
        return types.MappingProxyType(made)
    if kind is float and isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < HUGE:
        return float(value)
    if kind is Path and isinstance(value, str):
        return Path(value)
    if type(value) is kind and kind is not float:
        return value
    if origin is Literal:
        expected = f"one of {', '.join(map(repr, arguments))}"
    else:
        names = {float: "a finite number", int: "a whole number", str: "text", tuple: "a list"}
        expected = names.get(origin or kind, "a table")
    raise UserError(f"{where}expected {expected}, got {value!r}")


def near(name: str, known: Iterable[str]) -> str:
    """A hint at the known names that are spelt like this one; empty if there are none."""
    found = difflib.get_close_matches(name, list(known), n=3, cutoff=0.5)
    return f" (did you mean {' or '.join(map(repr, found))}?)" if found else ""


TASKS = {path.stem: read(path).purpose for path in sorted(FOLDER.glob("*.toml"))}  # of the package
