"""Small tables for the terminal."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from qdhuac.errors import RunFailed
from qdhuac.running.files import replace_file
from qdhuac.running.progress import number


def print_evaluation(summary: Mapping[str, Any]) -> None:
    """The stored archive beside its re-evaluation."""
    from rich.console import Console
    from rich.table import Table

    table = Table()
    for heading in ("", "stored", "again"):
        table.add_column(heading, justify="left" if not heading else "right")
    for key, label in (
        ("qd_score", "QD score"),
        ("coverage", "coverage"),
        ("max_fitness", "max fitness"),
        ("mean_fitness", "mean fitness"),
    ):
        values = (summary[side][key] for side in ("stored", "again"))
        table.add_row(label, *(f"{100 * (v or 0):.1f} %" if key == "coverage" else number(v) for v in values))
    console = Console()
    console.print(table)
    console.print(
        f"mean loss of fitness {number(summary['mean_fitness_loss'])}, "
        f"spread over episodes {number(summary['mean_fitness_std'])}, failed episodes {summary['failed_episodes']}",
        highlight=False,
    )


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Replace a JSON file."""
    try:
        replace_file(path, json.dumps(content, indent=1, allow_nan=False).encode())
    except OSError as error:
        raise RunFailed(f"{path}: cannot be written ({error.strerror})") from None
