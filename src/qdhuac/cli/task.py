"""Write a first task file for a robot of yours, or check a task file.

`new` looks at a MuJoCo model; `check` simulates random policies.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from qdhuac.cli.common import add_seed
from qdhuac.errors import RunFailed, UserError, os_errors_as


def add(parser: argparse.ArgumentParser) -> None:
    """The options of `qdhuac task`."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    text = "write a first, commented task file for a MuJoCo model"
    new = actions.add_parser("new", help=text, description=text, allow_abbrev=False)
    new.add_argument("model", metavar="MODEL.xml", help="a model that MuJoCo reads (MJCF or URDF)")
    new.add_argument("--output", metavar="FILE.toml", help="default: beside the model, with its name")
    text = "simulate random policies, say what is wrong or odd, and draw a film strip beside the file"
    check = actions.add_parser("check", help=text, description=text, allow_abbrev=False)
    check.add_argument("file", metavar="FILE.toml", help="a task file")
    add_seed(check)


def run(arguments: argparse.Namespace) -> int:
    """Write or check a task file."""
    if arguments.action == "new":
        return _new(Path(arguments.model), arguments.output)
    return _check(Path(arguments.file), arguments.seed)


def _new(model: Path, output: str | None) -> int:
    path = model.with_suffix(".toml") if output is None else Path(output)
    if path.suffix != ".toml" or not path.absolute().parent.is_dir():
        raise UserError(f"--output {path}: expected a name that ends in .toml, in a folder that exists")
    if os.path.lexists(path):
        raise UserError(f"{path}: exists already; name another file with --output")
    if not model.is_file():
        raise UserError(f"{model}: no such file")
    from qdhuac.tasks.draft import draft

    text = draft(model, path.parent)
    with os_errors_as(RunFailed, f"{path}: cannot be written"):
        path.write_text(text, encoding="utf-8")
    print(f"wrote {path}\nnext:  qdhuac task check {path}\nthen:  qdhuac train --task {path}")
    return 0


def _check(path: Path, seed: int) -> int:
    from qdhuac.tasks import bundle, task_file
    from qdhuac.view import video

    bundle.collect(path)  # nothing is missing or outside of the folder
    file = task_file.read(path)
    try:  # before MuJoCo is imported
        video.choose_library()
        cannot_draw = ""
    except UserError as error:
        cannot_draw = str(error)
    from qdhuac.environment import prepare_jax

    prepare_jax()
    from qdhuac.tasks.trial import check

    trial, episode, model = check(file, seed)
    for line in trial.facts:
        print(line)
    picture = path.with_suffix(".png")
    if not cannot_draw:
        try:
            video.strip(model, episode, picture)
        except (UserError, RunFailed) as error:
            cannot_draw = str(error)
    print(f"no film strip: {cannot_draw}" if cannot_draw else f"film strip: {picture}")
    for kind, lines in (("wrong", trial.wrong), ("odd", trial.odd)):
        for line in lines:
            print(f"{kind}: {line}", file=sys.stderr)
    if not trial.wrong and not trial.odd:
        print("nothing odd")
    return 1 if trial.wrong else 0
