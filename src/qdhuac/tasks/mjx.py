"""Tasks from files on MJX: a whole batch of episodes in one compiled program, for accelerators."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from qdhuac.environment import quiet_imports
from qdhuac.errors import UserError
from qdhuac.tasks import measures, model, noise
from qdhuac.tasks.mujoco_task import MujocoTask, Start
from qdhuac.tasks.rollout import rollout
from qdhuac.tasks.task_file import TaskFile
from qdhuac.types import Array, Evaluation, Exploration, Genotype

with quiet_imports():
    from mujoco import mjx


class MjxState(NamedTuple):
    """A simulation after a step."""

    data: Any  # MJX's
    obs: Array
    reward: Array
    done: Array
    features: Array  # what the descriptor is made of
    moving: Array  # numbers of which the reward needs the change
    since: Array  # steps of the episode so far
    actions: Array  # [delay + 1, A] the last ones, the newest first
    start: Start


class MjxTask(MujocoTask):
    """A `Task`. The first `evaluate` compiles, about 20 s. The arguments are those of `MujocoTask`."""

    backend = "mjx"
    takes_runs = True

    def __init__(self, task: str | Path | TaskFile, **options: Any) -> None:
        super().__init__(task, **options)
        try:
            self.physics = mjx.put_model(self.model)
        except NotImplementedError as error:
            raise UserError(f"{self.file.model}: MJX cannot simulate it ({error}); use --backend native") from None
        self._evaluate = jax.jit(self._rollout)
        self._longest_delay = self.tables.delay + (self.file.variation.delay[1] if self.vary else 0)

    def evaluate(self, genotypes: Genotype, key: Array, exploration: Exploration | None = None) -> Evaluation:
        """One evaluation of each genotype; compiled once per batch size, and once more with exploration."""
        return self._evaluate(genotypes, key, exploration)

    def reset(self, key: Array) -> MjxState:
        """The start of an episode."""
        start = self.start(key)
        return self.state(self.data(start), start)

    def data(self, start: Start) -> Any:
        """MJX's data at the start of an episode."""
        physics = self._varied(start.factors)
        return mjx.forward(physics, mjx.make_data(self.physics).replace(qpos=start.qpos, qvel=start.qvel))

    def step(self, state: MjxState, action: Array) -> MjxState:
        """One environment step."""
        t, v, factors = self.tables, self.file.variation, state.start.factors
        physics, data = self._varied(factors), state.data
        actions = jnp.concatenate([action[None], state.actions[:-1]])
        told = actions[t.delay]
        if self.vary:
            told = actions[t.delay + factors[-1].astype(int)]
            if v.push:
                drawn = noise.uniform(state.start.seed, state.since, 2 * len(t.observed) + jnp.arange(len(t.pushed)))
                is_due = (state.since > 0) & (state.since % v.push_every == 0)
                push = jnp.where(is_due, v.push * (2.0 * drawn - 1.0), 0.0)
                data = data.replace(qvel=data.qvel.at[t.pushed].add(push))
        data = data.replace(ctrl=told * t.control[:, 0] + t.control[:, 1])
        data = jax.lax.fori_loop(0, t.frames, lambda _, data: mjx.step(physics, data), data)
        after, measured = self._see(data, state.start, state.since + 1, actions)
        reward = self.reward(measured, after.moving - state.moving, action, state.actions[0])
        return after._replace(reward=reward)

    def state(self, data: Any, start: Start) -> MjxState:
        """What there is to see of MJX's data at the start of an episode."""
        still = jnp.zeros((self._longest_delay + 1, self.policy.action_size))
        return self._see(data, start, jnp.int32(0), still)[0]

    def _see(self, data: Any, start: Start, since: Array, actions: Array) -> tuple[MjxState, Array]:
        """The state, with the reward of no step, and what is measured."""
        t, look = self.tables, self._reader(data, actions[0])
        watched = look(t.watched)
        healthy = jnp.all((t.bounds[:, 0] < watched) & (watched < t.bounds[:, 1]))
        vertical = data.geom_xmat.reshape(-1, 3, 3)[t.feet, 2]
        below = t.radius + jnp.sum(t.half * jnp.abs(vertical), -1) + jnp.linalg.norm(t.round * vertical, axis=-1)
        measured = jnp.concatenate([data.geom_xpos[t.feet, 2] - below, look(t.numbers)])
        features = measures.features(self.plan, measured)
        obs = jnp.clip(look(t.observed), -t.limit, t.limit)
        if self.vary and self.file.variation.observation_noise:
            obs = obs + self.file.variation.observation_noise * noise.normal(start.seed, since, len(t.observed))
        done = 1.0 - healthy.astype(jnp.float32)
        seen = MjxState(data, obs, jnp.float32(0.0), done, features, look(t.moving), since, actions, start)
        return seen, measured

    def _varied(self, factors: Array) -> Any:
        """The model of an episode."""
        if not self.vary:
            return self.physics
        m, bodies = self.model, self.model.nbody
        mass, friction, strength = factors[:bodies], factors[bodies], factors[bodies + 1 : -1]
        scaled = {
            "body_mass": m.body_mass * mass,
            "body_inertia": m.body_inertia * mass[:, None],
            "body_subtreemass": jnp.asarray(self._below) @ (m.body_mass * mass),
            "geom_friction": m.geom_friction * friction,
            "actuator_gainprm": m.actuator_gainprm * jnp.where(np.arange(10) < 1, strength[:, None], 1.0),
            "actuator_biasprm": m.actuator_biasprm * jnp.where(np.arange(10) < 3, strength[:, None], 1.0),
        }
        return self.physics.tree_replace({name: value.astype(jnp.float32) for name, value in scaled.items()})

    @functools.cached_property
    def _below(self) -> np.ndarray:
        """Which bodies [nbody, nbody] belong to the subtree of each."""
        below = np.eye(self.model.nbody)
        for body in range(self.model.nbody - 1, 0, -1):
            below[self.model.body_parentid[body]] += below[body]
        return below

    def _reader(self, data: Any, action: Array) -> Callable[[np.ndarray], Array]:
        """A function from entries [..., 2] to the numbers that they are."""
        t = self.tables
        used = np.unique(np.concatenate([x[:, 0] for x in (t.observed, t.watched, t.numbers, t.moving)]))
        parts = [self._field(data, action, int(field)).reshape(-1) for field in used]
        starts = np.zeros(len(model.NAMES), int)
        starts[used] = np.cumsum([0, *(part.size for part in parts[:-1])])
        numbers = jnp.concatenate(parts)
        return lambda entries: numbers[starts[entries[..., 0]] + entries[..., 1]]

    def _field(self, data: Any, action: Array, field: int) -> Array:
        """A whole field."""
        m = self.model
        if field == model.CINERT:  # about the centre of mass of the whole, as MuJoCo has it; no public field of MJX
            mass = m.body_mass[:, None, None]
            arm = data.xipos - data.subtree_com[m.body_rootid]
            square = jnp.sum(arm**2, -1)[:, None, None] * jnp.eye(3) - arm[:, :, None] * arm[:, None, :]
            inertia = (data.ximat * m.body_inertia[:, None, :]) @ data.ximat.swapaxes(1, 2) + mass * square
            symmetric = [inertia[:, i, j] for i, j in ((0, 0), (1, 1), (2, 2), (0, 1), (0, 2), (1, 2))]
            return jnp.stack([*symmetric, *(m.body_mass[:, None] * arm).T, jnp.asarray(m.body_mass)], axis=1)
        if field == model.COM_VELOCITY:
            spin, linear = data.cvel[1:, :3], data.cvel[1:, 3:]
            velocity = linear + jnp.cross(spin, data.xipos[1:] - data.subtree_com[m.body_rootid[1:]])
            return jnp.concatenate([velocity * self.tables.mass_share[:, None], spin], axis=1)
        if field == model.ANGLES:
            x = data.xmat.reshape(-1, 9)
            tilt, pitch = jnp.arccos(jnp.clip(x[:, 8], -1, 1)), jnp.arcsin(jnp.clip(-x[:, 6], -1, 1))
            return jnp.stack([tilt, pitch, jnp.arctan2(x[:, 7], x[:, 8]), jnp.arctan2(x[:, 3], x[:, 0])], axis=1)
        if field == model.POWER:
            return jnp.sum(jnp.abs(data.qfrc_actuator * data.qvel))
        return action if field == model.ACTION else getattr(data, model.NAMES[field])

    def _rollout(self, genotypes: Genotype, key: Array, exploration: Exploration | None) -> Evaluation:
        return rollout(
            self,
            self.policy,
            genotypes,
            key,
            exploration,
            features=lambda state: state.features,
            describe=self.describe,
            episode_length=self.spec.episode_length,
            after_termination=self.spec.after_termination,
            can_terminate=self.file.can_terminate,
            contacts=self.contacts if self.spec.contacts else None,
        )
