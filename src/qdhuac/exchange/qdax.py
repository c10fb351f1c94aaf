"""Conversion of archives to and from the repertoires of QDax. Only this module needs the package `qdax`.

A policy is ``{"params": {"Dense_0": ...}}`` in QDax, as in flax, and ``{"Dense_0": ...}`` here. Any other genotype is
the same in both.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
from qdax.core.containers.mapelites_repertoire import MapElitesRepertoire

from qdhuac.archives.common import admissible
from qdhuac.archives.grid import GridArchive
from qdhuac.errors import UserError
from qdhuac.types import Array, Individuals, Provenance

FLAX = "params"


def to_qdax(archive: Individuals, centroids: Array | np.ndarray) -> MapElitesRepertoire:
    """Convert an archive to a repertoire that keeps the fittest individual of each cell.

    A MAP-Elites archive with the same cells loses only its provenance, which QDax does not have.

    Args:
        archive: individuals with descriptors [N, D].
        centroids: the cells [cells, D].

    Raises:
        UserError: the centroids do not have D dimensions.
    """
    size = archive.descriptor.shape[-1]
    if centroids.ndim != 2 or centroids.shape[-1] != size:
        raise UserError(f"centroids: expected [cells, {size}], as the archive's descriptor is, got {centroids.shape}")
    genotypes = archive.genotypes
    if isinstance(genotypes, Mapping) and "Dense_0" in genotypes:
        genotypes = {FLAX: genotypes}
    fitness = jnp.where(admissible(archive.fitness, archive.descriptor), archive.fitness, -jnp.inf)
    return MapElitesRepertoire.init(genotypes, fitness, archive.descriptor, jnp.asarray(centroids))


def from_qdax(repertoire: MapElitesRepertoire) -> Individuals:
    """Convert a repertoire to individuals, one slot per cell, with unknown provenance (-1)."""
    cells, fitness = len(repertoire.centroids), repertoire.fitnesses
    genotypes = repertoire.genotypes
    if isinstance(genotypes, Mapping) and set(genotypes) == {FLAX}:
        genotypes = genotypes[FLAX]
    unknown = Provenance(*(jnp.full((cells, *more), -1, jnp.int32) for more in ((), (2,), (), ())))
    return Individuals(genotypes, fitness.reshape(-1), repertoire.descriptors, unknown)


def cells_of(repertoire: MapElitesRepertoire, low: Any, high: Any) -> GridArchive:
    """A MAP-Elites archive with the cells of a repertoire, for descriptors between `low` and `high` [D]."""
    centroids = np.asarray(repertoire.centroids)
    lower, upper = np.asarray(low, np.float32), np.asarray(high, np.float32)
    for name, bound in (("low", lower), ("high", upper)):
        if bound.shape != centroids.shape[1:]:
            size = centroids.shape[1]
            raise UserError(f"{name}: expected {size} numbers, one per dimension of the descriptor, got {bound}")
    return GridArchive(lower, upper, centroids)
