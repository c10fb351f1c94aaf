"""Random policies on a task file, and what is wrong or odd about it."""

from __future__ import annotations

import dataclasses
import time
from typing import Any, NamedTuple

import jax
import numpy as np

from qdhuac.environment import quiet_imports
from qdhuac.tasks import engine
from qdhuac.tasks.base import Trajectory
from qdhuac.tasks.model import entries
from qdhuac.tasks.native import NativeTask
from qdhuac.tasks.tables import plan
from qdhuac.tasks.task_file import COSTS, TaskFile

POLICIES, STEPS = 64, 200
DISCOUNT = 0.99
SLOW = 1000  # steps per second below which a run of a million steps takes a quarter of an hour and more


@dataclasses.dataclass
class Trial:
    """What random policies did: facts, and what is wrong (it cannot train) or odd (it may not do what is meant)."""

    facts: list[str] = dataclasses.field(default_factory=list)
    wrong: list[str] = dataclasses.field(default_factory=list)
    odd: list[str] = dataclasses.field(default_factory=list)


class Seen(NamedTuple):
    """Episodes of random policies on a task."""

    task: NativeTask
    genotypes: Any
    key: Any
    found: Any  # an Evaluation, in NumPy
    finite: np.ndarray  # [POLICIES] which episodes are

    @property
    def per_step(self) -> np.ndarray:
        """The mean reward of each policy whose episode is finite."""
        return (self.found.fitness / self.found.steps)[self.finite]


def check(file: TaskFile, seed: int = 0) -> tuple[Trial, Trajectory, Any]:
    """Simulate random policies. Returns what there is to say, the first episode of the best, and its model."""
    # One descriptor with the dimensions of all: they are measured in one go.
    every = tuple(one for name in file.descriptors for one in file.dimensions(name))
    whole = dataclasses.replace(file, descriptors={"all": every}, descriptor="all")
    task = NativeTask(whole, episode_length=STEPS, after_termination="stop", hidden=(64, 64))
    for name in file.descriptors:  # so that errors name the descriptor
        plan(file, task.model, name)
    key, key_run = jax.random.split(jax.random.key(seed))
    genotypes = jax.vmap(task.policy.init)(jax.random.split(key, POLICIES))
    found, _ = _evaluate(task, genotypes, key_run)  # compiles
    found, seconds = _evaluate(task, genotypes, key_run)
    finite = np.isfinite(found.fitness) & np.isfinite(found.descriptor).all(1)
    finite &= np.isfinite(found.transitions.next_obs).all((1, 2))
    seen, trial = Seen(task, genotypes, key_run, found, finite), Trial()
    _model(trial, task, found.steps.sum() / seconds)
    _starts(trial, task)
    if not finite.all():
        trial.wrong.append(
            f"physics: {(~finite).sum()} of {POLICIES} episodes are not finite; "
            "a shorter timestep, weaker actuators or more damping make a model stable"
        )
    if finite.any():
        _ends(trial, file, found.steps)
        _observes(trial, seen)
        _rewards(trial, file, seen)
        _describes(trial, file, found.descriptor[finite])
    best = int(np.argmax(np.where(finite, found.fitness, -np.inf)))
    return trial, task.episode(jax.tree.map(lambda x: x[best], genotypes), key_run), task.model


def _evaluate(task: NativeTask, genotypes: Any, key: Any) -> tuple[Any, float]:
    begin = time.perf_counter()
    found = jax.tree.map(np.asarray, task.evaluate(genotypes, key))
    return found, time.perf_counter() - begin


def _model(trial: Trial, task: NativeTask, speed: float) -> None:
    m, sizes = task.model, f"{task.policy.obs_size} observations, {task.policy.action_size} actions"
    trial.facts.append(f"model: {m.nv} degrees of freedom, {m.body_mass.sum():.3g} kg; {sizes}, {task.dt:.3g} s each")
    with quiet_imports():
        from mujoco import mjx
    try:
        mjx.put_model(m)
        trial.facts.append("backends: native and mjx")
    except (NotImplementedError, ValueError) as error:
        trial.facts.append(f"backends: native; MJX refuses the model: {' '.join(str(error).split())}")
    trial.facts.append(f"speed: {_about(speed)} steps per second on {task.threads} cores, native")
    if speed < SLOW:
        trial.odd.append(f"speed: a million steps take {1e6 / speed / 3600:.1f} hours; fewer frames or contacts help")


