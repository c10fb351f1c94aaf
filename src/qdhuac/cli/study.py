"""Make all runs of a figure of the paper, or continue an interrupted study."""

from __future__ import annotations

import argparse
from pathlib import Path

from qdhuac.cli.common import add_number
from qdhuac.studies.catalogue import MOST_SEEDS, SCALES, STUDIES


def add(parser: argparse.ArgumentParser) -> None:
    """The options of `qdhuac study`."""
    parser.add_argument("name", metavar="NAME", choices=tuple(STUDIES), help=f"one of: {', '.join(STUDIES)}")
    text = "smoke (minutes), laptop (hours, default) or paper"
    parser.add_argument("--scale", metavar="NAME", choices=SCALES, default="laptop", help=text)
    add_number(parser, "--seeds", "N seeds, from 100 on; default: smoke 2, laptop 3, paper 5", high=MOST_SEEDS)
    text = "where runs and studies are kept, default studies"
    parser.add_argument("--root", default="studies", metavar="DIR", help=text)
    text = "local (default); ray or slurm (extras of that name)"
    parser.add_argument("--executor", metavar="NAME", choices=("local", "ray", "slurm"), default="local", help=text)
    text = "runs at a time; default the number of cores, at scale paper 1, on a cluster all"
    add_number(parser, "--jobs", text, high=1000)
    parser.add_argument("--dry-run", action="store_true", help="list the runs and which are missing, and stop")


def run(arguments: argparse.Namespace) -> int:
    """Make the missing runs. Returns the exit code."""
    from qdhuac.studies.commands import study

    a = arguments
    return study(a.name, a.scale, a.seeds, Path(a.root), a.jobs, a.dry_run, a.executor)
