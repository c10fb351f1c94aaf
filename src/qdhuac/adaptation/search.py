"""Intelligent Trial and Error (Cully et al., 2015): which individual of an archive still works, in a few trials.

The archive's fitness is what is expected of an individual before any trial. A Gaussian process over the descriptors
models by how much the trials differ from that, so that one trial also tells about those who behave alike.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence

import numpy as np

from qdhuac.environment import require

# The paper's constants.
LENGTH_SCALE = 0.4  # of the kernel, in descriptors from 0 to 1
NOISE = 0.001  # variance of a trial; 1 is that of the process
KAPPA = 0.05  # what a standard deviation is worth when somebody is chosen for a trial
ALPHA = 0.9  # it is enough to have found this share of what may be expected of anybody


@dataclasses.dataclass(frozen=True)
class Trial:
    """One trial."""

    index: int
    expected: float
    fitness: float  # not finite if the trial failed


def search(
    descriptor: np.ndarray, prior: np.ndarray, attempt: Callable[[int], float], trials: int
) -> tuple[list[Trial], bool]:
    """Trials of individuals with descriptors from 0 to 1 [N, D] and fitness before the damage [N].

    `attempt(index)` gives the fitness now. It ends after `trials`, when everybody has been tried, or when the best
    so far is as good as `ALPHA` of the best that is expected of anybody; that is the second value. From a failed trial
    it learns as from one with the lowest fitness that the archive or a trial has.
    """
    # The process has variance 1 where fitness is measured by how much it differs within the archive.
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
    """The fittest of the trials that did not fail; of failed ones, the first."""
    return max(trials, key=lambda trial: trial.fitness if math.isfinite(trial.fitness) else -math.inf)


def good_enough(found: float, expected: float) -> bool:
    """The rule to stop. A share of nothing says nothing: as long as nobody is expected to be fit, it goes on."""
    return expected > 0.0 and found >= ALPHA * expected


def posterior(
    descriptor: np.ndarray, prior: np.ndarray, tried: Sequence[int], fitness: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation of everybody's fitness [N] after some were tried and had `fitness`."""
    if not len(tried):
        return prior, np.ones(len(prior))
    process = require("sklearn.gaussian_process", "adapt")
    kernel = process.kernels.Matern(length_scale=LENGTH_SCALE, nu=2.5)
    model = process.GaussianProcessRegressor(kernel, alpha=NOISE, optimizer=None)
    rows = list(tried)
    model.fit(descriptor[rows], fitness - prior[rows])
    mean, std = model.predict(descriptor, return_std=True)
    return prior + mean, std
