"""What a repertoire, a history and the record of a checkpoint may hold. Hashes show damage; this shows nonsense.

Each function raises ValueError with what is wrong.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

MOST_INDIVIDUALS, MOST_DIMENSIONS = 1 << 20, 100
MOST_ARRAYS, MOST_STEPS = 1000, 20  # steps from the root of a tree to an array
LARGEST = 1e18  # of a fitness or descriptor: its square is still a number in single precision
MOST_NAMES, LONGEST_NAME = 1000, 200
NUMBERS = ("fitness", "descriptor")  # the columns of individuals that are not whole numbers
PROVENANCE = ("id", "parents", "operator", "generation")
Shapes = Mapping[str, "tuple[np.dtype, tuple[int, ...]]"]  # type and shape of arrays by name


def check_columns(columns: Shapes, names: tuple[str, ...], size: int) -> int:
    """Check facts about individuals with `size` descriptor dimensions. Return how many individuals there are."""
    if missing := [name for name in names if name not in columns]:
        raise ValueError(f"it has no {missing[0]}")
    rows = columns[names[0]][1][:1]
    if rows > (MOST_INDIVIDUALS,):
        raise ValueError(f"it has {rows[0]} individuals, and at most {MOST_INDIVIDUALS} are read")
    for name in names:
        dtype, shape = columns[name]
        width = {"parents": (2,), "descriptor": (size,)}.get(name, ())
        kind = "f" if name in NUMBERS else "i"
        if len(rows) != 1 or shape != (*rows, *width) or dtype.kind != kind:
            expected = f"{'numbers' if kind == 'f' else 'whole numbers'} {[*rows, *width]}"
            raise ValueError(f"its {name} is {dtype}{list(shape)}, expected {expected}")
    return rows[0]


def check_ranges(columns: Mapping[str, np.ndarray]) -> None:
    """Check the values of facts about individuals."""
    for name, values in columns.items():
        low, high = (-LARGEST, LARGEST) if name in NUMBERS else (-1, 2**31 - 1)
        if not ((low <= values) & (values <= high)).all():
            raise ValueError(f"its {name} holds a value that is not from {low:g} to {high:g}")


def check_repertoire(shapes: Shapes, metadata: Any) -> None:
    """Check the arrays of a repertoire, before they are read, and its metadata."""
    if not isinstance(metadata, dict):
        raise ValueError("its metadata is not an object")
    bounds: list[list[float]] = metadata["descriptor_bounds"] if _is_table(metadata.get("descriptor_bounds")) else []
    if len(bounds) != 2 or not all(low < high for low, high in zip(*bounds, strict=True)):
        raise ValueError("its descriptor bounds are not two lists of numbers")
    columns = {name.removeprefix("provenance/"): shape for name, shape in shapes.items()}
    rows = check_columns(columns, (*NUMBERS, *PROVENANCE), len(bounds[0]))
    genotypes = {name: shape for name, (_, shape) in shapes.items() if name.split("/")[0] == "genotypes"}
    if len(shapes) > MOST_ARRAYS or any(name.count("/") > MOST_STEPS for name in shapes):
        raise ValueError("it has too many arrays, or their names are too long")
    above = {part for name in genotypes for part in itertools.accumulate(name.split("/")[:-1], "{}/{}".format)}
    if not genotypes or above & genotypes.keys():
        raise ValueError("its genotypes are not a tree of arrays")
    if any(shape[:1] != (rows,) for shape in genotypes.values()):
        raise ValueError("its arrays do not fit together")
    for kind in ("operators", "labels"):
        names = metadata.get(kind) or []
        named = isinstance(names, list) and all(isinstance(n, str) and len(n) <= LONGEST_NAME for n in names)
        if not named or len(names) > MOST_NAMES:
            raise ValueError(f"its {kind} are not names")
    if (policy := metadata.get("policy")) is not None:
        _check_policy(policy, metadata.get("action_bounds"), {name: shape[1:] for name, shape in genotypes.items()})


def _check_policy(policy: Any, bounds: Any, genotypes: Mapping[str, tuple[int, ...]]) -> None:
    try:
        widths = [policy["obs_size"], *policy["hidden"], policy["action_size"]]
        expected: dict[str, tuple[int, ...]] = {}
        for i, (m, n) in enumerate(itertools.pairwise(widths)):
            expected |= {f"genotypes/Dense_{i}/kernel": (m, n), f"genotypes/Dense_{i}/bias": (n,)}
        if genotypes != expected or not all(type(n) is int and n > 0 for n in widths):
            raise ValueError
        if bounds is not None and not (_is_table(bounds) and [len(b) for b in bounds] == [widths[-1]] * 2):
            raise ValueError
    except (KeyError, TypeError, ValueError):
        raise ValueError("its genotypes are not the policies that its metadata describes") from None


def check_record(record: Mapping[str, Any]) -> None:
    """Check the counters in the record of a checkpoint, and those of its unfinished generation."""
    tables = {"counters": ("failures", "warnings"), "pending": ("record", "times", "means", "sums")}
    for part, names in tables.items():
        values = record.get(part, {})
        if values is None and part == "pending":
            continue
        if not isinstance(values, dict):
            raise ValueError(f"its {part} are not an object")
        for name, value in values.items():
            inner = value.values() if isinstance(value, dict) else [value]
            inner = [x for v in inner for x in (v.values() if name == "warnings" and isinstance(v, dict) else [v])]
            texts = (str,) if name == "warnings" else ()
            nothing = part == "pending" and name in names
            good = all(is_number(x) or isinstance(x, texts) or (x is None and nothing) for x in inner)
            if not good or isinstance(value, dict) != (name in names):
                raise ValueError(f"its {part} have no such {name}")


def is_number(value: object) -> bool:
    """Whether a value from JSON is a number that NumPy's types can hold."""
    return (type(value) is float and abs(value) < 1e300) or (type(value) is int and abs(value) < 1 << 62)


def _is_table(value: object) -> bool:
    """Whether a value from JSON is lists of numbers, all of one length."""
    if not isinstance(value, list) or not all(
        isinstance(row, list) and 1 <= len(row) <= MOST_DIMENSIONS for row in value
    ):
        return False
    return len({len(row) for row in value}) == 1 and all(
        is_number(x) and abs(x) <= LARGEST for row in value for x in row
    )
