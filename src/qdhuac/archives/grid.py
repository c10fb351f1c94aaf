"""MAP-Elites: one elite per cell of descriptor space, on a regular grid or on the cells of a CVT.

Mouret and Clune, 2015; CVT cells: Vassiliades, Chatzilygeroudis and Mouret, 2018.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np

from qdhuac.archives.common import admissible, empty, place
from qdhuac.config import ArchiveConfig
from qdhuac.errors import check_bounds, check_whole
from qdhuac.types import Array, Individuals


@dataclasses.dataclass(frozen=True, eq=False)  # compared by identity, so that it can be hashed despite its arrays
class GridArchive:
    """Keeps the fittest individual of each cell. Made by `regular` or `cvt`."""

    low: np.ndarray  # [D]
    high: np.ndarray  # [D]
    centroids: np.ndarray  # [cells, D] in descriptor units
    resolution: int | None = None  # cells per dimension of a regular grid; None: nearest centroid

    @classmethod
    def regular(cls, capacity: int, low: Sequence[float], high: Sequence[float]) -> GridArchive:
        """A grid of equal boxes, equally many in each dimension and at most `capacity` in all.

        Args:
            capacity: the most cells.
            low: lowest descriptor [D].
            high: highest descriptor [D]; descriptors outside belong to the nearest cell.

        Raises:
            UserError: `capacity` is below 1, or a `low` is not below its `high`.
        """
        lower, upper = _bounds(capacity, low, high)
        resolution = round(capacity ** (1 / len(lower)))
        if resolution ** len(lower) > capacity:  # the root was rounded up
            resolution -= 1
        middles = (np.indices((resolution,) * len(lower)).reshape(len(lower), -1).T + 0.5) / resolution
        return cls(lower, upper, _scaled(middles, lower, upper), resolution)

    @classmethod
    def cvt(cls, capacity: int, low: Sequence[float], high: Sequence[float], seed: int = 0) -> GridArchive:
        """`capacity` cells of about equal volume, a centroidal Voronoi tessellation; arguments as for `regular`.

        `seed` decides where the centroids are.
        """
        lower, upper = _bounds(capacity, low, high)
        return cls(lower, upper, _scaled(unit_centroids(capacity, len(lower), seed), lower, upper))

    @property
    def capacity(self) -> int:
        """The number of cells."""
        return len(self.centroids)

    def cells(self, descriptor: Array) -> Array:
        """The cell [B] of each descriptor [B, D]. Out of bounds it is the nearest cell at the border."""
        if descriptor.shape[-1] != len(self.low):
            raise ValueError(
                f"descriptor has {descriptor.shape[-1]} dimensions, but the grid has {len(self.low)}: "
                "are low and high those of this task?"
            )
        unit = jnp.clip((descriptor - self.low) / (self.high - self.low), 0.0, 1.0)
        if self.resolution is not None:
            box = jnp.minimum((unit * self.resolution).astype(jnp.int32), self.resolution - 1)
            weights = self.resolution ** np.arange(len(self.low))[::-1]
            return jnp.sum(box * weights.astype(np.int32), axis=-1)
        centroids = jnp.asarray((self.centroids - self.low) / (self.high - self.low))
        squared = sum(jnp.square(unit[:, None, d] - centroids[None, :, d]) for d in range(len(self.low)))
        return jnp.argmin(squared, axis=-1)

    def init(self, example: Individuals) -> Individuals:
        """An empty archive for individuals shaped like those of `example`."""
        return empty(example, self.capacity)

    def add(self, state: Individuals, offspring: Individuals) -> tuple[Individuals, Array]:
        """The best offspring of a cell replaces a strictly less fit occupant; of equals the earlier one wins.

        Returns:
            The archive, and the cell that each of the offspring took [B], -1 where it took none.
        """
        cell = self.cells(offspring.descriptor)
        fitness = jnp.where(admissible(offspring.fitness, offspring.descriptor), offspring.fitness, -jnp.inf)
        best = state.fitness.at[cell].max(fitness)
        contender = (fitness > state.fitness[cell]) & (fitness == best[cell])
        turn = jnp.arange(len(cell))
        first = jnp.full(self.capacity, len(cell)).at[cell].min(jnp.where(contender, turn, len(cell)))
        survived = contender & (first[cell] == turn)
        taken = jnp.where(survived, cell, -1).astype(jnp.int32)
        return place(state, offspring, taken), taken


def build_regular(config: ArchiveConfig, bounds: tuple[Sequence[float], Sequence[float]]) -> GridArchive:
    """The regular grid that a configuration asks for."""
    return GridArchive.regular(config.capacity, *bounds)


def build_cvt(config: ArchiveConfig, bounds: tuple[Sequence[float], Sequence[float]]) -> GridArchive:
    """The CVT cells that a configuration asks for."""
    return GridArchive.cvt(config.capacity, *bounds)


@functools.lru_cache(maxsize=16)
def unit_centroids(cells: int, dimensions: int, seed: int, samples: int = 50_000, rounds: int = 30) -> np.ndarray:
    """Centroids [cells, dimensions] of a centroidal Voronoi tessellation of the unit cube, by Lloyd's algorithm."""
    from scipy.spatial import cKDTree

    if dimensions == 1:  # known exactly, and Lloyd's algorithm is slow to find it
        return (np.arange(cells)[:, None] + 0.5) / cells
    random = np.random.default_rng(seed)
    points = random.random((max(samples, 10 * cells), dimensions))
    centroids = points[:cells].copy()
    for _ in range(rounds):
        owner = cKDTree(centroids).query(points)[1]
        count = np.bincount(owner, minlength=cells)
        total = np.stack([np.bincount(owner, points[:, d], cells) for d in range(dimensions)], axis=-1)
        centroids = np.where(count[:, None] > 0, total / np.maximum(count, 1)[:, None], centroids)
    return centroids


def _bounds(capacity: int, low: Sequence[float], high: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
    check_whole("capacity", capacity, 1)
    lower, upper = check_bounds("(low, high)", (low, high))
    return np.asarray(lower, np.float32), np.asarray(upper, np.float32)


def _scaled(unit: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    return (low + unit * (high - low)).astype(np.float32)
