"""Studies on a cluster: every run finishes once, whatever happens to its node; bad input is refused by name."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from stub_cluster import STUB
from study_process import HELPERS, PATHS, STUDY, alive, begin, begun, generations, processes, runs, until, waiting

from qdhuac.studies import local, worker
from qdhuac.studies.folder import MISSING, look, write
from qdhuac.studies.local import Result

# Ray


class Nodes:
    """The cluster of `ray_nodes.py`."""

    def __init__(self, process):
        self._process = process
        self.address = self._answer()

    def _answer(self):
        for line in self._process.stdout:  # Ray may print lines of its own before
            if line == "done\n" or re.fullmatch(r"[\d.]+:\d+\n", line):
                return line.strip()
        raise AssertionError("the cluster has ended")

    def ask(self, what):
        self._process.stdin.write(f"{what}\n")
        self._process.stdin.flush()
        self._answer()


@pytest.fixture
def cluster():
    """A head with one core; tests may add a node."""
    environment = {**os.environ, "PYTHONPATH": PATHS, "RAY_USAGE_STATS_ENABLED": "0", "STUB_HANG": "-s100-"}
    words = [sys.executable, str(HELPERS / "ray_nodes.py")]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(words, env=environment, **pipes) as process:
        yield Nodes(process)
        process.stdin.close()
        process.stdout.read()


def test_on_ray_every_run_finishes_once_and_the_run_of_a_lost_node_is_resumed(cluster, tmp_path):
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


def test_an_address_without_a_ray_cluster_is_refused_before_anything_is_written(tmp_path, refused, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as closed:
        unused = f"127.0.0.1:{closed.getsockname()[1]}"
    for address, words in {unused: "no Ray cluster", "a..b:1": "no Ray cluster", "moon": "host:port"}.items():
        monkeypatch.setenv("RAY_ADDRESS", address)
        message = refused(*STUDY, str(tmp_path / "root"), "--executor", "ray")
        assert address in message
        assert words in message
    assert not list(tmp_path.iterdir())


# Nodes


@pytest.fixture
def order(tmp_path, monkeypatch):
    """The order for the first run of a study."""
    monkeypatch.setattr(local, "COMMAND", STUB)
    write(tmp_path, "target", "smoke", 2)
    (tmp_path / "logs").mkdir()
    return worker.order(tmp_path, runs()[0])


def test_a_run_is_not_started_while_another_process_has_it(order, tmp_path):
    with (tmp_path / "logs" / f"{order['folder']}.log").open("ab") as out:
        fcntl.flock(out, fcntl.LOCK_EX)
        still = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, stdout=out)
    result = worker.work(order, patience=0)  # the process that locked the log has closed it, its child has not
    assert result.code is None
    assert order["folder"] in result.last
    assert look(tmp_path, runs()[0]).state == MISSING
    still.communicate(b"\n")
    assert worker.work(order).code == 0
    assert worker.work(order) == Result(0)  # finished: nothing is done again
    assert begun(tmp_path, runs()[0]) == ["train"]


def test_a_run_saves_and_ends_when_the_process_that_started_it_is_killed(order, tmp_path):
    code = "import json, sys, stub_cluster; stub_cluster.work(json.loads(sys.argv[1]))"
    environment = {**os.environ, "PYTHONPATH": PATHS, "STUB_HANG": "-s100-"}
    node = subprocess.Popen([sys.executable, "-c", code, json.dumps(order)], env=environment)
    until(lambda: waiting(tmp_path), node)
    pid = waiting(tmp_path)[order["folder"]]
    node.kill()
    node.wait()
    until(lambda: not alive(pid))
    assert generations(tmp_path, runs()[0]) == (2, 2)
    assert worker.work(order).code == 0
    assert begun(tmp_path, runs()[0]) == ["train", "resume"]


def test_a_run_that_is_stopped_from_outside_can_be_resumed_elsewhere(order, tmp_path, monkeypatch):
    monkeypatch.setenv("STUB_HANG", "-s100-")
    with ThreadPoolExecutor() as threads:
        job = threads.submit(worker.work, order)
        until(lambda: waiting(tmp_path) or job.done())
        os.kill(waiting(tmp_path)[order["folder"]], signal.SIGTERM)
        with pytest.raises(worker.Stopped, match="saved"):
            job.result()
    assert worker.work(order).code == 0


@pytest.mark.parametrize("how", ["file", "interrupt"])
def test_a_file_or_an_interrupt_lets_a_run_save_and_stop(order, tmp_path, how):
    # A process that is started in the background may ignore SIGINT.
    code = "import json, signal, sys, stub_cluster; signal.signal(signal.SIGINT, signal.default_int_handler); "
    code += "print(stub_cluster.work(json.loads(sys.argv[1])).code)"
    environment = {**os.environ, "PYTHONPATH": PATHS, "STUB_HANG": "-s100-"}
    words = [sys.executable, "-c", code, json.dumps(order)]
    node = subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, text=True)
    until(lambda: waiting(tmp_path), node)
    if how == "file":
        worker.stop_file(tmp_path, runs()[0]).touch()
    else:
        node.send_signal(signal.SIGINT)
    assert node.communicate(timeout=60)[0] == "143\n"
    assert generations(tmp_path, runs()[0]) == (2, 2)
    if how == "file":
        assert worker.work(order).code is None  # it does not start again while the file is there


def test_a_node_without_the_studys_folder_refuses_its_run(order, tmp_path):
    other = tmp_path / "elsewhere"
    result = worker.work({**order, "root": str(other)})
    assert result.code is None
    assert f"does not see {other}" in result.last
    assert not other.exists()


def test_a_node_with_other_versions_refuses_its_run(order, tmp_path):
    result = worker.work({**order, "versions": {**order["versions"], "jax": "0.0.9"}})
    assert result.code is None
    assert result.last.endswith(f"has jax {order['versions']['jax']}, and the study is made with 0.0.9")
    assert look(tmp_path, runs()[0]).state == MISSING


def test_an_executor_that_is_unknown_or_not_installed_is_refused(tmp_path, refused, monkeypatch):
    root = str(tmp_path / "root")
    message = refused(*STUDY, root, "--executor", "moon")
    assert all(name in message for name in ("moon", "local", "ray", "slurm"))
    for package, name in (("ray", "ray"), ("submitit", "slurm")):
        monkeypatch.setitem(sys.modules, package, None)
        assert f"make setup-{name}" in refused(*STUDY, root, "--executor", name)
    assert not list(tmp_path.iterdir())


# Slurm


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    """Stands in for Slurm's commands; gives the folder of its jobs and ends what is left of them."""
    programs, spool = tmp_path / "bin", tmp_path / "spool"
    programs.mkdir()
    spool.mkdir()
    for name in ("sbatch", "srun", "scancel", "scontrol", "sacct"):
        text = f'#!/bin/sh\nexec {sys.executable} {HELPERS / "fake_slurm.py"} {name} "$@"\n'
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("FAKE_SLURM", str(spool))
    yield spool
    for job in spool.glob("*.job"):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(int(job.read_text()), signal.SIGKILL)


