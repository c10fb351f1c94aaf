"""The training loop: what it writes, and that a stop changes nothing."""

import itertools
import json
import os
import pty
import shutil
import signal
import subprocess
import sys

import jax
import numpy as np
import pytest
from runs import Notes, StopAt, lines, same_state
from toys import ToyLearner, ToyTask, toy_algorithm

from qdhuac.errors import RunFailed, UserError
from qdhuac.store import checkpoint
from qdhuac.store.run_folder import RunDir
from qdhuac.training.display import Progress
from qdhuac.training.signals import Stop


def test_the_line_of_a_generation(make_runner):
    runner = make_runner(learning=True)
    assert runner.run()
    rows = lines(runner.folder.path)
    assert [row["generation"] for row in rows] == [1, 2, 3, 4, 5, 6]
    assert [row["env_steps"] for row in rows] == [60, 120, 180, 240, 300, 360]
    assert [row["gradient_updates"] for row in rows] == [30, 60, 90, 120, 150, 180]
    first, raw = rows[0], json.loads((runner.folder.path / "metrics.jsonl").read_text().splitlines()[0])
    for key in (
        "qd_score",
        "coverage",
        "max_fitness",
        "archive_size",
        "archive_mean_fitness",
        "rejected",
        "random/tried",
    ):
        assert np.isfinite(first[key]), key
    for key in ("wall_s", "time_ask", "time_evaluate", "time_tell", "time_learn"):
        assert raw[key] >= 0
    assert first["isoline/gain"] is None  # nothing was tried: nan is not JSON
    assert first["qd_score_auc"] == pytest.approx(0.5 * 60 * first["qd_score"])
    areas = [0.5 * 60 * (a["qd_score"] + b["qd_score"]) for a, b in itertools.pairwise(rows)]
    assert rows[-1]["qd_score_auc"] == pytest.approx(first["qd_score_auc"] + sum(areas))
    assert first["count_skipped_critic"] == 0


def test_learner_metrics_are_means_over_all_updates(make_runner):
    losses = []
    for name, chunk in (("a", 1000), ("b", 7)):
        runner = make_runner(name, learning=True, run__chunk=chunk)
        assert runner.run()
        losses.append([line["critic_loss"] for line in lines(runner.folder.path)])
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)


@pytest.mark.parametrize(
    ("learning", "phase", "nth", "done"),
    [(False, "evaluating", 1, 0), (False, "asking", 4, 0), (True, "learning", 3, 14), (True, "learning", 1, 28)],
)
def test_stopped_and_resumed_equals_uninterrupted(make_runner, learning, phase, nth, done):
    whole = make_runner("whole", learning=learning)
    assert whole.run()

    stop = Stop()
    part = make_runner("part", learning=learning, stop=stop, progress=StopAt(stop, phase, nth, done))
    assert not part.run()
    assert stop.exit_code == 143
    assert (part.recorder.pending is not None) == (learning and done < 28)
    part.folder.unlock()
    rest = make_runner("part", learning=learning, again=True)
    assert rest.run()
    assert lines(rest.folder.path) == lines(whole.folder.path)
    assert same_state(rest.state, whole.state)


def test_killed_between_checkpoints_repeats_what_was_lost(make_runner):
    """What was written after the last checkpoint is removed, so that no generation is there twice."""
    whole = make_runner("whole", learning=True)
    whole.run()

    class Crash(Progress):
        def generation(self, line):
            if line["generation"] == 5:
                raise MemoryError

    crashed = make_runner("part", learning=True, progress=Crash(), run__checkpoint_generations=2)
    with pytest.raises(MemoryError):
        crashed.run()
    assert len(lines(crashed.folder.path)) == 5
    crashed.folder.unlock()
    rest = make_runner("part", learning=True, again=True)
    assert len(lines(rest.folder.path)) == 4
    rest.run()
    assert lines(rest.folder.path) == lines(whole.folder.path)


