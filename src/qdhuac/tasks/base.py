"""What a task is: everything that algorithms, training, evaluation, viewing and export ask of it.

A task of your own is any object with a `spec`, a `policy` and `evaluate`; it need not inherit from anything here.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

from qdhuac.errors import UserError, check_bounds, check_flag, check_number, check_whole, shown
from qdhuac.keys import check_choice
from qdhuac.learning.policy import Policy
from qdhuac.types import Array, Evaluation, Exploration, Genotype

AFTER_TERMINATION = ("reset", "stop")
Bounds = tuple[Sequence[float], Sequence[float]]  # lowest and highest, one number per dimension


@dataclasses.dataclass(frozen=True)
class TaskSpec:
    """The facts about a task. All but the first two have defaults.

    Args:
        descriptor_bounds: Lowest and highest descriptor, each with one number per dimension.
        episode_length: Steps of an episode.
        reward_offset: Added per step in the QD score, so that no policy counts less than nothing.
        support: The range of discounted returns to expect; nan: unknown. QDHUAC's critic needs it.
        after_termination: What follows an early end of an episode: "reset" or "stop".
        contacts: Transitions carry one feature per dimension of the descriptor, as QD-PG needs.
        action_bounds: What actions of -1 and of 1 stand for; None if they are used as they are.
        takes_runs: `evaluate` also accepts the keys of several runs, whose genotypes follow one another.
        labels: What figures call the dimensions of the descriptor; empty: their numbers.
    """

    descriptor_bounds: Bounds
    episode_length: int
    reward_offset: float = 0.0
    support: tuple[float, float] = (math.nan, math.nan)
    after_termination: str = "stop"
    contacts: bool = False
    action_bounds: tuple[list[float], list[float]] | None = None
    takes_runs: bool = False
    labels: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "descriptor_bounds", check_bounds("descriptor_bounds", self.descriptor_bounds))
        check_whole("episode_length", self.episode_length, 1)
        check_number("reward_offset", self.reward_offset)
        try:
            low, high = self.support
            sound = (math.isnan(low) and math.isnan(high)) or -math.inf < low < high < math.inf
        except (TypeError, ValueError):
            sound = False
        if not sound:
            raise UserError(f"support={shown(self.support)}: expected (lowest, highest), finite, a low below a high")
        check_choice("after_termination", self.after_termination, AFTER_TERMINATION)
        check_flag("contacts", self.contacts)
        check_flag("takes_runs", self.takes_runs)
        if self.action_bounds is not None:
            check_bounds("action_bounds", self.action_bounds, ordered=False)

    @property
    def descriptor_size(self) -> int:
        """The number of dimensions of a descriptor."""
        return len(self.descriptor_bounds[0])


@runtime_checkable
class Task(Protocol):
    """How genotypes fare."""

    @property
    def spec(self) -> TaskSpec:
        """The facts about the task."""

    @property
    def policy(self) -> Policy | None:
        """The network whose parameters are a genotype; None if genotypes are something else."""

    def evaluate(self, genotypes: Genotype, key: Array, exploration: Exploration | None = None) -> Evaluation:
        """One evaluation of each genotype, leaves [B, ...]. The result depends on nothing but the arguments."""


class Trajectory(NamedTuple):
    """An episode of `T` steps, to be looked at; it ends where the robot fell."""

    qpos: np.ndarray  # [T + 1, nq] the pose at the start and after each step
    reward: np.ndarray  # [T]
    contacts: np.ndarray  # [T, feet] 1 where a foot is on the ground; no columns for a task without feet
    dt: float  # seconds per step


@runtime_checkable
class Viewable(Task, Protocol):
    """A task with a MuJoCo model, which can be viewed and rendered."""

    @property
    def model(self) -> Any:
        """The `mujoco.MjModel` that is drawn."""

    def episode(self, genotype: Genotype, key: Array) -> Trajectory:
        """The first episode of one genotype, leaves without a batch. A key always gives the same start."""


def policy_of(task: Task) -> Policy:
    """The task's policy, for those whose genotypes are policies."""
    if task.policy is None:
        raise UserError("task.policy: missing; the genotypes of this algorithm are policies")
    return task.policy
