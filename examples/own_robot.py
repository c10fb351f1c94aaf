"""QDHUAC with a simulator of your own, or with a real robot: ask for policies, try them, tell what was seen, learn.

The simulator here is a puck on a table, in plain NumPy. Run it with ``python examples/own_robot.py``.
"""

import argparse

import jax
import jax.numpy as jnp
import numpy as np

from qdhuac.algorithms import build, make
from qdhuac.learning import Policy, act
from qdhuac.tasks import Evaluation, TaskSpec, Transition

STEPS, BATCH = 50, 8


class Robot:
    """What the algorithm has to know of the robot. It never sees the simulator."""

    policy = Policy(obs_size=4, action_size=2, hidden=(32, 32))
    spec = TaskSpec(
        descriptor_bounds=((-1.0, -1.0), (1.0, 1.0)),
        episode_length=STEPS,
        support=(-60.0, 60.0),  # discounted returns to expect
    )


def simulate(genotypes):
    """Try each policy once. The descriptor is where the puck ends; the reward is for speed, less the effort."""
    genotypes = jax.tree.map(np.asarray, genotypes)
    rows = {name: [] for name in Transition._fields if name != "contacts"}
    layers = [genotypes[f"Dense_{i}"] for i in range(3)]
    ends = []
    for i in range(BATCH):
        policy = [(layer["kernel"][i], layer["bias"][i]) for layer in layers]
        place, speed = np.zeros(2), np.zeros(2)
        for _ in range(STEPS):
            obs = np.concatenate([place, speed])
            action = act(policy, obs)
            speed = 0.9 * speed + 0.05 * action
            place = np.clip(place + 0.1 * speed, -1.0, 1.0)
            reward = np.linalg.norm(speed) - 0.1 * np.square(action).sum()
            # `terminal` is 1 only where the robot failed, not where the time was up.
            row = (obs, action, reward, 0.0, np.concatenate([place, speed]))
            for column, value in zip(rows.values(), row, strict=True):
                column.append(value)
        ends.append(place)

    def column(name):
        values = jnp.asarray(np.stack(rows[name]), jnp.float32)
        return values.reshape(BATCH, STEPS, *values.shape[1:])

    transitions = Transition(**{name: column(name) for name in rows})
    return Evaluation(
        fitness=transitions.reward.sum(1),
        descriptor=jnp.asarray(np.stack(ends), jnp.float32),
        steps=jnp.full(BATCH, STEPS, jnp.int32),
        transitions=transitions,
        valid=jnp.ones((BATCH, STEPS), bool),  # False for rows that were never simulated
    )


def main(argv=None):
    """Print the best fitness along the way; return the last state."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--generations", type=int, default=30)
    parser.add_argument("--updates", type=int, default=100, help="of the learner, per generation")
    args = parser.parse_args(argv)

    # The preset `smoke` has networks of a size that fits so small a robot.
    settings = {"emitter.batch_size": BATCH, "emitter.exploration_rollouts": 0, "archive.capacity": 64}
    algorithm = build(make("qdhuac", "smoke", settings), Robot())
    ask, tell, learn = jax.jit(algorithm.ask), jax.jit(algorithm.tell), jax.jit(algorithm.learn)

    state = algorithm.init(jax.random.key(0))
    for generation in range(1, args.generations + 1):
        emission = ask(state)
        evaluation = simulate(emission.genotypes)
        state, _ = tell(state, emission, evaluation)
        state, learnt = learn(state, jnp.int32(args.updates))
        fitness = state.archive.fitness
        print(
            f"generation {generation:3d}   policies {int(jnp.isfinite(fitness).sum()):3d}   "
            f"best {float(fitness.max()):6.2f}   critic loss {float(learnt.means['critic_loss']):.3f}"
        )
    return state


if __name__ == "__main__":
    main()
