"""One run on several devices, and in several processes, is the run that one device makes."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jax
import pytest
from same_run import assert_same_run

from qdhuac import cli, presets
from qdhuac.errors import UserError
from qdhuac.store.run_folder import RunDir
from qdhuac.training import distributed as roll_call
from qdhuac.training.signals import Stop

PROGRAM = Path(__file__).parents[1] / "helpers" / "on_devices.py"
GENERATIONS = 3


@pytest.fixture(scope="session")
def environment(tmp_path_factory):
    """Programs are compiled once, not once per process."""
    return {**os.environ, "QDHUAC_CACHE": str(tmp_path_factory.mktemp("jax"))}


def start(environment, command, folder, algorithm, devices, generations, *process):
    local = devices // 2 if process else devices
    flags = {"XLA_FLAGS": f"--xla_force_host_platform_device_count={local}", "JAX_PLATFORMS": "cpu"}
    words = [sys.executable, PROGRAM, command, folder, algorithm, devices, generations, *process]
    words = [str(word) for word in words]
    return subprocess.Popen(
        words, env={**environment, **flags}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def finish(process, code=0):
    said, _ = process.communicate(timeout=600)
    assert process.returncode == code, said
    return said


@pytest.fixture(scope="module")
def alone(tmp_path_factory, environment):
    """The run of an algorithm on one device, made when it is first asked for."""
    folder = tmp_path_factory.mktemp("alone")

    def made(algorithm):
        if not (folder / algorithm).exists():
            finish(start(environment, "train", folder / algorithm, algorithm, 1, GENERATIONS))
        return folder / algorithm

    return made


@pytest.mark.parametrize(("algorithm", "devices"), [("qdhuac", 2), ("qdhuac", 4), ("qd_pg", 2)])
def test_several_devices(tmp_path, environment, alone, algorithm, devices):
    said = finish(start(environment, "train", tmp_path / "run", algorithm, devices, GENERATIONS))
    assert_same_run(tmp_path / "run", alone(algorithm))
    assert {line["devices"] for line in RunDir.open(tmp_path / "run").read_metrics()} == {devices}
    assert f"rows of one device: {presets.make(algorithm, 'smoke').replay.capacity // devices}\n" in said


def test_a_run_goes_on_with_another_number_of_devices(tmp_path, environment, alone):
    finish(start(environment, "train", tmp_path / "run", "qdhuac", 2, 1))
    finish(start(environment, "resume", tmp_path / "run", "qdhuac", 4, GENERATIONS))
    assert_same_run(tmp_path / "run", alone("qdhuac"))
    assert [line["devices"] for line in RunDir.open(tmp_path / "run").read_metrics()] == [2, 4, 4]


def addresses():
    """The option of each of two processes, with a port that is free now."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    return [f"{rank}/2@127.0.0.1:{port}" for rank in range(2)]


def test_two_processes(tmp_path, environment, alone):
    both = [start(environment, "train", tmp_path / "run", "qdhuac", 4, GENERATIONS, a) for a in addresses()]
    said = [finish(process) for process in both]
    assert_same_run(tmp_path / "run", alone("qdhuac"))
    assert "generation" in said[0]
    assert "generation" not in said[1]  # it leaves talking and writing to the first
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_a_signal_to_one_of_two_processes_stops_and_saves_both(tmp_path, environment):
    folder = tmp_path / "run"
    both = [start(environment, "train", folder, "qdhuac", 2, 10**6, a) for a in addresses()]
    while not (folder / "metrics.jsonl").exists() or len(RunDir.open(folder).read_metrics()) < 2:
        assert both[0].poll() is None, both[0].communicate()[0]
        time.sleep(0.1)
    both[1].send_signal(signal.SIGTERM)
    finish(both[1], 143)
    assert "saved; resume with" in finish(both[0], 143)
    done = len(RunDir.open(folder).read_metrics())
    rest = [start(environment, "resume", folder, "qdhuac", 2, done + 1, a) for a in addresses()]
    for process in rest:
        finish(process)
    assert [line["generation"] for line in RunDir.open(folder).read_metrics()] == list(range(1, done + 2))


def test_a_signal_to_another_process_is_not_the_first_of_two():
    stop = Stop()
    stop.elsewhere = signal.SIGTERM
    assert stop
    assert stop.exit_code == 143
    stop.request(signal.SIGINT)  # the second of two would end this process
    assert stop.exit_code == 130


def test_a_signal_that_comes_while_the_processes_agree_is_for_the_next_time(make_runner, monkeypatch):
    one = make_runner()

    def agreed(number):
        one.stop.signal = signal.SIGTERM  # it reaches us after we have said that there is none
        return number

    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr("qdhuac.sharding.agreed", agreed)
    assert [one.stopped, one.stopped] == [False, True]


