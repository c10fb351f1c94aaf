"""Quality-diversity with your own simulator: how to reach every point of a plane with an arm of 100 joints.

Run it with ``python examples/planar_arm.py dns`` or ``python examples/planar_arm.py map-elites``.
"""

import argparse

import jax
import jax.numpy as jnp

from qdhuac import PassiveGrid, scores
from qdhuac.algorithms import QDAlgorithm
from qdhuac.archives import DominatedNoveltyArchive, GridArchive
from qdhuac.emitters import IsoLine
from qdhuac.tasks import Evaluation

JOINTS, BATCH = 100, 100
LOW, HIGH = (0.0, 0.0), (1.0, 1.0)  # bounds of the descriptor

ARCHIVES = {
    "dns": lambda: DominatedNoveltyArchive(capacity=1024),
    "map-elites": lambda: GridArchive.cvt(1024, LOW, HIGH),
}


@jax.jit
def simulate(genotypes):
    """The simulator, [B, JOINTS] -> Evaluation. Put your own here: it need not be written in JAX."""
    genotypes = jnp.clip(genotypes, 0.0, 1.0)
    angles = jnp.cumsum((2.0 * genotypes - 1.0) * jnp.pi, axis=-1)
    reach = jnp.stack([jnp.mean(jnp.cos(angles), axis=-1), jnp.mean(jnp.sin(angles), axis=-1)], axis=-1)
    return Evaluation(
        fitness=-jnp.std(genotypes, axis=-1),  # a smooth arm is a good arm
        descriptor=0.5 + 0.5 * reach,  # where the hand is
        steps=jnp.ones(len(genotypes), jnp.int32),
    )


def main(argv=None):
    """Print the scores ten times along the way; return them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("archive", choices=ARCHIVES, nargs="?", default="dns")
    parser.add_argument("--generations", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(argv)

    algorithm = QDAlgorithm(
        fresh=lambda key: jax.random.uniform(key, (JOINTS,)),  # a random genotype
        emitters=((IsoLine(sigma_iso=0.01, sigma_line=0.2), BATCH),),  # each with its share of the batch
        archive=ARCHIVES[args.archive](),
        descriptor_size=2,
    )
    grid = PassiveGrid.over(LOW, HIGH)  # it only measures: the same 1024 cells, whichever archive selects
    ask, tell, measure = jax.jit(algorithm.ask), jax.jit(algorithm.tell), jax.jit(grid.add)

    state, seen, history = algorithm.init(jax.random.key(args.seed)), grid.init(), []
    for generation in range(1, args.generations + 1):
        emission = ask(state)
        evaluation = simulate(emission.genotypes)
        state, _ = tell(state, emission, evaluation)

        seen = measure(seen, evaluation.fitness, evaluation.descriptor)
        if generation % max(args.generations // 10, 1) == 0:
            # A standard deviation of numbers from 0 to 1 is at most 0.5: with this offset no cell counts less than 0.
            now = {name: float(value) for name, value in scores(seen, offset_total=0.5).items()}
            print(f"generation {generation:5d}   coverage {now['coverage']:6.1%}   QD score {now['qd_score']:7.2f}")
            history.append(now)
    return history


if __name__ == "__main__":
    main()
