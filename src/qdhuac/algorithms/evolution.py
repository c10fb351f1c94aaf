"""Quality-diversity without gradients: Iso+Line variation and an archive.

With a `DominatedNoveltyArchive` this is DNS (Bahlous-Boldi et al., 2025), with a `GridArchive` MAP-Elites
(Mouret and Clune, 2015; Vassiliades and Mouret, 2018, for the variation and the CVT cells).
"""

from __future__ import annotations

from qdhuac.algorithms.engine import QDAlgorithm
from qdhuac.algorithms.settings import EvolutionSettings
from qdhuac.emitters.isoline import IsoLine
from qdhuac.tasks.base import Task, policy_of
from qdhuac.types import Archive


def build(s: EvolutionSettings, task: Task, archive: Archive) -> QDAlgorithm:
    """The algorithm for a task."""
    return QDAlgorithm(
        fresh=policy_of(task).init,
        emitters=((IsoLine.of(s.emitter), s.emitter.batch_size),),
        archive=archive,
        descriptor_size=task.spec.descriptor_size,
    )
