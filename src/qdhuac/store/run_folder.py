"""The folder of a run: its lock, configuration, metrics and history. Does not need JAX."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from qdhuac import config as configuration
from qdhuac.algorithms import specs
from qdhuac.config import TASK_FOLDER, Config, with_task_file
from qdhuac.errors import RunFailed, UserError, os_errors_as, reason
from qdhuac.files import inside, opened, read, replace_file, write_synced
from qdhuac.store import checkpoint
from qdhuac.store.schema import is_number
from qdhuac.tasks import bundle

CONFIG, METRICS, HISTORY = checkpoint.TEXTS
REPERTOIRE, REPORT, EVALUATION, LOCK = "repertoire.safetensors", "report.html", "evaluation.json", ".lock"
COLUMNS = ("slot", "id", "parents", "operator", "fitness", "descriptor")  # of the history
_HEADER = "# The configuration of this run. To continue it: qdhuac resume RUN_DIR --generations N\n\n"
_CHECKSUM = "\n# sha256 "
_LONGEST_LINE, _MOST_KEYS = 1 << 24, 10_000
_CRC = ', "crc": "'  # a line of metrics or history ends with a checksum of the text before this


class RunDir:
    """A run folder. Make one with `create` or `open`; call `lock` before changing it. A `with` block unlocks it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.notes: list[str] = []  # warnings about the state of the folder
        self._lock: int | None = None
        self._made: list[Path] = []  # parent folders that `create` had to make, the innermost first

    @property
    def checkpoints(self) -> Path:
        """The folder of the checkpoints."""
        return self.path / "checkpoints"

    @classmethod
    def create(cls, path: Path, config: Config) -> RunDir:
        """Make a new, locked run folder with its configuration and the checkpoint of generation 0.

        Raises:
            UserError: the folder exists already, or cannot be created.
        """
        _check_name(path)
        if os.path.lexists(path):
            raise UserError(f"--run-dir {path}: exists already; name a new folder, or: qdhuac resume {path}")
        parents = path.absolute().parents
        ancestor = next(parent for parent in parents if os.path.lexists(parent))
        if not ancestor.is_dir():
            raise UserError(f"--run-dir {path}: {ancestor} is not a folder")
        if not os.access(ancestor, os.W_OK | os.X_OK):
            raise UserError(f"--run-dir {path}: no write permission in {ancestor}")
        run = cls(path.with_name(f".{path.name[:100]}.{os.getpid()}.tmp"))
        run._made = [parent for parent in parents if not os.path.lexists(parent)]
        with os_errors_as(UserError, f"--run-dir {path}: cannot be created"):
            try:
                run.path.mkdir(parents=True)
                run.lock()
                texts = {CONFIG: _with_checksum(config), METRICS: b"", HISTORY: b""}
                files = bundle.collect(Path(config.task.file)) if config.task.file else {}
                for file, data in (texts | {f"{TASK_FOLDER}/{name}": data for name, data in files.items()}).items():
                    (run.path / file).parent.mkdir(parents=True, exist_ok=True)
                    write_synced(run.path / file, data)
                checkpoint.save(run.checkpoints, checkpoint.name(0, 0), {}, run.texts(), None)
                run.path.rename(path)
            except (OSError, UserError):
                run.remove()
                raise
        run.path = path
        return run

    @classmethod
    def open(cls, path: Path) -> RunDir:
        """Open an existing run folder. Raises UserError if it is not one, or has links in place of its files."""
        _check_name(path)
        run = cls(path)
        with os_errors_as(UserError, f"{path}: cannot be read"):
            if not path.exists():
                raise UserError(f"{path}: no such folder")
            for name in (*checkpoint.TEXTS, REPERTOIRE, REPORT, EVALUATION, LOCK):
                if inside(path, name).exists() and not inside(path, name).is_file():
                    raise UserError(f"{path / name}: is not a regular file")
            for name in (run.checkpoints.name, TASK_FOLDER):
                inside(path, name)
            if not ((path / CONFIG).is_file() or run.checkpoints.is_dir()):
                raise UserError(
                    f"{path}: not a run folder (expected config.toml and checkpoints/, as qdhuac train makes)"
                )
        return run

    def lock(self) -> None:
        """Refuse other processes until this one ends. The kernel releases the lock even after a crash."""
        try:
            self._lock = os.open(
                self.path / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o644
            )
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self.unlock()
            if isinstance(error, BlockingIOError):
                raise UserError(f"{self.path}: in use by another qdhuac process") from None
            raise UserError(f"{self.path}: no write permission ({reason(error)})") from None

    def unlock(self) -> None:
        """Release the lock."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def __enter__(self) -> RunDir:
        return self

    def __exit__(self, *_: object) -> None:
        self.unlock()

    def remove(self) -> None:
        """Remove a folder that has just been created, and the parent folders that were made for it."""
        shutil.rmtree(self.path, ignore_errors=True)
        for folder in self._made:
            with contextlib.suppress(OSError):
                folder.rmdir()

    def read_config(self) -> Config:
        """Read the configuration, or the newest checkpoint's copy if the file was edited or damaged."""
        path = self.path / CONFIG
        try:
            if config := _verified(read(path), str(path)):
                return with_task_file(config, self.path)
            why = "does not match its checksum"
        except (OSError, UserError) as error:
            why = reason(error)
        try:
            found = checkpoint.newest(self.checkpoints)
        except UserError as error:
            raise UserError(f"{path}: {why}; and {error}") from None
        config = _verified(read(found.texts[CONFIG].path), str(found.path / CONFIG))
        if config is None:
            raise UserError(f"{path}: {why}, and so does the copy in {found.path}")
        self.notes.append(f"{path}: {why} (edited or damaged?); using the copy in checkpoint {found.path.name}")
        return with_task_file(config, self.path)

    def write_config(self, config: Config) -> None:
        """Replace the configuration. Only section `run` may differ from that of the checkpoints."""
        with os_errors_as(UserError, f"{self.path / CONFIG}: cannot be written"):
            replace_file(self.path / CONFIG, _with_checksum(config))

    def require_writable(self) -> None:
        """Raise UserError if a file could not be written here."""
        if not os.access(self.path, os.W_OK | os.X_OK):
            raise UserError(f"{self.path}: no write permission")

    def append_metrics(self, line: Mapping[str, Any]) -> None:
        """Add the metrics of a generation: finite numbers, or None."""
        self._append(METRICS, json.dumps(line, allow_nan=False))

    def append_history(self, generation: int, additions: Mapping[str, list[Any]]) -> None:
        """Add the individuals that entered the archive in a generation, by column."""
        line = {"generation": generation, **additions}
        self._append(HISTORY, json.dumps(line, allow_nan=False, separators=(",", ":")))

    def _append(self, file: str, line: str) -> None:
        text = line[:-1]  # without its closing brace
        with opened(self.path / file, "ab") as stream:
            stream.write(f'{text}{_CRC}{_crc(text)}"}}\n'.encode())

    def texts(self) -> dict[str, bytes]:
        """Return the files of which a checkpoint keeps a copy."""
        return {file: read(self.path / file) for file in checkpoint.TEXTS}

    def restore(self, texts: Mapping[str, checkpoint.Kept]) -> None:
        """Return metrics and history to their content at a checkpoint, so that no generation is there twice."""
        for file in (METRICS, HISTORY):
            path, kept = self.path / file, texts[file]
            with os_errors_as(RunFailed, f"{path}: cannot be restored", "; the last checkpoint is intact"):
                if not (path.exists() and kept.is_start_of(path)):
                    self.notes.append(f"{path}: differs from the checkpoint's copy (edited or damaged?); restored")
                    replace_file(path, read(kept.path))
                elif path.stat().st_size > kept.size:
                    unsaved = read(path)[kept.size :].count(b"\n")
                    if file == METRICS and unsaved:
                        self.notes.append(f"{path}: {unsaved} generations had not been saved and are repeated")
                    replace_file(path, read(kept.path))

    def read_metrics(self) -> list[dict[str, Any]]:
        """Read the metrics, one dictionary per generation.

        If the file was edited or damaged, the newest checkpoint's copy is read and `notes` says so. A line that is
        being written is left out.

        Raises:
            UserError: neither the file nor the copy is readable.
        """
        return self._read(METRICS, "metrics", _metrics)

    def read_history(self) -> list[dict[str, Any]]:
        """Read the individuals that entered the archive, one dictionary per generation; as `read_metrics`."""
        return self._read(HISTORY, "a history", _history)

    def _read(self, file: str, kind: str, parse: Callable[[BinaryIO], list[dict[str, Any]]]) -> list[dict[str, Any]]:
        path, kept = self.path / file, None
        with contextlib.suppress(UserError):
            kept = checkpoint.newest(self.checkpoints).texts[file]
        try:
            if kept and not kept.is_start_of(path):
                raise ValueError("it differs from the checkpoint's copy")
            with opened(path) as stream:
                return parse(stream)
        except (OSError, ValueError) as error:
            why = reason(error)
        try:
            if kept and kept.size:
                with opened(kept.path) as stream:
                    rows = parse(stream)
                self.notes.append(f"{path}: {why} (edited or damaged?); using the copy in the newest checkpoint")
                return rows
        except (OSError, ValueError) as error:
            why = reason(error)
        raise UserError(f"{path}: not readable as {kind} ({why})")


