"""Errors that a person reads as one line."""


class UserError(Exception):
    """A mistake that the user can mend: printed as one line, exit code 2, no traceback."""


class RunFailed(Exception):
    """The run itself cannot go on (too many non-finite results, a full disk): one line, exit code 1."""
