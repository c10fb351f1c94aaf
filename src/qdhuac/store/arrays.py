"""Conversion between pytrees and named arrays, which files hold."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from qdhuac.errors import UserError
from qdhuac.types import Array


def flatten(tree: Any) -> dict[str, np.ndarray]:
    """Return the leaves of a pytree by their paths, such as `algorithm/archive/fitness`."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {_name(path): _to_numpy(leaf) for path, leaf in leaves}


def unflatten(template: Any, arrays: dict[str, np.ndarray], where: str) -> Any:
    """Return named arrays as a pytree.

    Args:
        template: a pytree of arrays or of shapes.
        arrays: the leaves by their paths.
        where: the file that they come from, for errors.

    Raises:
        UserError: an array is missing or unknown, or has another shape or type.
    """
    leaves, structure = jax.tree_util.tree_flatten_with_path(template)
    names = [_name(path) for path, _ in leaves]
    if different := sorted(set(names) ^ set(arrays)):
        kind = "lacks" if different[0] in names else "has an unexpected"
        raise UserError(f"{where}: {kind} array {different[0]!r}; was it written by another version of qdhuac?")
    return jax.tree.unflatten(
        structure, [_from_numpy(n, leaf, arrays[n], where) for n, (_, leaf) in zip(names, leaves, strict=True)]
    )


def _name(path: Any) -> str:
    return jax.tree_util.keystr(path, simple=True, separator="/")


def _is_key(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _to_numpy(leaf: Any) -> np.ndarray:
    array = np.asarray(jax.random.key_data(leaf) if _is_key(leaf) else leaf)
    # safetensors writes the memory of an array as it is, so it must be contiguous.
    return np.ascontiguousarray(array.view(_storage(array.dtype))).reshape(array.shape)


def _storage(dtype: np.dtype) -> np.dtype:
    """The type in a file: NumPy's own types, and unsigned integers in place of others (bfloat16, float8)."""
    return dtype if dtype.isbuiltin == 1 else np.dtype(f"u{dtype.itemsize}")


def _from_numpy(name: str, like: Any, array: np.ndarray, where: str) -> Array:
    shape = jax.eval_shape(jax.random.key_data, like) if _is_key(like) else like
    expected = (shape.shape, _storage(np.dtype(shape.dtype)))
    if (array.shape, array.dtype) != expected:
        raise UserError(
            f"{where}: array {name!r} is {array.dtype}{list(array.shape)}, expected {expected[1]}{list(expected[0])}; "
            "was it written with another configuration?"
        )
    value = jnp.asarray(array.view(np.dtype(shape.dtype)))
    return jax.random.wrap_key_data(value, impl=_key_impl(like)) if _is_key(like) else value


def _key_impl(like: Any) -> str:
    """The random number generator of a key that is only a shape."""
    found: list[Any] = []

    def look(key: Array) -> Array:
        found.append(jax.random.key_impl(key))
        return key

    jax.eval_shape(look, like)
    return found[0]
