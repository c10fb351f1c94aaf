"""The report: complete, self-contained, and safe to open whatever the files hold."""

import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest
from conftest import toy_config

from qdhuac.analysis import figures, report

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
    return arrays, {"descriptor_bounds": bounds}


@pytest.mark.parametrize("size", [1, 2, 3, 4, 6])
def test_all_parts_are_there(size):
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
    assert "foot 1 on the ground" in page or size == 1


def test_nothing_is_loaded_or_run():
    page = report.render("a run", toy_config(), [ROW], found(2))
    assert "<script" not in page
    assert not re.findall(r'(?:src|href)="(?!data:|#)', page)
    assert "url(http" not in page


def test_hostile_names_are_only_text():
    row = {**ROW, f"{HOSTILE}/tried": 1, HOSTILE.replace("/", "|"): 3.0}
    page = report.render(HOSTILE, toy_config(), [row], None)
    assert "<script" not in page
    assert "&lt;script&gt;" in page


def test_without_an_archive_or_with_an_empty_one():
    assert "The archive" not in report.render("x", toy_config(), [ROW], None)
    assert "The archive" not in report.render("x", toy_config(), [ROW], found(2, n=0))


def test_long_runs_are_thinned_but_keep_their_end():
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