def _with_checksum(config: Config) -> bytes:
    body = (_HEADER + configuration.to_toml(with_task_file(config, ""))).encode()
    return body + f"{_CHECKSUM}{hashlib.sha256(body).hexdigest()}\n".encode()


def _verified(data: bytes, where: str) -> Config | None:
    """The configuration in a file with a checksum, or None if the checksum is wrong."""
    body, found, checksum = data.rpartition(_CHECKSUM.encode())
    if not found or checksum != b"%s\n" % hashlib.sha256(body).hexdigest().encode():
        return None
    try:
        return specs.from_toml(body.decode(), where)
    except UnicodeDecodeError:
        raise UserError(f"{where}: not text") from None


def _rows(stream: BinaryIO) -> Iterator[tuple[int, dict[str, Any]]]:
    """The complete lines of a file and their numbers. The last one may still be being written."""
    number = 0
    while (line := stream.readline(_LONGEST_LINE)).endswith(b"\n"):
        number += 1
        try:
            text = line[:-1].decode()
            row = json.loads(text)
        except (ValueError, RecursionError):
            raise ValueError(f"line {number} is not JSON") from None
        if not isinstance(row, dict):
            raise ValueError(f"line {number} is not an object")
        if row.pop("crc", "") != _crc(text.rpartition(_CRC)[0]):
            raise ValueError(f"line {number} does not match its checksum")
        yield number, row
    if len(line) == _LONGEST_LINE:
        raise ValueError(f"line {number + 1} is too long")


