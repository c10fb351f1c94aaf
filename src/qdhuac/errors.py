"""Errors that are printed as one line, and checks of arguments that raise them."""

import contextlib
import math
import numbers
from collections.abc import Iterator
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


def check_number(name: str, value: Any, *, above: float = -math.inf) -> None:
    """Refuse what is not a finite number above a bound."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real) or not above < float(value) < math.inf:
        bound = "" if above == -math.inf else f" above {above:g}"
        raise UserError(f"{name}={value!r}: expected a finite number{bound}")


def check_whole(name: str, value: Any, low: int) -> None:
    """Refuse what is not a whole number from `low`."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < low:
        raise UserError(f"{name}={value!r}: expected a whole number from {low}")


def check_callable(name: str, value: Any) -> None:
    """Refuse what cannot be called."""
    if not callable(value):
        raise UserError(f"{name}: expected a function, got {value!r}")
