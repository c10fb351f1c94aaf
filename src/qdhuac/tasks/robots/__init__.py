"""The robots as data: one file for each task, and the MuJoCo model that it names. Free of JAX and of MuJoCo.

A task's file says what is observed, what is rewarded, when an episode ends and what a descriptor is. A file with a
`base` takes what it does not say itself from another one.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import tomllib
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

from qdhuac.config import check_choice
from qdhuac.errors import UserError

FOLDER = Path(__file__).parent
Limbs = Mapping[str, tuple[str, ...]]


@dataclasses.dataclass(frozen=True)
class Part:
    """Numbers of the simulation: a whole field of MuJoCo's data, or what one body or joint has of it.

    Beside MuJoCo's fields there is `com_velocity`: each body's share in the momentum per mass, and how it turns.
    """

    field: str
    skip: int = 0  # leave out so many numbers at the start of the field
    body: str = ""
    axis: Literal["", "x", "y", "z"] = ""  # of a body's position
    joint: str = ""


@dataclasses.dataclass(frozen=True)
class Observed(Part):
    """A part of the observation."""

    limit: float = math.inf  # it is clipped to this absolute value


@dataclasses.dataclass(frozen=True)
class Healthy(Part):
    """What must stay between two bounds: otherwise the robot has fallen."""

    low: float = -math.inf
    high: float = math.inf


@dataclasses.dataclass(frozen=True)
class Reward:
    """The terms of the reward of a step and their weights."""

    progress: Part  # where the robot is
    forward: float = 0.0  # per metre and second of progress
    alive: float = 0.0
    control: float = 0.0  # subtracted, per square of a control


@dataclasses.dataclass(frozen=True)
class Reset:
    """Where an episode begins."""

    noise: float  # added to each number: uniform, up to this; for normal velocities their standard deviation
    velocity: Literal["uniform", "normal"]
    pose: tuple[float, ...] = ()  # that of the model unless it is given


@dataclasses.dataclass(frozen=True)
class Robot:
    """All facts about a task."""

    name: str
    title: str
    purpose: str  # one line
    model: Path
    torso: str  # the name of a body
    feet: tuple[str, ...]  # names of geoms, spheres or capsules
    limbs: Limbs  # what is one leg or arm, by its motors
    frames: int  # physics steps per action
    observation: tuple[Observed, ...]
    reward: Reward
    reset: Reset
    support: tuple[float, float]  # discounted returns to expect
    reward_offset: float  # per step
    # Per foot the share of steps with that foot on the ground, or where the torso is at the end.
    descriptor: Literal["foot_contact", "final_position"] = "foot_contact"
    reach: float = 30.0  # metres in each direction that final positions cover
    healthy: tuple[Healthy, ...] = ()
    stretch_actions: bool = False  # actions of -1 and 1 are the bounds of the actuators

    @property
    def omni(self) -> bool:
        """The descriptor is a position, not made of contacts."""
        return self.descriptor == "final_position"

    @property
    def can_terminate(self) -> bool:
        """An episode may end early."""
        return bool(self.healthy)

    @property
    def descriptor_bounds(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Lowest and highest descriptor."""
        low, high, size = (-self.reach, self.reach, 2) if self.omni else (0.0, 1.0, len(self.feet))
        return (low,) * size, (high,) * size


@functools.cache
def robot(name: str) -> Robot:
    """The facts about a task of the package."""
    check_choice("task", name, _names())
    return read(FOLDER / f"{name}.toml")


def _names() -> list[str]:
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def read(path: Path) -> Robot:
    """The facts in a file; a UserError names the key that is wrong."""
    values = _values(path)
    values["model"] = str(path.parent / str(values.get("model", "")))
    return _checked(Robot, {"name": path.stem, **values}, f"{path}: ")


def _values(path: Path) -> dict[str, Any]:
    try:
        values = tomllib.loads(path.read_text())
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror or error})") from None
    except ValueError as error:
        raise UserError(f"{path}: not valid TOML ({error})") from None
    base = values.pop("base", None)
    if base is None:
        return values
    if not isinstance(base, str) or Path(base).name != base:
        raise UserError(f"{path}: base={base!r}: expected the name of a file in the same folder")
    if "base" in (below := _values(path.parent / base)):
        raise UserError(f"{path}: base={base!r}: has a base itself")
    for key, value in values.items():
        both = isinstance(value, dict) and isinstance(below.get(key), dict)
        below[key] = below[key] | value if both else value
    return below


def _checked(kind: Any, value: Any, where: str) -> Any:
    """The value as a type says: dataclasses from tables, tuples from lists."""
    origin, arguments = get_origin(kind), get_args(kind)
    if dataclasses.is_dataclass(kind) and isinstance(value, dict):
        hints = get_type_hints(kind)
        for key in value.keys() - hints.keys():
            raise UserError(f"{where}unknown key {key!r}; expected some of: {', '.join(hints)}")
        for field in dataclasses.fields(kind):
            if field.name not in value and field.default is dataclasses.MISSING:
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
    if origin is Mapping and isinstance(value, dict):
        made = {key: _checked(arguments[1], one, f"{where}{key}: ") for key, one in value.items()}
        return types.MappingProxyType(made)
    if kind is float and isinstance(value, int | float) and not isinstance(value, bool) and not math.isnan(value):
        return float(value)
    if kind is Path and isinstance(value, str):
        return Path(value)
    if type(value) is kind:
        return value
    expected = f"one of {', '.join(map(repr, arguments))}" if origin is Literal else _NAMES.get(kind, "a table or list")
    raise UserError(f"{where}expected {expected}, got {value!r}")


_NAMES = {float: "a number", int: "a whole number", str: "text", bool: "true or false"}

TASKS = {name: robot(name).purpose for name in _names()}
