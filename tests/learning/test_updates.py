"""The loop over minibatches and the guard against non-finite values, with an update that compiles quickly."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qdhuac.learning.replay import Batch, Replay
from qdhuac.learning.updates import checked, guard, run
from qdhuac.types import Metrics, Transition

REPLAY = Replay(16, 1, 1)


class State(NamedTuple):
    total: Any
    updates: Any


def update(state, batch, key):
    """Every third update fails; the others report their number."""
    failed = (state.updates % 3 == 2).astype(jnp.int32)
    priorities = jnp.full(len(batch.weights), 5.0)
    metrics = Metrics({"number": jnp.where(failed, 0.0, state.updates)}, {}, {"critic": failed})
    return State(state.total + batch.transition.reward[0], state.updates + 1), priorities, metrics


def transitions(n):
    column = jnp.ones((n, 1))
    return Transition(column, column, jnp.ones(n), jnp.zeros(n), column)


def learn(rows, updates):
    buffer = REPLAY.add(REPLAY.init(), transitions(4), jnp.arange(4) < rows)
    return run(update, State(jnp.float32(0), jnp.int32(0)), REPLAY, buffer, jax.random.key(0), jnp.int32(updates), 2)


def test_means_are_over_the_updates_that_were_not_skipped():
    state, _, metrics = learn(4, 7)
    assert (float(state.total), int(state.updates)) == (7.0, 7)
    assert metrics.means["number"] == pytest.approx((0 + 1 + 3 + 4 + 6) / 5)
    assert int(metrics.failures["critic"]) == 2


@pytest.mark.parametrize(("rows", "updates"), [(0, 0), (1, 3)])
def test_no_updates_are_made_with_an_empty_buffer_and_some_with_one_row(rows, updates):
    state, _, _ = learn(rows, 3)
    assert int(state.updates) == updates


def test_new_priorities_go_to_the_buffer():
    _, before, _ = learn(4, 0)
    _, after, _ = learn(4, 1)
    assert float(before.unit) == 0.0
    assert float(after.unit) == pytest.approx(5.0**0.6, rel=1e-4)


FINE = {"critic_gradient_norm": 1.0, "critic_loss": 2.0, "actor_gradient_norm": 3.0}


@pytest.mark.parametrize(
    ("source", "where"),
    [
        (None, ()),
        ("batch", ("batch", "critic", "actor", "priorities")),  # the cause is blamed, not what follows from it
        ("critic", ("critic_gradient_norm", "actor", "priorities")),
        ("critic", ("critic_loss",)),
        ("critic", ("statistics",)),
        ("actor", ("actor", "priorities")),
        ("priorities", ("priorities",)),
    ],
)
def test_a_non_finite_update_changes_nothing_and_is_counted_by_its_first_cause(source, where):
    bad = lambda name: jnp.float32(jnp.nan if name in where else 1.0)  # noqa: E731
    rows = transitions(3)
    batch = Batch(rows._replace(reward=rows.reward.at[1].set(bad("batch"))), jnp.arange(3), jnp.ones(3))
    means = {name: jnp.float32(value) for name, value in FINE.items()}
    means["actor_gradient_norm"] *= bad("actor")
    for name in ("critic_gradient_norm", "critic_loss"):
        means[name] *= bad(name) * bad("critic")
    priorities = jnp.ones(3).at[2].set(bad("priorities"))
    good, metrics = checked(batch, priorities, means, {"mean": bad("statistics")})
    assert bool(good) == (source is None)
    assert {name: int(n) for name, n in metrics.failures.items() if n} == ({source: 1} if source else {})
    assert {name: float(x) for name, x in metrics.means.items()} == (dict.fromkeys(FINE, 0.0) if source else FINE)
    if where == ("statistics",):  # not those of every learner
        return
    old, new = State(jnp.float32(1), jnp.int32(7)), State(jnp.float32(2), jnp.int32(7))
    after, given, guarded = guard(old, new, batch, priorities, means)
    assert (float(after.total), int(after.updates)) == (1.0 if source else 2.0, 8)
    assert guarded == metrics
    np.testing.assert_array_equal(given, np.full(3, np.nan) if source else np.ones(3))
