"""Keys of a configuration: what a key means, its type, and the values that it allows. Imports nothing heavy."""

from __future__ import annotations

import dataclasses
import math
import operator
import types
from collections.abc import Iterable
from typing import Any, get_args

from qdhuac.errors import UserError

_BOUNDS = {"ge": ("at least", operator.ge), "gt": ("above", operator.gt), "le": ("at most", operator.le)}


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


def allowed(field: dataclasses.Field[Any]) -> str:
    """The values that a key allows, in words; empty if it allows all of its type."""
    if field.metadata["choices"] is not None:
        return ", ".join(field.metadata["choices"])
    bounds = {word: field.metadata[bound] for bound, (word, _) in _BOUNDS.items()}
    return ", ".join(f"{word} {bound:,}" for word, bound in bounds.items() if bound is not None)


def convert(name: str, value: Any, hint: Any) -> Any:
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


def check_range(name: str, value: Any, field: dataclasses.Field[Any]) -> None:
    """Refuse a value that the key does not allow."""
    meta = field.metadata
    if meta["choices"] is not None:
        check_choice(name, value, meta["choices"])
    if isinstance(value, float) and math.isinf(value):
        raise UserError(f"{name}={value!r}: must be finite")
    if not all(meta[bound] is None or holds(value, meta[bound]) for bound, (_, holds) in _BOUNDS.items()):
        raise UserError(f"{name}={value!r}: must be {allowed(field)}")


def check_choice(name: str, value: Any, choices: Iterable[str]) -> None:
    """Refuse a value that is not one of the choices, naming them all."""
    allowed = tuple(choices)
    if value not in allowed:
        raise UserError(f"unknown {name} {value!r}; choose from: {', '.join(allowed)}")


def require(condition: Any, message: str) -> None:
    """Refuse a configuration with a message unless the condition holds."""
    if not condition:
        raise UserError(message)
