"""Reading and writing of files that may come from elsewhere."""

import os

import pytest

from qdhuac import files
from qdhuac.errors import UserError
from qdhuac.files import inside, opened, read, replace_file, sha256


@pytest.fixture
def outside(tmp_path):
    (tmp_path / "folder").mkdir()
    path = tmp_path / "outside.json"
    path.write_text("precious")
    return path


def place(kind, path, outside):
    """Something that is not a regular file."""
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        target = {"link": outside, "dangling": path.with_name("new"), "loop": path, "device": "/dev/zero"}[kind]
        path.symlink_to(target)


@pytest.mark.parametrize("kind", ["pipe", "folder", "link", "dangling", "loop", "device"])
def test_only_regular_files_are_opened(tmp_path, outside, kind):
    path = tmp_path / "folder" / "a.json"
    place(kind, path, outside)
    before = len(os.listdir("/proc/self/fd"))
    for attempt in (lambda: read(path), lambda: sha256(path), lambda: opened(path, "ab").__enter__()):
        with pytest.raises(OSError, match=r"not a regular file"):
            attempt()
    assert len(os.listdir("/proc/self/fd")) == before
    if kind != "folder":
        replace_file(path, b"new")
        assert read(path) == b"new"
    assert outside.read_text() == "precious"
    assert {p.name for p in (tmp_path / "folder").iterdir()} == {"a.json"}


def test_devices_and_sockets_are_not_opened():
    for path in ("/dev/zero", "/dev/null"):
        with pytest.raises(OSError, match="not a regular file"):
            read(files.Path(path))


def test_each_kind_has_a_size(tmp_path, monkeypatch):
    for name, size in (("a.json", 10), ("a.toml", 5), ("a", 5)):
        monkeypatch.setattr(files, "LIMITS", {".json": 10, ".toml": 5})
        path = tmp_path / name
        path.write_bytes(bytes(size))
        assert read(path) == bytes(size)
        with opened(path, "ab") as file:
            file.write(b"x")
        for attempt in (read, sha256):
            with pytest.raises(OSError, match=f"has {size + 1} bytes; at most {size} are read"):
                attempt(path)
    with pytest.raises(OSError, match="at most 10"):  # it could not be read again
        replace_file(tmp_path / "a.json", bytes(11))
    replace_file(tmp_path / "a.html", bytes(11))


def test_the_hash_of_a_part_of_a_file(tmp_path):
    (tmp_path / "a.json").write_bytes(b"abcd")
    (tmp_path / "b.json").write_bytes(b"ab")
    assert sha256(tmp_path / "a.json", 2) == sha256(tmp_path / "b.json") != sha256(tmp_path / "a.json")


def test_paths_inside_of_a_folder_have_no_links(tmp_path, outside):
    (tmp_path / "link").symlink_to(tmp_path / "folder")
    assert inside(tmp_path / "link", "a", "b") == tmp_path / "link/a/b"  # the user may name a link
    for names in (("link",), ("link", "a"), ("folder", "out", "a")):
        (tmp_path / "folder/out").unlink(missing_ok=True)
        (tmp_path / "folder/out").symlink_to(outside)
        with pytest.raises(UserError, match="is a link"):
            inside(tmp_path, *names)
