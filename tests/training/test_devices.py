"""One run on several devices, and in several processes, equals the run on one device."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import jax
import on_devices
import pytest
import quick
from runs import assert_same_run

from qdhuac import cli
from qdhuac.algorithms import specs
from qdhuac.algorithms.specs import build as build_algorithm
from qdhuac.errors import UserError
from qdhuac.store.run_folder import RunDir
from qdhuac.training import distributed, launch
from qdhuac.training.launch import Process
from qdhuac.training.loop import Trainer
from qdhuac.training.signals import Stop

GENERATIONS = 3


def run(folder, algorithm, devices, generations=GENERATIONS, again=False):
    """A run in this process, whose CPU is four devices; returns the shape of one device's part of the replay buffer."""
    config = on_devices.configuration(algorithm, devices, generations)
    with RunDir.open(folder) if again else RunDir.create(folder, config) as place, distributed.use(devices):
        trainer = Trainer([(config, place)], *built(algorithm, devices))
        trainer.restore() if again else trainer.start()
        assert trainer.run()
        rows = trainer.state.algorithm.replay.rows
    return rows.sharding.shard_shape(rows.shape)


@functools.cache
def built(algorithm, devices):
    """Task and algorithm, the same objects for all runs on so many devices."""
    task = on_devices.LineTask(contacts=algorithm == "qd_pg")
    return task, build_algorithm(on_devices.configuration(algorithm, devices, GENERATIONS), task)


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The run of an algorithm on one device, made when it is first asked for."""
    folder = tmp_path_factory.mktemp("alone")

    def made(algorithm):
        if not (folder / algorithm).exists():
            run(folder / algorithm, algorithm, 1)
        return folder / algorithm

    return made


@pytest.mark.parametrize(("algorithm", "devices"), [("qdhuac", 2), ("qd_pg", 2)])
def test_several_devices(tmp_path, alone, algorithm, devices):
    shape = run(tmp_path / "run", algorithm, devices)
    assert_same_run(tmp_path / "run", alone(algorithm))
    assert {line["devices"] for line in RunDir.open(tmp_path / "run").read_metrics()} == {devices}
    assert shape[0] == specs.make(algorithm, "smoke").settings.replay.capacity // devices


def test_a_run_can_be_resumed_with_another_number_of_devices(tmp_path, alone):
    run(tmp_path / "run", "qdhuac", 2, generations=1)
    assert run(tmp_path / "run", "qdhuac", 4, again=True)[0] == 500
    assert_same_run(tmp_path / "run", alone("qdhuac"))
    assert [line["devices"] for line in RunDir.open(tmp_path / "run").read_metrics()] == [2, 4, 4]


def addresses():
    """The option of each of two processes, with a port that is free now."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    return [f"{rank}/2@127.0.0.1:{port}" for rank in range(2)]


