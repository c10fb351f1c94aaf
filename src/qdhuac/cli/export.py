"""Export policies: safetensors, ONNX, and a runner that needs only NumPy."""

from __future__ import annotations

import argparse
from pathlib import Path

from qdhuac.cli.common import add_policy, choose, file_name, load, warn


def add(parser: argparse.ArgumentParser) -> None:
    """The options of `qdhuac export`."""
    parser.add_argument("run_dir", metavar="RUN_DIR")
    add_policy(parser, "best", "all")
    parser.add_argument("--output", metavar="DIR", help="a new folder; default RUN_DIR/policy-best")


def run(arguments: argparse.Namespace) -> int:
    """Write a folder with the policy, or with a folder for each policy."""
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
