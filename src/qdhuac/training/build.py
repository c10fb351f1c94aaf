"""From a configuration to the objects that a run is made of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from qdhuac.algorithms import dcrl_me, pga_me, qd_pg, qdhuac
from qdhuac.algorithms.evolution import Evolution
from qdhuac.archives.dns import DominatedNoveltyArchive
from qdhuac.archives.grid import GridArchive
from qdhuac.config import OWN, ArchiveConfig, Config, replace, validate
from qdhuac.errors import UserError
from qdhuac.tasks.mjx import Locomotion
from qdhuac.tasks.native import NativeLocomotion
from qdhuac.types import Algorithm, Archive, Task

LEARNERS: dict[str, Callable[[Config, Any, Archive], Algorithm]] = {
    "qdhuac": qdhuac.from_config,
    "pga_me": pga_me.from_config,
    "qd_pg": qd_pg.from_config,
    "dcrl_me": dcrl_me.from_config,
}


def build(config: Config, task: Any = None) -> tuple[Any, Algorithm]:
    """The task and the algorithm of a run; the task is given if it is the user's own."""
    task = build_task(config) if task is None else task
    return task, build_algorithm(config, task)


def choose_backend(config: Config) -> Config:
    """The configuration with `task.backend = "auto"` decided: MuJoCo in C on a CPU, MJX on an accelerator."""
    if config.task.backend != "auto" or config.task.name == OWN:
        return config
    return validate(replace(config, {"task.backend": "native" if jax.default_backend() == "cpu" else "mjx"}))


def build_task(config: Config) -> Any:
    """The simulated robot."""
    t = choose_backend(config).task
    if t.name == OWN:
        raise UserError("task 'own': is not part of qdhuac; give it from Python, to qdhuac.train or qdhuac.resume")
    common: dict[str, Any] = {
        "episode_length": t.episode_length,
        "after_termination": t.after_termination,
        "hidden": config.policy.hidden,
        "store_contacts": config.algorithm == "qd_pg",
    }
    if t.backend == "native":
        return NativeLocomotion(t.name, **common)
    return Locomotion(t.name, backend=t.backend, **common)


def build_algorithm(config: Config, task: Any) -> Algorithm:
    """The algorithm; one without a learner is the same evolution over another archive."""
    archive = build_archive(config.archive, task)
    if config.algorithm in LEARNERS:
        return LEARNERS[config.algorithm](config, task, archive)
    return Evolution(
        archive=archive,
        fresh=task.policy.init,
        descriptor_size=len(task.descriptor_bounds[0]),
        batch_size=config.emitter.batch_size,
        tournament=config.emitter.tournament,
        sigma_iso=config.emitter.sigma_iso,
        sigma_line=config.emitter.sigma_line,
    )


def build_archive(config: ArchiveConfig, task: Task) -> Archive:
    """The archive over the task's descriptor."""
    if config.kind == "dns":
        return DominatedNoveltyArchive(config.capacity, config.neighbours)
    kind = GridArchive.regular if config.kind == "grid" else GridArchive.cvt
    return kind(config.capacity, *task.descriptor_bounds)
