"""The learner's own policy among the offspring: injected as it is, or rolled out stochastically for its data."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from qdhuac.emitters.base import Offspring, Seen, Stateless, no_parents
from qdhuac.errors import check_callable
from qdhuac.types import Array, Genotype


@dataclasses.dataclass(frozen=True)
class InjectedActor(Stateless):
    """The learner's deterministic actor, `policy(learner)`; it competes like any other genotype."""

    policy: Callable[[Any], Genotype]
    name: str = "actor"

    def __post_init__(self) -> None:
        check_callable("policy", self.policy)

    def ask(self, key: Array, state: tuple[()], seen: Seen, n: int) -> Offspring:
        """The actor, `n` times."""
        return Offspring(_repeated(self.policy(seen.learner), n), no_parents(n))


@dataclasses.dataclass(frozen=True)
class ExploringActor(Stateless):
    """Rollouts of the learner's stochastic actor, whose fitness is not that of any one genotype: data only by default.

    `policy(learner)` and `head(learner)` are its parameters. `archived` lets the actor compete with the fitness of such
    a rollout.
    """

    policy: Callable[[Any], Genotype]
    head: Callable[[Any], Any]
    name: str = "explore"
    archived: bool = False

    def __post_init__(self) -> None:
        check_callable("policy", self.policy)
        check_callable("head", self.head)

    def ask(self, key: Array, state: tuple[()], seen: Seen, n: int) -> Offspring:
        """The actor with its log-std head, `n` times."""
        policy, head = _repeated((self.policy(seen.learner), self.head(seen.learner)), n)
        return Offspring(policy, no_parents(n), head)


def _repeated(tree: Any, n: int) -> Any:
    return jax.tree.map(lambda x: jnp.broadcast_to(x, (n, *x.shape)), tree)
