"""QDHUAC's learner: a distributional critic without target networks, a max-entropy actor, a temperature.

The critic bootstraps from itself. One forward pass in training mode covers (s, a) and (s', a') together, so that the
batch statistics describe both (CrossQ, Bhatt et al., 2019); only the *output* of the second half is held constant.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from qdhuac.config import CriticConfig, LearnerConfig
from qdhuac.learning import adam, categorical, moments, probe
from qdhuac.learning.adam import AdamState
from qdhuac.learning.critic import Critic, Params, Stats
from qdhuac.learning.moments import Moments, Returns
from qdhuac.learning.policy import Layer, Policy
from qdhuac.learning.probe import Probe
from qdhuac.learning.replay import Batch, Replay, ReplayState
from qdhuac.learning.updates import Means, checked, finite, run
from qdhuac.types import Array, Evaluation, Genotype, Metrics, Told


class Actor(NamedTuple):
    policy: Genotype  # on scaled observations with `normalise_observations`
    head: Layer  # log-std, the learner's alone


class LearnerState(NamedTuple):
    actor: Actor
    critics: Params  # leaves [critics, ...]
    stats: Stats  # likewise
    log_temperature: Array
    targets: Params | None  # likewise, only with target_tau
    critic_optimiser: AdamState
    actor_optimiser: AdamState
    temperature_optimiser: AdamState
    updates: Array  # int32
    probe: Probe | None = None  # only with `learner.probe`
    seen: Moments | None = None  # of observations, only with `normalise_observations`
    returns: Returns | None = None  # only with `normalise_rewards`


@dataclasses.dataclass(frozen=True)
class TargetFreeLearner:
    """QDHUAC's learner: a distributional critic without target networks, and a tanh-Gaussian actor.

    Values inside are in units of reward * `scale`.

    Args:
        policy: the actor's network.
        critic_config: section `critic` of a configuration.
        config: section `learner` of a configuration.
        slots: slots of the archive whose returns a probe keeps.
    """

    policy: Policy
    critic_config: CriticConfig
    config: LearnerConfig
    slots: int = 0  # of the archive whose returns a probe keeps

    @property
    def value_range(self) -> tuple[float, float]:
        """Lowest and highest discounted return to expect, in raw units; nan if the support is in scaled ones."""
        c = self.critic_config
        return (math.nan, math.nan) if self.config.normalise_rewards else (c.v_min, c.v_max)

    @property
    def scalar(self) -> bool:
        """One value per critic instead of a distribution, with a squared error: all else is the same."""
        return self.critic_config.kind == "scalar"

    @property
    def critic(self) -> Critic:
        c = self.critic_config
        return Critic(
            obs_size=self.policy.obs_size,
            action_size=self.policy.action_size,
            outputs=1 if self.scalar else c.atoms,
            width=c.width,
            blocks=c.blocks,
            batch_norm=c.batch_norm,
            input_norm=c.input_norm,
            weight_norm=c.weight_norm,
            momentum=c.norm_momentum,
            residual=c.residual,
        )

    @property
    def atoms(self) -> Array:
        """The support, scaled like the rewards. [N]"""
        c = self.critic_config
        return categorical.support(c.v_min * self._support_scale, c.v_max * self._support_scale, c.atoms)

    @property
    def _support_scale(self) -> float:
        """What support and initial value are multiplied by; with `normalise_rewards` they are scaled already."""
        return 1.0 if self.config.normalise_rewards else self.config.reward_scale

    def scale(self, state: LearnerState) -> float | Array:
        """What rewards are multiplied by."""
        return self.config.reward_scale if state.returns is None else moments.reward_scale(state.returns)

    @property
    def target_entropy(self) -> float:
        return -float(self.policy.action_size)

    def init(self, key: Array) -> LearnerState:
        """A random actor and critics; the critics' first distribution is what `initial_value` says."""
        key_policy, key_head, key_critic = jax.random.split(key, 3)
        actor = Actor(self.policy.init(key_policy), self.policy.init_head(key_head))
        critics, stats = jax.vmap(self.critic.init)(jax.random.split(key_critic, self.critic_config.critics))
        critics = jax.vmap(self._with_initial_value)(critics)
        log_temperature = jnp.log(jnp.float32(self.config.initial_temperature))  # of 0: -inf, and there it stays
        return LearnerState(
            actor=actor,
            critics=critics,
            stats=stats,
            log_temperature=log_temperature,
            targets=jax.tree.map(jnp.copy, critics) if self.config.target_tau else None,
            critic_optimiser=adam.init(critics),
            actor_optimiser=adam.init(actor),
            temperature_optimiser=adam.init(log_temperature),
            updates=jnp.int32(0),
            probe=probe.init(critics, stats, self.slots) if self.config.probe else None,
            seen=moments.init(self.policy.obs_size) if self.config.normalise_observations else None,
            returns=moments.no_returns() if self.config.normalise_rewards else None,
        )

    def learn(
        self, state: LearnerState, replay: Replay, buffer: ReplayState, key: Array, updates: Array
    ) -> tuple[LearnerState, ReplayState, Metrics]:
        """`updates` updates from the buffer."""
        return run(self.update, state, replay, buffer, key, updates, self.config.batch_size)

    def observe(
        self, state: LearnerState, evaluation: Evaluation, told: Told, stored: Array
    ) -> tuple[LearnerState, Metrics]:
        """What the learner takes from an evaluation itself, of which the rows `stored` [B, T] are in the buffer."""
        assert evaluation.transitions is not None
        metrics, obs = Metrics({}, {}, {}), evaluation.transitions.obs
        if state.returns is not None:
            returns = moments.add_returns(state.returns, evaluation.transitions, stored, self.config.discount)
            returns, failed = _unless_infinite(returns, state.returns)
            state = state._replace(returns=returns)
            metrics |= Metrics({"reward_scale": moments.reward_scale(returns)}, {}, {"reward_scale": failed})
        if state.seen is not None:
            seen = moments.add(state.seen, obs.reshape(-1, obs.shape[-1]), stored.reshape(-1))
            seen, failed = _unless_infinite(seen, state.seen)
            state = state._replace(seen=seen)
            metrics |= Metrics({}, {}, {"observation_scale": failed})
        if state.probe is not None:
            metrics = metrics | probe.compare(self, state, evaluation, told)
            state = state._replace(probe=probe.remember(state.probe, evaluation, told, self.config.discount))
        return state, metrics

    def update(self, state: LearnerState, batch: Batch, key: Array) -> tuple[LearnerState, Array, Metrics]:
        """One update of critic, actor and temperature. Returns the new absolute errors [B] as priorities.

        With anything non-finite in it, the critics' part changes nothing, nor does that of actor and temperature; the
        second likewise by itself.
        """
        key_critic, key_actor = jax.random.split(key)
        critic_grad, (stats, priorities, critic_metrics) = jax.grad(self.critic_loss, has_aux=True)(
            state.critics, state, batch, key_critic
        )
        critic_norm = optax.global_norm(critic_grad)
        good = finite((critic_norm, critic_metrics["critic_loss"], priorities, stats))
        steps, critic_optimiser = adam.step(critic_grad, state.critic_optimiser, self.config.critic_learning_rate, good)
        critics = jax.vmap(self.critic.project)(optax.apply_updates(state.critics, steps))
        critics, kept_stats = jax.tree.map(
            lambda new, old: jnp.where(good, new, old), (critics, stats), (state.critics, state.stats)
        )
        targets = state.targets
        if targets is not None:
            targets = optax.incremental_update(critics, targets, jnp.where(good, self.config.target_tau, 0.0))
        learnt = state._replace(
            critics=critics,
            stats=kept_stats,
            targets=targets,
            critic_optimiser=critic_optimiser,
            updates=state.updates + 1,
        )
        if state.probe is not None:
            learnt = learnt._replace(probe=probe.follow(state.probe, critics, kept_stats))

        learnt, actor_metrics = jax.lax.cond(
            state.updates % self.config.policy_delay == 0,
            lambda s: self._update_actor(s, batch, key_actor, good),
            lambda s: (s, self._no_actor_metrics()),
            learnt,
        )
        metrics = {
            **critic_metrics,
            **actor_metrics,
            "critic_gradient_norm": critic_norm,
            "effective_learning_rate": _kernel_norm(steps) / _kernel_norm(learnt.critics),
            "temperature": jnp.exp(learnt.log_temperature),
        }
        all_good, reported = checked(batch, priorities, metrics, stats)
        return learnt, jnp.where(all_good, priorities, jnp.nan), reported

    def critic_loss(
        self, critics: Params, state: LearnerState, batch: Batch, key: Array
    ) -> tuple[Array, tuple[Stats, Array, Means]]:
        """Cross-entropy to the projected target of the critic with the lower mean (Algorithm 1, lines 11-12)."""
        t, size = batch.transition, len(batch.weights)
        noise = jax.random.normal(key, t.action.shape)
        next_action, next_log_prob = self.policy.sample(*self.plain(state, state.actor), t.next_obs, noise)
        obs = jnp.concatenate([t.obs, t.next_obs])
        action = jnp.concatenate([t.action, next_action])

        joint, stats = self._apply(critics, state.stats, obs, action, train=True)  # [critics, 2 B, N]
        logits = joint[:, :size]
        if state.targets is None:
            next_logits = joint[:, size:]
        else:
            next_logits = self._apply(state.targets, state.stats, obs, action, train=True)[0][:, size:]
        next_logits = jax.lax.stop_gradient(next_logits)  # nothing else of the target depends on the critics

        # T z = r + gamma (1 - d) (z - alpha log pi): an affine map of the support
        discount = self.config.discount * (1.0 - t.terminal)
        entropy_bonus = -jnp.exp(state.log_temperature) * next_log_prob
        shift = self.scale(state) * t.reward + discount * entropy_bonus
        compare = self._squared_error if self.scalar else self._cross_entropy
        losses, target, extra = compare(logits, next_logits, shift, discount)
        loss = jnp.sum(jnp.mean(batch.weights * losses, axis=1))
        q = self._mean(logits)  # [critics, B]
        priorities = jnp.mean(jnp.abs(target - q), axis=0)
        raw = 1.0 / self.scale(state)
        metrics = {
            "critic_loss": loss / self.critic_config.critics,
            "q_mean": raw * jnp.mean(q),
            "q_spread": raw * jnp.std(q),
            "q_disagreement": raw * jnp.mean(jnp.max(q, 0) - jnp.min(q, 0)),
            "td_error": raw * jnp.mean(priorities),
            "td_error_spread": raw * jnp.std(priorities),
        }
        return loss, (stats, priorities, metrics | extra)

    def _cross_entropy(
        self, logits: Array, next_logits: Array, shift: Array, discount: Array
    ) -> tuple[Array, Array, Means]:
        """Losses [critics, B], the target's means [B], and how much of the target was clipped."""
        next_p, atoms = jax.nn.softmax(next_logits), self.atoms
        lower = jnp.argmin(categorical.mean(next_p, atoms), axis=0)  # [B]
        next_p = jnp.take_along_axis(next_p, lower[None, :, None], axis=0)[0]  # [B, N]
        target = categorical.project(next_p, shift, discount, atoms)
        below, above = categorical.clipped_mass(next_p, shift, discount, atoms)
        clipped = {"clipped_below": jnp.mean(below), "clipped_above": jnp.mean(above)}
        return categorical.cross_entropy(target, logits), categorical.mean(target, atoms), clipped

    def _squared_error(
        self, values: Array, next_values: Array, shift: Array, discount: Array
    ) -> tuple[Array, Array, Means]:
        """The same for scalar critics, whose targets nothing clips."""
        target = shift + discount * jnp.min(self._mean(next_values), axis=0)
        return jnp.square(self._mean(values) - target), target, {}

    def _mean(self, outputs: Array) -> Array:
        """The value that a critic's outputs [..., N] stand for. [...]"""
        return outputs[..., 0] if self.scalar else categorical.mean(jax.nn.softmax(outputs), self.atoms)

    def value(self, state: LearnerState, obs: Array, action: Array) -> Array:
        """The lower E[Z(s, a)] of the critics, in evaluation mode and scaled units. [B]"""
        return jnp.min(self._mean(self._apply(state.critics, state.stats, obs, action, train=False)[0]), axis=0)

    def _apply(self, critics: Params, stats: Stats, obs: Array, action: Array, *, train: bool) -> tuple[Array, Stats]:
        """Outputs of all critics [critics, B, N], and their running statistics after this batch."""

        def apply(params: Params, stats: Stats) -> tuple[Array, Stats]:
            return self.critic.apply(params, stats, obs, action, train=train)

        if self.critic_config.critics > 1:
            return jax.vmap(apply)(critics, stats)
        # Mapped over a single critic it takes half as long again on CPUs: XLA is slow at batched products of one.
        return jax.tree.map(lambda x: x[None], apply(*jax.tree.map(lambda x: x[0], (critics, stats))))

    def injected(self, state: LearnerState) -> Genotype:
        """The actor as a genotype: on raw observations, without its log-std head."""
        return self.plain(state, state.actor).policy

    def plain(self, state: LearnerState, actor: Actor) -> Actor:
        """An actor on raw observations that does what `actor` does on scaled ones."""
        return actor if state.seen is None else actor._replace(policy=moments.fold(state.seen, actor.policy))

    def head(self, state: LearnerState) -> Layer:
        """The actor's log-std head, with which it explores."""
        return state.actor.head

    def actor_loss(self, actor: Actor, state: LearnerState, obs: Array, noise: Array) -> tuple[Array, Array]:
        """``alpha log pi - E[Z]`` (Algorithm 1, lines 13-14), and the entropy estimate."""
        action, log_prob = self.policy.sample(*self.plain(state, actor), obs, noise)
        value = self.value(state, obs, action)
        return jnp.mean(jnp.exp(state.log_temperature) * log_prob - value), -jnp.mean(log_prob)

    def _update_actor(self, state: LearnerState, batch: Batch, key: Array, good: Array) -> tuple[LearnerState, Means]:
        noise = jax.random.normal(key, batch.transition.action.shape)
        (_, entropy), grad = jax.value_and_grad(self.actor_loss, has_aux=True)(
            state.actor, state, batch.transition.obs, noise
        )
        norm = optax.global_norm(grad)
        good = good & finite(norm)
        steps, actor_optimiser = adam.step(grad, state.actor_optimiser, self.config.actor_learning_rate, good)
        # d/d(log alpha) of alpha (H - H_target), with log alpha itself as the parameter (line 15)
        temperature_step, temperature_optimiser = adam.step(
            entropy - self.target_entropy, state.temperature_optimiser, self.config.temperature_learning_rate, good
        )
        state = state._replace(
            actor=optax.apply_updates(state.actor, steps),
            log_temperature=state.log_temperature + temperature_step,
            actor_optimiser=actor_optimiser,
            temperature_optimiser=temperature_optimiser,
        )
        # Only one update in `policy_delay` comes here: that many times the value makes the mean over all of them right.
        delay = self.config.policy_delay
        return state, {"actor_gradient_norm": delay * norm, "entropy": delay * entropy}

    def _with_initial_value(self, params: Params) -> Params:
        """Head bias of a broad bell around `initial_value`; nan leaves it uniform over the support.

        Near an end of the support the bell is narrower: cut off within 5/3 of its width it would have another mean. A
        scalar critic starts at the value itself, or in the middle.
        """
        v, atoms, scale = self.critic_config.initial_value, self.atoms, self._support_scale
        if self.scalar:
            start = jnp.mean(atoms) if v != v else v * scale
            return params | {"head": params["head"] | {"bias": jnp.full(1, start)}}
        if v != v:
            return params
        v *= scale
        width = jnp.minimum(0.1 * (atoms[-1] - atoms[0]), 0.6 * jnp.minimum(v - atoms[0], atoms[-1] - v))
        bias = -0.5 * jnp.square((atoms - v) / jnp.maximum(width, atoms[1] - atoms[0]))
        return params | {"head": params["head"] | {"bias": bias}}

    def _no_actor_metrics(self) -> Means:
        return {"actor_gradient_norm": jnp.float32(0), "entropy": jnp.float32(0)}


def _kernel_norm(critics: Params) -> Array:
    """Norm of all hidden kernels together."""
    hidden = [layer for name, layer in critics.items() if name != "head" and "kernel" in layer]
    return optax.global_norm([layer["kernel"] for layer in hidden])


def _unless_infinite(new: Any, old: Any) -> tuple[Any, Array]:
    """The new moments, or the old ones and a failure where their sums exceed what float32 can hold."""
    good = finite(new)
    return jax.tree.map(lambda x, y: jnp.where(good, x, y), new, old), (~good).astype(jnp.int32)