def start(command, folder, generations):
    """Two processes with a device each."""
    environment = {**os.environ, "XLA_FLAGS": quick.flags(1)}
    both = []
    for process in addresses():
        words = [sys.executable, on_devices.__file__, command, folder, "qdhuac", 2, generations, process]
        both.append(
            subprocess.Popen(
                [str(word) for word in words],
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        )
    return both


def finish(process, code=0):
    said, _ = process.communicate(timeout=600)
    assert process.returncode == code, said
    return said


def test_two_processes_train_and_a_signal_to_one_of_them_stops_and_saves_both(tmp_path, alone):
    folder = tmp_path / "run"
    said = [finish(process) for process in start("train", folder, GENERATIONS)]
    assert_same_run(folder, alone("qdhuac"))
    assert "run folder:" in said[0]
    assert "generation" not in said[1]  # the first one alone talks and writes
    assert [path.name for path in tmp_path.iterdir()] == ["run"]

    both = start("resume", folder, 10**6)
    while len(RunDir.open(folder).read_metrics()) < GENERATIONS + 2:
        assert both[0].poll() is None, both[0].communicate()[0]
        time.sleep(0.1)
    both[1].send_signal(signal.SIGTERM)
    finish(both[1], 143)
    assert "saved; resume with" in finish(both[0], 143)
    found = [line["generation"] for line in RunDir.open(folder).read_metrics()]
    assert found == list(range(1, len(found) + 1))
    with RunDir.open(folder) as stopped:
        assert launch.checkpoint.newest(stopped.checkpoints).record["counters"]["generation"] == len(found)


def test_a_signal_to_another_process_does_not_count_as_the_first_of_two():
    stop = Stop()
    stop.elsewhere = signal.SIGTERM
    assert stop
    assert stop.exit_code == 143
    stop.request(signal.SIGINT)  # the second of two would end this process
    assert stop.exit_code == 130


def test_a_signal_during_an_agreement_counts_at_the_next_one(monkeypatch):
    stop = Stop()

    def agreed(number):
        stop.signal = signal.SIGTERM  # it reaches us after we have said that there is none
        return number

    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr(distributed, "agreed", agreed)
    assert [distributed.stopped(stop), distributed.stopped(stop)] == [False, True]


def process(rank, of=2, port=None):
    if port is None:
        port = addresses()[0].rpartition(":")[2]
    return Process(rank, of, f"127.0.0.1:{port}")


def test_processes_with_different_options_are_refused():
    first = process(0)
    with ThreadPoolExecutor() as threads:
        listening = threads.submit(distributed.meet, first, {"version": "1", "configuration": "a"})
        for calling in (listening, threads.submit(distributed.meet, first._replace(rank=1), {"version": "1"})):
            with pytest.raises(UserError, match="process 1 has another configuration than process 0"):
                calling.result()


def test_processes_compare_their_configurations(tmp_path):
    one, other = (on_devices.configuration("qdhuac", 2, n) for n in (2, 3))
    with RunDir.create(tmp_path / "run", one) as folder:
        has = [launch._what_must_agree(process(rank), c, folder) for rank, c in ((0, one), (1, one), (0, other))]
    assert has[0] == has[1]
    assert {name for name in has[0] if has[0][name] != has[2][name]} == {"configuration"}


@pytest.mark.parametrize(
    ("rank", "of", "text"),
    [(1, 2, "no process 0 at 127.0.0.1"), (0, 3, "1 of 3 processes came to 127.0.0.1")],
)
def test_a_process_that_waits_in_vain_ends(monkeypatch, rank, of, text):
    monkeypatch.setattr(distributed, "MEETING_SECONDS", 0.5)
    with pytest.raises(UserError, match=text):
        distributed.meet(process(rank, of), {})


def test_an_address_in_use_is_refused():
    with socket.create_server(("", 0)) as taken, pytest.raises(UserError, match="cannot be listened to"):
        distributed.meet(process(0, port=taken.getsockname()[1]), {})


def test_a_connection_from_another_program_is_ignored(monkeypatch):
    monkeypatch.setattr(distributed, "GREETING_SECONDS", 0.2)
    leader = process(0)
    with ThreadPoolExecutor() as threads, contextlib.ExitStack() as stack:
        first = threads.submit(distributed.meet, leader, {"version": "1"})
        for text in (b"GET / HTTP/1.1\r\n\r\n", b'{"rank": []}\n', b"\xff\n", b""):
            while True:
                try:
                    stranger = socket.create_connection(("127.0.0.1", int(leader.address.rpartition(":")[2])))
                    break
                except ConnectionRefusedError:
                    time.sleep(0.05)
            stack.enter_context(stranger).sendall(text)  # and stays
        assert distributed.meet(leader._replace(rank=1), {"version": "1"})
        assert first.result()


@pytest.mark.parametrize("says", [b"SSH-2.0-OpenSSH_8.9\r\n", b"\xff\xff\n", b"\n", b"[]\n", b""])
def test_another_program_at_the_address_is_reported(monkeypatch, says):
    monkeypatch.setattr(distributed, "MEETING_SECONDS", 0.5)
    with socket.create_server(("", 0)) as other, ThreadPoolExecutor() as threads:
        call = threads.submit(distributed.meet, process(1, port=other.getsockname()[1]), {})
        other.settimeout(0.1)
        while not call.done():
            with contextlib.suppress(TimeoutError), other.accept()[0] as caller:
                caller.sendall(says)
        with pytest.raises(UserError, match="no process 0 at 127"):
            call.result()


def test_ctrl_c_while_waiting_for_other_processes_ends_the_process(tmp_path):
    first = process(0)

    def interrupt():
        """Once the process listens. A connection from another program is ignored."""
        for _ in range(600):
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", int(first.address.rpartition(":")[2]))).close()
                os.kill(os.getpid(), signal.SIGINT)
                return
            time.sleep(0.05)

    threading.Thread(target=interrupt).start()
    config = on_devices.configuration("qdhuac", 2, 1)
    code = launch.train(config, tmp_path / "run", task=on_devices.LineTask(), process=first)
    assert code == 130
    assert not list(tmp_path.iterdir())


EIGHTS = ["--set", "learner.batch_size=16", "replay.capacity=2000", "emitter.batch_size=8"]


def test_more_devices_than_the_machine_has_are_refused(tmp_path, monkeypatch, toys, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["train", "--preset", "smoke", "--devices", "8", "--run-dir", "new", *EIGHTS]) == 2
    assert "run.devices=8: this machine has 4 (cpu)" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"learner.batch_size": 15}, "learner.batch_size=15"),
        ({"replay.capacity": 2001}, "replay.capacity=2001"),
        ({"emitter.batch_size": 7, "task.backend": "mjx"}, "emitter.batch_size=7"),
    ],
)
def test_sizes_that_are_not_divisible_by_the_devices_are_refused(changes, text):
    specs.make("qdhuac", "smoke", changes)
    with pytest.raises(UserError, match=f"{text}: must be divisible by run.devices=2"):
        specs.make("qdhuac", "smoke", changes | {"run.devices": 2})


@pytest.mark.parametrize("where", ["a", "a b:1", "a:1\n", "a:0", "a:65536", "a..b:1"])
def test_bad_addresses_are_refused(where, capsys):
    assert cli.main(["train", "--process", f"0/2@{where}"]) == 2
    assert "expected RANK/COUNT@HOST:PORT" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["2/2@a:1", "0/0@a:1", "0/2", "x"])
def test_bad_processes_are_refused(text, capsys):
    assert cli.main(["train", "--process", text]) == 2
    assert "expected RANK/COUNT@HOST:PORT" in capsys.readouterr().err


@pytest.mark.parametrize("option", [("--devices", "2"), ("--process", "0/2@localhost:1")])
def test_several_seeds_on_several_devices_are_refused(option, capsys):
    assert cli.main(["train", "--preset", "smoke", "--seeds", "2", *option]) == 2
    assert "--seeds: runs side by side share one device" in capsys.readouterr().err
