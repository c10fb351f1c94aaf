"""QDHUAC on an environment of MuJoCo Playground, with a descriptor of our own: how often each foot is on the ground.

Needs ``make setup-playground``. Run it with ``python examples/playground_cheetah.py runs/playground``.
"""

import sys

import jax.numpy as jnp
from mujoco_playground import registry

import qdhuac
from qdhuac.tasks import PlaygroundTask

FEET = ("bfoot", "ffoot")
# A reward is at most 1 here and about 10 in HalfCheetah, for which the default of 0.01 was made.
SETTINGS = {"run.env_steps": 50_000, "learner.reward_scale": 0.1}


def make_task(**options):
    """The task. Its descriptor is the mean of the features over an episode, as nothing else is asked for."""
    env = registry.load("CheetahRun", config_overrides={"impl": "jax"})
    feet = jnp.array([env.mj_model.geom(name).id for name in FEET])
    radius, half_length = env.mj_model.geom_size[feet, :2].T

    def feet_on_the_ground(state):
        """1 or 0 for each foot: a foot is a capsule, and the ground is at height 0."""
        tilt = jnp.abs(state.data.geom_xmat[feet, 2, 2])
        lowest = state.data.geom_xpos[feet, 2] - half_length * tilt - radius
        return (lowest <= 0.0).astype(jnp.float32)

    return PlaygroundTask(
        env,
        feet_on_the_ground,
        descriptor_bounds=((0.0, 0.0), (1.0, 1.0)),
        support=(0.0, 100.0),  # discounted returns to expect
        can_terminate=False,  # it may fall, but the episode goes on
        **options,
    )


if __name__ == "__main__":
    run = qdhuac.train(make_task(), sys.argv[1], algorithm="qdhuac", settings=SETTINGS)
    print(f"the best of {len(run)} policies has fitness {run.best.fitness:.0f}, descriptor {run.best.descriptor}")
