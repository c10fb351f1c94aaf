"""Legged robots as quality-diversity tasks, on Brax's environments and physics backends.

*Uni-directional* tasks run forward; their descriptor is, per foot, the share of steps with that foot on the ground.
*Omni-directional* tasks (``*_omni``) only have to stay alive and cheap; their descriptor is where they end up.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from qdhuac.config import check_choice
from qdhuac.environment import quiet_imports, quiet_models
from qdhuac.errors import UserError
from qdhuac.learning.policy import Policy
from qdhuac.tasks.rollout import AFTER_TERMINATION, final_value, rollout, share_of_steps
from qdhuac.types import Array, Evaluation, Exploration, Genotype, Task

BRAX_BACKENDS = ("mjx", "spring", "positional", "generalized")
FLOOR = "floor"
OMNI_REACH = 30.0  # metres in each direction that the omni-directional descriptors cover


@dataclasses.dataclass(frozen=True)
class TaskSpec:
    """What is known about a task without any simulator."""

    robot: str  # Brax's name
    feet: tuple[str, ...]  # names of geoms
    reward_offset: float  # per step
    support: tuple[float, float] = (-200.0, 1000.0)  # discounted returns to expect, in raw units
    omni: bool = False
    can_terminate: bool = True


_ANT = TaskSpec(
    "ant", ("left_foot_geom", "right_foot_geom", "third_foot_geom", "fourth_foot_geom"), 3.24, (-150.0, 2500.0)
)
_HUMANOID = TaskSpec("humanoid", ("right_foot", "left_foot"), 0.0, (-150.0, 1500.0))
SPECS: dict[str, TaskSpec] = {
    "hopper": TaskSpec("hopper", ("foot_geom",), 0.9),
    "walker2d": TaskSpec("walker2d", ("foot_geom", "foot_left_geom"), 1.413),
    "halfcheetah": TaskSpec("halfcheetah", ("bfoot", "ffoot"), 9.231, can_terminate=False),
    "ant": _ANT,
    "humanoid": _HUMANOID,
    # Without the forward term the worst step of Ant is 1 - 0.5 * 8 = -3; Humanoid's is positive.
    "ant_omni": dataclasses.replace(_ANT, omni=True, reward_offset=3.0),
    "humanoid_omni": dataclasses.replace(_HUMANOID, omni=True),
}


class Locomotion(Task):
    """A `Task`. Building it loads the model; the first `evaluate` compiles, about 20 s on MJX."""

    takes_runs = True

    def __init__(
        self,
        name: str,
        *,
        backend: str = "mjx",
        episode_length: int = 1000,
        after_termination: str = "reset",
        hidden: tuple[int, ...] = (256, 256),
        store_contacts: bool = False,
    ) -> None:
        check_choice("task", name, SPECS)
        check_choice("backend", backend, BRAX_BACKENDS)
        check_choice("after_termination", after_termination, AFTER_TERMINATION)
        if episode_length < 1:
            raise UserError(f"episode_length={episode_length!r}: must be at least 1")
        self.name, self.backend, self.spec = name, backend, SPECS[name]
        self.episode_length, self.after_termination = episode_length, after_termination
        self.store_contacts = check_contacts(name, store_contacts)
        self.reward_offset, self.support = self.spec.reward_offset, self.spec.support

        self.env = LeanEnvironment(make_brax(self.spec.robot, backend), forward=not self.spec.omni)
        # Brax's own `observation_size` runs a whole reset op by op, which takes 16 to 40 s.
        self.obs_size = int(jax.eval_shape(self.env.reset, jax.random.key(0)).obs.shape[-1])
        self.action_size = int(self.env.brax.action_size)
        self.policy = Policy(self.obs_size, self.action_size, tuple(hidden))

        self.contacts = foot_contacts(self.env.brax, self.spec)
        size = 2 if self.spec.omni else len(self.spec.feet)
        low, high = (-OMNI_REACH, OMNI_REACH) if self.spec.omni else (0.0, 1.0)
        self.descriptor_bounds = ((low,) * size, (high,) * size)
        self._evaluate = jax.jit(self._rollout)

    def evaluate(self, genotypes: Genotype, key: Array, exploration: Exploration | None = None) -> Evaluation:
        """One evaluation of each genotype; compiled once per batch size, and once more with exploration."""
        return self._evaluate(genotypes, key, exploration)

    def _rollout(self, genotypes: Genotype, key: Array, exploration: Exploration | None) -> Evaluation:
        return rollout(
            self.env,
            self.policy,
            genotypes,
            key,
            exploration,
            features=torso_position if self.spec.omni else self.contacts,
            describe=final_position if self.spec.omni else share_of_steps,
            episode_length=self.episode_length,
            after_termination=self.after_termination,
            can_terminate=self.spec.can_terminate,
            store_features=self.store_contacts,
        )


def check_contacts(name: str, store: bool) -> bool:
    """Whether transitions carry contacts, which only those tasks have whose descriptor is made of them."""
    if store and SPECS[name].omni:
        raise UserError(f"task {name!r}: its descriptor is not made of foot contacts, so there are none to store")
    return store


class LeanEnvironment:
    """A Brax environment whose states carry no metrics, with or without the reward for going forward."""

    def __init__(self, brax: Any, *, forward: bool = True) -> None:
        self.brax, self.forward = brax, forward

    def reset(self, key: Array) -> Any:
        return self.brax.reset(key).replace(metrics={}, info={})

    def step(self, state: Any, action: Array) -> Any:
        # Brax's step updates the dictionary of metrics in place: give it one of its own.
        state = self.brax.step(state.replace(metrics={}), action)
        reward = state.reward if self.forward else state.reward - state.metrics["forward_reward"]
        return state.replace(reward=reward, metrics={})


def make_brax(robot: str, backend: str) -> Any:
    """Brax's environment, without its noise."""
    with quiet_imports():
        from brax import envs
    with quiet_models():
        return envs.get_environment(robot, backend=backend)


