"""Studies on a cluster: every run finishes once, whatever happens to its node, and what is refused by name."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest
import stub_cluster
import submitit  # here, as it resets logging, which would close what pytest captures a test's output with
from fake_study import write_run

from qdhuac import __version__, cli
from qdhuac.studies import catalogue, worker
from qdhuac.studies import slurm as on_slurm
from qdhuac.studies.folder import FINISHED, MISSING, STARTED, look, write
from qdhuac.studies.local import Result

HERE = Path(__file__).parents[1] / "helpers"
STUDY = ["study", "target", "--scale", "smoke", "--root"]
PATHS = os.pathsep.join([str(HERE), str(Path(cli.__file__).parents[2])])


def runs():
    return catalogue.runs("target", "smoke", 2)


def begin(root, *more, **environment):
    """`qdhuac study` in a process of its own, with stubs for runs."""
    words = [sys.executable, str(HERE / "stub_cluster.py"), *STUDY, str(root), *more]
    environment = {**os.environ, "PYTHONPATH": PATHS, **environment}
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


def until(true, *processes):
    deadline = time.monotonic() + 180
    while not true():
        assert time.monotonic() < deadline
        assert all(process.poll() is None for process in processes), processes[0].communicate()
        time.sleep(0.05)


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def waiting(root):
    """The processes of the runs that wait, by folder."""
    found = {path.parent.name: path.read_text() for path in (root / "runs").glob("*/waiting")}
    return {name: int(text) for name, text in found.items() if text}


def begun(root, run):
    """How each process of a run was begun."""
    lines = (root / "logs" / f"{run.folder}.log").read_text().splitlines()
    return [line.split()[3] for line in lines if line.startswith("$ ")]


def processes(root, run):
    """Which process made each generation; each is there once."""
    found = look(root, run)
    assert found.state == FINISHED
    assert [row["generation"] for row in found.rows] == [1, 2, 3, 4]
    return [row["process"] for row in found.rows]


# Ray


class Nodes:
    """The cluster of `ray_nodes.py`."""

    def __init__(self, process):
        self._process = process
        self.address = self._answer()

    def _answer(self):
        for line in self._process.stdout:  # Ray may say something of its own before
            if line == "done\n" or re.fullmatch(r"[\d.]+:\d+\n", line):
                return line.strip()
        raise AssertionError("the cluster has ended")

    def ask(self, what):
        self._process.stdin.write(f"{what}\n")
        self._process.stdin.flush()
        self._answer()


@pytest.fixture(scope="module")
def cluster():
    """A head with one core; tests may add a node."""
    environment = {**os.environ, "PYTHONPATH": PATHS, "RAY_USAGE_STATS_ENABLED": "0", "STUB_HANG": "-s100-"}
    words = [sys.executable, str(HERE / "ray_nodes.py")]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(words, env=environment, **pipes) as process:
        yield Nodes(process)
        process.stdin.close()
        process.stdout.read()


def test_when_a_node_is_lost_every_run_finishes_once_and_its_run_goes_on_from_its_checkpoint(cluster, tmp_path):
    cluster.ask("add")
    study = begin(tmp_path, "--executor", "ray", RAY_ADDRESS=cluster.address)
    until(lambda: len(waiting(tmp_path)) == 2, study)  # both runs of the first seed: one on each node
    before = waiting(tmp_path)
    cluster.ask("lose")
    until(lambda: sum(alive(pid) for pid in before.values()) == 1, study)  # it goes with its node
    for name in before:
        (tmp_path / "runs" / name / "go").touch()
    out, err = study.communicate(timeout=180)
    assert study.returncode == 0, err
    assert out.count("finished after") == 4
    resumed = [run for run in runs() if begun(tmp_path, run) != ["train"]]
    assert [begun(tmp_path, run) for run in resumed] == [["train", "resume"]]
    first, *_, last = processes(tmp_path, resumed[0])
    assert first == before[resumed[0].folder] != last
    for run in runs():
        assert run in resumed or len(set(processes(tmp_path, run))) == 1
    assert not list((tmp_path / "runs").glob("*/checkpoints"))


def test_ctrl_c_lets_the_runs_on_ray_save(cluster, tmp_path):
    study = begin(tmp_path, "--executor", "ray", RAY_ADDRESS=cluster.address)
    until(lambda: len(waiting(tmp_path)) == 1, study)
    study.send_signal(signal.SIGINT)
    out, err = study.communicate(timeout=180)
    assert study.returncode == 130, err
    assert out.count("saved after") == 1
    assert "failed" not in out
    assert [look(tmp_path, run).state for run in runs()] == [STARTED, MISSING, MISSING, MISSING]
    assert len(list((tmp_path / "runs" / runs()[0].folder / "checkpoints").iterdir())) == 2


def test_a_cluster_with_another_version_is_refused_before_anything_starts(cluster, tmp_path):
    done = write_run(tmp_path, runs()[0], archive=False)
    before = {path: path.read_bytes() for path in done.iterdir()}
    study = begin(tmp_path, "--executor", "ray", RAY_ADDRESS=cluster.address, STUB_VERSION="0.0.9")
    _, err = study.communicate(timeout=180)
    assert study.returncode == 2, err
    assert f"{os.uname().nodename} has qdhuac {__version__}, and the study is made with 0.0.9" in err
    assert {path: path.read_bytes() for path in done.iterdir()} == before
    assert list((tmp_path / "runs").iterdir()) == [done]


def test_an_address_without_a_ray_is_refused_before_anything_is_written(tmp_path, refused, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as closed:
        nobody = f"127.0.0.1:{closed.getsockname()[1]}"
    with socket.create_server(("127.0.0.1", 0)) as other:
        mute = f"127.0.0.1:{other.getsockname()[1]}"
        monkeypatch.setattr("qdhuac.studies.ray.TIMEOUT", 0.2)
        wrong = {nobody: "no Ray cluster", mute: "no Ray cluster", "a..b:1": "no Ray cluster", "moon": "host:port"}
        for address, words in wrong.items():
            monkeypatch.setenv("RAY_ADDRESS", address)
            message = refused(*STUDY, str(tmp_path / "root"), "--executor", "ray")
            assert address in message
            assert words in message
    assert not list(tmp_path.iterdir())


# Nodes


@pytest.fixture
def order(tmp_path, monkeypatch):
    """A study that has been recorded, and the order for its first run."""
    monkeypatch.setattr("qdhuac.studies.local.COMMAND", stub_cluster.STUB)
    write(tmp_path, "target", "smoke", runs())
    (tmp_path / "logs").mkdir()
    return worker.order(tmp_path, "target", "smoke", 2, runs()[0])


def test_a_run_is_not_taken_from_a_process_that_still_has_it(order, tmp_path, monkeypatch):
    monkeypatch.setattr(worker, "PATIENCE", 0)
    with (tmp_path / "logs" / f"{order['folder']}.log").open("ab") as out:
        worker._lock(out, runs()[0])
        still = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, stdout=out)
    result = worker.work(order)  # the one who locked it has let go, its child has not
    assert result.code is None
    assert order["folder"] in result.last
    assert look(tmp_path, runs()[0]).state == MISSING
    still.communicate(b"\n")
    assert worker.work(order).code == 0
    assert worker.work(order) == Result(0)  # finished: nothing is done again
    assert begun(tmp_path, runs()[0]) == ["train"]


def test_a_file_system_without_locks_is_refused(order, tmp_path, monkeypatch):
    def flock(*_):
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr("fcntl.flock", flock)
    assert "cannot be locked" in worker.work(order).last
    assert look(tmp_path, runs()[0]).state == MISSING


def test_a_run_saves_and_ends_when_the_process_that_started_it_is_killed(order, tmp_path):
    code = "import json, sys, stub_cluster; stub_cluster.work(json.loads(sys.argv[1]))"
    environment = {**os.environ, "PYTHONPATH": PATHS, "STUB_HANG": "-s100-"}
    node = subprocess.Popen([sys.executable, "-c", code, json.dumps(order)], env=environment)
    until(lambda: waiting(tmp_path), node)
    pid = waiting(tmp_path)[order["folder"]]
    node.kill()
    node.wait()
    until(lambda: not alive(pid))
    names = sorted(path.name for path in (tmp_path / "runs" / order["folder"] / "checkpoints").iterdir())
    assert [int(name.split("-")[0]) for name in names] == [1, 2]
    assert worker.work(order).code == 0
    assert begun(tmp_path, runs()[0]) == ["train", "resume"]


def test_a_run_that_somebody_else_stops_can_go_on_elsewhere(order, tmp_path, monkeypatch):
    monkeypatch.setenv("STUB_HANG", "-s100-")
    with ThreadPoolExecutor() as threads:
        job = threads.submit(worker.work, order)
        until(lambda: waiting(tmp_path) or job.done())
        os.kill(waiting(tmp_path)[order["folder"]], signal.SIGTERM)
        with pytest.raises(worker.Stopped, match="saved"):
            job.result()
    assert worker.work(order).code == 0


@pytest.mark.parametrize("how", ["file", "interrupt"])
def test_a_run_is_stopped_by_a_file_or_by_an_interrupt_and_saves(order, tmp_path, how):
    # Whoever is started in the background may have been told to ignore SIGINT.
    code = "import json, signal, sys, stub_cluster; signal.signal(signal.SIGINT, signal.default_int_handler); "
    code += "print(stub_cluster.work(json.loads(sys.argv[1])).code)"
    environment = {**os.environ, "PYTHONPATH": PATHS, "STUB_HANG": "-s100-"}
    words = [sys.executable, "-c", code, json.dumps(order)]
    node = subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, text=True)
    until(lambda: waiting(tmp_path), node)
    if how == "file":
        worker.stopped(tmp_path, runs()[0]).touch()
    else:
        node.send_signal(signal.SIGINT)
    assert node.communicate(timeout=60)[0] == "143\n"
    assert len(list((tmp_path / "runs" / order["folder"] / "checkpoints").iterdir())) == 2
    if how == "file":
        assert worker.work(order).code is None  # it does not begin again while the file is there


def test_a_node_that_does_not_see_the_study_refuses(order, tmp_path):
    result = worker.work({**order, "root": str(tmp_path / "elsewhere")})
    assert result.code is None
    assert str(tmp_path / "elsewhere") in result.last
    assert not (tmp_path / "elsewhere").exists()
    assert order["folder"][:-1] in worker.work({**order, "folder": order["folder"][:-1]}).last


def test_a_node_with_another_version_of_anything_refuses(order, tmp_path):
    result = worker.work({**order, "versions": {**order["versions"], "jax": "0.0.9"}})
    assert result.code is None
    assert result.last.endswith(f"has jax {order['versions']['jax']}, and the study is made with 0.0.9")
    assert look(tmp_path, runs()[0]).state == MISSING


def test_an_executor_that_is_unknown_or_not_installed_is_refused(tmp_path, refused, monkeypatch):
    root = str(tmp_path / "root")
    assert "local, ray, slurm" in refused(*STUDY, root, "--executor", "moon")
    for package, name in (("ray", "ray"), ("submitit", "slurm")):
        monkeypatch.setitem(sys.modules, package, None)
        assert f"make setup-{name}" in refused(*STUDY, root, "--executor", name)
    assert not list(tmp_path.iterdir())


# Slurm


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    """Stands in for Slurm's commands: gives the folder of its jobs, and ends what is left of them."""
    programs, spool = tmp_path / "bin", tmp_path / "spool"
    programs.mkdir()
    spool.mkdir()
    for name in ("sbatch", "srun", "scancel", "scontrol", "sacct"):
        text = f'#!/bin/sh\nexec {sys.executable} {HERE / "fake_slurm.py"} {name} "$@"\n'
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("FAKE_SLURM", str(spool))
    yield spool
    for job in spool.glob("*.job"):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(int(job.read_text()), signal.SIGKILL)


