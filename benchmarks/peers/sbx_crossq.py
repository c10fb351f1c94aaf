"""Milliseconds per update of SBX's CrossQ on matrix products of our shapes. Runs in an environment of its own.

    python sbx_crossq.py WIDTH BATCH UPDATES

Its critic has as many hidden layers of the same width as ours (a stem and two blocks of two), two critics, and an actor
that is updated each time. What it does not have: residual connections, 101 atoms, prioritised replay.
"""

import json
import sys
import time

import gymnasium
import jax
import numpy as np
from sbx import CrossQ

OBS, ACTIONS = 17, 6
HIDDEN_LAYERS = 5


class Nothing(gymnasium.Env):
    """Observations and actions of HalfCheetah's size, and no physics."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (OBS,), np.float32)
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (ACTIONS,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.np_random.normal(size=OBS).astype(np.float32), {}

    def step(self, action):
        return self.np_random.normal(size=OBS).astype(np.float32), 0.0, False, False, {}


def main() -> None:
    width, batch, updates = map(int, sys.argv[1:])
    model = CrossQ(
        "MlpPolicy",
        Nothing(),
        batch_size=batch,
        policy_delay=1,
        learning_starts=2000,
        buffer_size=100_000,
        policy_kwargs={"net_arch": {"pi": [256, 256], "qf": [width] * HIDDEN_LAYERS}},
        seed=0,
    )
    model.learn(2000)  # fills the buffer
    model.train(updates, batch)  # compiles
    times = []
    for _ in range(4):
        start = time.perf_counter()
        model.train(updates, batch)
        jax.block_until_ready(model.qf_state if hasattr(model, "qf_state") else model.policy.qf_state.params)
        times.append((time.perf_counter() - start) / updates)
    print(json.dumps({"ms": 1e3 * min(times)}))


if __name__ == "__main__":
    main()
