"""Intelligent Trial and Error (Cully et al., 2015): find an individual that still works, in a few trials.

The prior mean is the fitness in the archive. A Gaussian process over the descriptors models the difference to it, so
that a trial also informs about individuals with similar behaviour.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence

import numpy as np

from qdhuac.environment import require

# The paper's constants.
LENGTH_SCALE = 0.4  # of the kernel; descriptors are from 0 to 1
NOISE = 0.001  # variance of a trial; that of the process is 1
KAPPA = 0.05  # weight of the standard deviation in the choice of the next trial
ALPHA = 0.9  # stop at this share of the highest expected fitness


@dataclasses.dataclass(frozen=True)
class Trial:
    """One trial."""

    index: int
    expected: float
    fitness: float  # not finite if the trial failed


def search(
    descriptor: np.ndarray, prior: np.ndarray, attempt: Callable[[int], float], trials: int
) -> tuple[list[Trial], bool]:
    """Try individuals until one is good enough.

    Args:
        descriptor: descriptors, scaled to 0 to 1 [N, D].
        prior: fitness before the damage [N].
        attempt: returns the fitness of an individual now. A failed trial, which is not finite, counts as the lowest
            fitness of the archive and of all trials.
        trials: at most so many.

    Returns:
        The trials, and whether the best one reaches `ALPHA` of the highest expected fitness.
    """
    # In units of the range of fitness in the archive, the process has variance 1.
    prior = np.asarray(prior, float)
    scale = float(np.ptp(prior)) or 1.0
    done: list[Trial] = []
    counted: list[float] = []
    while True:
        tried = [trial.index for trial in done]
        mean, std = posterior(descriptor, prior / scale, tried, np.array(counted) / scale)
        found = best(done).fitness if done else math.nan
        enough = math.isfinite(found) and good_enough(found, scale * float(mean.max()))
        if enough or len(done) == min(trials, len(prior)):
            return done, enough
        promise = mean + KAPPA * std
        promise[tried] = -np.inf
        index = int(promise.argmax())
        fitness = float(attempt(index))
        done.append(Trial(index, scale * float(mean[index]), fitness))
        counted.append(fitness if math.isfinite(fitness) else min([*counted, float(prior.min())]))


def best(trials: Sequence[Trial]) -> Trial:
    """The fittest trial that did not fail, or the first one if all failed."""
    return max(trials, key=lambda trial: trial.fitness if math.isfinite(trial.fitness) else -math.inf)


def good_enough(found: float, expected: float) -> bool:
    """The rule to stop. A share of an expected fitness of 0 or less means nothing, so the search continues."""
    return expected > 0.0 and found >= ALPHA * expected


def posterior(
    descriptor: np.ndarray, prior: np.ndarray, tried: list[int], fitness: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation of the fitness of all individuals [N], given the `fitness` of the tried ones."""
    if not tried:
        return prior, np.ones(len(prior))
    process = require("sklearn.gaussian_process", "adapt")
    kernel = process.kernels.Matern(length_scale=LENGTH_SCALE, nu=2.5)
    model = process.GaussianProcessRegressor(kernel, alpha=NOISE, optimizer=None)
    model.fit(descriptor[tried], fitness - prior[tried])
    mean, std = model.predict(descriptor, return_std=True)
    return prior + mean, std
