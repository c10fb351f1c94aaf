"""The folder of a run: its lock, its configuration, its metrics and its history. Does not need JAX."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from qdhuac import config as configuration
from qdhuac.algorithms import specs
from qdhuac.config import Config
from qdhuac.errors import RunFailed, UserError
from qdhuac.store import checkpoint
from qdhuac.store.files import replace_file, write_synced

CONFIG, METRICS, HISTORY, REPERTOIRE, REPORT, LOCK = (
    "config.toml",
    "metrics.jsonl",
    "history.jsonl",
    "repertoire.safetensors",
    "report.html",
    ".lock",
)
EVALUATION = "evaluation.json"
_HEADER = "# The configuration of this run. To train on: qdhuac resume RUN_DIR --generations N\n\n"
_CHECKSUM = "\n# sha256 "
# The columns of the history, and whether they hold whole numbers.
COLUMNS = {"slot": True, "id": True, "parents": True, "operator": True, "fitness": False, "descriptor": False}
_LARGEST_CONFIG = 100_000  # bytes; ours have about 2 000
_CRC = ', "crc": "'  # each line of metrics and of history ends with a checksum over what stands before this


class RunDir:
    """A run folder. Open it with `create` or `open`; `lock` it before changing anything; `with` unlocks it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoints = path / "checkpoints"
        self.notes: list[str] = []  # what the user should be told about the state of the folder
        self._lock: int | None = None
        self._made: list[Path] = []  # folders above it that `create` had to make, the innermost first

    @classmethod
    def create(cls, path: Path, config: Config) -> RunDir:
        """A new, locked run folder with its configuration and the checkpoint of generation 0; it appears as a whole."""
        _check_name(path)
        if os.path.lexists(path):
            raise UserError(f"--run-dir {path}: exists already; name a new folder, or: qdhuac resume {path}")
        ancestor, made = path.absolute().parent, []
        while not os.path.lexists(ancestor):
            made.append(ancestor)
            ancestor = ancestor.parent
        if not ancestor.is_dir():
            raise UserError(f"--run-dir {path}: {ancestor} is not a folder")
        if not os.access(ancestor, os.W_OK | os.X_OK):
            raise UserError(f"--run-dir {path}: no write permission in {ancestor}")
        temporary = path.with_name(f".{path.name[:100]}.{os.getpid()}.tmp")
        run = cls(temporary)
        run._made = made
        try:
            temporary.mkdir(parents=True)
            run.lock()
            text = _with_checksum(config)
            write_synced(temporary / CONFIG, text)
            write_synced(temporary / METRICS, b"")
            write_synced(temporary / HISTORY, b"")
            checkpoint.save(run.checkpoints, checkpoint.name(0, 0), {}, run.texts(), None)
            temporary.rename(path)
        except OSError as error:
            run.remove()
            raise UserError(f"--run-dir {path}: cannot be created ({error.strerror or error})") from None
        run.path, run.checkpoints = path, path / "checkpoints"
        return run

    @classmethod
    def open(cls, path: Path) -> RunDir:
        """An existing run folder."""
        _check_name(path)
        try:
            entries = {entry.name: entry for entry in os.scandir(path)} if path.is_dir() else {}
        except OSError as error:
            raise UserError(f"{path}: cannot be read ({error.strerror})") from None
        if not path.exists():
            raise UserError(f"{path}: no such folder")
        for name in (CONFIG, METRICS, HISTORY, REPERTOIRE, REPORT, LOCK, EVALUATION, "checkpoints"):
            # A folder from elsewhere must not make us write outside of it.
            if name in entries and entries[name].is_symlink():
                raise UserError(f"{path / name}: is a link; a run folder must hold its own files")
        if not path.is_dir() or not ((path / CONFIG).is_file() or (path / "checkpoints").is_dir()):
            raise UserError(f"{path}: not a run folder (expected config.toml and checkpoints/, as qdhuac train makes)")
        return cls(path)

    def lock(self) -> None:
        """Keep other processes out until this one ends; the kernel releases the lock even after a crash."""
        try:
            self._lock = os.open(self.path / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.unlock()
            raise UserError(f"{self.path}: in use by another qdhuac process") from None
        except OSError as error:
            self.unlock()
            raise UserError(f"{self.path}: no write permission ({error.strerror})") from None

    def remove(self) -> None:
        """Remove a folder that has just been created, and the folders above it that were made for it."""
        shutil.rmtree(self.path, ignore_errors=True)
        for folder in self._made:
            with contextlib.suppress(OSError):
                folder.rmdir()

    def __enter__(self) -> RunDir:
        return self

    def __exit__(self, *_: object) -> None:
        self.unlock()

    def unlock(self) -> None:
        """Let other processes in."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def read_config(self) -> Config:
        """The configuration; the newest checkpoint's copy if the file was edited or damaged."""
        path = self.path / CONFIG
        try:
            if path.stat().st_size <= _LARGEST_CONFIG and (config := _verified(path.read_bytes(), str(path))):
                return config
            reason = "does not match its checksum"
        except (OSError, UserError) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        try:
            found = checkpoint.newest(self.checkpoints)
        except UserError as error:
            raise UserError(f"{path}: {reason}; and {error}") from None
        config = _verified(found.texts[CONFIG], str(found.path / CONFIG))
        if config is None:
            raise UserError(f"{path}: {reason}, and so does the copy in {found.path}")
        self.notes.append(f"{path}: {reason} (edited or damaged?); using the copy in checkpoint {found.path.name}")
        return config

    def write_config(self, config: Config) -> None:
        """Replace the configuration; only its goal may differ from the checkpoints'."""
        try:
            replace_file(self.path / CONFIG, _with_checksum(config))
        except OSError as error:
            raise UserError(f"{self.path / CONFIG}: cannot be written ({error.strerror or error})") from None

    def require_writable(self) -> None:
        """Refuse early what would only fail after a long computation."""
        if not os.access(self.path, os.W_OK | os.X_OK):
            raise UserError(f"{self.path}: no write permission")

    def append_metrics(self, line: Mapping[str, Any]) -> None:
        """One more generation. Non-finite numbers are not JSON: the caller gives None."""
        self._append(METRICS, json.dumps(line, allow_nan=False))

    def append_history(self, generation: int, additions: Mapping[str, list[Any]]) -> None:
        """The individuals that entered the archive in a generation, and the slots whose individuals they replaced."""
        line = {"generation": generation, **additions}
        self._append(HISTORY, json.dumps(line, allow_nan=False, separators=(",", ":")))

    def _append(self, file: str, line: str) -> None:
        text = line[:-1]  # without its closing brace
        with (self.path / file).open("ab") as stream:
            stream.write(f'{text}{_CRC}{_crc(text)}"}}\n'.encode())

    def texts(self) -> dict[str, bytes]:
        """The files of which a checkpoint keeps a copy."""
        return {file: (self.path / file).read_bytes() for file in (CONFIG, METRICS, HISTORY)}

    def restore(self, texts: Mapping[str, bytes]) -> None:
        """Put metrics and history back to what they were at a checkpoint, so that no generation is there twice."""
        self._restore(METRICS, texts[METRICS])
        self._restore(HISTORY, texts[HISTORY])

    def _restore(self, file: str, data: bytes) -> None:
        path = self.path / file
        try:
            current = path.read_bytes() if path.is_file() else b""
            if not current.startswith(data):
                self.notes.append(f"{path}: differs from the checkpoint's copy (edited or damaged?); restored")
            elif file == METRICS and (unsaved := current[len(data) :].count(b"\n")):
                self.notes.append(f"{path}: {unsaved} generations had not been saved and are repeated")
            if current != data or not path.is_file():
                replace_file(path, data)
        except OSError as error:
            raise RunFailed(
                f"{path}: cannot be restored ({error.strerror or error}); the last checkpoint is intact"
            ) from None

    def read_metrics(self) -> list[dict[str, Any]]:
        """All complete lines, or those in the newest checkpoint if the file was edited or damaged."""
        return self._read(METRICS, "metrics", _metrics)

    def read_history(self) -> list[dict[str, Any]]:
        """The individuals that entered the archive, a line for each generation, in the same way."""
        return self._read(HISTORY, "a history", _history)

    def _read(self, file: str, kind: str, parse: Callable[[bytes], list[dict[str, Any]]]) -> list[dict[str, Any]]:
        path = self.path / file
        try:
            kept = checkpoint.newest(self.checkpoints).texts.get(file, b"")
        except UserError:
            kept = b""
        try:
            data = path.read_bytes()
            if not data.startswith(kept):
                raise ValueError("it differs from the checkpoint's copy")
            return parse(data)
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            if not kept:
                raise UserError(f"{path}: not readable as {kind} ({reason})") from None
        self.notes.append(f"{path}: {reason} (edited or damaged?); using the copy in the newest checkpoint")
        try:
            return parse(kept)
        except ValueError as error:
            raise UserError(f"{path}: not readable as {kind} ({error})") from None


def _with_checksum(config: Config) -> bytes:
    body = (_HEADER + configuration.to_toml(config)).encode()
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


def _rows(data: bytes) -> list[dict[str, Any]]:
    """The complete lines of a file; a run in progress may be in the middle of writing the last one."""
    rows = []
    for number, line in enumerate(data.split(b"\n")[:-1], 1):
        try:
            text = line.decode()
            row = json.loads(text)
        except (ValueError, RecursionError):
            raise ValueError(f"line {number} is not JSON") from None
        if not isinstance(row, dict):
            raise ValueError(f"line {number} is not an object")
        crc = row.pop("crc", None)  # lines of the first versions have none
        if crc is not None and crc != _crc(text.rpartition(_CRC)[0]):
            raise ValueError(f"line {number} does not match its checksum")
        rows.append(row)
    return rows


def _metrics(data: bytes) -> list[dict[str, Any]]:
    rows = _rows(data)
    for number, row in enumerate(rows, 1):
        if not all(type(row.get(name)) is int for name in ("generation", "env_steps")):
            raise ValueError(f"line {number} lacks a generation or env_steps")
        if not all(v is None or (type(v) in (int, float) and abs(v) < 1e300) for v in row.values()):
            raise ValueError(f"line {number} holds something that is not a number")
    return rows


def _history(data: bytes) -> list[dict[str, Any]]:
    rows = _rows(data)
    for number, row in enumerate(rows, 1):
        if type(row.get("generation")) is not int or row["generation"] != rows[0]["generation"] + number - 1:
            raise ValueError(f"line {number} is not the next generation")
        if not all(type(row.get(name)) is list and len(row[name]) == len(row["slot"]) for name in COLUMNS):
            raise ValueError(f"line {number} has columns that do not fit together")
        for name, whole in COLUMNS.items():
            values = row[name]
            if name in ("parents", "descriptor"):
                if not all(type(v) is list for v in values) or len({len(v) for v in values}) > 1:
                    raise ValueError(f"line {number}: {name} is not a table")
                values = [x for v in values for x in v]
            if not all(type(v) is int if whole else type(v) in (int, float) and abs(v) < 1e300 for v in values):
                raise ValueError(f"line {number}: {name} holds something that is not a number")
    return rows


def _crc(text: str) -> str:
    return f"{zlib.crc32(text.encode()):08x}"


def _check_name(path: Path) -> None:
    """Refuse paths that no file can have, or that cannot be printed."""
    text = str(path)
    if "\0" in text or any("\ud800" <= c <= "\udfff" for c in text):
        raise UserError(f"{text!r}: not a possible name of a folder")
