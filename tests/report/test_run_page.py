"""The report: complete, self-contained, and safe to open whatever the files contain."""

import json
import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest
from toys import toy_config

from qdhuac import cli
from qdhuac.report import run_figures as figures
from qdhuac.report import run_page as report

ROW = {
    "generation": 1,
    "env_steps": 60,
    "gradient_updates": 30,
    "qd_score": 12345.6,
    "coverage": 0.25,
    "max_fitness": None,
    "qd_score_auc": 1.0,
    "archive_size": 3,
    "archive_mean_fitness": 1.5,
    "wall_s": 3.0,
    "time_evaluate": 2.0,
    "isoline/tried": 4,
    "isoline/survived": 3,
    "isoline/fitness": 2.0,
    "isoline/gain": None,
    "critic_loss": 0.5,
}
HOSTILE = '<script>alert("x")</script>&\n'


def found(size, n=5):
    rng = np.random.default_rng(0)
    bounds = [[0.0] * size, [1.0] * size]
    arrays = {"fitness": rng.normal(size=n), "descriptor": rng.random((n, size))}
    return arrays, {"descriptor_bounds": bounds, "operators": ["random", "isoline"]}


@pytest.mark.parametrize("size", [1, 2, 3, 4, 6])
def test_the_page_has_all_parts(size):
    rows = [ROW, {**ROW, "generation": 2, "env_steps": 120, "max_fitness": 7.0}]
    page = report.render("a run", toy_config(), rows, found(size))
    for text in (
        "QD score",
        "coverage (%)",
        "max fitness",
        "mean fitness of the archive",
        "12,346",
        "25.0 %",
        "isoline",
    ):
        assert text in page, text
    assert "75.0 %" in page  # of Iso+Line's children survived
    assert page.count("<svg") == 4 + 1 + 1  # curves, archive, critic loss
    for picture in re.findall(r"<svg.*?</svg>", page, re.DOTALL):
        ET.fromstring(picture)
    assert "descriptor 1" in page or size == 1


def test_names_of_descriptors():
    assert figures.descriptor_labels({"labels": ["final x", "final y"]}, 2) == ["final x", "final y"]
    assert figures.descriptor_labels({"labels": ["final x"]}, 2) == ["descriptor 1", "descriptor 2"]
    assert figures.descriptor_labels({}, 2) == ["descriptor 1", "descriptor 2"]


def test_diagnostics_show_every_other_metric_that_is_not_always_zero():
    rows = [ROW | {"warning_values": 0, "q_mean": 0.0, "devices": 1, "archive_coverage": 0.5}, ROW | {"q_mean": 2.0}]
    page = report.render("a run", toy_config(), rows, found(2))
    shown = page.partition("<h2>Diagnostics</h2>")[2].partition("<h2>")[0]
    assert "critic loss" in shown
    assert "q mean" in shown
    assert not re.search("warning values|devices|archive coverage|isoline|wall s", shown)


def test_the_page_loads_nothing_and_runs_no_script():
    page = report.render("a run", toy_config(), [ROW], found(2))
    assert "<script" not in page
    assert not re.findall(r'(?:src|href)="(?!data:|#)', page)
    assert "url(http" not in page


def test_markup_in_names_is_shown_as_text():
    row = {**ROW, f"{HOSTILE}/tried": 1, HOSTILE.replace("/", "|"): 3.0}
    arrays, metadata = found(2)
    page = report.render(HOSTILE, toy_config(), [row], (arrays, metadata | {"operators": [HOSTILE]}))
    assert "<script" not in page
    assert "&lt;script&gt;" in page


def test_without_an_archive_or_with_an_empty_one():
    assert "The archive" not in report.render("x", toy_config(), [ROW], None)
    assert "The archive" not in report.render("x", toy_config(), [ROW], found(2, n=0))


def test_curves_of_long_runs_are_thinned_but_keep_their_last_point():
    rows = [{**ROW, "generation": i, "env_steps": i} for i in range(5555)]
    thin = report._thinned(rows)
    assert len(thin) <= report.MOST_POINTS + 1
    assert (thin[0], thin[-1]) == (rows[0], rows[-1])


def test_figures_take_the_colour_of_the_page():
    text = figures.svg(figures.curve([0, 1], [1.0, 2.0], "<&> $x"))
    assert "currentColor" in text
    assert "&lt;&amp;&gt; $x" in text


