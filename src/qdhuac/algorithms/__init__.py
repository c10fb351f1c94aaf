"""Algorithms, each a composition of emitters, an archive and a learner."""

from typing import TYPE_CHECKING

from qdhuac.exports import lazy

if TYPE_CHECKING:
    from qdhuac.algorithms.engine import Learner as Learner
    from qdhuac.algorithms.engine import QDAlgorithm as QDAlgorithm
    from qdhuac.algorithms.engine import State as State
    from qdhuac.algorithms.specs import ALGORITHMS as ALGORITHMS
    from qdhuac.algorithms.specs import ARCHIVES as ARCHIVES
    from qdhuac.algorithms.specs import EMITTERS as EMITTERS
    from qdhuac.algorithms.specs import AlgorithmSpec as AlgorithmSpec
    from qdhuac.algorithms.specs import ArchiveSpec as ArchiveSpec
    from qdhuac.algorithms.specs import EmitterSpec as EmitterSpec
    from qdhuac.algorithms.specs import build as build
    from qdhuac.algorithms.specs import builder as builder
    from qdhuac.algorithms.specs import make as make
    from qdhuac.types import Algorithm as Algorithm
    from qdhuac.types import Emission as Emission
    from qdhuac.types import Metrics as Metrics

__getattr__, __all__ = lazy(__name__)