def test_killed_before_the_first_checkpoint_starts_again(make_runner):
    runner = make_runner()
    runner.folder.unlock()
    again = make_runner(again=True)
    assert again.run()
    assert len(lines(again.folder.path)) == 6


def test_damaged_checkpoints_and_metrics_are_repaired_and_reported(make_runner):
    whole = make_runner("whole")
    whole.run()
    runner = make_runner(run__checkpoint_generations=1, run__generations=4)
    runner.run()
    runner.folder.unlock()
    newest = checkpoint.load(runner.folder.checkpoints).path
    state = newest / "state.safetensors"
    state.write_bytes(state.read_bytes()[:-1] + b"\x55")
    metrics = runner.folder.path / "metrics.jsonl"
    metrics.write_text(metrics.read_text().replace('"generation": 2', '"generation": 7'))

    notes = Notes()
    rest = make_runner(again=True, progress=notes)
    assert newest.name in " ".join(notes.said)
    assert "metrics.jsonl" in " ".join(notes.said)
    rest.run()
    assert lines(rest.folder.path) == lines(whole.folder.path)


def test_a_run_ends_at_its_number_of_env_steps(make_runner):
    runner = make_runner(run__generations=0, run__env_steps=100)
    assert runner.run()
    assert runner.counters.env_steps == 120


def test_checkpoints_are_written_by_time_also_while_learning(make_runner):
    names = []

    class Watch(Progress):
        def phase(self, name, done=0, total=0):
            if name == "learning":
                names.append(sorted(p.name for p in runner.folder.checkpoints.iterdir())[-1])

    runner = make_runner(learning=True, progress=Watch(), run__checkpoint_minutes=0.0, run__generations=1)
    runner.run()
    assert checkpoint.name(1, 14) in names


@pytest.mark.parametrize("source", ["fitness", "descriptor"])
def test_too_many_failed_evaluations_end_the_run(make_runner, source):
    runner = make_runner(task=ToyTask(poison=source), run__failure_budget=3, run__generations=50)
    with pytest.raises(RunFailed, match=f"{source} \\(4\\)"):
        runner.run()
    assert [row["rejected"] for row in lines(runner.folder.path)] == [1, 1, 1, 1]
    assert np.isfinite(runner.state.algorithm.archive.fitness).sum() > 0
    assert checkpoint.load(runner.folder.checkpoints).record["counters"]["failures"] == {source: 4}


class BrokenLearner(ToyLearner):
    broken = True


def test_too_many_skipped_updates_end_the_run_in_mid_learning(make_runner):
    algorithm = toy_algorithm(BrokenLearner)
    runner = make_runner(learning=True, algorithm=algorithm, run__failure_budget=10)
    with pytest.raises(RunFailed, match="learner's critic \\(14\\)"):
        runner.run()
    assert checkpoint.load(runner.folder.checkpoints).record["pending"]["learnt"] == 14


class Failing(ToyTask):
    """Raises an exception in the third evaluation."""

    calls = 0

    def evaluate(self, genotypes, key, exploration=None):
        self.calls += 1
        if self.calls == 3:
            raise ZeroDivisionError("the simulator fell over")
        return super().evaluate(genotypes, key, exploration)


def test_what_was_learnt_before_an_evaluation_failed_is_saved(make_runner):
    whole, failing = make_runner("whole", learning=True), make_runner(learning=True, task=Failing())
    whole.run()
    with pytest.raises(ZeroDivisionError, match="fell over"):
        failing.run()
    assert checkpoint.load(failing.folder.checkpoints).record["counters"]["generation"] == 2
    failing.folder.unlock()
    rest = make_runner(learning=True, again=True)
    rest.run()
    assert lines(rest.folder.path) == lines(whole.folder.path)


def test_a_full_disk_is_reported_in_one_line(make_runner, monkeypatch):
    runner = make_runner()

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint, "save", full)
    with pytest.raises(RunFailed, match=r"No space left on device.*last checkpoint is intact"):
        runner.run()