def test_the_best_individual_is_in_the_page_or_the_reason_why_not():
    page = report.render("a run", toy_config(), [ROW], found(2), film=b"GIF89a")
    assert 'src="data:image/gif;base64,R0lGODlh"' in page
    page = report.render("a run", toy_config(), [ROW], found(2), film=f"not filmed: {HOSTILE}")
    assert "not filmed: &lt;script&gt;" in page
    assert "<img" not in page


def cells(page, heading):
    """The table below a heading, as rows of text."""
    table = page.partition(heading)[2].partition("</table>")[0]
    return [re.findall(r"<t[dh]>(.*?)</t[dh]>", row) for row in re.findall(r"<tr>(.*?)</tr>", table)]


def near(text, value):
    """Whether a displayed number is the stored one, within half of its last digit."""
    if value is None:
        return text == "–"
    share = text.endswith("%")
    bare = text.removesuffix(" %").replace(",", "")
    digits = len(bare.partition("e")[0].partition(".")[2])
    slack = 0.501 * 10.0 ** (int(bare.partition("e")[2] or 0) - digits)
    return abs(float(bare) - (100 if share else 1) * value) <= slack


def test_near_distinguishes_a_share_from_a_percentage():
    assert near("2.3 %", 0.0234)
    assert not near("0.0", 0.234)
    assert near("1.235e+08", 123_456_789.0)
    assert not near("1.24e+08", 123_456_789.0)
    assert near("–", None)


def test_report_terminal_and_files_say_the_same(toys, tmp_path, capsys):
    run = tmp_path / "run"
    options = ["--preset", "smoke", "--generations", "5", "--run-dir", str(run), "--set", "learner.utd=0.1"]
    assert cli.main(["train", *options]) == 0
    trained = capsys.readouterr().out
    assert cli.main(["evaluate", str(run), "--episodes", "2"]) == 0
    evaluated = capsys.readouterr().out
    assert cli.main(["report", str(run)]) == 0
    page = (run / "report.html").read_text()
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    last = rows[-1]

    # The tiles and the terminal's last line against metrics.jsonl.
    tiles = {label: value for value, label in re.findall(r'class="tile"><b>(.*?)</b><span>(.*?)</span>', page)}
    line = [text for text in trained.splitlines() if text.startswith("generation ")][-1] + "  "
    for label, name in {
        "QD score": "qd_score",
        "coverage": "coverage",
        "max fitness": "max_fitness",
        "QD score AUC": "qd_score_auc",
        "archive size": "archive_size",
        "environment steps": "env_steps",
        "gradient updates": "gradient_updates",
        "generations": "generation",
    }.items():
        assert near(tiles.pop(label), last[name]), label
        said = {"archive size": "archive", "environment steps": "steps", "generations": "generation"}.get(label, label)
        if label != "gradient updates":
            found = re.search(rf"{said} (\S+(?: %)?)", line)
            assert near(found[1], last[name]), label
    assert tiles.keys() == {"wall time"}

    # Who survived and how long it took, against sums over metrics.jsonl.
    operators = {row[0]: row for row in cells(page, "<h2>Operators</h2>")[1:]}
    assert operators.keys() >= {"isoline"}
    for name, row in operators.items():
        tried, survived = (sum(r.get(f"{name}/{key}", 0) for r in rows) for key in ("tried", "survived"))
        assert near(row[1], tried)
        assert near(row[2], survived)
        assert near(row[3], survived / tried)
    times = {name: sum(r.get(f"time_{name}", 0.0) for r in rows) for name, *_ in cells(page, "<h2>Time</h2>")[1:]}
    for name, _, share in cells(page, "<h2>Time</h2>")[1:]:
        assert near(share, times[name] / sum(times.values()))

    # The archive again, in the page and in the terminal, against evaluation.json.
    again = json.loads((run / "evaluation.json").read_text())
    printed = {
        cells_[0]: cells_[1:]
        for text in evaluated.splitlines()
        if len(cells_ := [cell.strip() for cell in text.strip("│ ").split("│")]) == 3
    }
    names = {
        "QD score": "qd_score",
        "coverage": "coverage",
        "max fitness": "max_fitness",
        "mean fitness": "mean_fitness",
    }
    for label, *values in cells(page, "<h2>Evaluated again, 2 times each</h2>")[1:]:
        assert values == printed[label]
        stored = [again[side][names[label]] for side in ("stored", "again")]
        assert all(map(near, values, stored)), label
        assert label != "coverage" or all(value.endswith(" %") for value in values)
    assert again["stored"]["qd_score"] == pytest.approx(last["qd_score"], rel=0.5)  # the archive, not the passive grid
