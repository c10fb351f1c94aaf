"""Progress of a run: a live display in a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from qdhuac.config import Config
from qdhuac.text import METRICS, duration, number, shown

if TYPE_CHECKING:
    from rich.console import RenderableType

PLAIN_INTERVAL = 5.0  # seconds between two plain lines
AGO = 10  # a trend compares with this many generations ago
COLUMNS = 24  # width of a small curve
BLOCKS = "▁▂▃▄▅▆▇█"


class Progress:
    """What the trainer reports to. This one shows nothing."""

    def phase(self, name: str, done: int = 0, total: int = 0) -> None:
        """A phase has begun or continues: `done` of `total`, where that is known."""

    def generation(self, line: Mapping[str, Any]) -> None:
        """A generation has ended; `line` has its metrics."""

    def note(self, text: str, *, warning: bool = False) -> None:
        """Show a message."""

    def close(self) -> None:
        """Training has ended."""


class Pace(NamedTuple):
    """Progress and rates; None where not yet known."""

    share: float  # of the goal, 0 to 1
    steps_per_s: float | None
    updates_per_s: float | None
    eta_s: float | None

    def after(self, seconds: float) -> Pace:
        """Extrapolate by `seconds`, because a generation can take minutes."""
        if not self.eta_s:
            return self
        left = max(0.0, self.eta_s - seconds)
        share = 1 - (1 - self.share) * left / self.eta_s
        return self._replace(share=min(share, max(self.share, 0.99)), eta_s=left)  # not 100 % before the end


class Session:
    """The generations of this session: progress and rates, and the trends of the four metrics."""

    def __init__(self, config: Config) -> None:
        self._goals = {"env_steps": config.run.env_steps, "generation": config.run.generations}
        self._recent: deque[Mapping[str, Any]] = deque(maxlen=10)
        self._values: dict[str, list[float | None]] = {name: [] for name in METRICS}

    def add(self, line: Mapping[str, Any]) -> Pace:
        """Add a generation. Rates are over the last ones, without the first, which compiles."""
        for name, values in self._values.items():
            values.append(line[name])
        self._recent.append(line)
        share = max(min(1.0, line[k] / goal) for k, goal in self._goals.items() if goal)
        first, span = self._recent[0], line["wall_s"] - self._recent[0]["wall_s"]
        if span <= 0:
            return Pace(share, None, None, None)
        steps = (line["env_steps"] - first["env_steps"]) / span
        learning = sum(other["time_learn"] for other in list(self._recent)[1:])
        updates = (line["gradient_updates"] - first["gradient_updates"]) / learning if learning > 0 else None
        left = [(goal - line[k]) * span / max(line[k] - first[k], 1e-9) for k, goal in self._goals.items() if goal]
        return Pace(share, steps, updates or None, max(0.0, min(left)))

    def change(self, name: str) -> float | None:
        """The difference from the value `AGO` generations ago, or from the first; None while it is unknown."""
        values = self._values[name]
        now, before = values[-1], values[max(0, len(values) - 1 - AGO)]
        return None if len(values) < 2 or now is None or before is None else now - before

    def spark(self, name: str) -> str:
        """A small curve of all values so far."""
        known = [value for value in self._values[name] if value is not None]
        if len(known) < 2:
            return ""
        columns = min(len(known), COLUMNS)
        shown = [known[round(i * (len(known) - 1) / (columns - 1))] for i in range(columns)]
        low, span = min(shown), max(shown) - min(shown)
        return "".join(BLOCKS[round((value - low) / (span or 1) * (len(BLOCKS) - 1))] for value in shown)


class Plain(Progress):
    """Prints a line every few seconds."""

    def __init__(self, config: Config) -> None:
        self._session, self._last = Session(config), -PLAIN_INTERVAL
        self._waiting: str | None = None

    def generation(self, line: Mapping[str, Any]) -> None:
        """Print a line, or keep it for later if another one has just been printed."""
        pace = self._session.add(line)
        facts = [f"generation {line['generation']:,}", f"steps {line['env_steps']:,}"]
        for name, label in METRICS.items():
            facts.append(f"{label} {shown(name, line[name])}{_arrow(self._session.change(name))}")
        self._waiting = "  ".join([*facts, f"archive {line['archive_size']:,}", *_speed(pace)])
        if time.monotonic() - self._last >= PLAIN_INTERVAL:
            self._print()

    def note(self, text: str, *, warning: bool = False) -> None:
        print(f"warning: {text}" if warning else text, flush=True)

    def close(self) -> None:
        self._print()

    def _print(self) -> None:
        if self._waiting:
            print(self._waiting, flush=True)
            self._waiting, self._last = None, time.monotonic()


class LiveDisplay(Progress):
    """A progress bar with the time left, the metrics with their trends, and the current phase."""

    def __init__(self, config: Config) -> None:
        from rich.console import Console
        from rich.live import Live
        from rich.spinner import Spinner

        self._session = Session(config)
        self._title = f"{config.algorithm} · {config.task.name} · seed {config.run.seed}"
        self._phase, self._done, self._total = "starting", 0, 0
        self._line: Mapping[str, Any] | None = None
        self._pace: Pace | None = None
        self._began = self._line_at = time.monotonic()
        self._warnings = 0
        self._spinner = Spinner("dots")
        self._console = Console()
        self._live = Live(get_renderable=self.render, console=self._console, refresh_per_second=4)
        self._live.start()

    def phase(self, name: str, done: int = 0, total: int = 0) -> None:
        self._phase, self._done, self._total = name, done, total

    def generation(self, line: Mapping[str, Any]) -> None:
        self._line, self._pace, self._line_at = line, self._session.add(line), time.monotonic()

    def note(self, text: str, *, warning: bool = False) -> None:
        self._warnings += warning
        text, style = (f"warning: {text}", "yellow") if warning else (text, None)
        self._console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)

    def close(self) -> None:
        self._phase, self._total = "done", 0
        self._live.stop()

    def render(self) -> RenderableType:
        """The display as it is now."""
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        now = time.monotonic()
        pace = self._pace.after(now - self._line_at) if self._pace else Pace(0.0, None, None, None)
        bar = Table.grid(padding=(0, 1))
        bar.add_row(
            Text(self._title, "bold"), ProgressBar(total=1.0, completed=pace.share, width=24), f"{pace.share:4.0%}"
        )
        doing = f"{self._phase} {self._done:,} of {self._total:,}" if self._total else self._phase
        if self._line is None:
            doing += " (the first generation compiles, which takes a while)"
        state = Text(doing, "dim")
        if self._warnings:
            state.append(f" · {self._warnings} warning{'s' * (self._warnings > 1)}, see above", "not dim yellow")
        self._spinner.update(text=state)
        below = self._spinner if self._phase != "done" else state
        speed = Text(" · ".join([*_speed(pace), f"running for {duration(now - self._began)}"]), "dim")
        if self._line is None:
            return Group(bar, speed, below)
        table = Table("", "now", "so far", f"last {AGO} generations", box=None, pad_edge=False, header_style="dim")
        table.columns[1].justify = table.columns[3].justify = "right"
        for name, label in METRICS.items():
            change = self._session.change(name)
            difference = "" if change is None else "+" * (change > 0) + shown(name, change) + _arrow(change)
            table.add_row(
                label, Text(shown(name, self._line[name]), "bold cyan"), self._session.spark(name), difference
            )
        counts = (("generation", "generation"), ("env_steps", "steps"), ("gradient_updates", "updates"))
        sums = [f"{label} {self._line[name]:,}" for name, label in (*counts, ("archive_size", "archive"))]
        return Group(bar, table, Text(" · ".join(sums), "dim"), speed, below)


def make(config: Config) -> Progress:
    """Return a live display if the output is a terminal, else plain lines."""
    return LiveDisplay(config) if sys.stdout.isatty() else Plain(config)


def mean(lines: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return the mean metrics of several runs. Whole numbers are rounded; only what all runs have is averaged."""
    if len(lines) == 1:
        return lines[0]
    means = dict(lines[0])
    for name, value in means.items():
        values = [line[name] for line in lines if line.get(name) is not None]
        if len(values) == len(lines):
            average = sum(values) / len(values)
            means[name] = round(average) if isinstance(value, int) else average
    return means


def _arrow(change: float | None) -> str:
    """An arrow for a change, or nothing while it is unknown."""
    return "" if change is None else " ↑" if change > 0 else " ↓" if change < 0 else " ="


def _speed(pace: Pace) -> list[str]:
    rates = {"steps": pace.steps_per_s, "updates": pace.updates_per_s}
    out = [f"{number(rate)} {name}/s" for name, rate in rates.items() if rate is not None]
    return out if pace.eta_s is None else [*out, f"ETA {duration(pace.eta_s)}"]
