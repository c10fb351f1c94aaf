"""Write report.html from the stored files of a run or a study."""

from __future__ import annotations

import argparse
from pathlib import Path

from qdhuac.cli.common import warn, write_reports


def add(parser: argparse.ArgumentParser) -> None:
    """The options of `qdhuac report`."""
    parser.add_argument("run_dir", metavar="DIR")


def run(arguments: argparse.Namespace) -> int:
    """Write the page and print where it is."""
    from qdhuac.studies.folder import STUDY

    path = Path(arguments.run_dir)
    if (path / STUDY).exists():
        from qdhuac.report.study_page import write_report

        page, notes = write_report(path)
        print(f"report: {page}")
        warn(notes)
    else:
        write_reports(path)
    return 0
