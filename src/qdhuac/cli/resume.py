"""Continue a run, also beyond its first goal."""

from __future__ import annotations

import argparse
from pathlib import Path

from qdhuac.algorithms import specs
from qdhuac.cli.common import add_training, changes, process, write_reports


def add(parser: argparse.ArgumentParser) -> None:
    """The options of `qdhuac resume`."""
    parser.add_argument("run_dir", metavar="RUN_DIR")
    parser.add_argument("--algorithm", metavar="MODULE:NAME", help="needed if the run has one from outside of qdhuac")
    add_training(parser, "keys of section run")


def run(arguments: argparse.Namespace) -> int:
    """Train. Returns the exit code."""
    wanted, together, path = changes(arguments), process(arguments.process), Path(arguments.run_dir)
    from qdhuac.training import launch

    outside = None if arguments.algorithm is None else specs.algorithm(arguments.algorithm)
    code = launch.resume(path, wanted, process=together, log=arguments.log, algorithm=outside)
    if code == 0 and together.rank == 0:
        write_reports(path)
    return code
