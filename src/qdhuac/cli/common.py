"""Shared by commands: options, their values, and reading a run."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qdhuac import config
from qdhuac.errors import UserError
from qdhuac.text import one_line

if TYPE_CHECKING:
    from qdhuac.store.run import Policy, Run
    from qdhuac.training.launch import Process

# An option for a configuration key has the name of the key as its `dest`, such as "run.seed".
GOALS = ("run.generations", "run.env_steps")


def add_open_choice(parser: argparse.ArgumentParser, flag: str, values: Iterable[str], **options: Any) -> None:
    """Add an option for which shell completion offers `values`, but which takes others as well."""
    parser.add_argument(flag, **options).suggestions = tuple(values)  # type: ignore[attr-defined]


def add_seed(parser: argparse.ArgumentParser) -> None:
    """Add `--seed` for commands that simulate episodes of a finished run."""
    add_number(parser, "--seed", "seed of the episodes, default 0", low=0, high=2**31 - 1, default=0)


def add_number(
    parser: argparse.ArgumentParser, flag: str, text: str, *, low: int = 1, high: int, default: int | None = None
) -> None:
    """Add an option that takes a whole number from `low` to `high`; `text` is its help."""

    def parse(text: str) -> int:
        number = value(text)
        if type(number) is not int or not low <= number <= high:
            raise argparse.ArgumentTypeError(f"expected a whole number from {low} to {high}, got {text!r}")
        return number

    parser.add_argument(flag, type=parse, default=default, metavar="N", help=text)


def add_training(parser: argparse.ArgumentParser, settable: str) -> None:
    """Add the options of `train` and `resume`; `settable` says which keys `--set` takes."""
    parser.add_argument("--generations", dest="run.generations", metavar="N", help="stop after N generations")
    parser.add_argument("--env-steps", dest="run.env_steps", metavar="N", help="stop after N environment steps")
    parser.add_argument("--devices", dest="run.devices", metavar="N", help="use N devices of this machine, default 1")
    together = "this is process RANK, from 0, of COUNT that make one run together; process 0 listens at HOST:PORT"
    parser.add_argument("--process", metavar="RANK/COUNT@HOST:PORT", help=together)
    log = "also log metrics to tensorboard or wandb (extras of that name)"
    add_open_choice(parser, "--log", ("tensorboard", "wandb"), metavar="NAME", help=log)
    parser.add_argument("--set", nargs="+", action="extend", default=[], metavar="KEY=VALUE", help=settable)


def add_policy(parser: argparse.ArgumentParser, *names: str) -> None:
    """Add `--policy`, whose values `choose` reads; `names` are those without a number."""
    text = f"{', '.join(names)}, nearest:0.3,0.7, id:40, or a row of the archive; default best"
    add_open_choice(parser, "--policy", names, default="best", help=text)


def changes(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the configuration keys that the options set. A goal that is given alone removes the other one."""
    given = {name: value(text) for name, text in vars(arguments).items() if "." in name and text is not None}
    if given.keys() & set(GOALS):
        given = dict.fromkeys(GOALS, 0) | given
    return given | config.parse_assignments(arguments.set)


def value(text: str) -> Any:
    """Read a value as `--set` does."""
    return config.parse_assignments([f"v={text}"])["v"]


def process(text: str | None) -> Process:
    """Read the value of `--process`, RANK/COUNT@HOST:PORT."""
    from qdhuac.training.launch import ALONE, Process

    if text is None:
        return ALONE
    found = re.fullmatch(r"(\d{1,6})/(\d{1,6})@([\w.-]+:\d{1,5})", text)
    port = int(found[3].rpartition(":")[2]) if found else 0
    if not found or not int(found[1]) < int(found[2]) or not 1 <= port <= 65535 or ".." in found[3]:
        raise UserError(f"--process {text!r}: expected RANK/COUNT@HOST:PORT, such as 0/2@10.0.0.1:1234, RANK from 0")
    return Process(int(found[1]), int(found[2]), found[3])


def load(run_dir: str | Path) -> Run:
    """Read a run that has at least one individual, and print warnings about its files."""
    from qdhuac.store.run import load_run

    run = load_run(run_dir)
    run.require_individuals()
    warn(run.folder.notes)
    return run


def require_robot(run: Run) -> None:
    """Raise UserError for a run on a task of the user's own, which only Python has."""
    if run.config.task.name == config.OWN:
        raise UserError(
            f"{run.folder.path}: its task is your own, which this command cannot build; in Python there are "
            "qdhuac.render and qdhuac.show"
        )


def choose(run: Run, text: str) -> list[Policy]:
    """Return the policies that `--policy` names."""
    kind, _, wanted = text.partition(":")
    try:
        if text == "best":
            return [run.best]
        if text == "all":
            return run.policies
        if kind == "nearest":
            return [run.nearest([float(x) for x in wanted.split(",")])]
        if kind == "id":
            return [run.by_id(int(wanted))]
        return [run.policy(int(text))]
    except ValueError:
        raise UserError(f"--policy {text!r}: expected best, all, a row, id:40, or nearest:0.3,0.7") from None
    except UserError as error:
        raise UserError(f"--policy {text}: {error}") from None


def file_name(policy: str) -> str:
    """Return the value of `--policy` without characters that file names cannot have."""
    return re.sub(r"[^\w.,-]", "-", policy)


def write_reports(path: Path) -> None:
    """Write and print the path of the report of a run, or of each of several seeds."""
    from qdhuac.report.run_page import write_report
    from qdhuac.store.run_folder import RunDir
    from qdhuac.training.launch import side_by_side

    for one in side_by_side(path) or [path]:
        folder = RunDir.open(one)
        print(f"report: {write_report(folder)}", flush=True)
        warn(folder.notes)


def warn(notes: Sequence[str]) -> None:
    """Print warnings."""
    for note in notes:
        print(f"warning: {one_line(note)}", file=sys.stderr)
