"""An environment of MuJoCo Playground as a task: a whole batch of episodes in one compiled program.

Playground itself is not imported: any object with its `reset(rng)`, `step(state, action)` and `action_size` will do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from qdhuac.errors import UserError, check_callable, check_flag, check_has
from qdhuac.learning.policy import Policy
from qdhuac.tasks import checks as own
from qdhuac.tasks.base import TaskSpec, Trajectory
from qdhuac.tasks.rollout import rollout, share_of_steps
from qdhuac.types import Array, Evaluation, Exploration, Genotype

OBSERVED = "state"  # of several observations, the one that policies get; the others are for critics of their own


class PlaygroundTask:
    """A `Task`. `features(state)` gives some numbers per step in JAX, and `describe` the descriptor from them.

    `describe(features, living)` gets those of all steps [T, F], and which of them belong to the first episode [T].
    """

    def __init__(
        self,
        env: Any,
        features: Callable[[Any], Array],
        *,
        descriptor_bounds: tuple[Sequence[float], Sequence[float]],
        support: tuple[float, float],
        describe: Callable[[Array, Array], Array] = share_of_steps,
        episode_length: int = 1000,
        after_termination: str = "stop",
        can_terminate: bool = True,
        reward_offset: float = 0.0,
        hidden: tuple[int, ...] = (256, 256),
        store_contacts: bool = False,
    ) -> None:
        facts = (descriptor_bounds, episode_length, reward_offset, support, after_termination, store_contacts)
        self.spec = TaskSpec(*facts, takes_runs=True)
        bounds = self.spec.descriptor_bounds
        check_has("env", env, "reset", "step", "action_size")
        check_callable("features", features)
        check_callable("describe", describe)
        check_flag("can_terminate", can_terminate)
        self.env = Flat(env)
        # Shapes alone: nothing is simulated or compiled yet.
        first = jax.eval_shape(self.env.reset, jax.random.key(0))
        if first.obs.ndim != 1:
            raise UserError(f"observation: expected a list of numbers, got shape {first.obs.shape}")
        self.policy = Policy(int(first.obs.shape[0]), int(env.action_size), hidden)
        seen = jax.eval_shape(features, first.state)
        if not hasattr(seen, "ndim") or seen.ndim != 1:
            raise UserError(f"features: expected an array of one dimension, got {seen}")
        steps = jax.ShapeDtypeStruct((episode_length, *seen.shape), seen.dtype)
        found = jax.eval_shape(describe, steps, jax.ShapeDtypeStruct((episode_length,), bool))
        own.check_shape("descriptor", found.shape, bounds)
        if store_contacts:
            own.check_contacts(seen.shape[0], bounds)

        def evaluate(genotypes: Genotype, key: Array, exploration: Exploration | None) -> Evaluation:
            return rollout(
                self.env,
                self.policy,
                genotypes,
                key,
                exploration,
                features=lambda flat: features(flat.state),
                describe=describe,
                episode_length=episode_length,
                after_termination=after_termination,
                can_terminate=can_terminate,
                contacts=(lambda features: features) if store_contacts else None,
            )

        self._evaluate = jax.jit(evaluate)
        self._reset, self._step = jax.jit(self.env.reset), jax.jit(self._act_and_step)
        self._features = jax.jit(lambda flat: features(flat.state))

    def evaluate(self, genotypes: Genotype, key: Array, exploration: Exploration | None = None) -> Evaluation:
        """One evaluation of each genotype; compiled once per batch size, and once more with exploration."""
        return self._evaluate(genotypes, key, exploration)

    @property
    def model(self) -> Any:
        """The environment's `mujoco.MjModel`."""
        return self.env.unwrapped.mj_model

    def episode(self, genotype: Genotype, key: Array) -> Trajectory:
        """The first episode of one genotype."""
        state = self._reset(key)
        poses, rewards, features = [np.asarray(state.state.data.qpos)], [], []
        for _ in range(self.spec.episode_length):
            state = self._step(genotype, state)
            poses.append(np.asarray(state.state.data.qpos))
            rewards.append(float(state.reward))
            features.append(np.asarray(self._features(state)))
            if state.done > 0.5:
                break
        contacts = np.array(features) if self.spec.contacts else np.zeros((len(rewards), 0))
        return Trajectory(np.array(poses), np.array(rewards), contacts, float(self.env.unwrapped.dt))

    def _act_and_step(self, genotype: Genotype, state: Any) -> Any:
        return self.env.step(state, self.policy.act(genotype, state.obs))


class FlatState(NamedTuple):
    """Playground's state, and of it what a rollout looks at."""

    state: Any
    obs: Array
    reward: Array
    done: Array


class Flat:
    """The environment with one vector as observation."""

    def __init__(self, env: Any) -> None:
        self.unwrapped = env

    def reset(self, key: Array) -> FlatState:
        # Environments keep the key in their state, which must be made of plain arrays.
        return self._flat(self.unwrapped.reset(jax.random.key_data(key)))

    def step(self, state: FlatState, action: Array) -> FlatState:
        return self._flat(self.unwrapped.step(state.state, action))

    def _flat(self, state: Any) -> FlatState:
        obs = state.obs
        if isinstance(obs, Mapping):
            if OBSERVED not in obs:
                raise UserError(f"observation: expected an entry {OBSERVED!r} among {', '.join(obs)}")
            obs = obs[OBSERVED]
        return FlatState(state, obs, jnp.asarray(state.reward, jnp.float32), jnp.asarray(state.done, jnp.float32))
