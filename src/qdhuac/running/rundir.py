"""The folder of a run: its lock, its configuration, its metrics file. Knows nothing of JAX."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from qdhuac import config as configuration
from qdhuac.config import Config
from qdhuac.errors import RunFailed, UserError
from qdhuac.running import checkpoint
from qdhuac.running.files import replace_file, write_synced

CONFIG, METRICS, REPERTOIRE, REPORT, LOCK = (
    "config.toml",
    "metrics.jsonl",
    "repertoire.safetensors",
    "report.html",
    ".lock",
)
EVALUATION = "evaluation.json"
_HEADER = "# The configuration of this run. To train on: qdhuac resume RUN_DIR --generations N\n\n"
_CHECKSUM = "\n# sha256 "
_LARGEST_CONFIG = 100_000  # bytes; ours have about 2 000
_CRC = ', "crc": "'  # each line of metrics ends with a checksum over what stands before this


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
            raise UserError(f"--run-dir {path}: exists already; name a new folder, or go on with: qdhuac resume {path}")
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
            checkpoint.save(run.checkpoints, checkpoint.name(0, 0), {}, {CONFIG: text, METRICS: b""}, None)
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
        for name in (CONFIG, METRICS, REPERTOIRE, REPORT, LOCK, EVALUATION, "checkpoints"):
            # What we write must stay in the folder, whoever the folder comes from.
            if name in entries and entries[name].is_symlink():
                raise UserError(f"{path / name}: is a link; a run folder must hold its own files")
        if not path.is_dir() or not ((path / CONFIG).is_file() or (path / "checkpoints").is_dir()):
            raise UserError(f"{path}: not a run folder (expected config.toml and checkpoints/, as qdhuac train makes)")
        return cls(path)

    def lock(self) -> None:
        """Keep other processes out until this one ends; the kernel lets go of the lock even after a crash."""
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
        """Take back a folder that has just been created, and the folders above it that were made for it."""
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
        found = checkpoint.newest(self.checkpoints)
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
        text = json.dumps(line, allow_nan=False)[:-1]
        with (self.path / METRICS).open("ab") as file:
            file.write(f'{text}{_CRC}{_crc(text)}"}}\n'.encode())

    def texts(self) -> dict[str, bytes]:
        """The files of which a checkpoint keeps a copy."""
        return {file: (self.path / file).read_bytes() for file in (CONFIG, METRICS)}

    def restore_metrics(self, data: bytes) -> None:
        """Put the metrics back to what they were at a checkpoint, so that no generation is there twice."""
        path = self.path / METRICS
        try:
            current = path.read_bytes() if path.is_file() else b""
            if not current.startswith(data):
                self.notes.append(f"{path}: differs from the checkpoint's copy (edited or damaged?); restored")
            elif unsaved := current[len(data) :].count(b"\n"):
                self.notes.append(f"{path}: {unsaved} generations had not been saved; they come again")
            if current != data:
                replace_file(path, data)
        except OSError as error:
            raise RunFailed(
                f"{path}: cannot be restored ({error.strerror or error}); the last checkpoint is intact"
            ) from None

    def read_metrics(self) -> list[dict[str, Any]]:
        """All complete lines, or those in the newest checkpoint if the file was edited or damaged."""
        path = self.path / METRICS
        try:
            kept = checkpoint.newest(self.checkpoints).texts[METRICS]
        except UserError:
            kept = b""
        try:
            data = path.read_bytes()
            if not data.startswith(kept):
                raise ValueError("it differs from the checkpoint's copy")
            return _rows(data)
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            if not kept:
                raise UserError(f"{path}: not readable as metrics ({reason})") from None
        self.notes.append(f"{path}: {reason} (edited or damaged?); using the copy in the newest checkpoint")
        try:
            return _rows(kept)
        except ValueError as error:
            raise UserError(f"{path}: not readable as metrics ({error})") from None


def _with_checksum(config: Config) -> bytes:
    body = (_HEADER + configuration.to_toml(config)).encode()
    return body + f"{_CHECKSUM}{hashlib.sha256(body).hexdigest()}\n".encode()


def _verified(data: bytes, where: str) -> Config | None:
    """The configuration in a file of ours, or None if its checksum is wrong."""
    body, found, checksum = data.rpartition(_CHECKSUM.encode())
    if not found or checksum != b"%s\n" % hashlib.sha256(body).hexdigest().encode():
        return None
    try:
        return configuration.from_toml(body.decode(), where)
    except UnicodeDecodeError:
        raise UserError(f"{where}: not text") from None


def _rows(data: bytes) -> list[dict[str, Any]]:
    """The complete lines of a metrics file; a run in progress may be in the middle of writing the last one."""
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
        if not all(type(row.get(name)) is int for name in ("generation", "env_steps")):
            raise ValueError(f"line {number} lacks a generation or env_steps")
        if not all(v is None or (type(v) in (int, float) and abs(v) < 1e300) for v in row.values()):
            raise ValueError(f"line {number} holds something that is not a number")
        rows.append(row)
    return rows


def _crc(text: str) -> str:
    return f"{zlib.crc32(text.encode()):08x}"


def _check_name(path: Path) -> None:
    """Refuse paths that no file can have, or that cannot be printed."""
    text = str(path)
    if "\0" in text or any("\ud800" <= c <= "\udfff" for c in text):
        raise UserError(f"{text!r}: not a possible name of a folder")