def _metrics(stream: BinaryIO) -> list[dict[str, Any]]:
    rows = []
    for number, row in _rows(stream):
        if not all(type(row.get(name)) is int for name in ("generation", "env_steps")):
            raise ValueError(f"line {number} lacks a generation or env_steps")
        if not all(value is None or is_number(value) for value in row.values()) or len(row) > _MOST_KEYS:
            raise ValueError(f"line {number} holds something that is not a number")
        rows.append({sys.intern(name): value for name, value in row.items()})
    return rows


def _history(stream: BinaryIO) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for number, row in _rows(stream):
        if type(row.get("generation")) is not int or (rows and row["generation"] != rows[-1]["generation"] + 1):
            raise ValueError(f"line {number} is not the next generation")
        if not all(type(row.get(name)) is list and len(row[name]) == len(row["slot"]) for name in COLUMNS):
            raise ValueError(f"line {number} has columns of different lengths")
        for name in COLUMNS:
            values = row[name]
            if name in ("parents", "descriptor"):
                if not all(type(v) is list for v in values) or len({len(v) for v in values}) > 1:
                    raise ValueError(f"line {number}: {name} is not a table")
                values = [x for v in values for x in v]
            if not all(map(is_number, values)):
                raise ValueError(f"line {number}: {name} holds something that is not a number")
        rows.append(row)
    return rows


def _crc(text: str) -> str:
    return f"{zlib.crc32(text.encode()):08x}"


def _check_name(path: Path) -> None:
    """Refuse paths that no file can have, or that cannot be printed."""
    if any(c == "\0" or "\ud800" <= c <= "\udfff" for c in str(path)):
        raise UserError(f"{str(path)!r}: not a possible name of a folder")
