"""QDHUAC on an environment of Gymnasium, with a descriptor of our own: which feet are on the ground, and how often.

Run it with ``python examples/gymnasium_halfcheetah.py runs/cheetah``.
"""

import sys

import numpy as np

import qdhuac
from qdhuac.tasks import GymnasiumTask

FEET = ("bfoot", "ffoot")


def feet_on_the_ground(env):
    """1 or 0 for each foot; called after each step with Gymnasium's environment, whose MuJoCo data it reads."""
    contact, floor = env.data.contact, env.model.geom("floor").id
    pairs = contact.geom[contact.dist <= 0.0]  # [contacts, 2]
    touching = set(pairs[np.any(pairs == floor, axis=1)].ravel().tolist())
    return [float(env.model.geom(foot).id in touching) for foot in FEET]


def make_task(**options):
    """The task. Its descriptor is the mean of the features over an episode, as nothing else is asked for."""
    return GymnasiumTask(
        "HalfCheetah-v5",
        feet_on_the_ground,
        descriptor_bounds=((0.0, 0.0), (1.0, 1.0)),
        support=(-200.0, 1000.0),  # discounted returns to expect
        reward_offset=10.0,  # added per step, so that a QD score is a sum of positive numbers
        **options,
    )


if __name__ == "__main__":  # the processes that simulate import this file too
    run = qdhuac.train(make_task(), sys.argv[1], algorithm="qdhuac", settings={"run.env_steps": 50_000})
    print(f"the best of {len(run)} policies has fitness {run.best.fitness:.0f}, descriptor {run.best.descriptor}")
