"""Toys that compile quickly: a task without physics, and an algorithm that learns nothing useful."""

import dataclasses
import functools

import jax
import jax.numpy as jnp

from qdhuac.algorithms import specs
from qdhuac.algorithms.engine import QDAlgorithm
from qdhuac.archives.dns import DominatedNoveltyArchive
from qdhuac.emitters.isoline import IsoLine
from qdhuac.tasks import TaskSpec
from qdhuac.types import Evaluation, Metrics


@dataclasses.dataclass
class ToyTask:
    """Fitness is best at the origin; the descriptor is the first two numbers; `poison` makes a result not finite."""

    poison: str | None = None
    spec = TaskSpec(((0.0, 0.0), (1.0, 1.0)), episode_length=10, reward_offset=1.0)
    policy = None

    def evaluate(self, genotypes, key, exploration=None):
        x = genotypes["x"]
        noise = 0.01 * jax.random.normal(key, x.shape[:1])
        fitness = -jnp.sum(x**2, axis=-1) + noise
        descriptor = jax.nn.sigmoid(x[:, :2])
        if self.poison == "fitness":
            fitness = fitness.at[0].set(jnp.nan)
        if self.poison == "descriptor":
            descriptor = descriptor.at[1].set(jnp.inf)
        return Evaluation(fitness, descriptor, jnp.full(len(x), self.spec.episode_length, jnp.int32))


class ToyLearner:
    """A random walk, whose every step is an update; `broken` makes each update a skipped one."""

    broken = False

    def init(self, key):
        return {"walk": jnp.zeros(3), "key": jax.random.fold_in(key, 7), "raw": jax.random.PRNGKey(3)}

    def learn(self, learner, replay, buffer, key, updates):
        def update(_, carry):
            walk, key, total = carry
            key, here = jax.random.split(key)
            walk = 0.9 * walk + jax.random.normal(here, walk.shape)
            return walk, key, total + jnp.sum(walk**2)

        walk, key, total = jax.lax.fori_loop(0, updates, update, (learner["walk"], learner["key"], 0.0))
        skipped = updates if self.broken else jnp.zeros_like(updates)
        metrics = Metrics({"critic_loss": total / updates}, {}, {"critic": skipped})
        return {**learner, "walk": walk, "key": key}, buffer, metrics


@functools.cache  # what is the same object is compiled once
def toy_algorithm(learner=None, updates_per_step=0.5):
    """Evolution of four numbers, beside a learner if one is given."""

    def fresh(key):
        return {"x": jax.random.normal(key, (4,))}

    archive, emitters = DominatedNoveltyArchive(16, 3), ((IsoLine(), 6),)
    algorithm = QDAlgorithm(fresh=fresh, emitters=emitters, archive=archive, descriptor_size=2)
    if learner is None:
        return algorithm
    return dataclasses.replace(algorithm, learner=learner(), updates_per_step=updates_per_step)


def toy_config(learning=False, **overrides):
    """6 individuals x 10 steps a generation; with learning 30 updates, in chunks of 7."""
    values = {"run.generations": 6, "run.chunk": 7, "run.checkpoint_minutes": 1000.0}
    values |= {"learner.utd": 0.5} if learning else {}
    values |= {name.replace("__", "."): value for name, value in overrides.items()}
    return specs.make("qdhuac" if learning else "dns", "smoke", values)
