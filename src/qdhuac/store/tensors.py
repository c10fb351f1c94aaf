"""safetensors files: their header is checked before their numbers are read, so that it cannot ask for more memory."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

LONGEST_HEADER, MOST_ARRAYS, MOST_DIMENSIONS = 1 << 22, 10_000, 16
SIZES = {"I": (1, 2, 4, 8), "U": (1, 2, 4, 8), "F": (2, 4, 8)}
TYPES = {f"{kind}{8 * n}": np.dtype(f"<{kind.lower()}{n}") for kind, sizes in SIZES.items() for n in sizes}
TYPES["BOOL"] = np.dtype(bool)
CHUNK = 1 << 20


class Entry(NamedTuple):
    """What a header says of an array."""

    dtype: np.dtype
    shape: tuple[int, ...]
    start: int  # in the file
    size: int  # bytes


class Tensors:
    """An open safetensors file. Raises ValueError if its header is not one, or does not fit the size of the file."""

    def __init__(self, file: Any) -> None:
        self._file = file
        size = os.fstat(file.fileno()).st_size
        length = int.from_bytes(file.read(8), "little")
        if not 2 <= length <= min(LONGEST_HEADER, size - 8):
            raise ValueError("its header has an impossible length")
        try:
            header = json.loads(file.read(length))
            self.metadata: Mapping[str, str] = header.pop("__metadata__", {})
            if len(header) > MOST_ARRAYS or not all(isinstance(text, str) for text in self.metadata.values()):
                raise ValueError
            self.entries: dict[str, Entry] = {}
            end = 8 + length
            for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
                dtype, shape = TYPES[entry["dtype"]], tuple(entry["shape"])
                if len(shape) > MOST_DIMENSIONS or not all(type(n) is int and 0 <= n <= size for n in shape):
                    raise ValueError
                bytes_ = math.prod(shape) * dtype.itemsize
                if [8 + length + offset for offset in entry["data_offsets"]] != [end, end + bytes_]:
                    raise ValueError
                self.entries[name] = Entry(dtype, shape, end, bytes_)
                end += bytes_
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise ValueError("its header is not that of a safetensors file") from None
        if end != size:
            raise ValueError("its header does not fit the size of the file")

    def array(self, name: str) -> np.ndarray:
        """Read an array."""
        entry = self.entries[name]
        array = np.empty(entry.shape, entry.dtype)
        self._file.seek(entry.start)
        if entry.size and self._file.readinto(array.reshape(-1).view("u1").data) != entry.size:
            raise ValueError("it is cut off")
        return array

    def parts(self, name: str) -> Iterator[bytes]:
        """Read the bytes of an array a little at a time."""
        entry = self.entries[name]
        self._file.seek(entry.start)
        for start in range(0, entry.size, CHUNK):
            yield self._file.read(min(CHUNK, entry.size - start))
