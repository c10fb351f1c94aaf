"""Measure the speed of learner, rollouts, archive and replay buffer on this machine."""

from __future__ import annotations

import argparse
import json

from qdhuac.bench import BENCHES


def add(parser: argparse.ArgumentParser) -> None:
    """The options of `qdhuac bench`."""
    text = f"one of: {', '.join(BENCHES)}; default all"
    parser.add_argument("name", nargs="?", metavar="NAME", choices=BENCHES, help=text)
    parser.add_argument("--json", action="store_true", help="print one list of JSON objects instead of a table")


def run(arguments: argparse.Namespace) -> int:
    """Print the measurements."""
    from qdhuac import bench
    from qdhuac.environment import prepare_jax

    prepare_jax()
    results = bench.run(BENCHES if arguments.name is None else (arguments.name,))
    if arguments.json:
        print(json.dumps(bench.as_objects(results), indent=1, allow_nan=False))
    else:
        bench.print_table(results)
    return 0
