"""List tasks, algorithms with their presets, archives and emitters."""

from __future__ import annotations

import argparse
import textwrap

from qdhuac.algorithms import specs
from qdhuac.tasks.task_file import TASKS, builtin

WIDTH = 100


def add(parser: argparse.ArgumentParser) -> None:
    """`qdhuac list` has no options."""


def run(arguments: argparse.Namespace) -> int:
    """Print a line for each."""
    sections = {
        "tasks (--task)": {
            name: f"{purpose} [descriptors: {', '.join(builtin(name).descriptors)}]" for name, purpose in TASKS.items()
        },
        "algorithms (--algorithm)": {
            spec.name: f"{spec.title}: {spec.purpose} [presets: {', '.join(spec.presets)}]"
            for spec in specs.ALGORITHMS.values()
        },
        "archives (--set archive.kind=NAME)": {spec.name: spec.purpose for spec in specs.ARCHIVES.values()},
        "emitters (as metrics name them)": {
            spec.name: f"{spec.title}: {spec.purpose}" for spec in specs.EMITTERS.values()
        },
    }
    for heading, entries in sections.items():
        print(heading)
        for name, text in entries.items():
            print(textwrap.fill(f"  {name:15s}{text}", WIDTH, subsequent_indent=" " * 17))
        print()
    return 0
