"""`repertoire.safetensors`: the archive of a run, without the learner and the replay buffer.

The arrays `genotypes/...`, `fitness`, `descriptor` and `provenance/...` have a row for each occupied slot. The header
has `metadata`, a JSON object with the task, the sizes of the policy and versions, and a hash of everything.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qdhuac.errors import UserError, reason
from qdhuac.files import opened, replace_file
from qdhuac.store import checkpoint
from qdhuac.store.run_folder import REPERTOIRE, RunDir
from qdhuac.store.schema import check_ranges, check_repertoire

if TYPE_CHECKING:
    import numpy as np

    from qdhuac.types import Individuals

_ARCHIVE = "algorithm/archive/"  # the same arrays in a checkpoint, with empty slots
Repertoire = tuple[dict[str, "np.ndarray"], dict[str, Any]]  # arrays by name, metadata


def write(path: Path, state: Mapping[str, np.ndarray], metadata: Mapping[str, Any]) -> None:
    """Write the archive in the named arrays of a run's state."""
    from safetensors.numpy import save

    arrays = _occupied(state)
    text = json.dumps(metadata, sort_keys=True, allow_nan=False)
    digest = _digest(text, arrays, lambda name: [arrays[name].tobytes()])
    replace_file(path, save(arrays, {"metadata": text, "sha256": digest}))


def find(folder: RunDir) -> Repertoire:
    """Read the repertoire of a run, or the archive of its newest checkpoint if the file is missing or damaged.

    Raises:
        UserError: the run has saved nothing yet, or neither is readable.
    """
    try:
        return read(folder.path / REPERTOIRE)
    except UserError as error:
        try:
            found = checkpoint.load(folder.checkpoints, _ARCHIVE)
            kept = _occupied(found.arrays or {}), found.record["repertoire"]
            _check(*kept)
        except (UserError, KeyError, ValueError):
            raise error from None
        folder.notes.append(f"{error}; using the archive in checkpoint {found.path.name}")
        return kept


def read(path: Path) -> Repertoire:
    """Read a repertoire. Raises UserError if the file is missing, damaged or no repertoire."""
    from qdhuac.store.tensors import Tensors

    try:
        with opened(path) as file:
            found = Tensors(file)
            text = found.metadata.get("metadata", "")
            metadata = json.loads(text)
            check_repertoire({name: entry[:2] for name, entry in found.entries.items()}, metadata)
            # The hash before the numbers: a false one costs no memory.
            if found.metadata.get("sha256") != _digest(text, found.entries, found.parts):
                raise UserError(f"{path}: does not match its hash; it is damaged (resuming the run writes it again)")
            arrays = {name: found.array(name) for name in found.entries}
        _check_values(arrays)
    except FileNotFoundError:
        raise UserError(f"{path}: missing; the run has saved nothing yet") from None
    except (OSError, ValueError, RecursionError, MemoryError) as error:
        raise UserError(f"{path}: not readable as a repertoire ({reason(error)})") from None
    return arrays, metadata


def genotypes(arrays: Mapping[str, np.ndarray]) -> Any:
    """Return the genotypes as nested dictionaries of arrays [N, ...], or as one array."""
    tree: dict[str, Any] = {}
    for name, array in arrays.items():
        part, *path = name.split("/")
        if part == "genotypes":
            node = tree
            for step in path[:-1]:
                node = node.setdefault(step, {})
            node["".join(path[-1:])] = array
    return tree.get("", tree)  # an array that is the whole genotype has no path


def individuals(arrays: Mapping[str, np.ndarray]) -> Individuals:
    """Return the individuals as JAX arrays."""
    import jax
    import jax.numpy as jnp

    from qdhuac.types import Individuals, Provenance

    provenance = Provenance(*(jnp.asarray(arrays[f"provenance/{name}"]) for name in Provenance._fields))
    tree = jax.tree.map(jnp.asarray, genotypes(arrays))
    return Individuals(tree, jnp.asarray(arrays["fitness"]), jnp.asarray(arrays["descriptor"]), provenance)


def _occupied(state: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    import numpy as np

    occupied = np.isfinite(state[f"{_ARCHIVE}fitness"])
    names = (name for name in state if name.startswith(_ARCHIVE))
    return {name.removeprefix(_ARCHIVE): np.ascontiguousarray(state[name][occupied]) for name in names}


def _check(arrays: Mapping[str, np.ndarray], metadata: Any) -> None:
    """Raise ValueError unless these are individuals."""
    check_repertoire({name: (array.dtype, array.shape) for name, array in arrays.items()}, metadata)
    _check_values(arrays)


def _check_values(arrays: Mapping[str, np.ndarray]) -> None:
    check_ranges({name.removeprefix("provenance/"): a for name, a in arrays.items() if "genotypes" not in name})


def _digest(text: str, arrays: Mapping[str, Any], parts: Callable[[str], Iterable[Any]]) -> str:
    """The hash of metadata and of arrays, whose bytes `parts` gives."""
    digest = hashlib.sha256(text.encode())
    for name in sorted(arrays):
        digest.update(f"{name} {arrays[name].dtype.str} {arrays[name].shape}".encode())
        for part in parts(name):
            digest.update(part)
    return digest.hexdigest()
