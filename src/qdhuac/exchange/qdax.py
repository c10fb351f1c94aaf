"""QDax interoperability: archives to and from its repertoires.

Needs the package `qdax`, which no other part of qdhuac does. A policy is ``{"params": {"Dense_0": ...}}`` in QDax, as
flax has it, and ``{"Dense_0": ...}`` here; any other genotype is the same in both.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from qdax.core.containers.mapelites_repertoire import MapElitesRepertoire

from qdhuac.archives.common import admissible
from qdhuac.archives.grid import GridArchive
from qdhuac.errors import UserError
from qdhuac.store import repertoire as files
from qdhuac.types import Array, Genotype, Individuals, Provenance

FLAX = "params"


def read(path: Path) -> Individuals:
    """The individuals of a run's `repertoire.safetensors`."""
    return files.individuals(files.read(path)[0])


def to_qdax(archive: Individuals, centroids: Array | np.ndarray) -> MapElitesRepertoire:
    """A repertoire with these cells [cells, D]: each individual in the cell of its descriptor, the fittest of each.

    An archive of MAP-Elites on the same cells loses nothing but the provenance, for which QDax has no place.
    """
    size = archive.descriptor.shape[-1]
    if centroids.ndim != 2 or centroids.shape[-1] != size:
        raise UserError(f"centroids: expected [cells, {size}], as the archive's descriptor is, got {centroids.shape}")
    genotypes = _to_flax(archive.genotypes) if _is_policy(archive.genotypes) else archive.genotypes
    fitness = jnp.where(admissible(archive.fitness, archive.descriptor), archive.fitness, -jnp.inf)
    return MapElitesRepertoire.init(genotypes, fitness, archive.descriptor, jnp.asarray(centroids))


def from_qdax(repertoire: MapElitesRepertoire) -> Individuals:
    """A repertoire as individuals, one slot per cell; their provenance is unknown (-1)."""
    cells, fitness = len(repertoire.centroids), repertoire.fitnesses
    if fitness.shape not in ((cells,), (cells, 1)):
        raise UserError(f"repertoire.fitnesses: expected one number for each of {cells} cells, got {fitness.shape}")
    if repertoire.descriptors.shape != repertoire.centroids.shape:
        expected, got = repertoire.centroids.shape, repertoire.descriptors.shape
        raise UserError(f"repertoire.descriptors: expected {expected}, as the centroids, got {got}")
    for path, leaf in jax.tree_util.tree_leaves_with_path(repertoire.genotypes):
        if leaf.shape[:1] != (cells,):
            name = jax.tree_util.keystr(path)
            raise UserError(f"repertoire.genotypes{name}: expected {cells} cells first, got {leaf.shape}")
    genotypes = _from_flax(repertoire.genotypes)
    return Individuals(genotypes, fitness.reshape(-1), repertoire.descriptors, _unknown(cells))


def cells_of(repertoire: MapElitesRepertoire, low: Any, high: Any) -> GridArchive:
    """A MAP-Elites archive on the repertoire's cells, whose descriptors lie between `low` and `high` [D]."""
    centroids = np.asarray(repertoire.centroids)
    lower, upper = np.asarray(low, np.float32), np.asarray(high, np.float32)
    for name, bound in (("low", lower), ("high", upper)):
        if bound.shape != centroids.shape[1:]:
            size = centroids.shape[1]
            raise UserError(f"{name}: expected {size} numbers, one per dimension of the descriptor, got {bound}")
    return GridArchive(lower, upper, centroids)


def _unknown(size: int) -> Provenance:
    return Provenance(*(jnp.full((size, *more), -1, jnp.int32) for more in ((), (2,), (), ())))


def _is_policy(genotypes: Genotype) -> bool:
    return isinstance(genotypes, Mapping) and "Dense_0" in genotypes


def _is_flax(genotypes: Genotype) -> bool:
    return isinstance(genotypes, Mapping) and set(genotypes) == {FLAX}


def _to_flax(genotypes: Genotype) -> Genotype:
    return {FLAX: genotypes}


def _from_flax(genotypes: Genotype) -> Genotype:
    return genotypes[FLAX] if _is_flax(genotypes) else genotypes
