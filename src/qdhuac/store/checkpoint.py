"""Checkpoints: the complete state of a run in one folder, with hashes. Does not need JAX.

`checkpoints/<generation>-<updates>/` holds `state.safetensors`, copies of `config.toml`, `metrics.jsonl` and
`history.jsonl`, and `manifest.json` with the size and SHA-256 of every file and of itself. The checkpoint of generation
0 has no `state.safetensors`: that state follows from the configuration. A checkpoint is written under a temporary name
and renamed when it is complete.

A large array, such as the replay buffer, is split into pieces `<array>-<piece>.bin`. A piece of zeros has no file. A
piece that has not changed since the checkpoint before the last one is a hard link to it. The two newest checkpoints
never share a file, so that damage to one leaves the other intact.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from qdhuac.errors import UserError, reason
from qdhuac.files import inside, opened, read, sha256, sync, write_synced
from qdhuac.store.schema import check_record

if TYPE_CHECKING:
    import numpy as np

SCHEMA = 2
KEEP, MOST = 2, 4  # checkpoints that are kept, and that are looked at
LARGE = 1 << 26  # bytes; arrays of this size or more are split
PIECE = 1 << 24  # bytes
STATE, MANIFEST = "state.safetensors", "manifest.json"
TEXTS = ("config.toml", "metrics.jsonl", "history.jsonl")
_NAME = re.compile(r"([0-9]{8,12})-([0-9]{12,18})")
_PIECE_NAME = re.compile(r"[0-9]{3}-[0-9]{6}\.bin")


class Damaged(Exception):
    """A checkpoint differs from what was written."""


class Kept(NamedTuple):
    """A file of a checkpoint, which matches its hash."""

    path: Path
    size: int
    sha256: str

    def is_start_of(self, path: Path) -> bool:
        """Whether a file has nothing but additions to this one. Raises OSError if it cannot be read."""
        return sha256(path, self.size) == self.sha256


class Checkpoint(NamedTuple):
    """An intact checkpoint, read from disk."""

    path: Path
    record: dict[str, Any]  # what was given to `save`
    texts: dict[str, Kept]  # config.toml, metrics.jsonl, history.jsonl
    arrays: dict[str, np.ndarray] | None  # None: the state of generation 0
    damaged: list[str]  # newer checkpoints that were skipped, and why


def name(generation: int, updates: int) -> str:
    """Return the folder name of a checkpoint."""
    return f"{generation:08d}-{updates:012d}"


def save(
    root: Path, folder: str, record: Mapping[str, Any], texts: Mapping[str, bytes], arrays: dict[str, Any] | None
) -> Path:
    """Write a checkpoint and remove all but the newest `KEEP`."""
    target, temporary = root / folder, root / f"tmp-{folder}"
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    try:
        for file, data in texts.items():
            write_synced(temporary / file, data)
        large = [(name, array) for name, array in sorted((arrays or {}).items()) if array.nbytes >= LARGE]
        if arrays is not None:
            from safetensors.numpy import save as serialise

            # Not `save_file`, whose error on a full disk is not an OSError.
            write_synced(temporary / STATE, serialise({k: v for k, v in arrays.items() if v.nbytes < LARGE}))
        files = {p.name: {"size": p.stat().st_size, "sha256": sha256(p)} for p in sorted(temporary.iterdir())}
        source = _before_the_last(root, target)
        pieces = {n: _write_pieces(temporary, i, array, source, files) for i, (n, array) in enumerate(large)}
        manifest = {"schema": SCHEMA, "record": dict(record), "files": files, "large": pieces}
        manifest["digest"] = _digest(manifest)
        write_synced(temporary / MANIFEST, _serialised(manifest))
        sync(temporary)
        if target.exists():  # saved twice at the same moment, or a damaged checkpoint that is repeated
            target.rename(root / f"old-{folder}")
        temporary.rename(target)
        sync(root)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    _prune(root)
    return target


def load(root: Path, only: str | None = "") -> Checkpoint:
    """Read the newest intact checkpoint: of its arrays those whose names start with `only`, or none of them if None.

    Raises:
        UserError: there is none, or it was written by another version of qdhuac.
    """
    damaged: list[str] = []
    for path in _folders(root)[: -MOST - 1 : -1]:
        try:
            return _read(path, only)._replace(damaged=damaged)
        except (Damaged, OSError) as error:
            damaged.append(f"{path.name}: {reason(error)}")
    raise UserError(f"{root}: no intact checkpoint ({'; '.join(damaged) or 'none was ever written'})")


def newest(root: Path) -> Checkpoint:
    """Read the newest checkpoint whose small files are intact, without its arrays."""
    return load(root, None)


def set_aside(root: Path, found: Checkpoint) -> None:
    """Rename the checkpoints newer than `found`: they are damaged, and their generations are repeated."""
    for path in _folders(root):
        if _age(path) > _age(found.path):
            path.rename(path.with_name(f"damaged-{path.name}"))


def _read(path: Path, only: str | None) -> Checkpoint:
    manifest = _read_manifest(path)
    files, record, large = (manifest.get(name, 0) for name in ("files", "record", "large"))
    if not all(isinstance(x, dict) for x in (files, record, large)):
        raise Damaged(f"{MANIFEST} lacks files, record or large")
    texts = {file: _checked(path, file, files) for file in TEXTS}
    arrays = None
    if STATE in files and only is not None:
        from qdhuac.store.tensors import Tensors

        try:
            with opened(_checked(path, STATE, files).path) as file:
                small = Tensors(file)
                arrays = {name: small.array(name) for name in small.entries if name.startswith(only)}
            arrays |= {name: _read_pieces(path, x, files) for name, x in large.items() if name.startswith(only)}
        except (ValueError, TypeError, KeyError, OverflowError, MemoryError) as error:
            raise Damaged(f"the arrays cannot be read ({error})") from None
    try:
        check_record(record)
    except ValueError:
        raise UserError(f"{path}: has other counters than this version of qdhuac") from None
    return Checkpoint(path, record, texts, arrays, [])


def _checked(folder: Path, file: str, files: Mapping[str, Any]) -> Kept:
    """A file that matches the manifest."""
    expected = files.get(file)
    if not isinstance(expected, dict):
        raise Damaged(f"{file} is missing")
    kept = Kept(folder / file, expected.get("size", -1), expected.get("sha256", ""))
    try:
        with opened(kept.path) as content:
            if os.fstat(content.fileno()).st_size != kept.size:
                raise Damaged(f"{file} does not have its size")
            if hashlib.file_digest(content, "sha256").hexdigest() != kept.sha256:
                raise Damaged(f"{file} does not match its hash")
    except FileNotFoundError:
        raise Damaged(f"{file} is missing") from None
    except OSError as error:
        raise Damaged(f"{file} {reason(error)}") from None
    return kept


def _read_manifest(folder: Path) -> dict[str, Any]:
    path = inside(folder.parent, folder.name) / MANIFEST
    try:
        data = read(path)
        manifest = json.loads(data)
        # The text is compared as well: a changed blank is damage too.
        intact = manifest["digest"] == _digest(manifest) and data == _serialised(manifest)
        schema = manifest["schema"]
    except FileNotFoundError:
        raise Damaged(f"{MANIFEST} is missing") from None
    except (ValueError, KeyError, TypeError, RecursionError):
        raise Damaged(f"{MANIFEST} is not readable") from None
    if not intact:
        raise Damaged(f"{MANIFEST} does not match its hash")
    if schema != SCHEMA:  # an older checkpoint would not help, and would lose work
        raise UserError(f"{path}: checkpoint schema {schema}; this version of qdhuac reads: {SCHEMA}")
    return manifest


def _digest(manifest: Mapping[str, Any]) -> str:
    content = {k: v for k, v in manifest.items() if k != "digest"}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _serialised(manifest: Mapping[str, Any]) -> bytes:
    return json.dumps(manifest, indent=1, allow_nan=False).encode()


def _before_the_last(root: Path, target: Path) -> tuple[Path, dict[str, Any]]:
    """The checkpoint that `target` will replace, and its files; no files if it is missing or damaged."""
    others = [p for p in _folders(root) if p != target]
    try:
        return others[-KEEP], _read_manifest(others[-KEEP])["files"]
    except (IndexError, Damaged, UserError, OSError):
        return root, {}


def _write_pieces(
    folder: Path, index: int, array: np.ndarray, source: tuple[Path, dict[str, Any]], files: dict[str, Any]
) -> dict[str, Any]:
    """Write an array in pieces and add them to `files`. Returns the array's entry in the manifest."""
    content = array.reshape(-1).view("u1")
    names: list[str | None] = []  # None: a piece of zeros
    for start in range(0, len(content), PIECE):
        piece = content[start : start + PIECE]
        if not piece[:64].any() and not piece.any():
            names.append(None)
            continue
        file = f"{index:03d}-{len(names):06d}.bin"
        files[file] = {"size": len(piece), "sha256": hashlib.sha256(piece.data).hexdigest()}
        names.append(file)
        if source[1].get(file) == files[file]:
            with contextlib.suppress(OSError):  # the file system may not have hard links
                os.link(source[0] / file, folder / file)
                continue
        write_synced(folder / file, piece.data)
    return {"dtype": array.dtype.str, "shape": list(array.shape), "pieces": names}


