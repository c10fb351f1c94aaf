"""Full and read-only disks, large states saved in pieces, states that do not fit: one clear line, and nothing lost."""

import contextlib
import os
import resource
import subprocess

import numpy as np
import pytest
from runs import lines

from qdhuac.algorithms import specs
from qdhuac.errors import RunFailed, UserError
from qdhuac.store import checkpoint
from qdhuac.store.run_folder import RunDir

TEXTS = {"config.toml": b"a = 1\n", "metrics.jsonl": b"{}\n", "history.jsonl": b"{}\n"}


@pytest.fixture
def small_disk(tmp_path):
    """A file system of its own of 4 MB, where that is allowed."""
    path = tmp_path / "disk"
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "none", str(path)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting is not permitted here")
    yield path
    subprocess.run(["umount", "--lazy", str(path)], check=True)


def test_a_full_disk_ends_the_run_with_one_line_and_it_can_be_resumed(make_runner, small_disk):
    whole = make_runner("whole")
    whole.run()
    runner = make_runner("disk/run", run__checkpoint_generations=1)

    class Fill(type(runner.progress)):
        def generation(self, line):
            if line["generation"] == 3:
                with contextlib.suppress(OSError), (small_disk / "filler").open("wb") as file:
                    while True:
                        file.write(bytes(4096))
                        file.flush()

    runner.progress = Fill()
    with pytest.raises(RunFailed, match=r"cannot save \(No space left on device\); the last checkpoint is intact"):
        runner.run()
    assert checkpoint.load(runner.folder.checkpoints).record["counters"]["generation"] == 2
    runner.folder.unlock()
    (small_disk / "filler").unlink()
    rest = make_runner("disk/run", again=True)
    assert rest.run()
    assert lines(rest.folder.path) == lines(whole.folder.path)


def test_a_file_size_limit_causes_a_failed_save_and_nothing_else(make_runner):
    runner = make_runner(run__checkpoint_generations=1, run__generations=2)
    runner.run()
    runner.counters.generation += 1
    runner.recorder.unsaved = True
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises(RunFailed, match="cannot save"):
            runner.save()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert checkpoint.load(runner.folder.checkpoints).record["counters"]["generation"] == 2
    assert not list(runner.folder.path.rglob("*tmp*"))


def test_a_read_only_folder_is_refused_before_anything_is_loaded(small_disk):
    RunDir.create(small_disk / "run", specs.make("dns", "smoke")).unlock()
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with pytest.raises(UserError, match=r"no write permission \(Read-only file system\)"):
        RunDir.open(small_disk / "run").lock()
    with pytest.raises(UserError, match=r"cannot be created \(Read-only file system\)|no write permission"):
        RunDir.create(small_disk / "other", specs.make("dns", "smoke"))


@pytest.mark.parametrize("call", ["replace_file", "rename"])
def test_a_disk_error_while_resuming_is_reported_in_one_line(make_runner, monkeypatch, call):
    runner = make_runner(run__checkpoint_generations=1)
    runner.run()
    runner.folder.unlock()
    newest = checkpoint.load(runner.folder.checkpoints).path
    (newest / "manifest.json").write_text("{}")

    def fail(*_):
        raise OSError(30, "Read-only file system")

    target = "qdhuac.store.run_folder.replace_file" if call == "replace_file" else "pathlib.Path.rename"
    monkeypatch.setattr(target, fail)
    if call == "rename":
        monkeypatch.setattr("qdhuac.store.run_folder.replace_file", lambda path, data: None)
    with pytest.raises(RunFailed, match="Read-only file system"):
        make_runner(again=True)


@pytest.fixture
def small_pieces(monkeypatch):
    monkeypatch.setattr(checkpoint, "LARGE", 1 << 12)
    monkeypatch.setattr(checkpoint, "PIECE", 1 << 10)


def save(root, generation, arrays):
    return checkpoint.save(root, checkpoint.name(generation, 0), {}, TEXTS, arrays)


def inodes(path):
    return {p.stat().st_ino for p in path.glob("*.bin")}


def test_only_what_changed_is_written_and_the_two_newest_share_no_file(tmp_path, small_pieces):
    rows = np.zeros((4096, 3), np.float16)
    fresh = []
    for generation in range(1, 7):
        before = {p for folder in tmp_path.glob("0*") for p in inodes(folder)}
        rows[300 * (generation - 1) : 300 * generation] = generation
        path = save(tmp_path, generation, {"rows": rows, "small": rows[:2].copy(), "flags": rows[:, 0] > 3})
        fresh.append(len(inodes(path) - before))
        found = checkpoint.load(tmp_path)
        assert found.path == path
        np.testing.assert_array_equal(found.arrays["rows"], rows)
        np.testing.assert_array_equal(found.arrays["flags"], rows[:, 0] > 3)
        two = sorted(tmp_path.iterdir())[-2:]
        assert len(two) < 2 or not inodes(two[0]) & inodes(two[1])
    # 1800 bytes of rows come with a generation, 3600 since the checkpoint before the last: 5 pieces of 1024 and 2 flags
    assert len(inodes(path)) > 10
    assert max(fresh[2:]) <= 7


def test_a_damaged_piece_that_was_linked_damages_one_checkpoint_only(tmp_path, small_pieces):
    rows = np.arange(4096, dtype=np.float32)
    for generation in range(1, 4):
        save(tmp_path, generation, {"rows": rows, "n": np.full(1, generation)})
    last = tmp_path / checkpoint.name(3, 0)
    piece = next(last.glob("*.bin"))
    assert piece.stat().st_nlink == 1  # that of generation 1 is gone
    piece.write_bytes(piece.read_bytes()[:-1] + b"\x7f")
    found = checkpoint.load(tmp_path)
    assert found.path.name == checkpoint.name(2, 0)
    assert piece.name in found.damaged[0]
    np.testing.assert_array_equal(found.arrays["rows"], rows)


def test_pieces_are_copied_on_a_file_system_without_links(tmp_path, small_pieces, monkeypatch):
    def refuse(*_):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(os, "link", refuse)
    rows = np.arange(4096, dtype=np.float32)
    for generation in range(1, 4):
        save(tmp_path, generation, {"rows": rows})
    np.testing.assert_array_equal(checkpoint.load(tmp_path).arrays["rows"], rows)


def test_a_state_larger_than_the_memory_is_refused(make_runner, monkeypatch):
    monkeypatch.setattr(os, "sysconf", lambda name: 10)
    with pytest.raises(UserError, match=r"needs .* GB, and this machine has .* GB; lower replay\.capacity"):
        make_runner()
