"""`repertoire.safetensors`: what a run has found, without the machinery that found it.

Tensors: `genotypes/...`, `fitness`, `descriptor`, `provenance/...`, occupied slots only, and `metadata` (JSON text in
the file's header) with the task, the sizes of the policy, versions, and a hash over everything.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qdhuac.errors import UserError
from qdhuac.running.files import replace_file

if TYPE_CHECKING:
    import numpy as np

    from qdhuac.types import Individuals


def write(path: Path, archive: Individuals, metadata: Mapping[str, Any]) -> None:
    """Replace the file by the occupied slots of an archive."""
    import numpy as np
    from safetensors.numpy import save

    from qdhuac.running.arrays import flatten

    arrays = flatten(archive)
    occupied = np.isfinite(arrays["fitness"])
    arrays = {name: np.ascontiguousarray(array[occupied]) for name, array in arrays.items()}
    text = json.dumps(metadata, sort_keys=True, allow_nan=False)
    replace_file(path, save(arrays, {"metadata": text, "sha256": _digest(text, arrays)}))


def read(path: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Arrays by name and the metadata, or a UserError if the file is missing or not what was written."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="np") as file:
            header = file.metadata() or {}
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
        text = header["metadata"]
        intact = header["sha256"] == _digest(text, arrays)
        metadata = json.loads(text)
    except FileNotFoundError:
        raise UserError(f"{path}: missing; the run has saved nothing yet") from None
    except (SafetensorError, OSError, KeyError, ValueError, TypeError) as error:
        raise UserError(f"{path}: not readable as a repertoire ({error})") from None
    if not intact:
        raise UserError(f"{path}: does not match its hash; it is damaged (a resumed run writes it anew)")
    return arrays, metadata


def genotypes(arrays: Mapping[str, np.ndarray]) -> Any:
    """The genotypes as nested dictionaries of arrays [N, ...]; one array if that is all a genotype is."""
    tree: dict[str, Any] = {}
    for name, array in arrays.items():
        room, *path = name.split("/")
        if room != "genotypes":
            continue
        if not path:
            return array
        node = tree
        for step in path[:-1]:
            node = node.setdefault(step, {})
        node[path[-1]] = array
    return tree


def _digest(text: str, arrays: Mapping[str, np.ndarray]) -> str:
    digest = hashlib.sha256(text.encode())
    for name in sorted(arrays):
        array = arrays[name]
        digest.update(f"{name} {array.dtype.str} {array.shape}".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()
