"""What a person sees of a run: a live display in a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from qdhuac.config import Config

if TYPE_CHECKING:
    from rich.console import RenderableType

PLAIN_INTERVAL = 5.0  # seconds between two plain lines


class Progress(Protocol):
    """What the runner reports to."""

    def phase(self, name: str, done: int = 0, total: int = 0) -> None:
        """What is going on now, and how much of it is done, if that is known."""

    def generation(self, line: Mapping[str, Any]) -> None:
        """A generation has ended with this line of metrics."""

    def note(self, text: str) -> None:
        """Something the user should know."""

    def close(self) -> None:
        """The end."""


class Silent:
    """Reports nothing: for tests and embedding programs."""

    def phase(self, name: str, done: int = 0, total: int = 0) -> None: ...

    def generation(self, line: Mapping[str, Any]) -> None: ...

    def note(self, text: str) -> None: ...

    def close(self) -> None: ...


class Pace(NamedTuple):
    """How fast it goes; None while nothing is known."""

    share: float  # of the goal, 0 to 1
    steps_per_s: float | None
    updates_per_s: float | None
    eta_s: float | None


class Meter:
    """Rates over the last generations; the first one of a session is left out, because it compiles."""

    def __init__(self, config: Config) -> None:
        self.goals = {"env_steps": config.run.env_steps, "generation": config.run.generations}
        self._recent: deque[Mapping[str, Any]] = deque(maxlen=10)

    def add(self, line: Mapping[str, Any]) -> Pace:
        self._recent.append(line)
        share = max(min(1.0, line[k] / goal) for k, goal in self.goals.items() if goal)
        first, span = self._recent[0], line["wall_s"] - self._recent[0]["wall_s"]
        if span <= 0:
            return Pace(share, None, None, None)
        steps = (line["env_steps"] - first["env_steps"]) / span
        learning = sum(other["time_learn"] for other in list(self._recent)[1:])
        updates = (line["gradient_updates"] - first["gradient_updates"]) / learning if learning > 0 else None
        left = [(goal - line[k]) * span / max(line[k] - first[k], 1e-9) for k, goal in self.goals.items() if goal]
        return Pace(share, steps, updates or None, max(0.0, min(left)))


class Plain:
    """One line every few seconds, for logs."""

    def __init__(self, config: Config) -> None:
        self._meter, self._last = Meter(config), -PLAIN_INTERVAL
        self._unsaid: str | None = None

    def phase(self, name: str, done: int = 0, total: int = 0) -> None: ...

    def generation(self, line: Mapping[str, Any]) -> None:
        """A line now, or later if the last one was a moment ago."""
        facts = [f"{name} {value}" for name, value in _facts(line).items()]
        self._unsaid = "  ".join([*facts, *_speed(self._meter.add(line))])
        if time.monotonic() - self._last >= PLAIN_INTERVAL:
            self._say()

    def note(self, text: str) -> None:
        print(text, flush=True)

    def close(self) -> None:
        self._say()

    def _say(self) -> None:
        if self._unsaid:
            print(self._unsaid, flush=True)
            self._unsaid, self._last = None, time.monotonic()


class LiveDisplay:
    """A bar with the time that is left, and the metrics below it."""

    def __init__(self, config: Config) -> None:
        from rich.console import Console
        from rich.live import Live

        self._meter = Meter(config)
        self._title = f"{config.algorithm} · {config.task.name} · seed {config.run.seed}"
        self._phase, self._done, self._total = "starting", 0, 0
        self._line: Mapping[str, Any] | None = None
        self._pace: Pace | None = None
        self._console = Console()
        self._live = Live(get_renderable=self.render, console=self._console, refresh_per_second=4)
        self._live.start()

    def phase(self, name: str, done: int = 0, total: int = 0) -> None:
        self._phase, self._done, self._total = name, done, total

    def generation(self, line: Mapping[str, Any]) -> None:
        self._line, self._pace = line, self._meter.add(line)

    def note(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def close(self) -> None:
        self._phase = "done"
        self._live.stop()

    def render(self) -> RenderableType:
        """The display at this moment."""
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        share = self._pace.share if self._pace else 0.0
        bar = Table.grid(padding=(0, 1))
        bar.add_row(Text(self._title, "bold"), ProgressBar(total=1.0, completed=share, width=24), f"{share:4.0%}")
        doing = f"{self._phase} {self._done:,} of {self._total:,}" if self._total else self._phase
        if self._line is None or self._pace is None:
            return Group(bar, Text(f"{doing} (the first generation compiles, which takes a while)", "dim"))
        facts = _facts(self._line)
        table = Table(*facts, box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
        table.add_row(*facts.values(), style="cyan")
        return Group(bar, table, Text(" · ".join([*_speed(self._pace), doing]), "dim"))


def make(config: Config) -> Progress:
    """The display that suits where the output goes."""
    return LiveDisplay(config) if sys.stdout.isatty() else Plain(config)


def _facts(line: Mapping[str, Any]) -> dict[str, str]:
    return {
        "generation": f"{line['generation']:,}",
        "steps": f"{line['env_steps']:,}",
        "QD score": number(line["qd_score"]),
        "coverage": f"{100 * (line['coverage'] or 0):.1f} %",
        "max fitness": number(line["max_fitness"]),
        "QD AUC": number(line["qd_score_auc"]),
        "archive": f"{line['archive_size']:,}",
    }


def _speed(pace: Pace) -> list[str]:
    out = []
    if pace.steps_per_s is not None:
        out.append(f"{number(pace.steps_per_s)} steps/s")
    if pace.updates_per_s is not None:
        out.append(f"{number(pace.updates_per_s)} updates/s")
    if pace.eta_s is not None:
        out.append(f"ETA {duration(pace.eta_s)}")
    return out


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
