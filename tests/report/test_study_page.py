"""The report of a study: every figure in three formats, tables with the right numbers, one self-contained page."""

from __future__ import annotations

import csv
import json
import re
import shutil
import xml.etree.ElementTree as ET

import numpy as np
import pytest
from fake_study import write_run, write_study

from qdhuac import cli, config
from qdhuac.errors import UserError
from qdhuac.report import study_archives, study_tables
from qdhuac.report import study_figures as figures
from qdhuac.store.run_folder import REPERTOIRE, RunDir
from qdhuac.studies import catalogue, results
from qdhuac.studies.catalogue import Setting, Study
from qdhuac.studies.results import MEASURES, collect

FIGURES = {
    "benchmark": {"curves", "aggregate", "profiles", "kept", *(f"archives-{t}" for t in catalogue.TASKS)},
    "latency": {"probe", "curves"},
    "utd": {"over", "curves-normalised", "curves-unnormalised"},
    "normalisation": {"curves", "relative", "final"},
    "archive": {"curves", "relative", "final", "kept", "archives-halfcheetah", "archives-humanoid"},
    "target": {"curves", "relative", "final"},
    "components": {"final", "curves-1", "relative-1", "curves-2", "relative-2"},
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
    drawn = {name: figure for name, figure, _ in figures.draw(found)}
    assert set(drawn) == FIGURES[name]
    for figure in drawn.values():
        assert all(axes.has_data() for axes in figure.axes if axes.get_visible())


@pytest.mark.parametrize("name", FIGURES)
def test_results_are_the_same_from_runs_and_from_their_csv_file(name, root, tmp_path):
    found = collect(write_study(root, name, "smoke", 2))
    with (tmp_path / "results.csv").open("w", newline="") as file:
        head, rows = results.as_csv(found)
        csv.writer(file).writerows([head, *rows])
    again = results.read_csv(tmp_path / "results.csv")
    assert results.as_csv(again) == (head, rows)
    assert list(study_tables.tables(again)) == list(study_tables.tables(found))
    drawn = {name for name, *_ in figures.draw(again)}
    assert drawn == {name for name in FIGURES[name] if not name.startswith("archives-")}  # those need the runs


def test_a_csv_file_with_settings_that_the_catalogue_lacks_can_be_read(root, tmp_path):
    head, rows = results.as_csv(collect(write_study(root, "target", "smoke", 2)))
    old = [[cell.replace("Polyak 0.005", "Polyak 0.01") for cell in row] for row in rows]
    with (tmp_path / "results.csv").open("w", newline="") as file:
        csv.writer(file).writerows([head, *old])
    assert results.read_csv(tmp_path / "results.csv").labels == ["no target network", "Polyak 0.01"]


@pytest.mark.parametrize("text", ["", "a,b\n1,2\n", "study,scale,task,setting,seed\nutd,laptop,ant,x,one\n"])
def test_a_file_that_is_not_a_study_is_refused_by_name(tmp_path, text):
    path = tmp_path / "results.csv"
    path.write_text(text)
    with pytest.raises(UserError, match=r"results\.csv: not the CSV file of a study"):
        results.read_csv(path)


def test_a_new_study_is_one_entry_of_the_catalogue(tmp_path, monkeypatch):
    def discount(scale):
        settings = tuple(
            Setting(f"{group} {x:g}", changes={"learner.discount": x, **changes}, group=group, x=x)
            for group, changes in (("one critic", {"critic.critics": 1}), ("two critics", {}))
            for x in (0.9, 0.99)
        )
        figures = ("over", "curves", "archives")
        return Study("discount", "Discount", ("hopper",), settings, 600, figures, ("summary",), "discount factor")

    monkeypatch.setitem(catalogue.STUDIES, "discount", discount)
    folder = write_study(tmp_path, "discount", "smoke", 2)
    assert cli.main(["report", str(folder)]) == 0
    drawn = {path.stem for path in (folder / "figures").glob("*.svg")}
    assert drawn == {"over", "curves-one critic", "curves-two critics", "archives-hopper"}
    assert "discount factor" in (folder / "figures" / "over.svg").read_text()
    assert [row["setting"] for row in table(folder, "summary")][::2] == ["one critic 0.9", "two critics 0.9"]


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
    assert "Polyak 0.005" in (folder / "summary.csv").read_text()
    rows = [row for row in table(folder, "results") if row["config_sha256"]]
    assert {row["config_sha256"] for row in rows} == {run.fingerprint for run in catalogue.runs("target", "smoke", 2)}


def test_many_missing_runs_are_one_line_in_the_terminal_and_all_named_on_the_page(tmp_path, capsys):
    folder = write_study(tmp_path, "normalisation", "smoke", 2)
    gone = [run.folder for run in catalogue.runs("normalisation", "smoke", 2)[1:]]
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
    head, rows = study_tables.summary(found)
    stored = []
    for run in catalogue.runs("target", "smoke", 2):
        if run.label == "Polyak 0.005":
            last = (root / "runs" / run.folder / "metrics.jsonl").read_text().splitlines()[-1]
            stored.append(json.loads(last)["max_fitness"])
    cell = next(row for row in rows if row[1] == "Polyak 0.005")[head.index("max fitness")]
    mean, spread = np.mean(stored), np.std(stored, ddof=1)
    assert cell == f"{study_tables.short(mean)} ± {study_tables.short(spread)}"
    assert {row[head.index("generations")] for row in rows} == {"10"}


def test_what_the_algorithms_keep_has_a_table_of_its_own(root):
    found = collect(write_study(root, "archive", "smoke", 2))
    head, rows = study_tables.kept(found)
    assert head[3:] == ["policies kept", "their QD score", "their mean fitness"]
    assert rows[0][3] == "100 ± 0"  # of generation 10
    qd = found.final(found.tasks[0], found.labels[0], "qd_score").mean()
    assert rows[0][4].split(" ±")[0] == study_tables.short(0.8 * qd)
    rows = [{"generation": 1, "env_steps": 40, "qd_score": 1.0, "qd_score_auc": 40.0, "archive_size": 7}]
    assert results.cut(rows, 60)[-1]["archive_size"] == 7  # holds until the horizon, too


def test_exploring_rollouts_are_not_counted_as_policies(root):
    found = collect(write_study(root, "components", "laptop", 1, archive=False))
    for label, per_generation in (("QDHUAC", 8), ("exploring rollouts: 0", 10), ("exploring rollouts: 3", 7)):
        policies, generations = (found.final("halfcheetah", label, name) for name in ("policies", "generation"))
        assert policies == per_generation * generations > 0


def test_one_seed_has_no_standard_deviation(tmp_path):
    _, rows = study_tables.summary(collect(write_study(tmp_path, "normalisation", "smoke", 1)))
    assert all(re.fullmatch(r"-?[\d.]+( [kMG])?", cell) for row in rows for cell in row[3:])


def test_steps_to_reach_the_final_score_of_another_setting(root):
    found = collect(write_study(root, "target", "smoke", 2))
    first, other = found.labels
    rows = [{"env_steps": s, **dict.fromkeys(MEASURES, float(s))} for s in (100, 200, 600)]
    slow = [{"env_steps": s, **dict.fromkeys(MEASURES, s / 4)} for s in (100, 200, 600)]
    found.curves["halfcheetah", first] = {0: rows, 1: rows}
    found.curves["halfcheetah", other] = {0: slow, 1: slow}
    _, table = study_tables.efficiency(found)
    assert table[0] == ["HalfCheetah", other, "max fitness", "150", "600", "200", "2 of 2", "3"]
    early = [{"env_steps": s, **dict.fromkeys(MEASURES, 150.0)} for s in (100, 200, 600)]  # and then no more
    found.curves["halfcheetah", other] = {0: early, 1: early}
    assert study_tables.efficiency(found)[1][0][3:] == ["150", "100", "200", "2 of 2", "0.5"]
    found.curves["halfcheetah", first] = {0: slow, 1: rows}  # their mean is not there
    found.curves["halfcheetah", other] = {0: rows, 1: rows}
    assert study_tables.efficiency(found)[1][0][4:] == ["600", "not reached", "1 of 2", ""]
    found.curves["halfcheetah", other] = {0: slow, 1: rows}  # and the same runs need the same steps
    assert study_tables.efficiency(found)[1][0][4:] == ["600", "600", "1 of 2", "1"]


def test_the_probability_of_improvement_is_that_of_the_reference(root):
    found = collect(write_study(root, "target", "smoke", 2))
    first, other = found.labels
    for label, value in ((first, 5.0), (other, 1.0)):
        found.curves["halfcheetah", label] = {
            seed: [{"env_steps": 600, **dict.fromkeys(MEASURES, value)}] for seed in (0, 1)
        }
    _, rows = study_tables.aggregate(found)
    assert rows[0] == ["QD score", first, "2", "1.00 [1.00, 1.00]", ""]
    assert rows[1] == ["QD score", other, "2", "0.00 [0.00, 0.00]", "1.00 [1.00, 1.00]"]
    for label in (first, other):
        del found.curves["halfcheetah", label][1]
    assert study_tables.aggregate(found)[1][1][2:] == ["1", "0.00", "1.00"]  # one seed has no interval


def test_a_generation_that_ends_beyond_the_horizon_does_not_count():
    rows = [
        {"generation": i, "env_steps": s, "coverage": 0.1 * i, "qd_score": 2.0 * i, "max_fitness": 5.0 * i}
        | {"qd_score_auc": 100.0 * i, "probe_high": 3}
        for i, s in ((1, 40), (2, 90), (3, 130))
    ]
    *kept, last = results.cut(rows, 100)
    assert kept == rows[:2]
    assert (last["env_steps"], last["max_fitness"], last["coverage"]) == (100, 10.0, 0.2)
    assert last["qd_score_auc"] == 200.0 + 10 * 4.0  # the QD score of 4 holds for 10 steps more
    assert "probe_high" not in last  # nobody is counted twice
    assert results.cut(rows, 90) == rows[:2]
    assert results.cut(rows, 130) == rows
    assert results.cut(rows, 39) == []


def test_an_area_grows_between_generations_and_a_score_does_not(root):
    found = collect(write_study(root, "target", "smoke", 2))
    label = found.labels[0]
    for seed, steps in ((100, (100, 200)), (101, (150, 250))):
        found.curves["halfcheetah", label][seed] = [
            {"env_steps": s, "qd_score": float(s), "qd_score_auc": float(s)} for s in steps
        ]
    steps, area = found.curve("halfcheetah", label, "qd_score_auc")
    assert steps.tolist() == [100, 150, 200, 250]
    np.testing.assert_array_equal(area, [[100, 150, 200, 200], [np.nan, 150, 200, 250]])
    _, score = found.curve("halfcheetah", label, "qd_score")
    np.testing.assert_array_equal(score, [[100, 100, 200, 200], [np.nan, 150, 150, 250]])
    _, total = found.curve("halfcheetah", label, "qd_score", summed=True)
    np.testing.assert_array_equal(total, [[100, 100, 300, 300], [np.nan, 150, 150, 400]])


def test_pictures_show_archives_at_the_horizon_of_the_study(tmp_path):
    found = collect(write_study(tmp_path, "archive", "laptop", 1))
    archives = study_archives.kept_archives(found)
    # DNS on HalfCheetah is QDHUAC of the benchmark: ten generations until 60 000 steps, and this study ends at 40 000.
    assert len(archives["halfcheetah"]["DNS"][1]) == 8 * 6
    assert len(archives["halfcheetah"]["MAP-Elites"][1]) == 8 * 10


def test_archive_pictures_of_a_robot_have_the_same_seed(tmp_path):
    found = collect(write_study(tmp_path, "archive", "laptop", 2))
    (found.origins["halfcheetah", "DNS", 100].folder / REPERTOIRE).unlink()
    path = found.origins["halfcheetah", "MAP-Elites", 101].folder
    descriptors = [d for line in RunDir.open(path).read_history() for d in line["descriptor"]]
    shown = study_archives.kept_archives(found)["halfcheetah"]
    np.testing.assert_allclose(shown["MAP-Elites"][0], descriptors)
    assert len(shown) == 2


def test_runs_of_different_physics_or_versions_are_named(tmp_path):
    made = write_study(tmp_path, "target", "paper", 1, versions="3.1")
    assert collect(made).notes == []
    run = catalogue.runs("target", "paper", 1)[1]
    path = tmp_path / "runs" / run.folder
    settings = RunDir.open(path).read_config()
    RunDir.open(path).write_config(config.replace(settings, {"task.backend": "native"}))
    (note,) = collect(made).notes
    assert "different physics" in note
    assert path.name in note
    shutil.rmtree(path)
    write_run(tmp_path, run, versions="3.2")
    (note,) = collect(made).notes
    assert "different versions" in note
    assert "mujoco 3.2 (1 runs, such as " + path.name in note
    (path / REPERTOIRE).unlink()
    assert "unknown (1 runs, such as " + path.name in collect(made).notes[0]


def test_seeds_that_not_every_setting_has_are_named(tmp_path):
    made = write_study(tmp_path, "target", "smoke", 2)
    shutil.rmtree(tmp_path / "runs" / catalogue.runs("target", "smoke", 2)[-1].folder)
    found = collect(made)
    assert any("use only seeds 100" in note for note in found.notes)
    assert {row[2] for row in study_tables.aggregate(found)[1]} == {"1"}


def test_false_negatives_are_pooled_over_runs(root):
    found = collect(write_study(root, "latency", "smoke", 2))
    lines = [
        {f"probe_{p}{k}": v for p in ("", "path_") for k, v in counts.items()} | {"env_steps": s, "probe_threshold": t}
        for s, t, counts in (
            (1, None, {"high": 0, "missed": 0, "missed_shadow": 0, "gap": 0.0}),  # the shadow still is the critic
            (2, 9.0, {"high": 3, "missed": 0, "missed_shadow": 3, "gap": 1.0}),
            (3, 9.0, {"high": 1, "missed": 1, "missed_shadow": 0, "gap": 2.0}),
        )
    ]
    found.curves["halfcheetah", "QDHUAC"] = {0: [*lines, {"env_steps": 4}]}
    _, table = study_tables.false_negatives(found)
    assert table[0][1:] == ["4", "25.0 %", "75.0 %", "1.50"]


def test_a_relative_curve_is_a_share_of_the_reference(root):
    found = collect(write_study(root, "target", "smoke", 2))
    first, other = found.labels
    axes = figures.curves(found, found.labels, relative=True).axes[0]
    means = {line.get_label(): line.get_ydata() for line in axes.lines}
    np.testing.assert_allclose(means[first], 1.0)
    share = [found.curve("halfcheetah", label, "qd_score")[1].mean(axis=0) for label in (other, first)]
    np.testing.assert_allclose(means[other], share[0] / share[1])


def test_relative_curves_cut_off_huge_early_values_but_show_the_last(root):
    found = collect(write_study(root, "target", "smoke", 2))
    first, other = found.labels

    def rows(*values):
        return {0: [{"env_steps": step, "qd_score": value} for step, value in enumerate(values, 1)]}

    found.curves["halfcheetah", first] = rows(0.1, 0.3, 1.0, 2.0)
    found.curves["halfcheetah", other] = rows(3.0, 3.0, -1.0, 8.0)
    axes = figures.curves(found, found.labels, relative=True, measures={"qd_score": "QD score"}).axes[0]
    low, high = axes.get_ylim()
    assert low == 0.0
    assert 4.0 < high < 5.0
    (drawn,) = (line.get_xydata() for line in axes.lines if line.get_label() == other)
    np.testing.assert_allclose(drawn, [[2, 10], [3, -1], [4, 4]])  # the reference's 0.1 is too little to be shared


def test_a_line_has_a_limited_number_of_points_and_ends_with_the_run(root):
    found = collect(write_study(root, "target", "smoke", 2))
    first = found.labels[0]
    found.curves["halfcheetah", first] = {0: [{"env_steps": s, "qd_score": s**2} for s in range(1, 1001)]}
    drawn = figures.curves(found, [first], measures={"qd_score": "QD score"}).axes[0].lines[-1].get_xydata()
    assert 50 < len(drawn) <= 100
    np.testing.assert_allclose(drawn[:, 1], drawn[:, 0] ** 2)
    assert drawn[-1].tolist() == [1000, 1000**2]


@pytest.mark.parametrize("draw", [lambda f: figures.curves(f, f.labels), figures.profiles])
def test_no_two_means_of_a_figure_differ_in_colour_alone(root, draw):
    found = collect(write_study(root, "benchmark", "smoke", 2))
    for axes in draw(found).axes:
        means = [line for line in axes.lines if line.get_label() in found.labels]
        assert len({line.get_marker() for line in means}) == len({line.get_color() for line in means}) == 6
