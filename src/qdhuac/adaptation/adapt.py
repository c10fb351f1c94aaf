"""`qdhuac adapt`: find a policy of a run that still works on its damaged robot."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from qdhuac.adaptation.damage import Damage, damaged
from qdhuac.adaptation.search import Trial, best, search
from qdhuac.config import Config
from qdhuac.store import repertoire
from qdhuac.store.run import Run
from qdhuac.store.run_folder import REPERTOIRE
from qdhuac.tasks.bundle import facts
from qdhuac.tasks.native import NativeTask
from qdhuac.training.build import native_task
from qdhuac.training.evaluation import check_genotypes


def damaged_task(settings: Config, damages: Sequence[Damage], threads: int | None = None) -> NativeTask:
    """The task of a run with damage, on the C engine, whichever engine it was trained on."""
    limbs = facts(settings).limbs
    return native_task(settings, threads=threads, change=lambda model: damaged(model, damages, limbs))


def unit_descriptors(run: Run) -> np.ndarray:
    """The descriptors of the archive, scaled to 0 to 1. [N, D]"""
    low, high = np.asarray(run.metadata["descriptor_bounds"], float)
    return (run.descriptor - low) / (high - low)


def adapt(run: Run, damages: Sequence[Damage], *, trials: int, seed: int) -> dict[str, Any]:
    """Search the archive for a policy that works after the damage.

    Args:
        run: the run.
        damages: what has happened to its robot.
        trials: at most so many episodes.
        seed: of their starts.

    Returns:
        The trials and the best of them, ready for JSON.
    """
    task, genotypes = damaged_task(run.config, damages, threads=1), repertoire.genotypes(run.archive)
    check_genotypes(task, genotypes, str(run.folder.path / REPERTOIRE))

    def attempt(index: int) -> float:
        one = jax.tree.map(lambda leaf: leaf[index : index + 1], genotypes)
        return float(task.evaluate(one, jax.random.fold_in(jax.random.key(seed), index)).fitness[0])

    done, enough = search(unit_descriptors(run), run.fitness, attempt, trials)
    return {
        "run": str(run.folder.path),
        "damage": [str(damage) for damage in damages],
        "seed": seed,
        "trials": [_row(run, trial) for trial in done],
        "best": _row(run, best(done)),
        "good_enough": enough,
    }


def _row(run: Run, trial: Trial) -> dict[str, Any]:
    policy, after = run.policy(trial.index), trial.fitness if math.isfinite(trial.fitness) else None
    row = {"index": policy.index, "id": policy.id, "descriptor": list(policy.descriptor)}
    return row | {"fitness_before": policy.fitness, "expected": trial.expected, "fitness_after": after}
