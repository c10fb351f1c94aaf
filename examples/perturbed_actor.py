"""An emitter and an algorithm of your own: QDHUAC that explores with policies which can be archived.

QDHUAC's exploring rollouts add noise to every action, so what they find is no policy's own merit and is not archived.
Here the noise goes on the weights of the actor's last layer instead: each is an ordinary policy and competes like any
other. Run it from the folder of this file with

    qdhuac train --algorithm perturbed_actor:SPEC --preset smoke
"""

import dataclasses

import jax
import jax.numpy as jnp

from qdhuac.algorithms import ALGORITHMS, builder
from qdhuac.emitters import Offspring, Stateless, no_parents

SIGMA = 0.2  # standard deviation of a layer's weights, divided by the square root of its inputs


@dataclasses.dataclass(frozen=True)
class PerturbedActor(Stateless):
    """The learner's actor with Gaussian noise on its last layer."""

    policy: object  # from the learner's state to the actor's parameters
    name: str = "perturbed"

    def ask(self, key, state, seen, n):
        """`n` perturbed actors."""
        actor = self.policy(seen.learner)
        last = max(actor)  # "Dense_2" of "Dense_0", "Dense_1", "Dense_2"
        kernel, bias = actor[last]["kernel"], actor[last]["bias"]
        noise = SIGMA * jax.random.normal(key, (n, *kernel.shape)) / jnp.sqrt(len(kernel))
        many = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (n, *leaf.shape)), actor)
        layer = {"kernel": kernel + noise, "bias": jnp.broadcast_to(bias, (n, *bias.shape))}
        return Offspring({**many, last: layer}, no_parents(n))


def build(settings, task, archive):
    """QDHUAC with half of its gradient children replaced by perturbed actors."""
    algorithm = builder(ALGORITHMS["qdhuac"].build)(settings, task, archive)
    emitters = []
    for emitter, n in algorithm.emitters:
        perturbed = n // 2 if emitter.name == "gradient" else 0
        emitters += [(emitter, n - perturbed)]
        emitters += [(PerturbedActor(algorithm.learner.injected), perturbed)] if perturbed else []
    return dataclasses.replace(algorithm, emitters=tuple(emitters))


SPEC = dataclasses.replace(
    ALGORITHMS["qdhuac"],
    name="perturbed_actor",
    title="QDHUAC, archived exploration",
    purpose="QDHUAC that explores with policies which can be archived",
    build="perturbed_actor:build",
)
