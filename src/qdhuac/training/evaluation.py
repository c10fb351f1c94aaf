"""Re-evaluation of an archive: how good its individuals are on average, and how much they vary."""

from __future__ import annotations

import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from qdhuac.errors import RunFailed, UserError, os_errors_as
from qdhuac.files import replace_file
from qdhuac.metrics import PassiveGrid, scores
from qdhuac.store import repertoire
from qdhuac.store.run import Run
from qdhuac.store.run_folder import EVALUATION, REPERTOIRE
from qdhuac.tasks.base import Task
from qdhuac.types import Genotype

BATCH = 10  # individuals evaluated at a time


def check_genotypes(task: Task, genotypes: Genotype, where: str) -> None:
    """Raise UserError for genotypes that are not parameters of the task's policy; `where` names their file."""
    if task.policy is None:
        return
    expected = jax.eval_shape(task.policy.init, jax.random.key(0))
    shapes = jax.tree.map(lambda x: (x.shape, x.dtype), expected)
    if jax.tree.map(lambda x: (x.shape[1:], x.dtype), genotypes) != shapes:
        raise UserError(f"{where}: its genotypes are not policies of this task")


def evaluate(task: Task, run: Run, *, episodes: int = 8, seed: int = 0, vary: bool = False) -> dict[str, Any]:
    """Evaluate the archive of a run again, and write the result to `evaluation.json` in its folder.

    Args:
        task: the task of the run, or a changed one, such as a damaged robot.
        run: as `qdhuac.load` returns it.
        episodes: how many of each individual.
        seed: seed of the episodes' starts.
        vary: the task varies from episode to episode; this is only noted.

    Returns:
        Metrics of the stored archive and of its re-evaluation, as a whole and per individual.
    """
    genotypes = repertoire.genotypes(run.archive)
    check_genotypes(task, genotypes, str(run.folder.path / REPERTOIRE))
    summary = _summary(task, run.archive, *_episodes(task, genotypes, episodes, seed)) | {"vary": vary}
    path = run.folder.path / EVALUATION
    with os_errors_as(RunFailed, f"{path}: cannot be written"):
        replace_file(path, json.dumps(summary, indent=1, allow_nan=False).encode())
    return summary


def _episodes(task: Task, genotypes: Genotype, episodes: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Fitness [episodes, N] and descriptor [episodes, N, D]. Each episode has its own start."""
    size = len(jax.tree.leaves(genotypes)[0])
    key = jax.random.key(seed)
    fitness, descriptor = [], []
    for _ in range(episodes):
        for start in range(0, size, BATCH):
            # The last batch repeats the last individual, so that all batches have one shape and compile once.
            rows = np.minimum(np.arange(start, start + BATCH), size - 1)
            batch = jax.tree.map(lambda leaf, rows=rows: jnp.asarray(leaf[rows]), genotypes)
            key, here = jax.random.split(key)
            result = jax.device_get(task.evaluate(batch, here)._replace(transitions=None, valid=None))
            fitness.append(result.fitness[: size - start])
            descriptor.append(result.descriptor[: size - start])
    shape = (episodes, size)
    return np.concatenate(fitness).reshape(shape), np.concatenate(descriptor).reshape(*shape, -1)


def _summary(task: Task, arrays: dict[str, np.ndarray], fitness: np.ndarray, descriptor: np.ndarray) -> dict[str, Any]:
    """The stored archive and its re-evaluation, as a whole and per individual."""
    grid, offset = PassiveGrid.over(*task.spec.descriptor_bounds), task.spec.reward_offset * task.spec.episode_length

    def measure(f: np.ndarray, d: np.ndarray) -> dict[str, float | None]:
        found = scores(grid.add(grid.init(), jnp.asarray(f), jnp.asarray(d)), offset)
        return {name: _number(value) for name, value in (found | {"mean_fitness": jnp.mean(f)}).items()}

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
        "kept": int(np.sum(mean_f + offset >= 0.8 * (arrays["fitness"] + offset))),
        "mean_fitness_loss": _number(np.mean(arrays["fitness"] - mean_f)),
        "mean_fitness_std": _number(fitness.std(0).mean()),
        "mean_descriptor_std": _number(descriptor.std(0).mean()),
        "individuals": individuals,
    }


def _number(value: Any) -> float | None:
    return float(value) if np.isfinite(value) else None