def geom_ids(model: Any, robot: str, names: tuple[str, ...]) -> list[int]:
    """Indices of named geoms in a MuJoCo model; an error that names what there is, where one is missing."""
    known = [model.geom(i).name for i in range(model.ngeom)]
    for name in names:
        if name not in known:
            raise ValueError(f"robot {robot!r} has no geom {name!r}; its geoms are: {', '.join(known)}")
    return [known.index(name) for name in names]


def foot_contacts(env: Any, spec: TaskSpec) -> Callable[[Any], Array]:
    """A function from a state to which feet touch the floor [len(feet)] (1 or 0)."""
    floor, *feet = geom_ids(env.sys.mj_model, spec.robot, (FLOOR, *spec.feet))
    with quiet_imports():
        from brax import contact as brax_contact

    def contacts(state: Any) -> Array:
        physics = state.pipeline_state
        # MJX keeps the contacts of its last substep. The other backends only do so in a debug mode that collides
        # in every substep: once per step is enough.
        contact = physics._impl.contact if env.backend == "mjx" else brax_contact.get(env.sys, physics.x)
        if contact is None:
            raise ValueError(f"robot {spec.robot!r} on backend {env.backend!r}: the model has no contacts at all")
        touching = contact.dist <= 0.0  # [contacts]
        pairs = jnp.sort(contact.geom, axis=-1)  # [contacts, 2]
        hits = [jnp.any(touching & jnp.all(pairs == jnp.array(sorted((floor, foot))), axis=-1)) for foot in feet]
        return jnp.stack(hits).astype(jnp.float32)

    return contacts


def torso_position(state: Any) -> Array:
    """Where the robot is on the plane. [2]"""
    return state.pipeline_state.x.pos[0, :2]


def final_position(positions: Array, living: Array) -> Array:
    """Where the first episode ended, within the descriptor's bounds. [T, 2], [T] -> [2]"""
    end = final_value(positions, living)
    # A robot that exploded is nowhere: clipping would turn an infinity into an ordinary place.
    return jnp.where(jnp.isfinite(end), jnp.clip(end, -OMNI_REACH, OMNI_REACH), jnp.nan)
