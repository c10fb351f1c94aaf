"""A program for `test_devices.py`: one run on so many devices of a CPU, perhaps as one of several processes.

python on_devices.py {train|resume} FOLDER ALGORITHM DEVICES GENERATIONS [RANK/COUNT@HOST:PORT]
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp

from qdhuac import presets
from qdhuac.cli import common
from qdhuac.errors import RunFailed, UserError
from qdhuac.learning.policy import Policy
from qdhuac.learning.replay import ReplayState
from qdhuac.tasks.rollout import rollout, share_of_steps
from qdhuac.training import launch
from qdhuac.training import loop as runner
from qdhuac.training.loop import Runner

STEPS = 8
command, folder, algorithm, devices, generations, *process = sys.argv[1:]


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
    obs_size, action_size, support, episode_length, reward_offset = 2, 1, (-20.0, 10.0), STEPS, 9.0
    descriptor_bounds = ((0.0, 0.0), (1.0, 1.0))

    def evaluate(self, genotypes, key, exploration=None):
        return self._evaluate(genotypes, key, exploration)

    @staticmethod
    @jax.jit
    def _evaluate(genotypes, key, exploration):
        return rollout(
            Line(),
            LineTask.policy,
            genotypes,
            key,
            exploration,
            features=lambda state: jnp.stack([state.x < 0.0, state.x > 0.5]).astype(jnp.float32),
            describe=share_of_steps,
            episode_length=STEPS,
            store_features=algorithm == "qd_pg",
        )


class TellingRunner(Runner):
    def save(self):
        rows = next(part.rows for part in jax.tree.leaves(self.state, is_leaf=is_replay) if is_replay(part))
        print("rows of one device:", rows.sharding.shard_shape(rows.shape)[0])
        super().save()


def is_replay(part):
    return isinstance(part, ReplayState)


runner.Runner = TellingRunner
settings = {"task.name": "own", "task.episode_length": STEPS, "learner.utd": 0.5, "emitter.batch_size": 8}
# Adam makes a whole step of a gradient that is nothing but rounding: a small one, so that runs stay comparable.
settings["emitter.gradient_learning_rate"] = 1e-5
goal = {"run.generations": int(generations), "run.env_steps": 0, "run.devices": int(devices)}
together = common.process(process[0] if process else None)
try:
    if command == "train":
        made = presets.make(algorithm, "smoke", settings | goal)
        code = launch.train(made, Path(folder), task=LineTask(), process=together)
    else:
        code = launch.resume(Path(folder), goal, task=LineTask(), process=together)
except (UserError, RunFailed) as error:
    print(error, file=sys.stderr)
    code = 2
sys.exit(code)
