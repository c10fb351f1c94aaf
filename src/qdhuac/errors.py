"""Errors that are printed as one line, and checks of arguments that raise them."""

import contextlib
import math
import numbers
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any


class UserError(Exception):
    """A mistake that the user can correct: exit code 2, no traceback."""


class RunFailed(Exception):
    """The run cannot continue, for example because the disk is full: exit code 1, no traceback."""


def reason(error: Exception) -> str:
    """What went wrong, without the number and the path that the text of an OSError repeats."""
    return getattr(error, "strerror", None) or str(error)


@contextlib.contextmanager
def os_errors_as(kind: type[Exception], message: str, after: str = "") -> Iterator[None]:
    """Raise an OSError of the block as `kind`, with the system's reason in brackets between the two texts."""
    try:
        yield
    except OSError as error:
        raise kind(f"{message} ({reason(error)}){after}") from None


def check_number(name: str, value: Any, *, low: float = -math.inf, above: float = -math.inf) -> None:
    """Refuse what is not a finite number, from `low` or above a bound."""
    number = float(value) if isinstance(value, numbers.Real) and not isinstance(value, bool) else math.nan
    if not (max(low, -1e300) <= number < math.inf and number > above):
        bound = f" from {low:g}" if low > -math.inf else f" above {above:g}" if above > -math.inf else ""
        raise UserError(f"{name}={shown(value)}: expected a finite number{bound}")


def check_whole(name: str, value: Any, low: int, high: float = math.inf) -> None:
    """Refuse what is not a whole number from `low` to `high`."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or not low <= int(value) <= high:
        raise UserError(f"{name}={shown(value)}: expected a whole number from {low}{f' to {high}' * (high < math.inf)}")


def check_flag(name: str, value: Any) -> None:
    """Refuse what is neither True nor False."""
    if not isinstance(value, bool):
        raise UserError(f"{name}={shown(value)}: expected True or False")


def check_has(name: str, value: Any, *attributes: str) -> None:
    """Refuse what lacks an attribute, and a class in place of an object."""
    if isinstance(value, type) or not all(hasattr(value, attribute) for attribute in attributes):
        raise UserError(f"{name}: expected an object with {', '.join(attributes)}, got {shown(value)}")


def check_callable(name: str, value: Any) -> None:
    """Refuse what cannot be called."""
    if not callable(value):
        raise UserError(f"{name}: expected a function, got {shown(value)}")


def check_path(name: str, value: Any) -> Path:
    """Refuse what is not a path."""
    if not isinstance(value, str | os.PathLike):
        raise UserError(f"{name}={shown(value)}: expected a path")
    return Path(value)


def check_bounds(name: str, value: Any, *, ordered: bool = True) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """The numbers of (lowest, highest). Refuse what has not a finite low (`ordered`: below a high) per dimension."""
    try:
        low, high = (tuple(map(_number, part)) for part in value)
    except (TypeError, ValueError):
        low, high = (), ()
    if not low or len(low) != len(high) or (ordered and not all(a < b for a, b in zip(low, high, strict=True))):
        below = " below" if ordered else " and"
        expected = f"(lowest, highest), all of them finite, a low{below} a high for each dimension"
        raise UserError(f"{name}={shown(value)}: expected {expected}")
    return low, high


def _number(value: Any) -> float:
    if isinstance(value, str | bytes | bool) or not math.isfinite(value):
        raise ValueError
    return float(value)


def shown(value: Any) -> str:
    """A value in an error: one line, not too long."""
    text = " ".join(repr(value).split())
    return text if len(text) <= 100 else f"{text[:100]}..."
