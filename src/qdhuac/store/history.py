"""The archive at every generation, without genotypes: rebuilt from the slots that individuals took."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from qdhuac.errors import UserError
from qdhuac.store.schema import NUMBERS, PROVENANCE, check_columns, check_ranges

NEVER = np.iinfo(np.int64).max


class History(NamedTuple):
    """The `M` individuals that were ever in the archive, in the order in which they entered it."""

    came: np.ndarray  # [M] generation in which it entered
    gone: np.ndarray  # [M] generation in which another individual replaced it, or NEVER
    slot: np.ndarray  # [M]
    id: np.ndarray  # [M]
    parents: np.ndarray  # [M, 2] ids, -1 where there is none
    operator: np.ndarray  # [M] index into the run's names of operators
    fitness: np.ndarray  # [M]
    descriptor: np.ndarray  # [M, D]

    def at(self, generation: int) -> np.ndarray:
        """Return the indices of the individuals in the archive after a generation, ordered by slot."""
        (present,) = np.nonzero((self.came <= generation) & (generation < self.gone))
        return present[np.argsort(self.slot[present])]

    def lineage(self, id: int, most: int = 100) -> list[int]:
        """Return the indices of an individual and its chain of first parents, as far as the history has them."""
        where = {int(one): index for index, one in enumerate(self.id)}
        line: list[int] = []
        while id in where and len(line) < most and where[id] not in line:
            line.append(where[id])
            id = int(self.parents[where[id], 0])
        return line


def rebuild(rows: Sequence[Mapping[str, Any]], descriptor_size: int) -> History:
    """Return the history in the rows of `RunDir.read_history`.

    Raises:
        UserError: the rows are not those of a history of individuals with so many descriptor dimensions.
    """
    columns, widths = {}, {"parents": (2,), "descriptor": (descriptor_size,)}
    try:
        for name in ("slot", *NUMBERS, *PROVENANCE[:-1]):
            values = np.array([value for row in rows for value in row[name]])
            if name in NUMBERS or not len(values):
                values = values.astype(float if name in NUMBERS else int)
            columns[name] = values if len(values) else values.reshape(0, *widths.get(name, ()))
        check_columns({k: (v.dtype, v.shape) for k, v in columns.items()}, tuple(columns), descriptor_size)
        check_ranges(columns)
    except ValueError as error:
        raise UserError(f"history.jsonl: {error}") from None
    came = np.repeat(np.array([row["generation"] for row in rows], np.int64), [len(row["id"]) for row in rows])
    gone = np.full(len(came), NEVER)
    last: dict[int, int] = {}  # the last individual in each slot
    for index, taken in enumerate(columns["slot"].tolist()):
        if taken in last:
            gone[last[taken]] = came[index]
        last[taken] = index
    return History(came, gone, **columns | {name: columns[name].astype(np.float32) for name in NUMBERS})
