"""The display of a run: numbers, trends, times and warnings, live or as plain lines."""

import pytest
from rich.console import Console
from toys import toy_config

from qdhuac.training import display as progress
from qdhuac.training.display import LiveDisplay, Pace, Plain, Session

LINE = {
    "generation": 1,
    "env_steps": 60,
    "gradient_updates": 0,
    "qd_score": 1234.5,
    "coverage": 0.25,
    "max_fitness": None,
    "qd_score_auc": 1e9,
    "archive_size": 5,
    "wall_s": 10.0,
    "time_learn": 0.0,
}
LATER = {
    **LINE,
    "generation": 2,
    "env_steps": 120,
    "wall_s": 12.0,
    "gradient_updates": 30,
    "time_learn": 1.5,
    "qd_score": 1300.0,
    "coverage": 0.24,
}


@pytest.fixture
def clock(monkeypatch):
    """A clock that moves only when it is set."""
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def picture(display):
    console = Console(width=80)
    with console.capture() as captured:
        console.print(display.render())
    return captured.get()


def test_displays_show_the_four_metrics_with_their_trend_and_the_time_left(capsys, clock):
    settings = toy_config(learning=True)
    live, plain = LiveDisplay(settings), Plain(settings)
    for display in (live, plain):
        display.generation(LINE)
        display.generation(LATER)
    live.phase("learning", 7, 30)
    seen = picture(live)
    live.close()
    plain.close()
    for text in (seen, capsys.readouterr().out):
        for word in ("1,300", "24.0 %", "–", "1.000e+09", "↑", "↓", "=", "30.0 steps/s", "20.0 updates/s", "ETA 0:08"):
            assert word in text, (word, text)
    for word in ("learning 7 of 30", "+65.5", "-1.0 %", "▁█", "33%", "running for 0:00", "updates 30"):
        assert word in seen, (word, seen)
    assert max(map(len, seen.splitlines())) <= 80
    assert "warning" not in seen


def test_a_live_display_counts_down_between_generations_and_remembers_warnings(clock):
    live = LiveDisplay(toy_config())
    live.generation(LINE)
    live.generation(LATER)
    clock[0] += 4
    seen = picture(live)
    assert "ETA 0:04" in seen
    assert "67%" in seen  # a third was done, and half of the time for the rest has passed
    clock[0] += 100
    assert "99%" in picture(live)
    live.note("generation 2: odd", warning=True)
    live.note("something else")
    assert "1 warning, see above" in picture(live)
    live.close()


def test_before_the_first_generation_no_metrics_are_shown(clock):
    live = LiveDisplay(toy_config())
    clock[0] += 65
    seen = picture(live)
    live.close()
    assert "starting (the first generation compiles" in seen
    assert "running for 1:05" in seen
    assert "ETA" not in seen


def test_plain_lines_come_at_most_every_few_seconds_and_the_last_one_always(capsys, clock):
    plain = Plain(toy_config())
    plain.generation(LINE)
    clock[0] += progress.PLAIN_INTERVAL / 2
    plain.generation(LATER)
    assert capsys.readouterr().out.count("\n") == 1
    plain.close()
    assert capsys.readouterr().out.startswith("generation 2 ")
    plain.close()
    assert capsys.readouterr().out == ""


def test_a_trend_looks_back_some_generations_and_draws_all():
    trend = Session(toy_config())
    for n in range(100):
        trend.add({**LINE, "qd_score": float(n), "coverage": 0.5})
    assert trend.change("qd_score") == progress.AGO
    assert trend.change("coverage") == 0
    assert trend.change("max_fitness") is None
    assert trend.spark("qd_score")[0] + trend.spark("qd_score")[-1] == "▁█"
    assert len(trend.spark("qd_score")) == progress.COLUMNS
    assert set(trend.spark("coverage")) == {"▁"}
    assert trend.spark("max_fitness") == ""


def test_the_goal_that_comes_first_decides_how_long_it_takes():
    meter = Session(toy_config(run__generations=6, run__env_steps=180))
    assert meter.add(LINE) == Pace(pytest.approx(1 / 3), None, None, None)
    assert meter.add(LATER).eta_s == pytest.approx(2.0)  # one generation, not four
