"""An algorithm, an archive and an emitter as another package would have them."""

import dataclasses

import jax
import jax.numpy as jnp

from qdhuac.algorithms import AlgorithmSpec, QDAlgorithm
from qdhuac.algorithms.specs import ArchiveSpec
from qdhuac.emitters import Offspring, Stateless
from qdhuac.emitters.base import one_parent
from qdhuac.keys import key


@dataclasses.dataclass(frozen=True)
class NudgeConfig:
    batch_size: int = key(6, "policies tried per generation", ge=1, le=1000)
    size: float = key(0.1, "standard deviation of the noise", gt=0)


@dataclasses.dataclass(frozen=True)
class Settings:
    nudge: NudgeConfig = NudgeConfig()


@dataclasses.dataclass(frozen=True)
class Nudge(Stateless):
    """The first individuals of the archive with noise on every number."""

    size: float
    name: str = "nudge"

    def ask(self, key, state, seen, n):
        leaves, tree = jax.tree.flatten(jax.tree.map(lambda x: x[:n], seen.archive.genotypes))
        keys = jax.random.split(key, len(leaves))
        noisy = [x + self.size * jax.random.normal(k, x.shape) for x, k in zip(leaves, keys, strict=True)]
        return Offspring(jax.tree.unflatten(tree, noisy), one_parent(jnp.arange(n)))


@dataclasses.dataclass(frozen=True)
class Newest:
    """Keeps the newest individuals."""

    capacity: int

    def init(self, example):
        return jax.tree.map(lambda x: jnp.repeat(x, self.capacity, axis=0), example)

    def add(self, state, offspring):
        slots = offspring.provenance.id % self.capacity
        taken = jnp.where(jnp.isfinite(offspring.fitness), slots, -1)
        to = jnp.where(taken < 0, self.capacity, taken)
        return jax.tree.map(lambda old, new: old.at[to].set(new, mode="drop"), state, offspring), taken


def build(settings, task, archive):
    return QDAlgorithm(
        fresh=task.policy.init,
        emitters=((Nudge(settings.nudge.size), settings.nudge.batch_size),),
        archive=archive,
        descriptor_size=task.spec.descriptor_size,
    )


def build_archive(config, bounds):
    return Newest(config.capacity)


SMOKE = {"task.episode_length": 8, "archive.capacity": 16, "policy.hidden": (16, 16), "run.generations": 5}
SPEC = AlgorithmSpec("nudge", "Nudge", "noise", Settings, "outside:build", {"smoke": {**SMOKE, "run.env_steps": 0}})
NEWEST = ArchiveSpec("newest", "keeps the newest individuals", "outside:build_archive")
