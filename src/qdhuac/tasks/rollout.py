"""Policies into `Evaluation`s: one scan over time of a batch of environments.

Fitness and descriptor come from the first episode. What happens after an early termination is the caller's choice:
``reset`` starts the same policy again until its steps are used up, ``stop`` ends its simulation and its counting.
The resets are made here, not by a wrapper, so that the true successor of the last observation is kept.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import jax
import jax.numpy as jnp

from qdhuac.errors import UserError
from qdhuac.learning.policy import Policy
from qdhuac.sharding import count, each, mine
from qdhuac.tasks.base import AFTER_TERMINATION
from qdhuac.types import Array, Evaluation, Exploration, Genotype, Transition


class Environment(Protocol):
    """An environment in JAX; a state has at least ``obs``, ``reward`` and ``done`` (above 0.5: it failed)."""

    def reset(self, key: Array) -> Any: ...

    def step(self, state: Any, action: Array) -> Any: ...


def rollout(
    env: Environment,
    policy: Policy,
    genotypes: Genotype,
    key: Array,
    exploration: Exploration | None = None,
    *,
    features: Callable[[Any], Array],
    describe: Callable[[Array, Array], Array],
    episode_length: int,
    after_termination: str = "reset",
    can_terminate: bool = True,
    contacts: Callable[[Array], Array] | None = None,
) -> Evaluation:
    """Evaluates each genotype for `episode_length` steps.

    `key` may be several, of so many runs whose genotypes follow one another: each run is what it would be by itself.
    `features(state)` gives what the descriptor is made of after each step [F]; `describe(features, living)` makes
    the descriptor [D] from those of all steps [T, F] and which of them belong to the first episode [T].
    `can_terminate=False` promises that `done` is never set, and spares the resets. `contacts(features)` are those that
    transitions carry, if any [F] -> [D].
    """
    if after_termination not in AFTER_TERMINATION:
        raise ValueError(f"after_termination={after_termination!r}: expected one of {', '.join(AFTER_TERMINATION)}")
    restart = can_terminate and after_termination == "reset"
    stop = can_terminate and after_termination == "stop"
    total = jax.tree.leaves(genotypes)[0].shape[0]
    if total % count():
        raise UserError(f"emitter.batch_size={total}: run.devices={count()} do not divide it")

    def simulate(genotypes: Genotype, exploration: Exploration | None, key: Array) -> Evaluation:
        """Those of one device."""
        keys_reset, keys_noise = jax.vmap(jax.random.split, out_axes=1)(jnp.atleast_1d(key))
        batch = jax.tree.leaves(genotypes)[0].shape[0]

        def draw(keys: Array, t: Array, function: Callable[[Array, int], Array]) -> Array:
            """What `function(key, n)` draws for the n policies of each run."""
            share = total // len(keys)
            drawn = jax.vmap(lambda key: function(jax.random.fold_in(key, t), share))(keys)
            return mine(drawn.reshape(total, *drawn.shape[2:]))

        def fresh(t: Array) -> Any:
            return jax.vmap(env.reset)(draw(keys_reset, t, jax.random.split))

        def act(obs: Array, t: Array) -> Array:
            action = jax.vmap(policy.act)(genotypes, obs)
            if exploration is None:
                return action
            noise = draw(keys_noise, t, lambda key, n: jax.random.normal(key, (n, *action.shape[1:])))
            sampled, _ = jax.vmap(policy.sample)(genotypes, exploration.head, obs, noise)
            return _where(exploration.active, sampled, action)

        def advance(carry: Any, t: Array) -> Any:
            state, died, ended = carry  # `died`: on the step before; `ended`: the first episode is over
            if restart:
                # The state is batched here, so that cond is a real branch: a reset, dear on MJX, is only computed on
                # steps where some robot needs one.
                state = jax.lax.cond(
                    jnp.any(died),
                    lambda old: jax.tree.map(lambda a, b: _where(died, a, b), fresh(t), old),
                    _same,
                    state,
                )
            obs, action = state.obs, act(state.obs, t)
            state = jax.vmap(env.step)(state, action)
            died = state.done > 0.5
            now = jax.vmap(features)(state)
            terminal = died.astype(state.reward.dtype)
            row = Transition(
                obs, action, state.reward, terminal, state.obs, None if contacts is None else jax.vmap(contacts)(now)
            )
            return (state, died, ended | died), (row, now, ~ended)

        def advance_or_idle(carry: Any, t: Array) -> Any:
            """Nothing is simulated once every robot has stopped."""
            rows = jax.eval_shape(advance, carry, t)[1]
            idle = lambda carry, t: (carry, jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), rows))  # noqa: E731
            return jax.lax.cond(jnp.all(carry[2]), idle, advance, carry, t)

        if restart:
            # Everyone is due for a reset at step 0, so that XLA compiles the reset once, not twice.
            shapes = jax.eval_shape(fresh, 0)
            state, died = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes), jnp.ones(batch, bool)
        else:
            state, died = fresh(jnp.int32(0)), jnp.zeros(batch, bool)
        _, rows = jax.lax.scan(
            advance_or_idle if stop else advance, (state, died, jnp.zeros(batch, bool)), jnp.arange(episode_length)
        )
        rows = jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), rows)  # [T, B, ...] -> [B, T, ...]
        transitions, per_step, living = rows

        valid = living if stop else jnp.ones_like(living)
        if stop:
            # A body that is simulated beyond its end may well become NaN: select, since 0 * NaN is NaN.
            transitions = jax.tree.map(lambda x: _where(living, x, jnp.zeros_like(x)), transitions)
        return Evaluation(
            fitness=jnp.sum(jnp.where(living, transitions.reward, 0.0), axis=1),
            descriptor=jax.vmap(describe)(per_step, living),
            steps=jnp.sum(valid, axis=1, dtype=jnp.int32),
            transitions=transitions,
            valid=valid,
        )

    return each(simulate, cut=(True, True, False))(genotypes, exploration, key)


def share_of_steps(features: Array, living: Array) -> Array:
    """Descriptor: the mean of each feature over the first episode. [T, F], [T] -> [F]"""
    return jnp.sum(jnp.where(living[:, None], features, 0.0), axis=0) / jnp.sum(living)


def _where(mask: Array, yes: Array, no: Array) -> Array:
    """`jnp.where` with a mask over leading axes only."""
    return jnp.where(mask.reshape(mask.shape + (1,) * (yes.ndim - mask.ndim)), yes, no)


def _same(x: Any) -> Any:
    return x