def test_processes_that_were_told_different_things(tmp_path, environment):
    both = [start(environment, "train", tmp_path / "run", "qdhuac", 2, n, a) for n, a in enumerate(addresses(), 2)]
    for process in both:
        assert "process 1 has another configuration than process 0" in finish(process, 2)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("meet", "text"),
    [
        (lambda address: roll_call.call(address, 1, {}), "no process 0 at 127.0.0.1"),
        (lambda address: roll_call.answer(address, 3, {}), "1 of 3 processes came to 127.0.0.1"),
    ],
)
def test_nobody_comes(monkeypatch, meet, text):
    monkeypatch.setattr(roll_call, "PATIENCE", 0.5)
    with pytest.raises(UserError, match=text):
        meet(addresses()[0].partition("@")[2])


def test_an_address_that_is_taken():
    with socket.create_server(("", 0)) as taken, pytest.raises(UserError, match="cannot be listened to"):
        roll_call.answer(f"127.0.0.1:{taken.getsockname()[1]}", 2, {})


def test_a_strangers_call_is_ignored(monkeypatch):
    monkeypatch.setattr(roll_call, "SPEECH", 0.2)
    address = addresses()[0].partition("@")[2]
    with ThreadPoolExecutor() as threads, contextlib.ExitStack() as stack:
        first = threads.submit(roll_call.answer, address, 2, {"version": "1"})
        for text in (b"GET / HTTP/1.1\r\n\r\n", b'{"rank": []}\n', b"\xff\n", b""):
            while True:
                try:
                    stranger = socket.create_connection(("127.0.0.1", int(address.rpartition(":")[2])))
                    break
                except ConnectionRefusedError:
                    time.sleep(0.05)
            stack.enter_context(stranger).sendall(text)  # and stays
        assert roll_call.call(address, 1, {"version": "1"})
        assert first.result()


@pytest.mark.parametrize("says", [b"SSH-2.0-OpenSSH_8.9\r\n", b"\xff\xff\n", b"\n", b"[]\n", b""])
def test_somebody_else_at_the_address(monkeypatch, says):
    monkeypatch.setattr(roll_call, "PATIENCE", 0.5)
    with socket.create_server(("", 0)) as other, ThreadPoolExecutor() as threads:
        call = threads.submit(roll_call.call, f"127.0.0.1:{other.getsockname()[1]}", 1, {})
        other.settimeout(0.1)
        while not call.done():
            with contextlib.suppress(TimeoutError), other.accept()[0] as caller:
                caller.sendall(says)
        with pytest.raises(UserError, match="no process 0 at 127"):
            call.result()


def test_ctrl_c_while_nobody_comes(tmp_path, environment):
    alone = start(environment, "train", tmp_path / "run", "qdhuac", 2, 1, addresses()[0])
    while not (tmp_path / "run").exists():
        time.sleep(0.05)
    time.sleep(2)
    alone.send_signal(signal.SIGINT)
    finish(alone, 130)
    assert not list(tmp_path.iterdir())


def test_more_devices_than_there_are(tmp_path, monkeypatch, toys, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["train", "--preset", "smoke", "--devices", "2", "--run-dir", "new"]) == 2
    assert "run.devices=2: this machine has 1 (cpu)" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"learner.batch_size": 15}, "learner.batch_size=15"),
        ({"replay.capacity": 2001}, "replay.capacity=2001"),
        ({"emitter.batch_size": 7, "task.backend": "mjx"}, "emitter.batch_size=7"),
    ],
)
def test_sizes_that_devices_do_not_divide(changes, text):
    presets.make("qdhuac", "smoke", changes)
    with pytest.raises(UserError, match=f"{text}: run.devices=2 do not divide it"):
        presets.make("qdhuac", "smoke", changes | {"run.devices": 2})


@pytest.mark.parametrize("where", ["a", "a b:1", "a:1\n", "a:0", "a:65536", "a..b:1"])
def test_bad_addresses_are_refused(where, capsys):
    assert cli.main(["train", "--process", f"0/2@{where}"]) == 2
    assert "expected RANK/COUNT@HOST:PORT" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["2/2@a:1", "0/0@a:1", "0/2", "x"])
def test_bad_processes_are_refused(text, capsys):
    assert cli.main(["train", "--process", text]) == 2
    assert "expected RANK/COUNT@HOST:PORT" in capsys.readouterr().err


@pytest.mark.parametrize("option", [("--devices", "2"), ("--process", "0/2@localhost:1")])
def test_seeds_share_one_device(option, capsys):
    assert cli.main(["train", "--preset", "smoke", "--seeds", "2", *option]) == 2
    assert "--seeds: runs side by side share one device" in capsys.readouterr().err
