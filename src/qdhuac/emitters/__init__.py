"""Emitters propose genotypes."""

from typing import TYPE_CHECKING

from qdhuac.exports import lazy

if TYPE_CHECKING:
    from qdhuac.emitters.actor import ExploringActor as ExploringActor
    from qdhuac.emitters.actor import InjectedActor as InjectedActor
    from qdhuac.emitters.actor_critic import actor_critic_emitters as actor_critic_emitters
    from qdhuac.emitters.base import Emitter as Emitter
    from qdhuac.emitters.base import Offspring as Offspring
    from qdhuac.emitters.base import Seen as Seen
    from qdhuac.emitters.base import Stateless as Stateless
    from qdhuac.emitters.base import no_parents as no_parents
    from qdhuac.emitters.base import one_parent as one_parent
    from qdhuac.emitters.base import slots as slots
    from qdhuac.emitters.gradient import GradientChildren as GradientChildren
    from qdhuac.emitters.gradient import gradient_mutation as gradient_mutation
    from qdhuac.emitters.isoline import IsoLine as IsoLine
    from qdhuac.types import Told as Told

__getattr__, __all__ = lazy(__name__)
