"""Loggers: they get what metrics.jsonl gets; a missing package is reported in one line."""

import sys
import types

import pytest
from reach import ReachTask
from tensorboardX.proto import event_pb2
from tensorboardX.record_writer import masked_crc32c

import qdhuac
from qdhuac import cli
from qdhuac.errors import UserError

TRAIN = ["train", "--algorithm", "dns", "--preset", "smoke", "--generations", "3", "--run-dir"]


def events(folder):
    """The scalars in an event file: records of a length, its checksum, an event, its checksum."""
    (path,) = (folder / "tensorboard").iterdir()
    data, found = path.read_bytes(), {}
    while data:
        size = int.from_bytes(data[:8], "little")
        assert masked_crc32c(data[12 : 12 + size]) == int.from_bytes(data[12 + size : 16 + size], "little")
        event = event_pb2.Event.FromString(data[12 : 12 + size])
        for value in event.summary.value:
            found[value.tag, event.step] = value.simple_value
        data = data[16 + size :]
    return found


def test_tensorboard_has_the_metrics_of_every_generation(toys, tmp_path):
    assert cli.main([*TRAIN, str(tmp_path / "run"), "--log", "tensorboard"]) == 0
    found = events(tmp_path / "run")
    rows = qdhuac.load(tmp_path / "run").folder.read_metrics()
    assert len(rows) == 3
    for row in rows:
        for name in ("qd_score", "max_fitness", "generation"):
            assert found[name, row["env_steps"]] == pytest.approx(row[name])


def test_weights_and_biases_gets_every_generation(toys, tmp_path, monkeypatch):
    logged = []

    class Run:
        def log(self, values, step):
            logged.append((step, values))

        def finish(self):
            logged.append("finished")

    def init(**options):
        logged.append(options)
        return Run()

    monkeypatch.setitem(sys.modules, "wandb", types.SimpleNamespace(init=init))
    assert cli.main([*TRAIN, str(tmp_path / "run"), "--log", "wandb"]) == 0
    options, *lines, end = logged
    assert (options["dir"], options["config"]["algorithm"], end) == (str(tmp_path / "run"), "dns", "finished")
    rows = qdhuac.load(tmp_path / "run").folder.read_metrics()
    assert lines == [(row["generation"], {k: v for k, v in row.items() if v is not None}) for row in rows]


def test_weights_and_biases_that_cannot_start_is_refused(toys, tmp_path, monkeypatch, refused):
    def init(**options):
        raise RuntimeError("no API key configured\nmore of it")

    monkeypatch.setitem(sys.modules, "wandb", types.SimpleNamespace(init=init))
    message = refused(*TRAIN, str(tmp_path / "run"), "--log", "wandb")
    assert "--log wandb: no API key configured; try wandb login, or WANDB_MODE=offline" in message
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("name", "words"),
    [("wandb", ["wandb", "make setup-wandb"]), ("excel", ["--log", "tensorboard", "wandb"])],
)
def test_an_unknown_or_uninstalled_logger_is_refused(tmp_path, monkeypatch, capsys, name, words):
    monkeypatch.setitem(sys.modules, "wandb", None)
    assert cli.main([*TRAIN, str(tmp_path / "run"), "--log", name]) == 2
    message = capsys.readouterr().err
    assert message.count("\n") == 1
    assert all(word in message for word in words), message
    assert not list(tmp_path.iterdir())


class Remembering:
    """A custom logger: any object with these two methods."""

    def __init__(self):
        self.lines, self.closed = [], 0

    def generation(self, line):
        self.lines.append(line)

    def close(self):
        self.closed += 1


def test_a_custom_logger_gets_every_generation(tmp_path):
    log = Remembering()
    settings = {"run.generations": 2, "run.env_steps": 0, "emitter.batch_size": 4}
    options = {"algorithm": "dns", "preset": "smoke", "settings": settings}
    run = qdhuac.train(ReachTask(), tmp_path / "run", log=log, **options)
    assert log.lines == [{k: v for k, v in line.items() if k != "crc"} for line in run.folder.read_metrics()]
    assert log.closed == 1
    qdhuac.resume(ReachTask(), tmp_path / "run", {"run.generations": 3}, log=log)
    assert [line["generation"] for line in log.lines] == [1, 2, 3]
    assert log.closed == 2
    for bad in (object(), 7, Remembering):
        with pytest.raises(UserError, match=r"log=.*expected one of tensorboard, wandb, or an object with generation"):
            qdhuac.train(ReachTask(), tmp_path / "other", log=bad, **options)
    assert not (tmp_path / "other").exists()
