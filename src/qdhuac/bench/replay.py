"""The replay buffer at full capacity: adding a generation, sampling and setting priorities, and its memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp

from qdhuac.bench.timing import Result, Stepper, best_times
from qdhuac.learning.replay import PRIORITY_EPSILON, Replay, ReplayState
from qdhuac.types import Array, Transition

CAPACITY = 1_000_000
BATCH = 512
ADDED = 10_000  # transitions of one generation
LOOPS = {"tree": 400, "flat": 20}  # rounds per measurement; both take about as long, so that noise affects them alike
REPEATS = 8
HUMANOID = (244, 17)  # observation, action
BUDGET = 2.2e9  # bytes


def filled(replay: Replay, key: Array) -> ReplayState:
    """A buffer full of random transitions with random priorities."""

    def fill(rows: Array, priorities: Array) -> ReplayState:
        state = replay.add(replay.init(), replay.unpack(rows), jnp.ones(len(rows), bool))
        return replay.set_priorities(state, jnp.arange(len(rows)), priorities)

    rows = jax.random.normal(key, (replay.capacity, replay.row_size))
    return jax.jit(fill)(rows, jnp.abs(rows[:, 0]))


def sample_and_set(replay: Replay, batch: int, times: int) -> Callable[[ReplayState, Array], ReplayState]:
    """`times` rounds of sampling a batch and setting its priorities, which depend on the sample."""

    def step(state: ReplayState, key: Array) -> ReplayState:
        drawn = replay.sample(state, key, batch)
        return replay.set_priorities(state, drawn.indices, _row_sums(drawn.transition))

    return _repeated(step, times)


def flat_sample_and_set(replay: Replay, batch: int, times: int) -> Callable[[ReplayState, Array], ReplayState]:
    """The same with a flat array of priorities: a cumulative sum of all of them, and a binary search."""

    def step(state: ReplayState, key: Array) -> ReplayState:
        mass = jnp.cumsum(state.tree)
        uniform = jax.random.uniform(key, (batch,))
        indices = jnp.searchsorted(mass, (jnp.arange(batch) + uniform) / batch * mass[-1])
        indices = jnp.minimum(indices, replay.capacity - 1)
        values = jnp.abs(_row_sums(replay.unpack(state.rows[indices]))) + PRIORITY_EPSILON
        return state._replace(tree=state.tree.at[indices].set(values**replay.exponent))

    return _repeated(step, times)


def _repeated(step: Callable[[ReplayState, Array], ReplayState], times: int) -> Callable[..., ReplayState]:
    """`times` steps, each with a key of its own."""
    return lambda state, key: jax.lax.fori_loop(0, times, lambda i, s: step(s, jax.random.fold_in(key, i)), state)


def measure() -> Iterator[Result]:
    """Milliseconds at 1e6 transitions of HalfCheetah, gigabytes at 1e6 of Humanoid."""
    key = jax.random.key(0)
    tree = Replay(CAPACITY, obs_size=17, action_size=6)
    uniform = Replay(CAPACITY, obs_size=17, action_size=6, exponent=0.0)

    rows = jax.random.normal(key, (ADDED, tree.row_size))
    calls: dict[str, Any] = {
        name: Stepper(lambda s, rows, r=r: r.add(s, r.unpack(rows), jnp.ones(ADDED, bool)), filled(r, key), rows)
        for name, r in (("tree", tree), ("plain", uniform))
    }
    times = best_times(calls, REPEATS)
    case, against = f"add/{ADDED}", "add without priorities"
    yield Result("replay", case, 1e3 * times["tree"], "ms", times["tree"] / times["plain"], against)

    flat = filled(tree, key)
    flat = flat._replace(tree=flat.tree[tree.leaves : tree.leaves + CAPACITY])
    calls = {
        "tree": Stepper(sample_and_set(tree, BATCH, LOOPS["tree"]), filled(tree, key), key),
        "flat": Stepper(flat_sample_and_set(tree, BATCH, LOOPS["flat"]), flat, key),
    }
    times = {name: seconds / LOOPS[name] for name, seconds in best_times(calls, REPEATS).items()}
    case, against = f"sample+set/{BATCH}", "flat cumsum + searchsorted"
    yield Result("replay", case, 1e3 * times["tree"], "ms", times["tree"] / times["flat"], against)

    yield memory(CAPACITY)


def memory(capacity: int) -> Result:
    """Bytes of a buffer for Humanoid, from its shapes alone."""
    state = jax.eval_shape(Replay(capacity, *HUMANOID).init)
    size = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state))
    return Result("replay", "memory/humanoid", size / 1e9, "GB", size / BUDGET, f"{BUDGET / 1e9:g} GB")


def _row_sums(rows: Transition) -> Array:
    """A sum of all numbers of each row. [n]"""
    return jnp.sum(rows.obs + rows.next_obs, axis=1) + jnp.sum(rows.action, axis=1) + rows.reward + rows.terminal