def test_on_slurm_a_study_is_one_job_array_and_a_preempted_job_saves_and_is_requeued(slurm, tmp_path):
    root, first = tmp_path / "root", runs()[0]
    (root / "logs").mkdir(parents=True)
    worker.stop_file(root, first).touch()  # left over from an earlier Ctrl-C
    study = begin(root, "--executor", "slurm", "--jobs", "2", STUB_HANG=first.folder)
    until(lambda: waiting(root), study)
    before = waiting(root)[first.folder]
    job = int((slurm / "7_0.job").read_text())
    os.killpg(job, signal.SIGUSR2)  # as Slurm does, to every process of the job
    os.kill(before, signal.SIGUSR2)
    out, err = study.communicate(timeout=180)
    assert study.returncode == 0, err
    assert out.count("finished after") == 4
    script = (root / "slurm" / "7_submission.sh").read_text()
    for words in ("--array=0-3%2", "--signal=USR2@90", "--time=1440", "--requeue"):
        assert f"#SBATCH {words}\n" in script
    assert begun(root, first) == ["train", "resume"]
    one, two, *_, last = processes(root, first)
    assert one == two == before != last  # the second generation was saved upon the signal
    for run in runs()[1:]:
        assert len(set(processes(root, run))) == 1


def test_without_slurm_nothing_is_submitted(tmp_path, refused, monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert "sbatch not found" in refused(*STUDY, str(tmp_path / "root"), "--executor", "slurm")
    assert not (tmp_path / "root").exists()
