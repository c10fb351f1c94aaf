"""What commands share: options, their values, and reading a run."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qdhuac import config
from qdhuac.errors import UserError

if TYPE_CHECKING:
    from qdhuac.store.run import Policy, Run
    from qdhuac.training.launch import Process

# An option that stands for a configuration key has the key's name as its `dest`, such as "run.seed".
GOALS = ("run.generations", "run.env_steps")


def suggest(action: argparse.Action, values: Iterable[str]) -> None:
    """Let shell completion offer these values for an option that takes others as well."""
    action.suggestions = tuple(values)  # type: ignore[attr-defined]


def add_run_dir(parser: argparse.ArgumentParser, **options: Any) -> None:
    """The positional argument RUN_DIR."""
    parser.add_argument("run_dir", metavar="RUN_DIR", **options)


def add_seed(parser: argparse.ArgumentParser) -> None:
    """`--seed` of commands that simulate a finished run."""
    parser.add_argument(
        "--seed", type=whole(0, 2**31 - 1), default=0, metavar="N", help="seed of the starts, default 0"
    )


def add_training(parser: argparse.ArgumentParser, settable: str) -> None:
    """The options that `train` and `resume` share."""
    parser.add_argument("--generations", dest="run.generations", metavar="N", help="stop after N generations")
    parser.add_argument("--env-steps", dest="run.env_steps", metavar="N", help="stop after N environment steps")
    parser.add_argument(
        "--devices", dest="run.devices", metavar="N", help="spread the run over N devices of this machine, default 1"
    )
    parser.add_argument(
        "--process",
        metavar="I/N@HOST:PORT",
        help="this is process I of N that make one run together; process 0 listens at HOST:PORT",
    )
    log = parser.add_argument(
        "--log", metavar="NAME", help="also log metrics to tensorboard or wandb (extras of that name)"
    )
    suggest(log, ("tensorboard", "wandb"))
    parser.add_argument("--set", nargs="+", action="extend", default=[], metavar="KEY=VALUE", help=settable)


def changes(arguments: argparse.Namespace) -> dict[str, Any]:
    """The configuration keys that the options set; `--set` wins. A goal given alone lifts the other one."""
    given = {name: value(text) for name, text in vars(arguments).items() if "." in name and text is not None}
    if given.keys() & set(GOALS):
        given = dict.fromkeys(GOALS, 0) | given
    return given | config.parse_assignments(arguments.set)


def value(text: str) -> Any:
    """A value as `--set` reads it."""
    return config.parse_assignments([f"v={text}"])["v"]


def whole(low: int, high: int) -> Callable[[str], int]:
    """The `type` of an option that takes a whole number."""

    def parse(text: str) -> int:
        number = value(text)
        if type(number) is not int or not low <= number <= high:
            raise argparse.ArgumentTypeError(f"expected a whole number from {low} to {high}, got {text!r}")
        return number

    return parse


def process(text: str | None) -> Process:
    """The value of `--process`, RANK/COUNT@HOST:PORT; without one, the only process there is."""
    from qdhuac.training.launch import ALONE, Process

    if text is None:
        return ALONE
    found = re.fullmatch(r"(\d{1,6})/(\d{1,6})@([\w.-]+:\d{1,5})", text)
    port = int(found[3].rpartition(":")[2]) if found else 0
    if not found or not int(found[1]) < int(found[2]) or not 1 <= port <= 65535 or ".." in found[3]:
        raise UserError(f"--process {text!r}: expected RANK/COUNT@HOST:PORT, such as 0/2@10.0.0.1:1234, RANK from 0")
    return Process(int(found[1]), int(found[2]), found[3])


def load(run_dir: str | Path) -> Run:
    """A run with at least one individual, as `qdhuac.load` reads it; what is wrong with its files is printed."""
    from qdhuac.store.run import load_run

    run = load_run(run_dir)
    run.require_individuals()
    warn(run.folder.notes)
    return run


def require_robot(run: Run) -> None:
    """Refuse a run on a task of the user's own: qdhuac does not have its robot."""
    if run.config.task.name == config.OWN:
        raise UserError(f"{run.folder.path}: its task is your own, so qdhuac does not have its robot")


def choose(run: Run, text: str) -> list[Policy]:
    """The policies that `--policy` names: `best`, a row of the archive, `id:40`, `nearest:0.3,0.7` or `all`."""
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
    """What `--policy` names as part of a file's name."""
    return re.sub(r"[^\w.,-]", "-", policy)


def write_reports(path: Path) -> None:
    """Write the report of a run, or of each of several seeds, and say where it is."""
    from qdhuac.report.run_page import write_report
    from qdhuac.store.run_folder import RunDir
    from qdhuac.training.launch import SEED

    for one in sorted(path.glob(f"{SEED}*"), key=lambda one: (len(one.name), one.name)) or [path]:
        folder = RunDir.open(one)
        print(f"report: {write_report(folder)}", flush=True)
        warn(folder.notes)


def warn(notes: Sequence[str]) -> None:
    """Print warnings."""
    for note in notes:
        print(f"warning: {note}", file=sys.stderr)