def _read_pieces(path: Path, entry: Mapping[str, Any], files: Mapping[str, Any]) -> np.ndarray:
    import numpy as np

    shape, pieces = entry["shape"], entry["pieces"]
    array = np.zeros(shape, np.dtype(entry["dtype"]))
    size = math.prod(shape) * array.dtype.itemsize
    if array.dtype.hasobject or len(pieces) != -(-size // PIECE):
        raise ValueError("pieces are missing")
    content = array.reshape(-1).data.cast("B")
    for i, file in enumerate(pieces):
        if file is None:
            continue
        if not _PIECE_NAME.fullmatch(file):
            raise ValueError(f"not the name of a piece: {file!r}")
        content[i * PIECE : (i + 1) * PIECE] = read(_checked(path, file, files).path)
    return array


def _folders(root: Path) -> list[Path]:
    """The folders of checkpoints, oldest first."""
    try:
        return sorted((p for p in root.iterdir() if _NAME.fullmatch(p.name)), key=_age)
    except (FileNotFoundError, NotADirectoryError):
        return []


def _age(path: Path) -> tuple[int, int]:
    generation, updates = path.name.split("-")
    return int(generation), int(updates)


def _prune(root: Path) -> None:
    keep = {p.name for p in _folders(root)[-KEEP:]}
    for path in root.iterdir():
        if path.name not in keep and path.is_dir():
            with contextlib.suppress(OSError):
                shutil.rmtree(path)
