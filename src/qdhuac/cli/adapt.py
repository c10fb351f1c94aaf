"""Find a policy that works on a damaged robot in a few trials."""

from __future__ import annotations

import argparse
import json

from qdhuac.cli.common import add_number, add_seed, load, require_robot


def add(parser: argparse.ArgumentParser) -> None:
    """The options of `qdhuac adapt`."""
    parser.add_argument("run_dir", metavar="RUN_DIR")
    text = "a motor or limb and its strength from 0 to 1, or blocked; mass:BODY=FACTOR; friction=FACTOR"
    parser.add_argument("--damage", nargs="+", action="extend", default=[], metavar="NAME=FACTOR", help=text)
    add_number(parser, "--trials", "at most N trials, default 10", high=100_000, default=10)
    add_seed(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")


def run(arguments: argparse.Namespace) -> int:
    """Print the trials and the policy that was found."""
    from qdhuac.adaptation.damage import parse
    from qdhuac.environment import prepare_jax, require

    damages = parse(arguments.damage)
    found = load(arguments.run_dir)
    require_robot(found)
    require("sklearn", "adapt")
    prepare_jax()
    from qdhuac.adaptation.adapt import adapt
    from qdhuac.report.tables import print_adaptation

    result = adapt(found, damages, trials=arguments.trials, seed=arguments.seed)
    if arguments.json:
        print(json.dumps(result, indent=1, allow_nan=False))
    else:
        print_adaptation(result)
    return 0
