"""Statistics over seeds and tasks (Agarwal et al., 2021).

`scores` are [..., runs, tasks]. Leading axes are kept, so that a whole bootstrap is one call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from scipy.stats import trim_mean

Array = np.ndarray
LEVEL = 0.95


def iqm(scores: Array) -> Array:
    """Interquartile mean: the mean without the lowest and the highest quarter of all scores."""
    return trim_mean(scores.reshape(*scores.shape[:-2], -1), 0.25, axis=-1)


def probability_of_improvement(scores: Array, others: Array) -> Array:
    """Probability that a run of the first has a higher score than one of the second, averaged over tasks."""
    ours, theirs = scores[..., :, None, :], others[..., None, :, :]
    return np.mean((ours > theirs) + 0.5 * (ours == theirs), axis=(-3, -2, -1))


def profile(scores: Array, thresholds: Sequence[float] | Array) -> Array:
    """Share of all scores above each threshold. [..., thresholds]"""
    return np.mean(scores[..., None] > np.asarray(thresholds), axis=(-3, -2))


def interval(statistic: Callable[..., Array], *scores: Array, repetitions: int = 2000) -> tuple[Any, Any]:
    """95 % percentile interval of a statistic, from a bootstrap that resamples the runs of each task separately."""
    rng = np.random.default_rng(0)
    rows = [rng.integers(len(s), size=(repetitions, *s.shape)) for s in scores]
    drawn = statistic(*(np.take_along_axis(s[None], r, axis=1) for s, r in zip(scores, rows, strict=True)))
    low, high = np.quantile(drawn, [0.5 - LEVEL / 2, 0.5 + LEVEL / 2], axis=0)
    return low, high


def normalised(scores: dict[str, Array]) -> dict[str, Array]:
    """Scores of each setting, scaled so that each task's lowest run over all settings has 0 and its highest 1."""
    every = np.concatenate(list(scores.values()))
    low, high = every.min(axis=0), every.max(axis=0)
    span = np.where(high > low, high - low, 1.0)
    return {name: (values - low) / span for name, values in scores.items()}


def spread(values: Array, axis: int = 0) -> Array:
    """Standard deviation of a sample, ignoring nan. It is 0 for a single value."""
    count = np.sum(np.isfinite(values), axis=axis)
    mean = np.nanmean(values, axis=axis, keepdims=True)
    return np.sqrt(np.nansum(np.square(values - mean), axis=axis) / np.maximum(count - 1, 1))


def steps_to_reach(steps: Sequence[float] | Array, values: Sequence[float] | Array, level: float) -> float | None:
    """The environment steps at which a curve first reaches `level`, or None."""
    return next((s for s, v in zip(steps, values, strict=True) if v >= level), None)


def at(steps: Sequence[float] | Array, values: Sequence[float] | Array, when: Sequence[float] | Array) -> Array:
    """The last value of a curve at or before the steps `when`, nan before its first."""
    place = np.searchsorted(np.asarray(steps), np.asarray(when), side="right") - 1
    return np.where(place >= 0, np.asarray(values, float)[np.maximum(place, 0)], np.nan)
