"""Formatting of numbers for tables, pages and the terminal."""

from __future__ import annotations

# Phases of a generation, and their names on the display. `time_<phase>` in metrics.jsonl has their seconds.
PHASES = {"ask": "asking", "evaluate": "evaluating", "tell": "telling", "learn": "learning"}
METRICS = {"qd_score": "QD score", "coverage": "coverage", "max_fitness": "max fitness", "qd_score_auc": "QD score AUC"}


def shown(name: str, value: float | None) -> str:
    """Format the value of a metric: coverage as a percentage, others as numbers."""
    return f"{100 * (value or 0):.1f} %" if name == "coverage" else number(value)


def number(value: float | None, whole: bool = False) -> str:
    """Format a number with at most about ten characters; None is a dash."""
    if value is None:
        return "–"
    size = abs(value)
    return f"{value:,.1f}" if size < 1e3 and not whole else f"{value:,.0f}" if size < 1e7 or whole else f"{value:.3e}"


def duration(seconds: float) -> str:
    """Format seconds as h:mm:ss or m:ss."""
    minutes, s = divmod(round(seconds), 60)
    hours, m = divmod(minutes, 60)
    return f"{hours}:{m:02d}:{s:02d}" if hours else f"{m}:{s:02d}"


def one_line(text: str) -> str:
    """A text as one line, in which nothing from a file can control the terminal."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in " ".join(text.split()))