def test_a_study_is_one_job_array(slurm, tmp_path):
    (tmp_path / "root" / "logs").mkdir(parents=True)
    worker.stopped(tmp_path / "root", runs()[0]).touch()  # of a Ctrl-C before
    study = begin(tmp_path / "root", "--executor", "slurm", "--jobs", "2")
    out, err = study.communicate(timeout=180)
    assert study.returncode == 0, err
    assert out.count("finished after") == 4
    assert [job.name for job in sorted(slurm.glob("*.job"))] == [f"7_{i}.job" for i in range(4)]
    assert "#SBATCH --array=0-3%2" in (tmp_path / "root" / "slurm" / "7_submission.sh").read_text()
    for run in runs():
        assert begun(tmp_path / "root", run) == ["train"]
        assert len(set(processes(tmp_path / "root", run))) == 1


def test_a_preempted_job_saves_and_is_queued_again(slurm, tmp_path):
    root = tmp_path / "root"
    study = begin(root, "--executor", "slurm", "--seeds", "1", STUB_HANG=runs()[0].folder)
    until(lambda: waiting(root), study)
    before = waiting(root)[runs()[0].folder]
    job = int((slurm / "7_0.job").read_text())
    os.killpg(job, signal.SIGUSR2)  # as Slurm does, to everything in the job
    os.kill(before, signal.SIGUSR2)
    out, err = study.communicate(timeout=180)
    assert study.returncode == 0, err
    assert "failed" not in out
    assert begun(root, runs()[0]) == ["train", "resume"]
    first, second, *_, last = processes(root, runs()[0])
    assert first == second == before != last  # the second generation was saved upon the signal


