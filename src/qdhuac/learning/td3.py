"""TD3 (Fujimoto, van Hoof and Meger, 2018), the learner of PGA-ME, QD-PG and DCRL-ME.

    y = r + gamma (1 - d) min_i Q_i'(s', clip(pi'(s') + clip(noise))),   loss = sum_i (Q_i(s, a) - y)^2

Primes are target networks, which follow by Polyak averaging. The greedy actor climbs the first critic, once in
`policy_delay` updates. A truncated episode is not terminal and is bootstrapped.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from qdhuac.config import MLPCriticConfig, TD3Config
from qdhuac.learning.policy import Policy
from qdhuac.learning.replay import Batch, Replay, ReplayState
from qdhuac.learning.updates import Means, guard, run
from qdhuac.types import Array, Genotype, Metrics, Transition

Params = Any


class TD3State(NamedTuple):
    actor: Genotype  # what is injected
    critics: tuple[Params, ...]
    target_actor: Genotype
    target_critics: tuple[Params, ...]
    critic_optimiser: Any
    actor_optimiser: Any
    updates: Array  # int32


@dataclasses.dataclass(frozen=True)
class TD3Learner:
    """TD3: two plain critics with target networks, and a deterministic actor.

    Values inside are in units of reward * reward_scale.

    Args:
        policy: the actor's network.
        critic_config: section `critic` of a configuration.
        config: section `learner` of a configuration.
    """

    policy: Policy
    critic_config: MLPCriticConfig
    config: TD3Config

    @property
    def critic(self) -> Policy:
        """The network of a critic: the policy's plain MLP with one output, read before its tanh."""
        c = self.critic_config
        return Policy(self.policy.obs_size + self.policy.action_size, 1, (c.width,) * c.blocks)

    def init(self, key: Array) -> TD3State:
        """A random actor, random critics, and targets equal to them."""
        key_actor, key_critic = jax.random.split(key)
        actor = self.policy.init(key_actor)
        critics = tuple(self.critic.init(k) for k in jax.random.split(key_critic, self.critic_config.critics))
        return TD3State(
            actor=actor,
            critics=critics,
            # Copies: a donated state must not hold the same buffer twice.
            target_actor=jax.tree.map(jnp.copy, actor),
            target_critics=jax.tree.map(jnp.copy, critics),
            critic_optimiser=optax.adam(self.config.critic_learning_rate).init(critics),
            actor_optimiser=optax.adam(self.config.actor_learning_rate).init(actor),
            updates=jnp.int32(0),
        )

    def learn(
        self,
        state: TD3State,
        replay: Replay,
        buffer: ReplayState,
        key: Array,
        updates: Array,
        reward: Callable[[Transition], Array] | None = None,
    ) -> tuple[TD3State, ReplayState, Metrics]:
        """`updates` updates from the buffer; `reward` [B] takes the place of the stored rewards where it is given."""

        def update(state: TD3State, batch: Batch, key: Array) -> tuple[TD3State, Array, Metrics]:
            if reward is not None:
                t = batch.transition
                batch = batch._replace(transition=t._replace(reward=reward(t)))
            return self.update(state, batch, key)

        return run(update, state, replay, buffer, key, updates, self.config.batch_size)

    def update(self, state: TD3State, batch: Batch, key: Array) -> tuple[TD3State, Array, Metrics]:
        """One update of the critics and, when it is due, of the actor. Returns the absolute errors [B] as priorities.

        The critics' targets follow with every update, the actor's whenever the actor moves.
        """
        grad, (priorities, metrics) = jax.grad(self.critic_loss, has_aux=True)(state.critics, state, batch, key)
        adam = optax.adam(self.config.critic_learning_rate)
        steps, critic_optimiser = adam.update(grad, state.critic_optimiser)
        critics = optax.apply_updates(state.critics, steps)
        learnt = state._replace(
            critics=critics,
            target_critics=optax.incremental_update(critics, state.target_critics, self.config.target_tau),
            critic_optimiser=critic_optimiser,
        )
        learnt, actor_norm = jax.lax.cond(
            (state.updates + 1) % self.config.policy_delay == 0,
            lambda s: self._update_actor(s, batch.transition.obs),
            lambda s: (s, jnp.float32(0)),
            learnt,
        )
        metrics = metrics | {"critic_gradient_norm": optax.global_norm(grad), "actor_gradient_norm": actor_norm}
        return guard(state, learnt, batch, priorities, metrics)

    def target(self, state: TD3State, transition: Transition, key: Array) -> Array:
        """``y``: the reward and the discounted value, by the lower target critic, of a smoothed next action. [B]"""
        t, c = transition, self.config
        noise = c.target_noise * jax.random.normal(key, t.action.shape)
        noise = jnp.clip(noise, -c.target_noise_clip, c.target_noise_clip)
        next_action = jnp.clip(self.policy.act(state.target_actor, t.next_obs) + noise, -1.0, 1.0)
        next_q = jnp.min(self.q(state.target_critics, t.next_obs, next_action), axis=0)
        return c.reward_scale * t.reward + c.discount * (1.0 - t.terminal) * next_q

    def critic_loss(
        self, critics: tuple[Params, ...], state: TD3State, batch: Batch, key: Array
    ) -> tuple[Array, tuple[Array, Means]]:
        """Squared error of every critic to the common target, summed over the critics."""
        t = batch.transition
        target = self.target(state, t, key)  # it does not depend on `critics`
        q = self.q(critics, t.obs, t.action)  # [critics, B]
        loss = jnp.sum(jnp.mean(batch.weights * jnp.square(q - target), axis=1))
        priorities = jnp.mean(jnp.abs(q - target), axis=0)
        raw = 1.0 / self.config.reward_scale
        metrics = {
            "critic_loss": loss / len(critics),
            "q_mean": raw * jnp.mean(q),
            "q_spread": raw * jnp.std(q),
            "q_disagreement": raw * jnp.mean(jnp.max(q, 0) - jnp.min(q, 0)),
            "td_error": raw * jnp.mean(priorities),
            "td_error_spread": raw * jnp.std(priorities),
        }
        return loss, (priorities, metrics)

    def q(self, critics: tuple[Params, ...], obs: Array, action: Array) -> Array:
        """The value that each critic predicts, in scaled units. [critics, B]"""
        x = jnp.concatenate([obs, action], axis=-1)
        return jnp.stack([self.critic.mean(p, self.critic.features(p, x))[..., 0] for p in critics])

    def value(self, state: TD3State, obs: Array, action: Array) -> Array:
        """What actor and gradient mutations climb: the first critic, in scaled units. [B]"""
        return self.q(state.critics[:1], obs, action)[0]

    def injected(self, state: TD3State) -> Genotype:
        """The greedy actor as a genotype."""
        return state.actor

    def _update_actor(self, state: TD3State, obs: Array) -> tuple[TD3State, Array]:
        def loss(actor: Genotype) -> Array:
            return -jnp.mean(self.value(state, obs, self.policy.act(actor, obs)))

        grad = jax.grad(loss)(state.actor)
        adam = optax.adam(self.config.actor_learning_rate)
        steps, optimiser = adam.update(grad, state.actor_optimiser)
        actor = optax.apply_updates(state.actor, steps)
        target = optax.incremental_update(actor, state.target_actor, self.config.target_tau)
        # Only one update in `policy_delay` comes here: that many times the value makes the mean over all of them right.
        norm = self.config.policy_delay * optax.global_norm(grad)
        return state._replace(actor=actor, target_actor=target, actor_optimiser=optimiser), norm