def test_a_second_process_is_refused(make_runner):
    runner = make_runner()
    code = (
        "import sys; from pathlib import Path; from qdhuac.store.run_folder import RunDir\n"
        "RunDir.open(Path(sys.argv[1])).lock()"
    )
    command = [sys.executable, "-c", code, str(runner.folder.path)]
    refused = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "in use by another" in refused.stderr
    runner.folder.unlock()
    assert subprocess.run(command, check=False).returncode == 0


def test_an_edited_configuration_is_replaced_by_the_checkpoints(make_runner):
    runner = make_runner(run__seed=4)
    runner.run()
    runner.folder.unlock()
    path = runner.folder.path / "config.toml"
    for damage in (path.read_text().replace("seed = 4", "seed = 5"), "", "\x00", None):
        path.unlink() if damage is None else path.write_text(damage)
        folder = RunDir.open(runner.folder.path)
        assert folder.read_config().run.seed == 4
        assert "config.toml" in folder.notes[0]
        path.touch()


def test_nan_and_infinity_are_never_written_to_metrics(make_runner):
    runner = make_runner(task=ToyTask(poison="fitness"))
    runner.run()

    def refuse(text):
        raise AssertionError(text)

    for line in (runner.folder.path / "metrics.jsonl").read_text().splitlines():
        json.loads(line, parse_constant=refuse)


def test_state_is_donated_and_compiled_once(make_runner):
    runner = make_runner(learning=True)
    before = jax.tree.leaves(runner.state)[-1]
    runner.run()
    assert before.is_deleted()
    assert runner._tell._cache_size() == runner._learn._cache_size() == 1


def test_signals_reach_a_busy_run_and_handlers_are_restored():
    before = signal.getsignal(signal.SIGINT)
    told = []
    with Stop(lambda: told.append(True)) as stop:
        assert not stop
        signal.raise_signal(signal.SIGINT)
        for _ in range(1000):
            if told:
                break
            signal.sigtimedwait([], 0.01)
        assert stop.exit_code == 130
    assert signal.getsignal(signal.SIGINT) is before


HUNG_UP = """
import os, pathlib, signal, sys, time
from qdhuac.training.signals import Stop

signal.signal(signal.SIGHUP, signal.SIG_DFL)  # whatever these tests were started with
os.open(sys.argv[2], os.O_RDWR)  # the first terminal that the leader of a session opens is its own
with Stop(lambda: print("stopping", flush=True)) as stop:
    print("ready", flush=True)
    for _ in range(3000):
        if stop:
            break
        time.sleep(0.01)
    print("saving", flush=True)
    pathlib.Path(sys.argv[1]).write_text(str(stop.exit_code))
"""


def test_a_closed_terminal_saves_and_stops_the_run(tmp_path):
    ours, theirs = pty.openpty()
    words = [sys.executable, "-c", HUNG_UP, str(tmp_path / "code"), os.ttyname(theirs)]
    process = subprocess.Popen(words, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True)
    os.close(theirs)
    with open(ours, "rb", buffering=0) as terminal:  # closed after the whole line, not in the middle of its writing
        assert terminal.readline() == b"ready\r\n"
    assert process.wait(60) == 0
    assert (tmp_path / "code").read_text() == "129"


def test_a_process_that_ignores_hang_ups_continues_to_ignore_them():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    try:
        with Stop() as stop:
            signal.raise_signal(signal.SIGHUP)
            signal.sigtimedwait([], 0.1)
            assert not stop
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_damaged_metrics_are_replaced_by_the_copy_or_refused(make_runner):
    runner = make_runner()
    runner.run()
    path = runner.folder.path / "metrics.jsonl"
    path.write_text(path.read_text() + '{"gener')  # a line that is being written
    assert len(runner.folder.read_metrics()) == 6
    kept = runner.folder.read_metrics()
    path.write_text("[1]\n")
    assert runner.folder.read_metrics() == kept
    assert "using the copy in the newest checkpoint" in runner.folder.notes[-1]
    shutil.rmtree(runner.folder.checkpoints)
    with pytest.raises(UserError, match="line 1 is not an object"):
        runner.folder.read_metrics()
