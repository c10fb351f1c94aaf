"""The report of a study: every figure in three formats, tables with the right numbers, one self-contained page."""

from __future__ import annotations

import csv
import json
import re
import shutil
import xml.etree.ElementTree as ET

import numpy as np
import pytest
from fake_study import write_study

from qdhuac import cli
from qdhuac.studies import figures, results
from qdhuac.studies.results import MEASURES, collect

FIGURES = {
    "benchmark": {"curves", "aggregate", "profiles", *(f"archives-{t}" for t in figures.NAMES)},
    "latency": {"latency", "curves"},
    "utd": {"utd"},
    "normalisation": {"curves", "relative", "final"},
    "archive": {"curves", "relative", "final", "archives-halfcheetah", "archives-humanoid"},
    "target": {"curves", "relative", "final"},
    "components": {"final"},
}


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("studies")


def table(folder, name):
    with (folder / f"{name}.csv").open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("name", FIGURES)
def test_every_study_has_its_figures(name, root):
    found = collect(write_study(root, name, "smoke", 2))
    archives = {t: {"a": (np.random.rand(9, d), np.arange(9.0), [[0.0] * d, [1.0] * d])} for t, d in ARCHIVES[name]}
    drawn = dict(figures.draw(found, archives))
    assert set(drawn) == FIGURES[name]
    for figure in drawn.values():
        assert all(axes.has_data() for axes in figure.axes if axes.get_visible())


ARCHIVES = {name: [] for name in FIGURES} | {
    "benchmark": [("hopper", 1), ("walker2d", 2), ("halfcheetah", 2), ("ant", 4), ("humanoid", 2)],
    "archive": [("halfcheetah", 2), ("humanoid", 2)],
}


def test_the_report_of_a_study_is_complete_and_self_contained(root, capsys):
    folder = write_study(root, "target", "smoke", 2)
    assert cli.main(["report", str(folder)]) == 0
    assert f"report: {folder / 'report.html'}" in capsys.readouterr().out
    for name in FIGURES["target"]:
        assert (folder / "figures" / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert (folder / "figures" / f"{name}.pdf").read_bytes().startswith(b"%PDF")
        ET.parse(folder / "figures" / f"{name}.svg")
    page = (folder / "report.html").read_text()
    assert page.count("<img ") == len(FIGURES["target"])
    assert not re.search(r'(src|href)="(?!data:)', page)
    assert "<script" not in page
    assert "Polyak 0.005" in (folder / "table.md").read_text()
    assert {row["folder"] for row in table(folder, "runs")} == {run.folder for run in collect(folder).runs}
    assert all(len(row["metrics_sha256"]) == 64 for row in table(folder, "runs"))


def test_many_missing_runs_are_one_line_in_the_terminal_and_all_named_on_the_page(tmp_path, capsys):
    folder = write_study(tmp_path, "normalisation", "smoke", 2)
    gone = [run.folder for run in collect(folder).runs[1:]]
    for name in gone:
        shutil.rmtree(tmp_path / "runs" / name)
    assert cli.main(["report", str(folder)]) == 0
    assert capsys.readouterr().err == (
        "warning: left out: 7 runs that are missing or have not come far enough; report.html names them\n"
    )
    page = (folder / "report.html").read_text()
    assert all(f"is missing ({name})" in page for name in gone)


def test_tables_hold_the_stored_numbers(root):
    folder = write_study(root, "target", "smoke", 2)
    found = collect(folder)
    head, rows = results.summary(found)
    stored = []
    for run in found.runs:
        if run.label == "Polyak 0.005":
            last = (root / "runs" / run.folder / "metrics.jsonl").read_text().splitlines()[-1]
            stored.append(json.loads(last)["max_fitness"])
    cell = next(row for row in rows if row[1] == "Polyak 0.005")[head.index("max fitness")]
    mean, spread = np.mean(stored), np.std(stored, ddof=1)
    assert cell == f"{results.short(mean)} ± {results.short(spread)}"


def test_one_seed_has_no_standard_deviation(tmp_path):
    _, rows = results.summary(collect(write_study(tmp_path, "normalisation", "smoke", 1)))
    assert all(re.fullmatch(r"-?[\d.]+( [kMG])?", cell) for row in rows for cell in row[3:])


def test_steps_to_reach_the_others_final_score(root):
    found = collect(write_study(root, "target", "smoke", 2))
    first, other = found.labels
    rows = [{"env_steps": s, **dict.fromkeys(MEASURES, float(s))} for s in (100, 200, 600)]
    slow = [{"env_steps": s, **dict.fromkeys(MEASURES, s / 4)} for s in (100, 200, 600)]
    found.curves["halfcheetah", first] = {0: rows, 1: rows}
    found.curves["halfcheetah", other] = {0: slow, 1: slow}
    _, table = results.efficiency(found)
    assert table[0] == ["halfcheetah", other, "max fitness", "150", "2 of 2", "200", "3.0"]
    found.curves["halfcheetah", first] = {0: slow, 1: rows}  # one of two is not a majority
    found.curves["halfcheetah", other] = {0: rows, 1: rows}
    assert results.efficiency(found)[1][0][4:] == ["1 of 2", "not reached", ""]


def test_false_negatives_are_pooled_over_all_runs(root):
    found = collect(write_study(root, "latency", "smoke", 2))
    lines = [
        {"env_steps": s, "probe_high": h, "probe_missed": m, "probe_missed_shadow": n, "probe_gap": g}
        for s, h, m, n, g in ((1, 0, 0, 0, None), (2, 3, 0, 3, 1.0), (3, 1, 1, 0, 2.0))
    ]
    found.curves["halfcheetah", "QDHUAC"] = {0: lines}
    _, table = results.false_negatives(found)
    assert table[0][1:] == ["4", "25.0 %", "75.0 %", "1.50"]


def test_a_relative_curve_of_the_reference_is_one(root):
    found = collect(write_study(root, "target", "smoke", 2))
    axes = figures.curves(found, relative=True).axes[0]
    mean = next(line for line in axes.lines if line.get_label() == found.labels[0])
    np.testing.assert_allclose(mean.get_ydata(), 1.0)


def test_no_two_lines_of_a_figure_differ_in_colour_alone():
    styles = [(figures.DASHES[i % len(figures.DASHES)], figures.MARKERS[i % len(figures.MARKERS)]) for i in range(7)]
    assert len(set(map(str, styles))) == 7
    assert len(set(figures.COLOURS[:7])) == 7