def test_a_job_that_slurm_tells_to_go_has_saved_and_waits_to_be_queued_again(order, tmp_path, monkeypatch):
    monkeypatch.setenv("STUB_HANG", "-s100-")
    waited = []
    monkeypatch.setattr(on_slurm, "time", SimpleNamespace(sleep=waited.append))
    with ThreadPoolExecutor() as threads:
        job = threads.submit(on_slurm.Task(order))
        until(lambda: waiting(tmp_path) or job.done())
        os.kill(waiting(tmp_path)[order["folder"]], signal.SIGTERM)  # Slurm tells everything in the job
        assert job.result().code is None
    assert waited == [on_slurm.GRACE]
    assert len(list((tmp_path / "runs" / order["folder"] / "checkpoints").iterdir())) == 2
    assert on_slurm.Task(order)().code == 0
    assert begun(tmp_path, runs()[0]) == ["train", "resume"]


def test_ctrl_c_cancels_the_jobs_and_the_runs_save(slurm, tmp_path):
    root = tmp_path / "root"
    study = begin(root, "--executor", "slurm", STUB_HANG="-s100-")
    until(lambda: len(waiting(root)) == 2, study)
    pids = waiting(root).values()
    study.send_signal(signal.SIGINT)
    out, err = study.communicate(timeout=180)
    assert study.returncode == 130, err
    assert "failed" not in out
    until(lambda: not any(alive(pid) for pid in pids))
    for run in runs()[:2]:
        assert len(list((root / "runs" / run.folder / "checkpoints").iterdir())) == 2


