"""A finished study on disk with made-up metrics."""

from __future__ import annotations

import shutil
import zlib

import numpy as np

from qdhuac.store import repertoire
from qdhuac.store.arrays import flatten
from qdhuac.store.run_folder import REPERTOIRE, RunDir
from qdhuac.studies import catalogue, folder
from qdhuac.types import Individuals, Provenance

FEET = {"hopper": 1, "walker2d": 2, "halfcheetah": 2, "ant": 4, "humanoid": 2}


def metrics(run, generations):
    """Curves that rise by an amount that depends on the setting, with noise that depends on the run."""
    rng = np.random.default_rng(zlib.crc32(run.folder.encode()))
    skill = 0.5 + (zlib.crc32(run.label.encode()) % 97) / 97 + 0.1 * rng.normal()
    goal, learner = run.config.run.env_steps, getattr(run.config.settings, "learner", None)
    auc = 0.0
    for i in range(1, generations + 1):
        share = i / generations
        qd = 1e6 * share**0.7 * (0.6 + 0.4 * skill) * (1 + 0.02 * rng.normal())
        auc += qd * goal / generations
        truth = 300 * skill * share
        yield {
            "generation": i,
            "env_steps": goal * i // generations,
            "gradient_updates": int((learner.utd if learner else 0) * goal * i / generations),
            "qd_score": qd,
            "coverage": 0.12 * share**0.5 * (1.4 - 0.4 * skill) * (1 + 0.02 * rng.normal()),
            "max_fitness": 5000 * skill * share**1.5 - 60 + 30 * rng.normal(),
            "qd_score_auc": auc,
            "archive_size": 10 * i,
            "archive_qd_score": 0.8 * qd,
            "archive_mean_fitness": 100.0 * i,
            "wall_s": 100.0 * i,
            **(probes(truth, share, rng) if getattr(learner, "probe", False) else {}),
        }


def probes(truth, share, rng):
    out = {"probe_threshold": 0.8 * truth}
    for prefix in ("probe_", "probe_path_"):
        q = truth * (1.2 - 0.2 * share) + 5 * rng.normal()
        gap = 12 * share * (1 - share) + rng.normal()
        high = int(rng.integers(0, 6))
        out |= {
            f"{prefix}return": truth,
            f"{prefix}q": q,
            f"{prefix}q_shadow": q - gap,
            f"{prefix}gap": gap,
            f"{prefix}high": high,
            f"{prefix}missed": int(0.2 * high),
            f"{prefix}missed_shadow": int(0.6 * high),
        }
    return out


def write_run(root, run, generations=10, archive=True, versions="1.0"):
    """The run folder of a finished run, without checkpoints; each generation has 8 newcomers, and all of them stay."""
    path = root / folder.RUNS / run.folder
    rng, n, d = np.random.default_rng(run.seed), 8 * generations, FEET[run.task]
    fitness, descriptor = rng.normal(500, 900, n), rng.random((n, d))
    with RunDir.create(path, run.config) as made:
        for line in metrics(run, generations):
            made.append_metrics(line)
            new = np.arange(8 * line["generation"] - 8, 8 * line["generation"])
            came = {"slot": new, "id": new, "parents": np.full((8, 2), -1), "operator": 0 * new}
            came |= {"fitness": fitness[new], "descriptor": descriptor[new]}
            made.append_history(line["generation"], {name: value.tolist() for name, value in came.items()})
    shutil.rmtree(path / "checkpoints")
    if archive:
        who = Provenance(*(np.zeros(s, np.int32) for s in ((n,), (n, 2), (n,), (n,))))
        found = Individuals({"x": np.zeros((n, 1), np.float32)}, fitness, descriptor, who)
        state = flatten({"algorithm": {"archive": found}})
        repertoire.write(
            path / REPERTOIRE, state, {"descriptor_bounds": [[0.0] * d, [1.0] * d], "versions": {"mujoco": versions}}
        )
    return path


def write_study(root, name, scale="laptop", seeds=3, **options):
    """A whole study; returns its folder."""
    made = folder.write(root, name, scale, seeds)
    for run in catalogue.runs(name, scale, seeds):
        if not (root / folder.RUNS / run.folder).exists():
            write_run(root, run, **options)
    return made
