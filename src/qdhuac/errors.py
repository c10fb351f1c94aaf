"""Errors that are printed as one line."""

import contextlib
from collections.abc import Iterator


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
