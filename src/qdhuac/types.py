"""The data that emitters, tasks, archives and learners exchange, and the protocols of archives and algorithms.

Shapes in comments: ``B`` individuals in a batch, ``N`` slots of an archive, ``T`` steps of an episode,
``D`` descriptor dimensions. Every structure is a plain pytree (a NamedTuple of arrays).
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import jax

Array = jax.Array
Genotype = Any  # any pytree of arrays; for the locomotion tasks the parameters of a policy network

RANDOM = "random"  # the operator of genotypes that no emitter made: the first of every run's operators


class Transition(NamedTuple):
    """One environment step. ``terminal`` is 1 only where the robot really failed; a time limit is not terminal."""

    obs: Array  # [..., obs_size]
    action: Array  # [..., action_size]
    reward: Array  # [...]
    terminal: Array  # [...] float 0 or 1
    next_obs: Array  # [..., obs_size] the true successor, never the next episode's first observation
    contacts: Array | None = None  # [..., feet] which feet are on the ground after the step, if the algorithm needs it


class Evaluation(NamedTuple):
    """Results of a batch of individuals. ``transitions`` may be None for tasks without a policy."""

    fitness: Array  # [B] undiscounted return of the first episode
    descriptor: Array  # [B, D] of the first episode
    steps: Array  # [B] int32 environment steps simulated and counted
    transitions: Transition | None = None  # leaves [B, T, ...]
    valid: Array | None = None  # [B, T] bool, False where a row of `transitions` was never simulated


class Provenance(NamedTuple):
    """Where an individual comes from. Ids count individuals in the order in which they were tried."""

    id: Array  # [B] int32
    parents: Array  # [B, 2] int32, -1 where there is none
    operator: Array  # [B] int32, index into the run's names of operators
    generation: Array  # [B] int32


class Individuals(NamedTuple):
    """Evaluated genotypes: a batch of offspring, or the slots of an archive. Empty or rejected: fitness -inf."""

    genotypes: Genotype  # leaves [N, ...]
    fitness: Array  # [N]
    descriptor: Array  # [N, D]
    provenance: Provenance


class Exploration(NamedTuple):
    """Makes some rollouts stochastic: action = tanh(mean + std * noise) where ``active``."""

    head: Any  # parameters of the log-std head, leaves [B, ...]
    active: Array  # [B] bool


class Emission(NamedTuple):
    """What `ask` proposes: genotypes to try, and where they come from."""

    genotypes: Genotype  # leaves [B, ...]
    provenance: Provenance
    parent_fitness: Array  # [B] fitness of the first parent, nan where there is none
    exploration: Exploration | None = None
    target: Array | None = None  # [B, D] descriptor that each was made for, nan where it was made for none


class Metrics(NamedTuple):
    """Numbers that a step of an algorithm reports, by name."""

    means: dict[str, Array]  # averages over what the step did
    sums: dict[str, Array]  # totals of what the step did
    failures: dict[str, Array]  # how often something was not finite, by the tensor that was so first

    def __or__(self, other: Metrics) -> Metrics:
        """Merge two sets of metrics; values of `other` take precedence."""
        return Metrics(*(mine | theirs for mine, theirs in zip(self, other, strict=True)))


class Told(NamedTuple):
    """Results of adding a batch to the archive."""

    individuals: Individuals  # as they competed: fitness -inf where rejected, or where the rollout was data only
    slots: Array  # [B] int32 the archive's slot that each took, -1 where it took none
    steps: Array  # [B] int32 environment steps
    metrics: Metrics


class Archive(Protocol):
    """Selects which individuals survive. The state is an `Individuals` with a fixed number of slots."""

    @property
    def capacity(self) -> int:
        """The number of slots."""

    def init(self, example: Individuals) -> Individuals:
        """An empty archive for individuals shaped like those of `example`."""

    def add(self, state: Individuals, offspring: Individuals) -> tuple[Individuals, Array]:
        """The archive after the offspring competed, and the slot that each of them took [B], -1 where it took none."""


class Algorithm(Protocol):
    """An algorithm as pure functions over one state, which has at least the fields `key` and `archive`."""

    @property
    def operators(self) -> tuple[str, ...]:
        """The names that `Provenance.operator` indexes; the first is "random"."""

    @property
    def updates_per_step(self) -> float:
        """Learner updates that each environment step asks for; 0 without a learner."""

    @property
    def value_range(self) -> tuple[float, float]:
        """Lowest and highest discounted return to expect, for warnings; nan if unknown."""

    def init(self, key: Array) -> Any:
        """The state of generation 0."""

    def ask(self, state: Any) -> Emission:
        """Genotypes to try."""

    def tell(self, state: Any, emission: Emission, evaluation: Evaluation) -> tuple[Any, Told]:
        """The state after the genotypes competed for the archive and their transitions were stored."""

    def learn(self, state: Any, updates: Array) -> tuple[Any, Metrics]:
        """The state after `updates` updates; the identity without a learner."""
