"""Iso+Line variation (Vassiliades and Mouret, 2018): a little noise, and a step along the line between two parents."""

from __future__ import annotations

import dataclasses

import jax
import numpy as np

from qdhuac.archives.common import sample
from qdhuac.config import EmitterConfig
from qdhuac.emitters.base import Offspring, Seen, Stateless
from qdhuac.errors import check_number, check_whole
from qdhuac.types import Array, Genotype


@dataclasses.dataclass(frozen=True)
class IsoLine(Stateless):
    """Iso+Line variation: noise, and a step along the line between two parents of the archive.

    Args:
        sigma_iso: standard deviation of the noise.
        sigma_line: standard deviation of the step, as a share of the distance between the parents.
        tournament: each parent is the fittest of so many drawn uniformly; 1 is uniform.
        name: the operator's name in metrics.
    """

    sigma_iso: float = 0.005
    sigma_line: float = 0.1
    tournament: int = 1
    name: str = "isoline"

    @classmethod
    def of(cls, e: EmitterConfig) -> IsoLine:
        """The emitter of a configuration."""
        return cls(e.sigma_iso, e.sigma_line, e.tournament)

    def __post_init__(self) -> None:
        check_number("sigma_iso", self.sigma_iso, low=0)
        check_number("sigma_line", self.sigma_line, low=0)
        check_whole("tournament", self.tournament, 1)

    def ask(self, key: Array, state: tuple[()], seen: Seen, n: int) -> Offspring:
        """`n` children."""
        key_parents, key_noise = jax.random.split(key)
        parents = sample(seen.archive, key_parents, (n, 2), self.tournament)
        genotypes = seen.archive.genotypes
        children = isoline(key_noise, genotypes, parents, sigma_iso=self.sigma_iso, sigma_line=self.sigma_line)
        return Offspring(children, parents)


def isoline(key: Array, genotypes: Genotype, parents: Array, *, sigma_iso: float, sigma_line: float) -> Genotype:
    """Children ``x1 + sigma_iso N(0, I) + sigma_line N(0, 1) (x2 - x1)`` of pairs of parents.

    `genotypes` are the archive's, leaves [N, ...]; `parents` [n, 2] are slots; the children have leaves [n, ...].
    """
    key_line, key_iso = jax.random.split(key)
    n = len(parents)
    # One number per child for the whole genotype: otherwise the child would leave the line between its parents.
    along = sigma_line * jax.random.normal(key_line, (n,))
    leaves, structure = jax.tree.flatten(genotypes)
    # One draw for all leaves: XLA compiles a generator per call, which took longer than everything else here.
    ends = np.cumsum([leaf[0].size for leaf in leaves])
    noise = jax.random.normal(key_iso, (n, int(ends[-1])))

    def child(leaf: Array, end: int) -> Array:
        first, second = leaf[parents[:, 0]], leaf[parents[:, 1]]
        step = along.reshape(-1, *(1,) * (leaf.ndim - 1)).astype(leaf.dtype)
        iso = noise[:, end - leaf[0].size : end].reshape(first.shape).astype(leaf.dtype)
        return first + sigma_iso * iso + step * (second - first)

    return jax.tree.unflatten(structure, [child(leaf, int(end)) for leaf, end in zip(leaves, ends, strict=True)])
