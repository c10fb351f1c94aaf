"""`qdhuac bench`: the speed of learner, rollouts, archive and replay buffer, each relative to a reference."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # imports JAX, which the command line does last
    from qdhuac.bench.timing import Result

BENCHES = ("learner", "rollout", "archive", "replay")


def run(names: Iterable[str] = BENCHES) -> list[Result]:
    """Return the results of the named benches. Progress goes to stderr."""
    results: list[Result] = []
    for name in names:
        for result in importlib.import_module(f"qdhuac.bench.{name}").measure():
            print(f"bench {name}: {result.case} done", file=sys.stderr, flush=True)
            results.append(result)
    return results


def as_objects(results: Sequence[Result]) -> list[dict[str, Any]]:
    """What `--json` prints: one flat object per result."""
    return [{name: value for name, value in (vars(r) | r.extra).items() if name != "extra"} for r in results]


def print_table(results: Sequence[Result]) -> None:
    """Print the results as a table."""
    from rich.console import Console
    from rich.table import Table

    table = Table()
    for heading in ("bench", "value", "unit", "ratio", "against", "GFLOP/s"):
        table.add_column(heading, justify="right" if heading in ("value", "ratio", "GFLOP/s") else "left")
    for r in results:
        speed = f"{r.extra['gflops']:.1f}" if "gflops" in r.extra else ""
        table.add_row(f"{r.bench} {r.case}", f"{r.value:,.4g}", r.unit, f"{r.ratio:.3g}", r.against, speed)
    Console().print(table)
