"""A task that compiles quickly and has everything that a learning algorithm needs."""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

from qdhuac.learning.policy import Policy
from qdhuac.tasks import TaskSpec
from qdhuac.types import Evaluation, Transition

STEPS = 8
POLICY = Policy(2, 1, (16, 16))
SPEC = TaskSpec(((-2.0,), (2.0,)), STEPS, reward_offset=3.0, support=(-20.0, 10.0), takes_runs=True)


@dataclasses.dataclass(frozen=True)
class ReachTask:
    """A point on a line moved by its action; reward is highest at +1; the descriptor is where it ends."""

    policy: Policy = POLICY
    spec: TaskSpec = SPEC

    def changed(self, **facts):
        """The task with other facts; with `contacts` every row says whether it is above 0.5."""
        return dataclasses.replace(self, spec=dataclasses.replace(self.spec, **facts))

    @functools.partial(jax.jit, static_argnums=0)
    def evaluate(self, genotypes, key, exploration=None):
        if jnp.ndim(key):  # of several runs
            cut = jax.tree.map(lambda x: x.reshape(len(key), -1, *x.shape[1:]), (genotypes, exploration))
            found = jax.vmap(lambda one, key: self.evaluate(one[0], key, one[1]))(cut, key)
            return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), found)

        def one(genotype, start, head, active, key):
            def step(x, key):
                obs = jnp.array([x, 1.0])
                noise = jax.random.normal(key, (1,))
                sampled, _ = self.policy.sample(genotype, head, obs, noise)
                action = jnp.where(active, sampled, self.policy.act(genotype, obs))
                after = jnp.clip(x + 0.5 * action[0], -2.0, 2.0)
                contacts = (after[None] > 0.5).astype(jnp.float32) if self.spec.contacts else None
                row = Transition(obs, action, 1.0 - jnp.square(after - 1.0), 0.0, jnp.array([after, 1.0]), contacts)
                return after, row

            end, rows = jax.lax.scan(step, start, jax.random.split(key, STEPS))
            return jnp.sum(rows.reward), end[None], rows

        n = len(jax.tree.leaves(genotypes)[0])
        head, active = exploration or (jax.vmap(self.policy.init_head)(jax.random.split(key, n)), jnp.zeros(n, bool))
        start = jax.random.uniform(key, (n,), minval=-0.2, maxval=0.2)
        fitness, descriptor, rows = jax.vmap(one)(genotypes, start, head, active, jax.random.split(key, n))
        rows = rows._replace(terminal=jnp.zeros((n, STEPS)))
        return Evaluation(fitness, descriptor, jnp.full(n, STEPS, jnp.int32), rows, jnp.ones((n, STEPS), bool))


def numbers(told, learnt=None):
    """Metrics under the names that they have in a run's file."""
    out = told.means | told.sums | {"rejected": sum(told.failures.values())}
    out |= {f"rejected_{name}": n for name, n in told.failures.items()}
    return out if learnt is None else out | learnt.means | {f"count_skipped_{k}": n for k, n in learnt.failures.items()}


def made_by(algorithm, emission):
    """The name of the operator of each genotype."""
    return [algorithm.operators[i] for i in np.asarray(emission.provenance.operator)]


@functools.partial(jax.jit, static_argnums=0)
def begun(algorithm):
    """The state of an algorithm at the start."""
    return algorithm.init(jax.random.key(0))


@functools.partial(jax.jit, static_argnums=0)
def asked(algorithm, state):
    return algorithm.ask(state)


@functools.partial(jax.jit, static_argnums=(0, 1))
def generation(task, algorithm, state, updates):
    emission = algorithm.ask(state)
    evaluation = task.evaluate(emission.genotypes, jax.random.fold_in(state.key, 1), emission.exploration)
    state, told = algorithm.tell(state, emission, evaluation)
    state, learnt = algorithm.learn(state, updates)
    return state, emission, evaluation, numbers(told.metrics, learnt)
