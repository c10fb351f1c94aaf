"""Numbers as tables, pages and the terminal show them. One place, so that they agree."""

from __future__ import annotations

# The phases of a generation as the display names them; metrics.jsonl has the seconds of each as time_<phase>.
PHASES = {"ask": "asking", "evaluate": "evaluating", "tell": "telling", "learn": "learning"}
METRICS = {"qd_score": "QD score", "coverage": "coverage", "max_fitness": "max fitness", "qd_score_auc": "QD score AUC"}


def shown(name: str, value: float | None) -> str:
    """A metric as every table and page shows it: coverage as a percentage."""
    return f"{100 * (value or 0):.1f} %" if name == "coverage" else number(value)


def number(value: float | None, whole: bool = False) -> str:
    """A number of readable length."""
    if value is None:
        return "–"
    size = abs(value)
    return f"{value:,.1f}" if size < 1e3 and not whole else f"{value:,.0f}" if size < 1e7 or whole else f"{value:.3e}"


def duration(seconds: float) -> str:
    """Seconds as h:mm:ss or m:ss."""
    minutes, s = divmod(round(seconds), 60)
    hours, m = divmod(minutes, 60)
    return f"{hours}:{m:02d}:{s:02d}" if hours else f"{m}:{s:02d}"
