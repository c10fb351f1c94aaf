"""How every file is read and written that may come from elsewhere, as run folders and study folders may.

Only regular files are opened, never links, pipes or devices, and only up to a size that depends on their kind. A write
is atomic: after a crash a file has either its old content or its new one.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from qdhuac.errors import UserError

# The most bytes of a file by the ending of its name; others are read as TOML. Configurations have about 2 000 bytes,
# and reading TOML needs memory that grows with the square of the longest key.
LIMITS = {".toml": 1 << 14, ".json": 1 << 24, ".jsonl": 1 << 29, ".csv": 1 << 26, ".svg": 1 << 26, ".log": 1 << 40}
LIMITS |= {".bin": 1 << 24, ".safetensors": 1 << 32}
NOT_REGULAR = "is a link or not a regular file"


@contextlib.contextmanager
def opened(path: Path, mode: str = "rb", most: int | None = None) -> Iterator[Any]:
    """Open a regular file to read it (`rb`) or to append to it (`ab`), without waiting for anything.

    Raises:
        OSError: it is missing, a link or no file, or larger than its kind may be, or than `most` bytes.
    """
    flags = {"rb": os.O_RDONLY, "ab": os.O_WRONLY | os.O_APPEND | os.O_CREAT}[mode]
    try:
        descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO, errno.EISDIR):
            raise OSError(error.errno, NOT_REGULAR) from None
        raise
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, NOT_REGULAR)
        _check_size(status.st_size, _limit(path) if most is None else most)
        with open(descriptor, mode, closefd=False) as file:
            yield file
    finally:
        os.close(descriptor)


def read(path: Path, most: int | None = None) -> bytes:
    """Return the content of a file. Raises OSError as `opened`, also if it has more than `most` bytes."""
    with opened(path, most=most) as file:
        return file.read()


def inside(folder: Path, *names: str) -> Path:
    """Return a path below a folder. Raises UserError if a part of it is a link, which might lead out of the folder."""
    path = folder
    for name in names:
        path /= name
        if path.is_symlink():
            raise UserError(f"{path}: is a link; the files of a run or study must be in its own folder")
    return path


def sync(path: Path) -> None:
    """Flush a file or a folder to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_synced(path: Path, data: bytes | memoryview) -> None:
    """Write a new file and flush it to the disk. Raises FileExistsError if it exists."""
    with path.open("xb") as file:  # does not follow a link
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def replace_file(path: Path, data: bytes) -> None:
    """Replace the content of a file atomically. A link is replaced, not followed."""
    temporary = path.with_name(f".{path.name}.tmp")
    if path.suffix in LIMITS:  # otherwise it could not be read again
        _check_size(len(data), _limit(path))
    try:
        temporary.unlink(missing_ok=True)
        write_synced(temporary, data)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    sync(path.parent)


def sha256(path: Path, size: int | None = None) -> str:
    """Return the SHA-256 of a file, or of its first bytes. Raises OSError as `opened`."""
    digest = hashlib.sha256()
    with opened(path) as file:
        left = _limit(path) if size is None else size
        while left > 0 and (part := file.read(min(left, 1 << 20))):
            digest.update(part)
            left -= len(part)
    return digest.hexdigest()


def _limit(path: Path) -> int:
    return LIMITS.get(path.suffix, LIMITS[".toml"])


def _check_size(size: int, most: int) -> None:
    if size > most:
        raise OSError(errno.EFBIG, f"has {size:,} bytes; at most {most:,} are read")
