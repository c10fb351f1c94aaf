"""Continue a run, also beyond its first goal."""

from __future__ import annotations

import argparse
from pathlib import Path

from qdhuac.cli.common import add_run_dir, add_training, changes, process, write_reports


def add(parser: argparse.ArgumentParser) -> None:
    """The options of `qdhuac resume`."""
    add_run_dir(parser)
    add_training(parser, "keys of section run")


def run(arguments: argparse.Namespace) -> int:
    """Train on; returns the exit code."""
    wanted, together, path = changes(arguments), process(arguments.process), Path(arguments.run_dir)
    from qdhuac.training import launch, loggers

    loggers.check(arguments.log)
    code = launch.resume(path, wanted, process=together, log=arguments.log)
    if code == 0 and together.rank == 0:
        write_reports(path)
    return code
