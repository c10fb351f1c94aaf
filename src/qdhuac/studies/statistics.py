"""Statistics over seeds and tasks (Agarwal et al., 2021). NumPy alone, and pure.

`scores` are [..., runs, tasks]: any axes before those are kept, so that a whole bootstrap is one call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

Array = np.ndarray
REPETITIONS = 2000
LEVEL = 0.95


def iqm(scores: Array) -> Array:
    """Interquartile mean: the mean without the lowest and the highest quarter of all scores."""
    flat = np.sort(scores.reshape(*scores.shape[:-2], -1), axis=-1)
    size = flat.shape[-1]
    cut = int(0.25 * size)
    return np.mean(flat[..., cut : size - cut], axis=-1)


def probability_of_improvement(scores: Array, others: Array) -> Array:
    """The mean over tasks of the chance that a run of the first beats a run of the second; a tie counts half."""
    ours, theirs = scores[..., :, None, :], others[..., None, :, :]
    return np.mean((ours > theirs) + 0.5 * (ours == theirs), axis=(-3, -2, -1))


def profile(scores: Array, thresholds: Sequence[float] | Array) -> Array:
    """Share of all runs whose score is above each threshold. [..., thresholds]"""
    return np.mean(scores[..., None] > np.asarray(thresholds), axis=(-3, -2))


def interval(
    statistic: Callable[..., Array], *scores: Array, repetitions: int = REPETITIONS, seed: int = 0
) -> tuple[Any, Any]:
    """95 % percentile interval from a bootstrap in which each task draws its own runs, with replacement."""
    rng = np.random.default_rng(seed)
    drawn = statistic(*(_resample(rng, s, repetitions) for s in scores))
    low, high = np.quantile(drawn, [0.5 - LEVEL / 2, 0.5 + LEVEL / 2], axis=0)
    return low, high


def normalised(scores: dict[str, Array]) -> dict[str, Array]:
    """Scores per setting with, for each task, 0 at the lowest run of all settings and 1 at the highest."""
    every = np.concatenate(list(scores.values()))
    low, high = every.min(axis=0), every.max(axis=0)
    span = np.where(high > low, high - low, 1.0)
    return {name: (values - low) / span for name, values in scores.items()}


def spread(values: Array, axis: int = 0) -> Array:
    """Standard deviation of a sample, ignoring nan; 0 where there is only one value."""
    count = np.sum(np.isfinite(values), axis=axis)
    mean = np.nanmean(values, axis=axis, keepdims=True)
    return np.sqrt(np.nansum(np.square(values - mean), axis=axis) / np.maximum(count - 1, 1))


def steps_to_reach(steps: Sequence[float] | Array, values: Sequence[float] | Array, level: float) -> float | None:
    """The environment steps at which a curve is first at `level` or above; None if it never is."""
    return next((s for s, v in zip(steps, values, strict=True) if v >= level), None)


def at(steps: Sequence[float] | Array, values: Sequence[float] | Array, when: Sequence[float] | Array) -> Array:
    """A curve at other steps: its last value until then, nan before its first."""
    place = np.searchsorted(np.asarray(steps), np.asarray(when), side="right") - 1
    return np.where(place >= 0, np.asarray(values, float)[np.maximum(place, 0)], np.nan)


def _resample(rng: np.random.Generator, scores: Array, repetitions: int) -> Array:
    rows = rng.integers(len(scores), size=(repetitions, *scores.shape))
    return np.take_along_axis(scores[None], rows, axis=1)
