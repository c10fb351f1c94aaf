"""Replay: a circular buffer of rows with a sum tree of priorities (Schaul et al., 2015).

A transition is one row of one matrix, so a minibatch is one gather. The tree is a flat array: node 1 is the root, node
i has children 2i and 2i + 1, the leaves are the last `leaves` entries. Parents are always recomputed from their two
children, never adjusted by differences: no drift, and duplicate indices in one write are harmless.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp

from qdhuac.config import ReplayConfig
from qdhuac.errors import check_number, check_whole
from qdhuac.types import Array, Transition

PRIORITY_EPSILON = 1e-6  # a transition without error can still be drawn


class ReplayState(NamedTuple):
    rows: Array  # [capacity, row_size]
    tree: Array  # [2 * leaves] priorities ** exponent in units of `unit`, and their sums; [0] is unused
    position: Array  # int32, next row to write
    size: Array  # int32, rows filled
    max_priority: Array  # highest value of a leaf so far, given to new transitions
    unit: Array  # highest priority ** exponent of the first minibatch: what a leaf of 1 means; 0 before that


class Batch(NamedTuple):
    transition: Transition  # leaves [n, ...]
    indices: Array  # [n] rows
    weights: Array  # [n] importance weights, 1 without correction


@dataclasses.dataclass(frozen=True)
class Replay:
    """A circular buffer of transitions with prioritised sampling; its state is a `ReplayState`.

    Args:
        capacity: transitions kept.
        obs_size: numbers of an observation.
        action_size: numbers of an action.
        exponent: sampling probability ~ priority ** exponent; 0 is uniform and keeps no tree.
        beta: importance weights (N p) ** -beta; 0 is none.
        contacts: numbers of foot contacts per transition, which only some algorithms store.
    """

    capacity: int
    obs_size: int
    action_size: int
    exponent: float = 0.6
    beta: float = 0.0
    contacts: int = 0  # columns for foot contacts, which only some algorithms store

    def __post_init__(self) -> None:
        for name, low in {"capacity": 1, "obs_size": 1, "action_size": 1, "contacts": 0}.items():
            check_whole(name, getattr(self, name), low)
        for name in ("exponent", "beta"):
            check_number(name, getattr(self, name), low=0)

    @classmethod
    def of(cls, config: ReplayConfig, obs_size: int, action_size: int, contacts: int = 0) -> Replay:
        """The buffer that a configuration asks for."""
        return cls(config.capacity, obs_size, action_size, config.priority_exponent, config.importance_beta, contacts)

    @property
    def columns(self) -> dict[str, tuple[int, ...]]:
        """The columns of a transition by name, each with the shape of one entry."""
        sizes = {"obs": (self.obs_size,), "action": (self.action_size,), "next_obs": (self.obs_size,)}
        return {**sizes, "reward": (), "terminal": (), **({"contacts": (self.contacts,)} if self.contacts else {})}

    @property
    def row_size(self) -> int:
        return 2 * self.obs_size + self.action_size + 2 + self.contacts

    @property
    def leaves(self) -> int:
        return 1 << (self.capacity - 1).bit_length() if self.exponent else 0

    @property
    def _depth(self) -> int:
        return self.leaves.bit_length() - 1

    def init(self) -> ReplayState:
        """An empty buffer."""
        return ReplayState(
            rows=jnp.zeros((self.capacity, self.row_size)),
            tree=jnp.zeros(2 * self.leaves),
            position=jnp.int32(0),
            size=jnp.int32(0),
            max_priority=jnp.float32(1.0),
            unit=jnp.float32(0.0),
        )

    def add(self, state: ReplayState, transitions: Transition, valid: Array) -> ReplayState:
        """Append the valid [n] ones of `transitions` (leaves [n, ...]) in order; the oldest rows are overwritten."""
        rows = self.pack(transitions)
        order = jnp.cumsum(valid) - 1
        count = order[-1] + 1
        # Of a batch larger than the buffer only the last `capacity` rows can stay.
        keep = valid & (order >= count - self.capacity)
        # An index beyond the buffer is dropped by the scatter: that is how the others stay out.
        slots = jnp.where(keep, (state.position + order) % self.capacity, self.capacity)
        state = state._replace(
            rows=state.rows.at[slots].set(rows, mode="drop"),
            position=(state.position + count) % self.capacity,
            size=jnp.minimum(state.size + count, self.capacity),
        )
        return self._write(state, slots, jnp.broadcast_to(state.max_priority, slots.shape))

    def sample(self, state: ReplayState, key: Array, n: int) -> Batch:
        """`n` transitions, drawn with replacement in proportion to priority ** exponent."""
        uniform = jax.random.uniform(key, (n,))
        if not self.exponent:
            indices = jnp.minimum((uniform * state.size).astype(jnp.int32), state.size - 1)
            return Batch(self.unpack(state.rows[indices]), indices, jnp.ones(n))
        # One draw from each of n equal slices of the mass: the same expectation, less variance.
        target = (jnp.arange(n) + uniform) / n * state.tree[1]

        def descend(_: int, carry: tuple[Array, Array]) -> tuple[Array, Array]:
            node, rest = carry
            left, right = state.tree[2 * node], state.tree[2 * node + 1]
            # Rounding may leave `rest` a hair too large: an empty subtree is never entered.
            go_right = ((rest >= left) & (right > 0.0)) | (left <= 0.0)
            return 2 * node + go_right, jnp.where(go_right, rest - left, rest)

        node, _ = jax.lax.fori_loop(0, self._depth, descend, (jnp.ones(n, jnp.int32), target))
        indices = jnp.minimum(node - self.leaves, self.capacity - 1)
        weights = jnp.ones(n)
        if self.beta:
            weights = (state.size * state.tree[node] / state.tree[1]) ** -self.beta
            weights /= jnp.max(weights)
        return Batch(self.unpack(state.rows[indices]), indices, weights)

    def set_priorities(self, state: ReplayState, indices: Array, priorities: Array) -> ReplayState:
        """New priorities [n] (absolute errors) of the rows `indices` [n]; not finite ones are left as they were.

        Rows that have never been drawn are worth the highest error so far. Before the first minibatch nobody knows how
        high that is, so its highest error becomes the unit in which all are counted.
        """
        if not self.exponent:
            return state
        finite = jnp.isfinite(priorities)
        values = (jnp.where(finite, jnp.abs(priorities), 0.0) + PRIORITY_EPSILON) ** self.exponent
        highest = jnp.max(jnp.where(finite, values, 0.0), initial=0.0)
        unit = jnp.where(state.unit > 0.0, state.unit, highest)
        scale = jnp.where(unit > 0.0, 1.0 / unit, 1.0)
        state = state._replace(max_priority=jnp.maximum(state.max_priority, scale * highest), unit=unit)
        return self._write(state, jnp.where(finite, indices, self.capacity), scale * values)

    def pack(self, t: Transition) -> Array:
        """Transitions as rows. [n, row_size]"""
        columns = [t.obs, t.next_obs, t.action, t.reward[:, None], t.terminal[:, None]]
        if self.contacts:
            assert t.contacts is not None
            columns.append(t.contacts)
        return jnp.concatenate(columns, axis=-1)

    def unpack(self, rows: Array) -> Transition:
        """The inverse of `pack`."""
        o, a = self.obs_size, self.action_size
        return Transition(
            obs=rows[:, :o],
            next_obs=rows[:, o : 2 * o],
            action=rows[:, 2 * o : 2 * o + a],
            reward=rows[:, 2 * o + a],
            terminal=rows[:, 2 * o + a + 1],
            contacts=rows[:, 2 * o + a + 2 :] if self.contacts else None,
        )

    def _write(self, state: ReplayState, slots: Array, values: Array) -> ReplayState:
        """Leaf values at `slots` (those at or beyond `capacity` are dropped), and all sums above them."""
        if not self.exponent:
            return state
        nodes = jnp.where(slots < self.capacity, slots + self.leaves, 2 * self.leaves)
        tree = state.tree.at[nodes].set(values, mode="drop")

        def ascend(_: int, carry: tuple[Array, Array]) -> tuple[Array, Array]:
            tree, nodes = carry
            nodes = jnp.where(nodes < 2 * self.leaves, nodes // 2, nodes)
            pair = jnp.minimum(2 * nodes, 2 * self.leaves - 2)
            return tree.at[nodes].set(tree[pair] + tree[pair + 1], mode="drop"), nodes

        tree, _ = jax.lax.fori_loop(0, self._depth, ascend, (tree, nodes))
        return state._replace(tree=tree)
