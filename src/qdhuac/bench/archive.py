"""Adding a batch to the archive of Dominated Novelty Search, beside one pass over all pairwise distances."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from qdhuac.archives.dns import BLOCK, DominatedNoveltyArchive
from qdhuac.bench.timing import Result, Stepper, best_times
from qdhuac.types import Array, Individuals, Provenance

CAPACITIES = (250, 1_000, 10_000, 20_000)
BATCH = 10
DIMENSIONS = 2
REPEATS = 5


def measure() -> Iterator[Result]:
    """Milliseconds per call of `add` on a full archive, at each capacity."""
    for capacity in CAPACITIES:
        archive = DominatedNoveltyArchive(capacity)
        state, offspring = (individuals(jax.random.key(i), n) for i, n in enumerate((capacity, BATCH)))
        calls: dict[str, Callable[[], Any]] = {
            "distances": partial(_nearest, jnp.copy(state.descriptor)),
            "add": Stepper(lambda s, o, a=archive: a.add(s, o)[0], state, offspring),
        }
        times = best_times(calls, REPEATS)
        ratio = times["add"] / times["distances"]
        yield Result("archive", f"dns/{capacity}", 1e3 * times["add"], "ms", ratio, "nearest neighbour by brute force")


def individuals(key: Array, size: int) -> Individuals:
    """Random individuals. Their genotypes are small, as their size hardly affects the time."""
    key_fitness, key_descriptor = jax.random.split(key)
    number = jnp.arange(size, dtype=jnp.int32)
    return Individuals(
        genotypes={"x": jnp.zeros((size, 16))},
        fitness=jax.random.normal(key_fitness, (size,)),
        descriptor=jax.random.uniform(key_descriptor, (size, DIMENSIONS)),
        provenance=Provenance(number, jnp.zeros((size, 2), jnp.int32), jnp.zeros_like(number), jnp.zeros_like(number)),
    )


@jax.jit
def _nearest(points: Array) -> Array:
    """Squared distance of every point to the nearest other point. [N]"""
    size = len(points)

    def rows(indices: Array) -> Array:
        some = points[jnp.minimum(indices, size - 1)]
        squared = sum(jnp.square(some[:, None, d] - points[None, :, d]) for d in range(points.shape[-1]))
        return jnp.min(jnp.where(indices[:, None] == jnp.arange(size), jnp.inf, squared), axis=1)

    block = min(BLOCK, size)
    return jax.lax.map(rows, jnp.arange(-(-size // block) * block).reshape(-1, block)).reshape(-1)[:size]
