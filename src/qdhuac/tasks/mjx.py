"""The robots on MJX: a whole batch of episodes in one compiled program, for accelerators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from qdhuac.environment import quiet_imports
from qdhuac.tasks import model
from qdhuac.tasks.locomotion import Locomotion
from qdhuac.tasks.rollout import rollout
from qdhuac.types import Array, Evaluation, Exploration, Genotype

with quiet_imports():
    from mujoco import mjx


class MjxState(NamedTuple):
    """A robot after a step."""

    data: Any  # MJX's
    obs: Array
    reward: Array
    done: Array
    features: Array  # what the descriptor is made of
    progress: Array


class MjxLocomotion(Locomotion):
    """A `Task`. The first `evaluate` compiles, about 20 s."""

    backend = "mjx"
    takes_runs = True

    def __init__(self, name: str, **options: Any) -> None:
        super().__init__(name, **options)
        self.physics = mjx.put_model(self.model)
        self._evaluate = jax.jit(self._rollout)

    def evaluate(self, genotypes: Genotype, key: Array, exploration: Exploration | None = None) -> Evaluation:
        """One evaluation of each genotype; compiled once per batch size, and once more with exploration."""
        return self._evaluate(genotypes, key, exploration)

    def reset(self, key: Array) -> MjxState:
        """The start of an episode."""
        return self.state(self.data(*self.start(key)))

    def data(self, qpos: Array, qvel: Array) -> Any:
        """MJX's data of a robot at a pose with velocities."""
        return mjx.forward(self.physics, mjx.make_data(self.physics).replace(qpos=qpos, qvel=qvel))

    def step(self, state: MjxState, action: Array) -> MjxState:
        """One environment step."""
        control = self.tables.control
        data = state.data.replace(ctrl=action * control[:, 0] + control[:, 1])
        data = jax.lax.fori_loop(0, self.tables.frames, lambda _, data: mjx.step(self.physics, data), data)
        after = self.state(data)
        return after._replace(reward=self.reward(after.progress - state.progress, action))

    def state(self, data: Any) -> MjxState:
        """What there is to see of MJX's data; the reward is that of no step."""
        t, look = self.tables, self._reader(data)
        watched, features = look(t.watched), look(t.features)
        healthy = jnp.all((t.bounds[:, 0] < watched) & (watched < t.bounds[:, 1]))
        if not self.robot.omni:  # the lowest point of each foot, a sphere or a capsule, touches the floor
            height = features - t.reach * jnp.abs(data.geom_xmat.reshape(-1)[t.tilt]) - t.radius
            features = (height <= 0.0).astype(jnp.float32)
        obs = jnp.clip(look(t.observed), -t.limit, t.limit)
        return MjxState(data, obs, jnp.float32(0.0), 1.0 - healthy.astype(jnp.float32), features, look(t.progress))

    def _reader(self, data: Any) -> Callable[[np.ndarray], Array]:
        """A function from entries [..., 2] to the numbers that they are."""
        t = self.tables
        used = np.unique(
            np.concatenate([x.reshape(-1, 2)[:, 0] for x in (t.observed, t.watched, t.progress, t.features)])
        )
        parts = [self._field(data, int(field)).reshape(-1) for field in used]
        starts = np.zeros(len(model.NAMES), int)
        starts[used] = np.cumsum([0, *(part.size for part in parts[:-1])])
        numbers = jnp.concatenate(parts)
        return lambda entries: numbers[starts[entries[..., 0]] + entries[..., 1]]

    def _field(self, data: Any, field: int) -> Array:
        m = self.model
        if field == model.CINERT:  # about the centre of mass of the whole, as MuJoCo has it; no public field of MJX
            arm, mass = data.xipos - data.subtree_com[1], m.body_mass[:, None, None]
            square = jnp.sum(arm**2, -1)[:, None, None] * jnp.eye(3) - arm[:, :, None] * arm[:, None, :]
            inertia = (data.ximat * m.body_inertia[:, None, :]) @ data.ximat.swapaxes(1, 2) + mass * square
            symmetric = [inertia[:, i, j] for i, j in ((0, 0), (1, 1), (2, 2), (0, 1), (0, 2), (1, 2))]
            return jnp.stack([*symmetric, *(m.body_mass[:, None] * arm).T, jnp.asarray(m.body_mass)], axis=1)
        if field == model.COM_VELOCITY:
            spin, linear = data.cvel[1:, :3], data.cvel[1:, 3:]
            velocity = linear + jnp.cross(spin, data.xipos[1:] - data.subtree_com[1])
            return jnp.concatenate([velocity * self.tables.mass_share[:, None], spin], axis=1)
        return getattr(data, model.NAMES[field])

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
            can_terminate=self.robot.can_terminate,
            store_features=self.spec.contacts,
        )
