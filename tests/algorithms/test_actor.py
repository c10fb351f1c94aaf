"""The learner alone: it learns, its rollouts explore, and the archive holds the actors that were rolled out."""

import jax.numpy as jnp
import numpy as np
from reach import STEPS, ReachTask, begun, generation, made_by

from qdhuac.algorithms import specs
from qdhuac.algorithms.specs import build as build_algorithm


def test_it_learns_from_its_own_exploration_only():
    settings = {
        "emitter.batch_size": 2,
        "learner.batch_size": 16,
        "learner.reward_scale": 0.1,
        "learner.discount": 0.8,
        "task.episode_length": STEPS,
        "replay.capacity": 4000,
    }
    task = ReachTask()
    algorithm = build_algorithm(specs.make("actor", "smoke", settings), task)
    state = begun(algorithm)
    fitness = []
    for _ in range(60):
        state, emission, evaluation, _ = generation(task, algorithm, state, jnp.int32(40))
        fitness.append(float(jnp.mean(evaluation.fitness)))
    # Standing still is worth 0, going straight to +1 about 6.
    assert np.mean(fitness[-5:]) > 5.0 > 2.0 > np.mean(fitness[:5]), (fitness[:5], fitness[-5:])
    assert made_by(algorithm, emission) == ["explore"] * 2
    assert bool(jnp.all(emission.exploration.active))
    assert int(state.replay.size) == 60 * 2 * STEPS
    assert float(jnp.max(state.archive.fitness)) >= max(fitness)
