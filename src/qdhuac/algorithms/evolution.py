"""Quality-diversity without gradients: Iso+Line variation and an archive.

With a `DominatedNoveltyArchive` this is DNS (Bahlous-Boldi et al., 2025), with a `GridArchive` MAP-Elites
(Mouret and Clune, 2015; Vassiliades and Mouret, 2018, for the variation and the CVT cells).
"""

from __future__ import annotations

from collections.abc import Callable

from qdhuac.algorithms.engine import QDAlgorithm
from qdhuac.algorithms.specs import EvolutionSettings
from qdhuac.emitters.isoline import IsoLine
from qdhuac.tasks.base import Task, policy_of
from qdhuac.types import Archive, Array, Genotype


def evolution(
    archive: Archive,
    fresh: Callable[[Array], Genotype],
    descriptor_size: int,
    batch_size: int,
    sigma_iso: float = 0.005,
    sigma_line: float = 0.1,
    tournament: int = 1,
) -> QDAlgorithm:
    """Evolution of any genotype, of which `fresh(key)` makes a random one."""
    return QDAlgorithm(
        fresh=fresh,
        emitters=((IsoLine(sigma_iso, sigma_line, tournament), batch_size),),
        archive=archive,
        descriptor_size=descriptor_size,
    )


def build(s: EvolutionSettings, task: Task, archive: Archive) -> QDAlgorithm:
    """The algorithm for a task."""
    policy = policy_of(task)
    e = s.emitter
    return evolution(
        archive,
        policy.init,
        task.spec.descriptor_size,
        e.batch_size,
        e.sigma_iso,
        e.sigma_line,
        e.tournament,
    )
