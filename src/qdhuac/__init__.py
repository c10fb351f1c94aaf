"""qdhuac: many different, good policies for one robot, in few simulator steps."""

from typing import TYPE_CHECKING

from qdhuac.exports import lazy

if TYPE_CHECKING:
    from qdhuac.api import evaluate as evaluate
    from qdhuac.api import render as render
    from qdhuac.api import resume as resume
    from qdhuac.api import show as show
    from qdhuac.api import train as train
    from qdhuac.errors import RunFailed as RunFailed
    from qdhuac.errors import UserError as UserError
    from qdhuac.metrics import PassiveGrid as PassiveGrid
    from qdhuac.metrics import scores as scores
    from qdhuac.store.run import Policy as Policy
    from qdhuac.store.run import Run as Run
    from qdhuac.store.run import load as load

__version__ = "0.1.0"

__getattr__, __all__ = lazy(__name__)
