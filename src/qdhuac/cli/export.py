"""Write policies for use elsewhere: safetensors, ONNX, and a runner that needs only NumPy."""

from __future__ import annotations

import argparse
from pathlib import Path

from qdhuac.cli.common import add_run_dir, choose, file_name, load, suggest, warn


def add(parser: argparse.ArgumentParser) -> None:
    """The options of `qdhuac export`."""
    add_run_dir(parser)
    policy = parser.add_argument(
        "--policy", default="best", help="best (default), all, nearest:0.3,0.7, id:40, or a row of the archive"
    )
    suggest(policy, ("best", "all"))
    parser.add_argument("--output", metavar="DIR", help="a new folder; default RUN_DIR/policy-best")


def run(arguments: argparse.Namespace) -> int:
    """Write a folder with the policy, or with one folder for each policy."""
    from qdhuac.exchange import export

    wanted = arguments.policy
    default = Path(arguments.run_dir) / f"policy-{file_name(wanted)}"
    output = default if arguments.output is None else Path(arguments.output)
    found = load(arguments.run_dir)
    policies = choose(found, wanted)
    export.check_output(output)
    notes = export.export(found, policies, output, each=wanted == "all")
    print(f"exported {len(policies)} of {len(found)} policies to {output}")
    warn(notes)
    return 0
