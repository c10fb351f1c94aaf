"""Conversion of archives to data frames with the columns of pyribs and to archives of pyribs, and back.

A genotype is the columns `solution_0`, `solution_1`, ...: its arrays, flattened and concatenated in the order of
`jax.tree.leaves`. The fitness is `objective`, the descriptor `measures_0`, ... Provenance has columns of its own, which
pyribs ignores.
"""

from __future__ import annotations

import math
from itertools import count, takewhile
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from qdhuac.environment import require
from qdhuac.errors import UserError
from qdhuac.types import Genotype, Individuals, Provenance

PROVENANCE = ("id", "parents_0", "parents_1", "operator", "generation")


def to_frame(individuals: Individuals) -> Any:
    """Convert individuals to a pandas DataFrame with one row each, without empty slots."""
    pandas = require("pandas", "pandas")
    solution, objective, measures, provenance = _rows(individuals)
    columns = {f"solution_{i}": solution[:, i] for i in range(solution.shape[1])}
    columns |= {"objective": objective} | {f"measures_{i}": measures[:, i] for i in range(measures.shape[1])}
    return pandas.DataFrame(columns | dict(zip(PROVENANCE, provenance.T, strict=True)))


def from_frame(frame: Any, genotype: Genotype) -> Individuals:
    """Convert a data frame of `to_frame` or of pyribs to individuals.

    Args:
        frame: columns `solution_0`, ..., `objective`, `measures_0`, ...; provenance is -1 where it is missing.
        genotype: one genotype, without the batch dimension, that the rows of `solution` are shaped like.

    Raises:
        UserError: a column is missing, or the genotype has another number of values than there are columns.
    """
    leaves, structure = jax.tree.flatten(genotype)
    sizes = [int(np.size(leaf)) for leaf in leaves]
    solution = _columns(frame, "solution")
    if solution.shape[1] != sum(sizes):
        raise UserError(
            f"solution: expected {sum(sizes)} columns, as the genotype has numbers, got {solution.shape[1]}"
        )
    measures = _columns(frame, "measures")
    for name, missing in (("measures_0", not measures.shape[1]), ("objective", "objective" not in frame.columns)):
        if missing:
            raise UserError(f"{name}: the data frame has no such column; it has: {', '.join(map(str, frame.columns))}")
    pieces = np.split(solution, np.cumsum(sizes)[:-1], axis=1)
    arrays = [
        jnp.asarray(piece.reshape(-1, *np.shape(leaf)), leaf.dtype) for piece, leaf in zip(pieces, leaves, strict=True)
    ]
    unknown = np.full(len(frame), -1)
    ids, first, second, operator, generation = (
        jnp.asarray(np.asarray(frame[name]) if name in frame.columns else unknown, jnp.int32) for name in PROVENANCE
    )
    return Individuals(
        jax.tree.unflatten(structure, arrays),
        jnp.asarray(np.asarray(frame["objective"]), jnp.float32),
        jnp.asarray(measures, jnp.float32),
        Provenance(ids, jnp.stack([first, second], axis=-1), operator, generation),
    )


def to_ribs(individuals: Individuals, archive: Any) -> Any:
    """Add the individuals to an archive of pyribs, such as a `GridArchive` or `CVTArchive`, and return it.

    Raises:
        UserError: the archive's `solution_dim` or `measure_dim` is not that of the individuals.
    """
    solution, objective, measures, _ = _rows(individuals)
    for name, expected, got in (
        ("solution_dim", archive.solution_dim, solution.shape[1]),
        ("measure_dim", archive.measure_dim, measures.shape[1]),
    ):
        if expected != got:
            raise UserError(f"archive.{name}: is {expected}, but the individuals have {got}")
    if len(objective):
        archive.add(solution, objective, measures)
    return archive


def from_ribs(archive: Any, genotype: Genotype) -> Individuals:
    """Convert the elites of a pyribs archive to individuals. Arguments and errors are those of `from_frame`."""
    return from_frame(archive.data(return_type="pandas"), genotype)


def _rows(individuals: Individuals) -> tuple[np.ndarray, ...]:
    """Solutions, objectives, measures and provenance of the occupied slots."""
    fitness = np.asarray(individuals.fitness)
    kept = np.isfinite(fitness)
    genotypes = [np.asarray(leaf)[kept] for leaf in jax.tree.leaves(individuals.genotypes)]
    leaves = [leaf.reshape(len(leaf), math.prod(leaf.shape[1:])) for leaf in genotypes]
    p = individuals.provenance
    provenance = np.column_stack([np.asarray(x)[kept] for x in (p.id, p.parents, p.operator, p.generation)])
    return np.concatenate(leaves, axis=1), fitness[kept], np.asarray(individuals.descriptor)[kept], provenance


def _columns(frame: Any, field: str) -> np.ndarray:
    """The columns `field_0`, `field_1`, ... side by side."""
    names = takewhile(lambda name: name in frame.columns, (f"{field}_{i}" for i in count()))
    return np.asarray(frame[list(names)])