def _starts(trial: Trial, task: NativeTask) -> None:
    """What ends an episode must not be so at the start."""
    simulation = engine.Simulation(task.model)
    engine.restart(simulation.addresses, simulation.fields, task.pose, np.zeros(task.model.nv))
    engine.compute(task.tables, simulation.fields)
    for i, part in enumerate(task.file.healthy):
        values = [simulation.fields[entry.field][entry.at] for entry in entries(part, task.model)]
        outside = [value for value in values if not part.low < value < part.high]
        if outside:
            trial.wrong.append(
                f"healthy: {i}: is {outside[0]:.3g} at the start, not between {part.low:g} and {part.high:g}"
            )


def _ends(trial: Trial, file: TaskFile, steps: np.ndarray) -> None:
    if not file.can_terminate:
        return
    early = steps < STEPS
    share, median = early.mean(), np.median(steps)
    trial.facts.append(
        f"episodes: {share:.0%} of them end in the first {STEPS} steps; half of them by step {median:.0f}"
    )
    if median <= 5:
        trial.wrong.append(f"healthy: half of the episodes end within {median:.0f} steps")
    elif median <= 20:
        trial.odd.append(f"healthy: half of the episodes end within {median:.0f} steps; there is little to learn from")


def _observes(trial: Trial, seen: Seen) -> None:
    """Networks learn slowly from observations that are far from 1."""
    largest = np.abs(seen.found.transitions.obs[seen.finite]).max((0, 1))
    at = int(largest.argmax())
    if largest[at] > 100:
        trial.odd.append(f"observation: number {at} is up to {largest[at]:.3g}; give its part a limit")


def _rewards(trial: Trial, file: TaskFile, seen: Seen) -> None:
    low, high = float(seen.per_step.min()), float(seen.per_step.max())
    trial.facts.append(f"reward: {low:.3g} to {high:.3g} per step, on average {seen.per_step.mean():.3g}; of it:")
    means = _means_of_terms(seen)
    for i, (term, mean) in enumerate(zip(file.reward, means, strict=True)):
        others = max((abs(x) for j, x in enumerate(means) if j != i), default=0.0)
        trial.facts.append(f"    {term.term}: {mean:.3g} per step")
        if mean == 0:
            trial.odd.append(f"reward: {i}: {term.term}: is always 0")
        elif term.term in COSTS and -mean > 10 * others > 0:
            less = _two_digits(-term.weight * 0.3 * others / mean)
            trial.odd.append(f"reward: {i}: {term.term}: outweighs all other terms; try weight = {less:g}")
    if high - low < 1e-3 * max(abs(high), abs(low)):
        trial.odd.append("reward: is the same for all policies")
    if max(abs(low), abs(high)) > 100:
        trial.odd.append("reward: is large; aim at about 1 per step with the weights")
    if low + file.reward_offset < 0:
        offset = _two_digits(-1.2 * low)
        trial.odd.append(f"reward_offset={file.reward_offset:g}: some policies count less than nothing; try {offset:g}")
    least, most = np.array([low, high]) / (1.0 - DISCOUNT)
    if not (file.support[0] <= least and most <= file.support[1]):
        span = max(most - least, abs(least), abs(most))
        advice = f"[{_two_digits(min(least, 0) - 0.2 * span):g}, {_two_digits(max(most, 0) + 2 * span):g}]"
        trial.odd.append(
            f"support={list(file.support)}: random policies return {least:.3g} to {most:.3g}, discounted; try {advice}"
        )


def _means_of_terms(seen: Seen) -> list[float]:
    """The mean of each term per step, in the same episodes."""
    task, means, whole = seen.task, [], seen.task.plan
    for one in whole.terms:
        task.plan = whole._replace(terms=(one,))
        found, _ = _evaluate(task, seen.genotypes, seen.key)
        means.append(float(np.mean(seen._replace(found=found).per_step)))
    task.plan = whole
    return means


def _describes(trial: Trial, file: TaskFile, values: np.ndarray) -> None:
    columns = iter(values.T)
    for name in file.descriptors:
        for i, one in enumerate(file.dimensions(name)):
            column, (low, high) = next(columns), one.bounds
            least, most = column.min(), column.max()
            trial.facts.append(f"descriptor {name}: {one.title}: {least:.3g} to {most:.3g} of {low:g} to {high:g}")
            at_bound = np.mean((column <= low) | (column >= high))
            if most - least < 0.001 * (high - low):
                trial.odd.append(f"descriptors: {name}: {i}: {one.title}: never varies, it is always {least:.3g}")
            elif at_bound > 0.2 and one.kind not in ("contact", "frequency"):
                text = f"is at a bound in {at_bound:.0%} of the episodes; widen the bounds"
                trial.odd.append(f"descriptors: {name}: {i}: {one.title}: {text}")


def _two_digits(value: float) -> float:
    return float(f"{value:.1e}")


def _about(value: float) -> str:
    return f"{_two_digits(value):,.0f}".replace(",", " ")
