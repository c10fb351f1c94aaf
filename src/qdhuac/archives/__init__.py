"""Who survives."""

from qdhuac.archives.dns import DominatedNoveltyArchive, dominated_novelty
from qdhuac.archives.grid import GridArchive

__all__ = ["DominatedNoveltyArchive", "GridArchive", "dominated_novelty"]
