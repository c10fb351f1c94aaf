"""Studies: their runs, which are never repeated once finished, and errors, which name the run."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from pathlib import Path

import pytest
from fake_study import write_run, write_study
from stub_cluster import STUB
from study_process import alive, begin, begun, generations, runs, until, waiting

from qdhuac import __version__, cli, config
from qdhuac.algorithms import specs
from qdhuac.errors import UserError
from qdhuac.report import study_figures
from qdhuac.report.study_tables import TABLES
from qdhuac.store import checkpoint
from qdhuac.store.run_folder import RunDir
from qdhuac.studies import catalogue, commands, local
from qdhuac.studies.catalogue import STUDIES
from qdhuac.studies.folder import FINISHED, MISSING, STARTED, Found, look, write
from qdhuac.studies.local import open_log
from qdhuac.studies.results import collect
from qdhuac.studies.worker import stop_file

STUDY = ["study", "target", "--scale", "smoke", "--jobs", "2", "--root"]


@pytest.fixture
def stub(monkeypatch):
    monkeypatch.setattr(local, "COMMAND", STUB)


def study(root, *more):
    return cli.main([*STUDY, str(root), *more])


def states(root):
    return [look(root, run).state for run in runs()]


# Runs


@pytest.mark.parametrize("scale", catalogue.SCALES)
@pytest.mark.parametrize("name", STUDIES)
def test_every_run_of_every_study_is_a_valid_configuration(name, scale):
    seeds = catalogue.SEEDS[scale]
    found = catalogue.runs(name, scale, seeds)
    for run in found:
        text = config.to_toml(specs.validate(run.config))
        assert config.to_toml(specs.from_toml(text)) == text
        assert run.config.run.env_steps >= run.steps > 0
    assert [r.seed for r in found] == sorted(r.seed for r in found)
    assert len({r.folder for r in found}) == len(found)  # different settings are different runs


@pytest.mark.parametrize("name", STUDIES)
def test_the_figures_and_tables_of_a_study_exist(name):
    planned = catalogue.study(name, "laptop")
    assert set(planned.figures) <= set(study_figures.FIGURES)
    assert set(planned.tables) <= set(TABLES)


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
    utd = {
        r.label: r.config.settings.learner.utd
        for r in catalogue.runs("benchmark", "laptop", 1)
        if r.task == "ant" and r.label != "DNS"
    }
    assert utd["PGA-ME, matched updates"] == utd["QDHUAC"] == 1.0
    assert utd["PGA-ME"] == 0.03
    assert max(r.config.settings.learner.utd for r in catalogue.runs("utd", "laptop", 1)) == 10


def test_runs_with_different_goals_are_the_same_run():
    settings = runs()[0].config
    longer = config.replace(settings, {"run.env_steps": 10**6})
    assert catalogue.fingerprint(longer) == catalogue.fingerprint(settings)
    other = config.replace(settings, {"learner.discount": 0.98})
    assert catalogue.fingerprint(other) != catalogue.fingerprint(settings)


# Running


def test_a_study_runs_everything_once_and_never_again(stub, tmp_path, capsys):
    assert study(tmp_path) == 0
    out = capsys.readouterr().out
    assert "runs: 4, of which 0 finished" in out
    assert "environment steps: 2,400, left 2,400" in out
    assert states(tmp_path) == [FINISHED] * 4
    assert [begun(tmp_path, run) for run in runs()] == [["train"]] * 4
    assert not list((tmp_path / "runs").glob("*/checkpoints"))
    assert study(tmp_path) == 0
    assert study(tmp_path, "--seeds", "3") == 0  # more seeds are new runs, and nothing else
    assert study(tmp_path, "--seeds", "1") == 0
    assert len(collect(tmp_path / "target-smoke").origins) == 6  # fewer seeds forget none
    assert [begun(tmp_path, run) for run in runs(3)] == [["train"]] * 6
    assert "time left: about 2:00 with 2 jobs" in capsys.readouterr().out


def test_a_dry_run_starts_nothing(tmp_path, capsys):
    assert study(tmp_path, "--dry-run") == 0
    out = capsys.readouterr().out
    assert out.count("missing") == 4
    assert not (tmp_path / "logs").exists()


def test_a_failed_run_is_reported_and_stops_no_other(stub, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("STUB_FAIL", runs()[0].folder)
    assert study(tmp_path) == 1
    out = capsys.readouterr().out
    assert f"failed: {runs()[0].name}: the wheels came off (exit code 1" in out
    assert states(tmp_path) == [STARTED, *[FINISHED] * 3]
    assert len(begun(tmp_path, runs()[0])) == 1  # not tried again in the same call
    monkeypatch.delenv("STUB_FAIL")
    assert study(tmp_path) == 0
    assert states(tmp_path) == [FINISHED] * 4


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_lets_every_run_save_and_the_same_command_continues(stub, tmp_path, number, capsys):
    process = begin(tmp_path, "--jobs", "2", STUB_HANG="-qdhuac-s")
    until(lambda: len(waiting(tmp_path)) == 2, process)
    process.send_signal(number)
    out, _ = process.communicate(timeout=120)
    assert process.returncode == 128 + number
    assert out.count("saved after") == 2
    assert "failed" not in out
    assert states(tmp_path) == [STARTED, STARTED, MISSING, MISSING]
    assert study(tmp_path) == 0
    assert "resumes: " in capsys.readouterr().out
    for run in runs():
        assert [row["generation"] for row in look(tmp_path, run).rows] == [1, 2, 3, 4]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux signals a process when its parent ends")
def test_runs_save_and_stop_when_the_study_is_killed(tmp_path):
    process = begin(tmp_path, "--jobs", "2", STUB_HANG="-qdhuac-s")
    until(lambda: len(waiting(tmp_path)) == 2, process)
    pids = waiting(tmp_path).values()
    process.kill()
    process.communicate()
    until(lambda: not any(alive(pid) for pid in pids))
    assert [generations(tmp_path, run)[0] for run in runs()[:2]] == [2, 2]


def test_a_run_that_lacks_only_its_report_is_not_resumed(tmp_path):
    run = runs()[0]
    path = write_run(tmp_path, run, archive=False)
    done = {"counters": {"env_steps": run.config.run.env_steps}, "pending": None}
    for i, (record, word) in enumerate(((done, "report"), ({**done, "pending": {"learnt": 3}}, "resume"))):
        checkpoint.save(path / "checkpoints", checkpoint.name(10 + i, 0), record, RunDir.open(path).texts(), None)
        assert look(tmp_path, run).state == STARTED
        assert word in local.command(tmp_path, run, STARTED)


def test_each_job_has_a_core_and_a_thread_of_its_own(tmp_path):
    cores = local.cores()
    words = [sys.executable, "-c", "import os; print(sorted(os.sched_getaffinity(0)), os.environ['XLA_FLAGS'])"]
    with (tmp_path / "out").open("wb") as out:
        local.start(words, cores[-1], out).wait()
    text = (tmp_path / "out").read_text()
    assert text.startswith(f"[{cores[-1]}]")
    assert "intra_op_parallelism_threads=1" in text
    assert local.cores() == cores


def test_the_time_left_is_estimated_from_finished_runs():
    planned = [run for run in catalogue.runs("target", "laptop", 2) if run.label == "Polyak 0.005"]
    other = catalogue.runs("target", "laptop", 1)[0]

    def found(state, steps, seconds):
        return Found(state, [{"env_steps": steps, "wall_s": seconds}] * bool(steps))

    missing = found(MISSING, 0, 0)
    assert len(commands.remaining(planned, [found(STARTED, 10_000, 5.0), missing], 1)) == 2  # none is finished
    done = found(FINISHED, 40_000, 400.0)
    (*_, line) = commands.remaining(planned, [done, found(STARTED, 10_000, 1.0)], 1)
    assert "about 5:00 with 1 jobs" in line  # 30 000 steps at 10 ms
    slow = found(FINISHED, 40_000, 4000.0)  # of another setting: does not count
    (*_, line) = commands.remaining([other, *planned], [slow, done, missing], 2)
    assert "about 6:40 with 2 jobs" in line
    (*_, line) = commands.remaining([other, planned[0]], [slow, missing], 2)  # the only one that is finished
    assert "about 1:06:40" in line


# Errors


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


@pytest.mark.parametrize(
    ("was", "now", "words"),
    [
        ('study = "target"', 'study = "moon"', "moon"),
        ('scale = "smoke"', 'scale = "huge"', "huge"),
        ('version = "', 'versions = "', "version"),
        ('scale = "smoke"', "scale = 3", "strings"),
        ("seeds = 2", "seeds = 3000", "from 1 to 1000"),
        ("seeds = 2", 'seeds = "2"', "from 1 to 1000"),
        ("seeds = 2", "seeds = 2.0", "from 1 to 1000"),
        ("seeds = 2", "seeds", "not the record"),
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


def test_a_run_folder_with_another_configuration_is_refused(tmp_path, refused):
    write_study(tmp_path, "target", "smoke", 2)
    one, two = (tmp_path / "runs" / run.folder for run in runs()[:2])
    shutil.rmtree(one)
    two.rename(one)
    message = refused(*STUDY, str(tmp_path))
    assert one.name in message
    assert "target_tau = 0.005" in message


def rewrite(path, rows):
    """Replace the metrics of a run."""
    path.write_bytes(b"")
    for row in rows:
        RunDir.open(path.parent).append_metrics(row)


@pytest.mark.parametrize("number", ["qd_score", "archive_size", "probe_path_missed"])
def test_a_run_without_a_metric_that_is_compared_is_left_out_and_named(tmp_path, number):
    made = write_study(tmp_path, "latency", "smoke", 2)
    path = tmp_path / "runs" / catalogue.runs("latency", "smoke", 2)[0].folder / "metrics.jsonl"
    rows = RunDir.open(path.parent).read_metrics()
    del rows[3][number]
    rewrite(path, rows)
    note, *_ = collect(made).notes
    assert f"{path.parent}: metrics.jsonl has no {number} in generation 4" in note


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        ("gap", "has a gap: no generation 4"),
        ("hole", "has no qd_score in generation 4"),
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
    rewrite(path, rows)
    if damage == "torn":
        path.write_text(path.read_text().replace('"generation": 3', '"gen'))
    message = refused(*STUDY, str(tmp_path))
    assert runs()[0].folder in message
    assert words in message
    found = collect(made)
    first = runs()[0]
    assert (first.task, first.label, first.seed) not in found.origins
    assert len(found.origins) == 3
    assert sum(runs()[0].folder in note for note in found.notes) == 1


def test_missing_and_unfinished_runs_are_named_and_left_out(tmp_path):
    made = write_study(tmp_path, "target", "smoke", 2)
    first, second = (tmp_path / "runs" / run.folder for run in runs()[:2])
    shutil.rmtree(first)
    lines = (second / "metrics.jsonl").read_text().splitlines()
    (second / "metrics.jsonl").write_text("\n".join(lines[:5]) + '\n{"generation": 6, "env_')
    found = collect(made)
    assert {seed for *_, seed in found.origins} == {101}
    assert any("is missing" in line and first.name in line for line in found.unfinished)
    assert any("has 300 of 600 steps" in line and second.name in line for line in found.unfinished)
    shutil.rmtree(tmp_path / "runs")
    with pytest.raises(UserError, match="no run"):
        collect(made)


def test_a_longer_run_is_cut_off_at_the_horizon_of_the_study(tmp_path):
    made = write_study(tmp_path, "components", "laptop", 1, archive=False)
    found = collect(made)
    assert found.curves["halfcheetah", "QDHUAC"][100][-1]["env_steps"] == found.study.steps == 40_000


def test_damaged_metrics_are_replaced_by_a_checkpoints_copy_with_a_warning(tmp_path):
    made = write_study(tmp_path, "target", "smoke", 1, archive=False)
    path = tmp_path / "runs" / runs()[0].folder
    opened = RunDir.open(path)
    checkpoint.save(path / "checkpoints", checkpoint.name(10, 0), {}, opened.texts(), None)
    (path / "metrics.jsonl").write_text("{}\n")
    found = collect(made)
    assert len(found.origins) == 2
    assert any(str(path) in note and "using the copy in the newest checkpoint" in note for note in found.notes)


def test_another_reference_is_named(tmp_path):
    made = write_study(tmp_path, "target", "smoke", 1, archive=False)
    assert collect(made).notes == collect(made).unfinished == []
    shutil.rmtree(tmp_path / "runs" / runs()[0].folder)
    assert any("comparisons are with Polyak 0.005" in note for note in collect(made).notes)


@pytest.mark.parametrize("place", ["logs", "configs", "runs", "logs/NAME.log", "logs/NAME.stop", "runs/NAME"])
def test_a_study_with_links_writes_nothing_outside_of_its_folder(tmp_path, place):
    root, outside = tmp_path / "root", tmp_path / "outside"
    root.mkdir()
    outside.mkdir()
    run = catalogue.runs("target", "smoke", 1)[0]
    path = root / place.replace("NAME", run.folder)
    path.parent.mkdir(exist_ok=True)
    path.symlink_to(outside / "new" if path.suffix else outside)

    def use() -> None:
        look(root, run)
        write(root, "target", "smoke", 1)
        stop_file(root, run)
        with open_log(root, run) as out:
            out.write(b"x")

    with pytest.raises(UserError, match="is a link"):
        use()
    assert list(outside.iterdir()) == []


def test_a_configuration_that_is_a_link_is_refused_and_a_log_that_is_a_pipe_is_refused(tmp_path):
    run, outside = catalogue.runs("target", "smoke", 1)[0], tmp_path / "outside.toml"
    for folder in ("configs", "logs"):
        (tmp_path / "root" / folder).mkdir(parents=True)
    outside.write_text("precious")
    (tmp_path / f"root/configs/{run.folder}.toml").symlink_to(outside)
    with pytest.raises(UserError, match="is a link"):
        write(tmp_path / "root", "target", "smoke", 1)
    assert outside.read_text() == "precious"
    os.mkfifo(tmp_path / f"root/logs/{run.folder}.log")
    with pytest.raises(UserError, match="cannot be written"), open_log(tmp_path / "root", run):
        pass
