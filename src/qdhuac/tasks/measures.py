"""Reward and descriptor from what is measured of a simulation; the same code for both engines.

Shapes in comments: ``T`` steps, ``M`` measured numbers, of which the first are feet, ``P`` changes.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from qdhuac.tasks.tables import Plan
from qdhuac.tasks.task_file import COSTS, Dimension, Term
from qdhuac.types import Array


class Step(NamedTuple):
    """What a reward is made of, in NumPy or JAX."""

    measured: Any  # [..., M] after the step
    change: Any  # [..., P] from before the step to after it
    control: Any  # [..., A] the scaled action
    action: Any  # [..., A]
    before: Any  # [..., A] the action before, 0 at the start


def reward(plan: Plan, step: Step, dt: float) -> Any:
    """The reward of each step, of `dt` seconds. [...]"""
    xp: Any = jnp if isinstance(step.action, jax.Array) else np
    total: Any = 0.0
    for term, columns in plan.terms:
        weight = -term.weight if term.term in COSTS else term.weight
        if term.width:  # also of a cost: more, the nearer it is to the target
            error = (_value(xp, term, columns, step, 1.0 / dt) - term.target) / term.width
            total = total + term.weight * xp.exp(-(error**2))
        elif term.term == "velocity":
            total = total + weight / dt * step.change[..., columns[0]]
        else:
            total = total + weight * _value(xp, term, columns, step, 1.0 / dt)
    return total + xp.zeros(step.action.shape[:-1], np.float32)


def _value(xp: Any, term: Term, columns: list[int], step: Step, rate: float) -> Any:
    """What a term is before its weight. [...]"""
    if term.term == "velocity":
        return rate * step.change[..., columns[0]]
    if term.term == "alive":
        return 1.0
    if term.term == "control":
        return (step.control**2).sum(-1)
    if term.term == "action_change":
        return ((step.action - step.before) ** 2).sum(-1)
    numbers = step.measured[..., np.array(columns)]
    if term.term == "distance":
        return xp.sqrt(((numbers - np.array(term.point, np.float32)) ** 2).sum(-1))
    return abs(numbers).sum(-1) if term.term == "force" else numbers.sum(-1)


def features(plan: Plan, measured: Any) -> Any:
    """What is measured [..., M] with contacts, 0 or 1, in place of the heights of feet; NumPy or JAX."""
    xp: Any = jnp if isinstance(measured, jax.Array) else np
    feet = np.arange(measured.shape[-1]) < len(plan.feet)
    return xp.where(feet, (measured <= 0.0).astype(np.float32), measured)


def describe(plan: Plan, features: Array, living: Array, dt: float) -> Array:
    """The descriptor of an episode within its bounds; nan where it is not finite. [T, M], [T] -> [D]"""
    steps = jnp.sum(living)
    values = [_dimension(one, features[:, np.array(columns)], living, steps, dt) for one, columns in plan.dimensions]
    low, high = np.array([one.bounds for one, _ in plan.dimensions], np.float32).T
    found = jnp.stack(values)
    # A robot that exploded is nowhere: clipping would turn an infinity into an ordinary place.
    return jnp.where(jnp.isfinite(found), jnp.clip(found, low, high), jnp.nan)


def _dimension(one: Dimension, x: Array, living: Array, steps: Array, dt: float) -> Array:
    """One dimension of the descriptor, from its columns [T, n] of the features."""
    last, first = x[steps - 1], x[0]
    if one.kind == "final":
        return last[0]
    if one.kind == "direction":
        return jnp.arctan2(last[1] - first[1], last[0] - first[0])
    x = x[:, 0]
    if one.kind == "range":
        return jnp.max(jnp.where(living, x, -jnp.inf)) - jnp.min(jnp.where(living, x, jnp.inf))
    if one.kind == "frequency":
        down = (x[1:] > 0.5) & (x[:-1] < 0.5) & living[1:]
        return jnp.sum(down) / (steps * dt)
    return jnp.sum(jnp.where(living, x, 0.0)) / steps  # contact, mean, energy
