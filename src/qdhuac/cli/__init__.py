"""The command line: one module per command, each with `add(parser)` and `run(arguments)`.

The modules import most of the package inside `run`, so that bad input is refused before JAX is imported.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence
from typing import NoReturn

from qdhuac import __version__
from qdhuac.errors import RunFailed, UserError
from qdhuac.text import one_line

COMMANDS = (
    *("train", "resume", "evaluate", "report", "view", "render", "export", "adapt", "study", "task"),
    *("list", "bench", "doctor", "completion"),
)
EXIT_CODES = (
    "exit codes: 0 done, 1 the run failed, 2 bad input; "
    "stopped and saved: 130 by Ctrl-C, 143 by SIGTERM, 129 by closing the terminal"
)


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line, without the usage text."""

    def error(self, message: str) -> NoReturn:
        raise UserError(message)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code."""
    try:
        arguments = parser().parse_args(argv)
        return arguments.run(arguments)
    except UserError as error:
        return _fail(error, 2)
    except RunFailed as error:
        return _fail(error, 1)
    except BrokenPipeError:  # the reader of the output has ended, as in `qdhuac doctor | head -1`
        sys.stdout = None
        return 1
    except KeyboardInterrupt:
        return 130


def parser() -> Parser:
    """Return the parser of all commands. The first line of a command's module describes it."""
    whole = Parser(
        prog="qdhuac",
        description="Train many different, good policies for one robot in few simulator steps.",
        epilog=EXIT_CODES,
        allow_abbrev=False,
    )
    whole.add_argument("--version", action="version", version=f"qdhuac {__version__}")
    commands = whole.add_subparsers(required=True, metavar="COMMAND")
    for name in COMMANDS:
        module = importlib.import_module(f"qdhuac.cli.{name}")
        text = (module.__doc__ or "").partition("\n")[0]
        sub = commands.add_parser(name, help=text, description=text, epilog=EXIT_CODES, allow_abbrev=False)
        module.add(sub)
        sub.set_defaults(run=module.run)
    return whole


def _fail(error: Exception, code: int) -> int:
    print(f"qdhuac: error: {one_line(str(error))}", file=sys.stderr)
    return code
