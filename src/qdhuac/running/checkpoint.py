"""Checkpoints: the complete state of a run in one folder, with hashes; written aside and renamed into place.

`checkpoints/<generation>-<updates>/` holds `state.safetensors`, copies of `config.toml` and `metrics.jsonl` as they
were at that moment, and `manifest.json` with the size and SHA-256 of each and of itself. The checkpoint of generation 0
has no `state.safetensors`: that state follows from the configuration. Knows nothing of JAX.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from qdhuac.errors import UserError
from qdhuac.running.files import sha256, sync, write_synced

if TYPE_CHECKING:
    import numpy as np

SCHEMA = 1
KEEP = 2
STATE, MANIFEST = "state.safetensors", "manifest.json"
_NAME = re.compile(r"(\d{8,12})-(\d{12,18})")


class Damaged(Exception):
    """A checkpoint that is not what was written."""


class Checkpoint(NamedTuple):
    """A checkpoint read back and found intact."""

    path: Path
    record: dict[str, Any]  # what the runner gave to `save`
    texts: dict[str, bytes]  # config.toml, metrics.jsonl
    arrays: dict[str, np.ndarray] | None  # None: the state of generation 0
    damaged: list[str]  # newer checkpoints that had to be passed over, and why


def name(generation: int, updates: int) -> str:
    """Folder name of a checkpoint; names sort by age."""
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
        if arrays is not None:
            from safetensors.numpy import save_file

            save_file(arrays, temporary / STATE)
            sync(temporary / STATE)
        files = {p.name: {"size": p.stat().st_size, "sha256": sha256(p)} for p in sorted(temporary.iterdir())}
        manifest = {"schema": SCHEMA, "record": dict(record), "files": files}
        manifest["digest"] = _digest(manifest)
        write_synced(temporary / MANIFEST, json.dumps(manifest, indent=1, allow_nan=False).encode())
        sync(temporary)
        if target.exists():  # one more save at the same instant, or a damaged one that is made again
            target.rename(root / f"old-{folder}")
        temporary.rename(target)
        sync(root)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    _prune(root)
    return target


def newest(root: Path) -> Checkpoint:
    """The newest checkpoint whose small files are intact, without its arrays: cheap, for a look at the counters."""
    return _first_intact(root, with_arrays=False)


def load(root: Path) -> Checkpoint:
    """The newest intact checkpoint; `damaged` says which ones were not. A UserError if there is none."""
    return _first_intact(root, with_arrays=True)


def set_aside(root: Path, found: Checkpoint) -> None:
    """Take checkpoints newer than `found` out of the way: they are damaged, and their generations will come again."""
    for path in _folders(root):
        if _age(path) > _age(found.path):
            path.rename(path.with_name(f"damaged-{path.name}"))


def _first_intact(root: Path, with_arrays: bool) -> Checkpoint:
    damaged: list[str] = []
    for path in reversed(_folders(root)):
        try:
            return _read(path, with_arrays)._replace(damaged=damaged)
        except (Damaged, OSError) as error:
            damaged.append(f"{path.name}: {error}")
    raise UserError(f"{root}: no intact checkpoint ({'; '.join(damaged) or 'none was ever written'})")


def _read(path: Path, with_arrays: bool) -> Checkpoint:
    manifest = _read_manifest(path / MANIFEST)
    texts: dict[str, bytes] = {}
    arrays = None
    for file, expected in manifest["files"].items():
        if file == STATE and not with_arrays:
            continue
        content = path / file
        if not content.is_file():
            raise Damaged(f"{file} is missing")
        if content.stat().st_size != expected["size"] or sha256(content) != expected["sha256"]:
            raise Damaged(f"{file} does not match its hash")
        if file == STATE:
            from safetensors.numpy import load_file

            arrays = load_file(content)
        else:
            texts[file] = content.read_bytes()
    return Checkpoint(path, manifest["record"], texts, arrays, [])


def _read_manifest(path: Path) -> dict[str, Any]:
    try:
        manifest = json.loads(path.read_bytes())
        intact = manifest["digest"] == _digest(manifest)
    except FileNotFoundError:
        raise Damaged(f"{MANIFEST} is missing") from None
    except (ValueError, KeyError, TypeError, RecursionError):
        raise Damaged(f"{MANIFEST} is not readable") from None
    if not intact:
        raise Damaged(f"{MANIFEST} does not match its hash")
    if manifest["schema"] != SCHEMA:  # intact, but of another version of qdhuac: falling back would lose work
        raise UserError(f"{path}: checkpoint schema {manifest['schema']}; this version reads schema {SCHEMA}")
    return manifest


def _digest(manifest: Mapping[str, Any]) -> str:
    content = {k: v for k, v in manifest.items() if k != "digest"}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _folders(root: Path) -> list[Path]:
    """Checkpoints, oldest first; anything else in the folder is not one."""
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
