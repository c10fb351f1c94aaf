"""Tables for the terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from qdhuac.text import METRICS, number, shown

# The metrics of a re-evaluated archive.
EVALUATED = {
    name: METRICS.get(name, "mean fitness") for name in ("qd_score", "coverage", "max_fitness", "mean_fitness")
}


def evaluation_rows(summary: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Return a row for each metric: its name, stored, and evaluated again."""
    return [
        (label, shown(key, summary["stored"].get(key)), shown(key, summary["again"].get(key)))
        for key, label in EVALUATED.items()
    ]


def print_evaluation(summary: Mapping[str, Any]) -> None:
    """Print the stored archive and its re-evaluation."""
    from rich.console import Console
    from rich.table import Table

    table = Table()
    for heading in ("", "stored", "again"):
        table.add_column(heading, justify="left" if not heading else "right")
    for row in evaluation_rows(summary):
        table.add_row(*row)
    console = Console()
    console.print(table)
    console.print(
        f"{summary['kept']} of {len(summary['individuals'])} keep 80 % of their fitness, "
        f"mean loss {number(summary['mean_fitness_loss'])}, "
        f"spread over episodes {number(summary['mean_fitness_std'])}, failed episodes {summary['failed_episodes']}",
        highlight=False,
    )


def print_adaptation(result: Mapping[str, Any]) -> None:
    """Print the trials of an adaptation, the policy that was found, and the command that exports it."""
    from rich.console import Console
    from rich.table import Table

    found, first = result["best"], result["trials"][0]
    table = Table(title=f"after {', '.join(result['damage'])}")
    for heading in ("trial", "individual", "descriptor", "before", "expected", "after"):
        table.add_column(heading, justify="left" if heading == "descriptor" else "right")
    for i, row in enumerate(result["trials"], 1):
        descriptor = ", ".join(f"{x:.2f}" for x in row["descriptor"])
        numbers = (row[name] for name in ("fitness_before", "expected", "fitness_after"))
        is_best = row["index"] == found["index"]
        values = (str(i), str(row["index"]), descriptor, *map(number, numbers))
        table.add_row(*values, style="bold" if is_best else None)
    console = Console()
    console.print(table)
    console.print(
        f"individual {found['index']}: fitness {number(found['fitness_before'])} before the damage, "
        f"{number(found['fitness_after'])} after; the archive's best, individual {first['index']}, has "
        f"{number(first['fitness_after'])} after\n"
        + ("no other policy is expected to do much better" if result["good_enough"] else "no trials are left")
        + f": qdhuac export {result['run']} --policy {found['index']} --output DIR",
        highlight=False,
        soft_wrap=True,
    )
