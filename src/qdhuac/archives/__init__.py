"""Archives keep individuals that are fit or different."""

from typing import TYPE_CHECKING

from qdhuac.exports import lazy

if TYPE_CHECKING:
    from qdhuac.archives.dns import DominatedNoveltyArchive as DominatedNoveltyArchive
    from qdhuac.archives.dns import dominated_novelty as dominated_novelty
    from qdhuac.archives.grid import GridArchive as GridArchive
    from qdhuac.types import Archive as Archive
    from qdhuac.types import Individuals as Individuals
    from qdhuac.types import Provenance as Provenance

__getattr__, __all__ = lazy(__name__)
