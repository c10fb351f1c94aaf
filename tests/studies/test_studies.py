"""Studies: which runs they consist of, that finished ones are never repeated, and what is refused by name."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from fake_study import write_run, write_study

from qdhuac import __version__, cli, config
from qdhuac.cli import train
from qdhuac.errors import UserError
from qdhuac.store import checkpoint
from qdhuac.store.run_folder import RunDir
from qdhuac.studies import catalogue, cost, folder
from qdhuac.studies import local as jobs
from qdhuac.studies.catalogue import STUDIES
from qdhuac.studies.folder import FINISHED, MISSING, STARTED, look
from qdhuac.studies.results import collect

STUB = [sys.executable, str(Path(__file__).parents[1] / "helpers" / "stub_qdhuac.py")]
STUDY = ["study", "target", "--scale", "smoke", "--jobs", "2", "--root"]


@pytest.fixture
def stub(monkeypatch):
    monkeypatch.setattr(jobs, "COMMAND", STUB)


def study(root, *more):
    return cli.main([*STUDY, str(root), *more])


def runs():
    return catalogue.runs("target", "smoke", 2)


def logs(root):
    """How often each run was begun."""
    return {path.stem: path.read_text().count("$ ") for path in (root / "logs").iterdir()}


def wait_for(condition):
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


# Which runs


@pytest.mark.parametrize("scale", catalogue.SCALES)
@pytest.mark.parametrize("name", STUDIES)
def test_every_run_of_every_study_is_a_valid_configuration_that_train_can_be_told(name, scale):
    seeds = catalogue.SEEDS[scale]
    for run in catalogue.runs(name, scale, seeds):
        config.validate(run.config)
        told = train.configuration(cli.parser().parse_args(["train", *catalogue.arguments(run)]))
        assert config.to_toml(told) == config.to_toml(run.config)
        assert run.config.run.env_steps >= run.steps > 0
    assert [r.seed for r in catalogue.runs(name, scale, seeds)] == sorted(
        r.seed for r in catalogue.runs(name, scale, seeds)
    )


@pytest.mark.parametrize("scale", catalogue.SCALES)
def test_different_settings_of_a_study_are_different_runs(scale):
    for name in STUDIES:
        names = [run.folder for run in catalogue.runs(name, scale, 2)]
        assert len(set(names)) == len(names)


def test_studies_share_the_run_that_they_have_in_common():
    plain = {
        name: {r.label: r for r in catalogue.runs(name, "laptop", 1) if r.task == "halfcheetah"} for name in STUDIES
    }
    shared = [
        plain["benchmark"]["QDHUAC"],
        plain["utd"]["normalised, UTD 1"],
        plain["target"]["no target network"],
        plain["components"]["QDHUAC"],
        plain["archive"]["DNS"],
    ]
    assert len({run.folder for run in shared}) == 1
    assert {run.config.run.env_steps for run in shared} == {60_000}  # the longest of them
    assert plain["components"]["QDHUAC"].steps < 60_000


@pytest.mark.parametrize("scale", catalogue.SCALES)
def test_the_benchmark_counts_steps_alike_for_all(scale):
    for task in catalogue.TASKS:
        settings = [r for r in catalogue.runs("benchmark", scale, 1) if r.task == task]
        assert len({r.steps for r in settings}) == 1
        assert len({(c.after_termination, c.backend, c.episode_length) for c in (r.config.task for r in settings)}) == 1


def test_the_benchmark_separates_updates_from_algorithms():
    settings = {r.label: r.config for r in catalogue.runs("benchmark", "laptop", 1) if r.task == "ant"}
    assert settings["PGA-ME, matched updates"].learner.utd == settings["QDHUAC"].learner.utd == 1.0
    assert settings["PGA-ME"].learner.utd == 0.03
    assert max(r.config.learner.utd for r in catalogue.runs("utd", "laptop", 1)) >= 10


def test_a_goal_or_a_new_key_with_a_default_does_not_make_another_run():
    settings = runs()[0].config
    longer = config.replace(settings, {"run.env_steps": 10**6})
    assert catalogue.fingerprint(longer) == catalogue.fingerprint(settings)
    other = config.replace(settings, {"learner.discount": 0.98})
    assert catalogue.fingerprint(other) != catalogue.fingerprint(settings)
    # The names of folders on disk must not change by accident.
    assert catalogue.runs("benchmark", "laptop", 1)[0].folder == "hopper-qdhuac-s100-ee7e205d"


# Running


def test_a_study_runs_everything_once_and_never_again(stub, tmp_path, capsys):
    assert study(tmp_path) == 0
    out = capsys.readouterr().out
    for words in ("runs: 4", "environment steps: 2,400", "updates: 240", "time left: about"):
        assert words in out
    assert [look(tmp_path, run).state for run in runs()] == [FINISHED] * 4
    assert set(logs(tmp_path).values()) == {1}
    assert not list((tmp_path / "runs").glob("*/checkpoints"))
    assert study(tmp_path) == 0
    assert set(logs(tmp_path).values()) == {1}
    assert study(tmp_path, "--seeds", "3") == 0  # more seeds are new runs, and nothing else
    assert sorted(logs(tmp_path).values()) == [1] * 6


def test_a_dry_run_starts_nothing(stub, tmp_path, capsys):
    assert study(tmp_path, "--dry-run") == 0
    out = capsys.readouterr().out
    assert out.count("missing") == 4
    assert "time left" in out
    assert not (tmp_path / "logs").exists()


def test_a_failed_run_is_reported_and_stops_no_other(stub, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("STUB_FAIL", runs()[0].folder)
    assert study(tmp_path) == 1
    out = capsys.readouterr().out
    assert f"failed: {runs()[0].name}: the wheels came off (exit code 1" in out
    assert [look(tmp_path, run).state for run in runs()] == [STARTED, *[FINISHED] * 3]
    assert logs(tmp_path)[runs()[0].folder] == 1  # not tried again in the same call
    monkeypatch.delenv("STUB_FAIL")
    assert study(tmp_path) == 0
    assert [look(tmp_path, run).state for run in runs()] == [FINISHED] * 4


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_lets_every_run_save_and_the_same_command_goes_on(stub, tmp_path, number, capsys):
    code = f"import sys; from qdhuac.studies import jobs; jobs.COMMAND = {STUB!r}; from qdhuac.cli import main; "
    code += f"sys.exit(main({[*STUDY, str(tmp_path)]!r}))"
    environment = {**os.environ, "STUB_HANG": "-qdhuac-s"}
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=environment)
    first = [tmp_path / "runs" / run.folder for run in runs()[:2]]
    wait_for(lambda: all((path / "waiting").exists() for path in first))
    process.send_signal(number)
    out, _ = process.communicate(timeout=120)
    assert process.returncode == 128 + number
    assert out.count("saved after") == 2
    assert "failed" not in out
    assert [look(tmp_path, run).state for run in runs()] == [STARTED, STARTED, MISSING, MISSING]
    assert study(tmp_path) == 0
    assert "goes on" in capsys.readouterr().out
    for run in runs():
        rows = look(tmp_path, run).rows
        assert [row["generation"] for row in rows] == [1, 2, 3, 4]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process that its parent has gone")
def test_runs_save_and_stop_when_the_study_is_killed(stub, tmp_path):
    code = f"from qdhuac.studies import jobs; jobs.COMMAND = {STUB!r}; from qdhuac.cli import main; "
    code += f"main({[*STUDY, str(tmp_path)]!r})"
    environment = {**os.environ, "STUB_HANG": "-qdhuac-s"}
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.DEVNULL, env=environment)
    first = [tmp_path / "runs" / run.folder for run in runs()[:2]]
    wait_for(lambda: all((path / "waiting").exists() for path in first))
    process.kill()
    process.wait()
    pids = [int((path / "waiting").read_text()) for path in first]
    wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))
    for path in first:
        assert checkpoint.newest(path / "checkpoints").record["counters"]["generation"] == 2


def test_a_run_that_only_lacks_its_report_is_not_resumed(tmp_path, monkeypatch):
    run = runs()[0]
    write_run(tmp_path, run, archive=False)
    (tmp_path / "runs" / run.folder / "checkpoints").mkdir()
    assert look(tmp_path, run).state == STARTED
    done = {"counters": {"env_steps": run.config.run.env_steps}, "pending": None}
    for record, word in ((done, "report"), ({**done, "pending": {"learnt": 3}}, "resume"), ({}, "resume")):
        found = type("Found", (), {"record": record})
        monkeypatch.setattr("qdhuac.store.checkpoint.newest", lambda _, found=found: found)
        assert word in jobs.command(tmp_path, run, STARTED)


def test_each_job_has_a_core_and_a_thread_of_its_own(tmp_path):
    cores = jobs.cores()
    words = [sys.executable, "-c", "import os; print(sorted(os.sched_getaffinity(0)), os.environ['XLA_FLAGS'])"]
    with (tmp_path / "out").open("wb") as out:
        jobs.start(words, cores[-1], out).wait()
    text = (tmp_path / "out").read_text()
    assert text.startswith(f"[{cores[-1]}]")
    assert "intra_op_parallelism_threads=1" in text
    assert jobs.cores() == cores


# Cost


def test_time_is_estimated_from_runs_that_are_there():
    run = next(r for r in catalogue.runs("benchmark", "laptop", 1) if r.label == "QDHUAC")  # 6 generations
    rows = [
        {"env_steps": 10_000 * i, "gradient_updates": 10_000 * i, "time_learn": 999.0 if i == 1 else 80.0}
        | {"time_ask": 7.0, "time_evaluate": 1.0, "time_tell": 0.0}
        for i in (1, 2, 3)
    ]
    measured = cost.sample(run.config, rows)
    assert measured.update == pytest.approx(0.008)  # the first generation compiles
    missing, half = folder.Found(MISSING), folder.Found(STARTED, [{"env_steps": 30_000}])
    assert cost.seconds(run, missing, [measured]) == pytest.approx(cost.START + 6 * (80 + 7 + 1))
    assert cost.seconds(run, half, [measured]) == pytest.approx(cost.START + 3 * (80 + 7 + 1))
    assert cost.seconds(run, folder.Found(FINISHED), [measured]) == 0
    assert cost.sample(run.config, rows[:1]) is None
    assert cost.sample(run.config, [{"generation": 1}, {"generation": 2}]) is None  # no times in them
    slow = dataclasses.replace(measured, task="ant", step=1.0)
    assert cost.seconds(run, missing, [measured, slow]) == cost.seconds(run, missing, [measured])  # same robot first


def test_a_calibration_that_failed_is_named_and_made_again(stub, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("STUB_FAIL", "smoke-qdhuac")
    assert study(tmp_path, "--dry-run") == 0
    out = capsys.readouterr().out
    assert "calibration failed: the wheels came off" in out
    assert "time left: unknown" in out
    monkeypatch.delenv("STUB_FAIL")
    assert study(tmp_path, "--dry-run") == 0
    assert "time left: about" in capsys.readouterr().out
    assert study(tmp_path, "--dry-run") == 0
    assert "calibration:" not in capsys.readouterr().out


def test_more_work_is_more_time():
    settings = {r.label: r.config for r in catalogue.runs("components", "laptop", 1)}
    assert cost.work(settings["one critic"]) < cost.work(settings["QDHUAC"])
    humanoid = config.replace(settings["QDHUAC"], {"task.name": "humanoid"})
    assert cost.work(humanoid) > cost.work(settings["QDHUAC"])


# What is refused


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["study"], ["NAME"]),
        (["study", "moon"], ["moon", "benchmark", "components"]),
        (["study", "utd", "--scale", "huge"], ["--scale", "huge", "smoke", "laptop", "paper"]),
        (["study", "utd", "--seeds", "0"], ["--seeds", "from 1"]),
        (["study", "utd", "--jobs", "many"], ["--jobs", "many"]),
        (["study", "utd", "--root", "a_file"], ["--root", "a_file"]),
    ],
)
def test_bad_input(refused, tmp_path, monkeypatch, arguments, words):
    monkeypatch.chdir(tmp_path)
    Path("a_file").touch()
    message = refused(*arguments)
    assert all(word in message for word in words)
    assert [p.name for p in tmp_path.iterdir()] == ["a_file"]


def test_a_root_of_another_version_is_refused_for_running_and_named_when_reporting(refused, tmp_path):
    made = write_study(tmp_path, "target", "smoke", 2)
    record = made / "study.toml"
    record.write_text(record.read_text().replace(f'version = "{__version__}"', 'version = "0.0.9"'))
    for name in ("target", "components"):  # they share runs
        message = refused("study", name, "--scale", "smoke", "--root", str(tmp_path))
        assert "0.0.9" in message
        assert __version__ in message
    assert any("0.0.9" in note for note in collect(made).notes)


def test_runs_that_are_not_planned_any_more_are_left_out_and_told(tmp_path):
    made = write_study(tmp_path, "target", "smoke", 2)
    record = made / "study.toml"
    record.write_text(record.read_text().replace("seed = 101", "seed = 1"))
    found = collect(made)
    assert {run.seed for run in found.runs} == {100}
    assert any("2 runs" in note and "not plan" in note for note in found.notes)


@pytest.mark.parametrize(
    ("was", "now", "words"),
    [
        ('study = "target"', 'study = "moon"', "moon"),
        ('scale = "smoke"', 'scale = "huge"', "huge"),
        ('task = "halfcheetah"', 'task = ["halfcheetah"]', "texts"),
        ("seed = 101", "seed = 3000101", "whole numbers up to 1099"),
        ("seed = 101", 'seed = "101"', "whole numbers up to 1099"),
        ("seed = 101", "seed = 101.0", "whole numbers up to 1099"),
        ('folder = "', 'fold = "', "folder"),
    ],
)
def test_a_damaged_record_is_refused_by_name(tmp_path, refused, was, now, words):
    record = write_study(tmp_path, "target", "smoke", 2) / "study.toml"
    assert was in record.read_text()
    record.write_text(record.read_text().replace(was, now))
    message = refused("report", str(record.parent))
    assert str(record) in message
    assert words in message


def test_a_damaged_configuration_is_refused_by_name(tmp_path, refused):
    write_study(tmp_path, "target", "smoke", 2)
    path = tmp_path / "runs" / runs()[0].folder / "config.toml"
    path.write_text(path.read_text().replace("seed = 100", "seed = 7"))
    assert f"{path}: does not match its checksum" in refused(*STUDY, str(tmp_path))


def test_a_study_of_another_configuration_is_refused(tmp_path, refused):
    made = write_study(tmp_path, "target", "smoke", 2)
    record = made / "study.toml"
    record.write_text(record.read_text().replace(runs()[0].fingerprint, "0" * 64))
    assert runs()[0].label in refused(*STUDY, str(tmp_path))
    assert runs()[0].label in refused("report", str(made))


def test_a_run_folder_with_another_configuration_is_refused(tmp_path, refused):
    write_study(tmp_path, "target", "smoke", 2)
    one, two = (tmp_path / "runs" / run.folder for run in runs()[:2])
    shutil.rmtree(one)
    two.rename(one)
    message = refused(*STUDY, str(tmp_path))
    assert one.name in message
    assert "target_tau = 0.005" in message


@pytest.mark.parametrize("number", [*folder.NEEDED, *folder.PROBED])
def test_a_run_without_a_number_that_is_compared_is_left_out_and_told(tmp_path, number):
    made = write_study(tmp_path, "latency", "smoke", 2)
    path = tmp_path / "runs" / collect(made).runs[0].folder / "metrics.jsonl"
    rows = RunDir.open(path.parent).read_metrics()
    del rows[3][number]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    note, *_ = collect(made).notes
    assert f"{path.parent}: metrics.jsonl has no {number} in generation 4" in note


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        ("gap", "has a gap: generation 4 expected, found 5"),
        ("hole", "has no qd_score in generation 4"),
        ("backwards", "does not move on in generation 4"),
        ("torn", "line 3"),
    ],
)
def test_metrics_with_a_gap_are_named_and_left_out(tmp_path, refused, damage, words):
    made = write_study(tmp_path, "target", "smoke", 2)
    path = tmp_path / "runs" / runs()[0].folder / "metrics.jsonl"
    rows = RunDir.open(path.parent).read_metrics()
    if damage == "gap":
        del rows[3]
    if damage == "hole":
        rows[3]["qd_score"] = None
    if damage == "backwards":
        rows[3]["env_steps"] = rows[2]["env_steps"]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    path.write_text(text.replace('"generation": 3', '"gen') if damage == "torn" else text)
    message = refused(*STUDY, str(tmp_path))
    assert runs()[0].folder in message
    assert words in message
    found = collect(made)
    assert runs()[0].folder not in {run.folder for run in found.runs}
    assert len(found.runs) == 3
    assert sum(runs()[0].folder in note for note in found.notes) == 1


def test_missing_and_unfinished_runs_are_named_and_left_out(tmp_path):
    made = write_study(tmp_path, "target", "smoke", 2)
    first, second = (tmp_path / "runs" / run.folder for run in runs()[:2])
    shutil.rmtree(first)
    lines = (second / "metrics.jsonl").read_text().splitlines()
    (second / "metrics.jsonl").write_text("\n".join(lines[:5]) + '\n{"generation": 6, "env_')
    found = collect(made)
    assert {run.seed for run in found.runs} == {101}
    assert any("is missing" in line and first.name in line for line in found.unfinished)
    assert any("has 300 of 600 steps" in line and second.name in line for line in found.unfinished)
    shutil.rmtree(tmp_path / "runs")
    with pytest.raises(UserError, match="no run"):
        collect(made)


def test_a_longer_run_is_cut_off_at_the_horizon_of_the_study(tmp_path):
    made = write_study(tmp_path, "components", "laptop", 1, archive=False)
    found = collect(made)
    assert found.curves["halfcheetah", "QDHUAC"][100][-1]["env_steps"] == found.study.steps == 40_000


def test_damaged_metrics_that_a_checkpoint_has_are_told_and_used(tmp_path):
    made = write_study(tmp_path, "target", "smoke", 1, archive=False)
    path = tmp_path / "runs" / runs()[0].folder
    opened = RunDir.open(path)
    checkpoint.save(path / "checkpoints", checkpoint.name(10, 0), {}, opened.texts(), None)
    (path / "metrics.jsonl").write_text("{}\n")
    found = collect(made)
    assert len(found.runs) == 2
    assert any(str(path) in note and "using the copy in the newest checkpoint" in note for note in found.notes)


def test_another_reference_is_named(tmp_path):
    made = write_study(tmp_path, "target", "smoke", 1, archive=False)
    assert collect(made).notes == collect(made).unfinished == []
    shutil.rmtree(tmp_path / "runs" / runs()[0].folder)
    assert any("comparisons are with Polyak 0.005" in note for note in collect(made).notes)