def test_what_slurm_refuses_is_told(slurm, tmp_path):
    study = begin(tmp_path / "root", "--executor", "slurm", FAKE_REFUSAL="Invalid partition name specified")
    _, err = study.communicate(timeout=180)
    assert study.returncode == 2
    assert err.endswith("qdhuac: error: --executor slurm: sbatch: error: Invalid partition name specified\n")


def test_a_dry_run_shows_the_script_without_slurm_and_submits_nothing(tmp_path, capsys, refused, monkeypatch):
    monkeypatch.setenv("PATH", "")
    root = tmp_path / "root"
    assert cli.main([*STUDY, str(root), "--executor", "slurm", "--jobs", "3", "--dry-run"]) == 0
    out = capsys.readouterr().out
    for words in ("--array=0-3%3", "--signal=USR2@90", "--time=1440", "--requeue"):
        assert f"#SBATCH {words}\n" in out
    assert str(root / "slurm") in out
    assert not (root / "slurm").exists()
    assert not (root / "calibration").exists()  # this machine's speed says nothing about the cluster
    assert "no sbatch here" in refused(*STUDY, str(tmp_path / "other"), "--executor", "slurm")
    assert not (tmp_path / "other").exists()


def test_what_is_queued_again_is_the_same_task():
    task = stub_cluster.Task({"folder": "a"})
    again = task.checkpoint()
    assert isinstance(again, submitit.helpers.DelayedSubmission)
    assert type(again.function) is stub_cluster.Task
    assert again.function is not task
    assert again.function.order == task.order
