"""`repertoire.safetensors`: the archive of a run, without the learner and the replay buffer.

The arrays `genotypes/...`, `fitness`, `descriptor` and `provenance/...` have a row for each occupied slot. The header
has `metadata`, a JSON object with the task, the sizes of the policy and versions, and a hash of everything.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qdhuac.errors import UserError
from qdhuac.store import checkpoint
from qdhuac.store.files import replace_file
from qdhuac.store.run_folder import REPERTOIRE, RunDir

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
    replace_file(path, save(arrays, {"metadata": text, "sha256": _digest(text, arrays)}))


def find(folder: RunDir) -> Repertoire:
    """Read the repertoire of a run, or the archive of its newest checkpoint if the file is missing or damaged.

    Raises:
        UserError: the run has saved nothing yet, or neither is readable.
    """
    try:
        return read(folder.path / REPERTOIRE)
    except UserError as error:
        try:
            found = checkpoint.load(folder.checkpoints)
            kept = _occupied(found.arrays or {}), found.record["repertoire"]
            _check(*kept)
        except (UserError, KeyError, ValueError):
            raise error from None
        folder.notes.append(f"{error}; using the archive in checkpoint {found.path.name}")
        return kept


def read(path: Path) -> Repertoire:
    """Read a repertoire. Raises UserError if the file is missing, damaged or no repertoire."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="np") as file:
            header = file.metadata() or {}
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
        text = header["metadata"]
        if header["sha256"] != _digest(text, arrays):
            raise UserError(f"{path}: does not match its hash; it is damaged (resuming the run writes it again)")
        metadata = json.loads(text)
        _check(arrays, metadata)
    except FileNotFoundError:
        raise UserError(f"{path}: missing; the run has saved nothing yet") from None
    except (SafetensorError, OSError, KeyError, ValueError, TypeError, RecursionError, MemoryError) as error:
        raise UserError(f"{path}: not readable as a repertoire ({error})") from None
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
    """Raise ValueError unless these are individuals. A hash shows that a file is intact, not that it makes sense."""
    import numpy as np

    fitness, descriptor = arrays["fitness"], arrays["descriptor"]
    if not isinstance(metadata, dict):
        raise ValueError("its metadata is not an object")
    bounds = np.asarray(metadata["descriptor_bounds"], float)
    shapes_fit = fitness.ndim == 1 and descriptor.ndim == 2 and arrays["provenance/id"].shape == fitness.shape
    if not shapes_fit or any(a.ndim < 1 or len(a) != len(fitness) for a in arrays.values()):
        raise ValueError("its arrays do not fit together")
    if bounds.shape != (2, descriptor.shape[1]) or not np.isfinite(bounds).all():
        raise ValueError("its descriptor bounds do not fit its descriptors")
    operators = metadata.get("operators", [])
    if not isinstance(operators, list) or not all(isinstance(name, str) for name in operators):
        raise ValueError("its operators are not names")
    if not all(np.isfinite(a).all() for a in (fitness, descriptor)):
        raise ValueError("its fitness or descriptors are not finite")
    names = {name for name in arrays if name.split("/")[0] == "genotypes"}
    if not names or any(f"{name}/".startswith(f"{other}/") for name in names for other in names - {name}):
        raise ValueError("its genotypes are not a tree of arrays")


def _digest(text: str, arrays: Mapping[str, np.ndarray]) -> str:
    digest = hashlib.sha256(text.encode())
    for name in sorted(arrays):
        array = arrays[name]
        digest.update(f"{name} {array.dtype.str} {array.shape}".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()
