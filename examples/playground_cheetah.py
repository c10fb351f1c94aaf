"""QDHUAC on an environment of MuJoCo Playground, with a descriptor of our own: how often each foot is down.

Needs ``pip install 'qdhuac[playground]'``. Run it with ``python examples/playground_cheetah.py runs/playground``. On a
CPU it takes hours: Playground's physics are made for accelerators.
"""

import sys

import jax.numpy as jnp
from mujoco_playground import registry

import qdhuac
from qdhuac.tasks.playground import PlaygroundTask

FEET = ("bfoot", "ffoot")


def make_task(**options):
    """The task; `impl` is the physics engine: `jax` runs everywhere, Playground's default `warp` on NVIDIA alone."""
    env = registry.load("CheetahRun", config_overrides={"impl": "jax"})
    geoms = jnp.array([env.mj_model.geom(foot).id for foot in FEET])
    radius, half = env.mj_model.geom_size[geoms, :2].T

    def feet_down(state):
        """1 or 0 for each foot, a capsule: is its lowest point at the ground?"""
        height = state.data.geom_xpos[geoms, 2] - half * jnp.abs(state.data.geom_xmat[geoms, 2, 2]) - radius
        return (height <= 0.005).astype(jnp.float32)

    return PlaygroundTask(
        env,
        feet_down,
        descriptor_bounds=((0.0, 0.0), (1.0, 1.0)),
        support=(0.0, 100.0),  # a reward is between 0 and 1
        can_terminate=False,
        **options,
    )


if __name__ == "__main__":
    run = qdhuac.train(make_task(), sys.argv[1], algorithm="qdhuac", settings={"run.env_steps": 50_000})
    print(f"the best of {len(run)} policies has fitness {run.best.fitness:.0f}, descriptor {run.best.descriptor}")
