"""A task to shard over devices; as a program, one of several processes that make one run.

python on_devices.py {train|resume} FOLDER ALGORITHM DEVICES GENERATIONS RANK/COUNT@HOST:PORT
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp

from qdhuac.algorithms import specs
from qdhuac.cli import common
from qdhuac.errors import RunFailed, UserError
from qdhuac.learning.policy import Policy
from qdhuac.tasks import TaskSpec
from qdhuac.tasks.rollout import rollout, share_of_steps
from qdhuac.training import launch

STEPS = 8


class State(NamedTuple):
    x: jax.Array
    obs: jax.Array
    reward: jax.Array
    done: jax.Array


class Line:
    """An environment: a point on a line that falls off at 2; a descriptor per side that it is on."""

    def reset(self, key):
        return self._state(jax.random.uniform(key, minval=-1.5, maxval=1.5))

    def step(self, state, action):
        return self._state(state.x + 0.3 * action[0])

    def _state(self, x):
        return State(x, jnp.array([x, 1.0]), 1.0 - jnp.square(x - 1.0), (jnp.abs(x) > 2.0).astype(jnp.float32))


class LineTask:
    policy = Policy(2, 1, (16, 16))

    def __init__(self, contacts=False):
        bounds = ((0.0, 0.0), (1.0, 1.0))
        self.spec = TaskSpec(bounds, STEPS, 9.0, (-20.0, 10.0), "reset", contacts)

        @jax.jit
        def evaluate(genotypes, key, exploration=None):
            return rollout(
                Line(),
                LineTask.policy,
                genotypes,
                key,
                exploration,
                features=lambda state: jnp.stack([state.x < 0.0, state.x > 0.5]).astype(jnp.float32),
                describe=share_of_steps,
                episode_length=STEPS,
                contacts=(lambda features: features) if contacts else None,
            )

        self.evaluate = evaluate


def goal(devices, generations):
    return {"run.generations": generations, "run.env_steps": 0, "run.devices": devices}


def configuration(algorithm, devices, generations):
    """A small run. Adam makes a full step even for a gradient that is only rounding, so the rate is small."""
    small = {"task.name": "own", "task.episode_length": STEPS, "learner.utd": 0.5, "emitter.batch_size": 8}
    small["emitter.gradient_learning_rate"] = 1e-5
    if algorithm == "qdhuac":
        small["critic.critics"] = 1  # a second one would only take longer to compile
    return specs.make(algorithm, "smoke", small | goal(devices, generations))


def main(command, folder, algorithm, devices, generations, process):
    task, together = LineTask(contacts=algorithm == "qd_pg"), common.process(process)
    try:
        if command == "train":
            made = configuration(algorithm, int(devices), int(generations))
            return launch.train(made, Path(folder), task=task, process=together)
        changes = goal(int(devices), int(generations))
        return launch.resume(Path(folder), changes, task=task, process=together)
    except (UserError, RunFailed) as error:
        print(error, file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
