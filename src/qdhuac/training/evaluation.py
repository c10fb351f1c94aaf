"""Evaluating an archive again: how good and how repeatable its individuals really are."""

from __future__ import annotations

import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from qdhuac.errors import RunFailed, UserError
from qdhuac.metrics import PassiveGrid, scores
from qdhuac.store import repertoire
from qdhuac.store.files import replace_file
from qdhuac.store.run import Run
from qdhuac.store.run_folder import EVALUATION, REPERTOIRE
from qdhuac.tasks.base import Task
from qdhuac.types import Genotype

BATCH = 10  # individuals that are evaluated at once


def check_genotypes(task: Task, genotypes: Genotype, where: str) -> None:
    """Refuse genotypes that are not the parameters of the task's policy."""
    if task.policy is None:
        return
    expected = jax.eval_shape(task.policy.init, jax.random.key(0))
    shapes = jax.tree.map(lambda x: (x.shape, x.dtype), expected)
    if jax.tree.map(lambda x: (x.shape[1:], x.dtype), genotypes) != shapes:
        raise UserError(f"{where}: its genotypes are not policies of this task")


def evaluate(task: Task, run: Run, *, episodes: int = 8, seed: int = 0) -> dict[str, Any]:
    """Evaluate the archive of a run again.

    Args:
        task: that of the run, or one that differs from it, such as a damaged robot.
        run: as `qdhuac.load` gives it; `evaluation.json` is written to its folder.
        episodes: of each individual.
        seed: of their starts.

    Returns:
        The stored archive beside its re-evaluation, as a whole and per individual.
    """
    genotypes = repertoire.genotypes(run.archive)
    check_genotypes(task, genotypes, str(run.folder.path / REPERTOIRE))
    fitness, descriptor = evaluate_again(task, genotypes, episodes=episodes, batch_size=BATCH, seed=seed)
    summary = summarise(task, run.archive, fitness, descriptor)
    path = run.folder.path / EVALUATION
    try:
        replace_file(path, json.dumps(summary, indent=1, allow_nan=False).encode())
    except OSError as error:
        raise RunFailed(f"{path}: cannot be written ({error.strerror})") from None
    return summary


def evaluate_again(task: Task, genotypes: Genotype, *, episodes: int, batch_size: int, seed: int) -> tuple[Any, Any]:
    """Fitness [episodes, N] and descriptor [episodes, N, D], each episode with a start of its own."""
    size = len(jax.tree.leaves(genotypes)[0])
    key = jax.random.key(seed)
    fitness, descriptor = [], []
    for _ in range(episodes):
        for start in range(0, size, batch_size):
            # The last batch is filled up with repetitions, so that one shape is compiled.
            rows = np.minimum(np.arange(start, start + batch_size), size - 1)
            batch = jax.tree.map(lambda leaf, rows=rows: jnp.asarray(leaf[rows]), genotypes)
            key, here = jax.random.split(key)
            result = jax.device_get(task.evaluate(batch, here)._replace(transitions=None, valid=None))
            fresh = min(batch_size, size - start)
            fitness.append(result.fitness[:fresh])
            descriptor.append(result.descriptor[:fresh])
    shape = (episodes, size)
    return np.concatenate(fitness).reshape(shape), np.concatenate(descriptor).reshape(*shape, -1)


def summarise(task: Task, arrays: dict[str, np.ndarray], fitness: np.ndarray, descriptor: np.ndarray) -> dict[str, Any]:
    """The stored archive against its re-evaluation, as a whole and per individual."""
    grid, offset = PassiveGrid.over(*task.spec.descriptor_bounds), task.spec.reward_offset * task.spec.episode_length

    def measure(f: np.ndarray, d: np.ndarray) -> dict[str, float | None]:
        found = scores(grid.add(grid.init(), jnp.asarray(f), jnp.asarray(d)), offset)
        found["mean_fitness"] = jnp.mean(jnp.asarray(f))
        return {name: _number(value) for name, value in found.items()}

    mean_f, mean_d = fitness.mean(0), descriptor.mean(0)
    individuals = [
        {
            "id": int(arrays["provenance/id"][i]),
            "stored_fitness": _number(arrays["fitness"][i]),
            "fitness_mean": _number(mean_f[i]),
            "fitness_std": _number(fitness[:, i].std()),
            "stored_descriptor": [_number(v) for v in arrays["descriptor"][i]],
            "descriptor_mean": [_number(v) for v in mean_d[i]],
            "descriptor_std": [_number(v) for v in descriptor[:, i].std(0)],
        }
        for i in range(len(mean_f))
    ]
    return {
        "episodes": len(fitness),
        "stored": measure(arrays["fitness"], arrays["descriptor"]),
        "again": measure(mean_f, mean_d),
        "failed_episodes": int(np.sum(~np.isfinite(fitness))),
        "mean_fitness_loss": _number(np.mean(arrays["fitness"] - mean_f)),
        "mean_fitness_std": _number(fitness.std(0).mean()),
        "mean_descriptor_std": _number(descriptor.std(0).mean()),
        "individuals": individuals,
    }


def _number(value: Any) -> float | None:
    return float(value) if np.isfinite(value) else None
