"""Evaluate the archive of a run again: fitness and descriptors over several episodes."""

from __future__ import annotations

import argparse

from qdhuac import config
from qdhuac.cli.common import add_number, add_seed, load
from qdhuac.config import OWN
from qdhuac.errors import UserError
from qdhuac.tasks.bundle import facts
from qdhuac.tasks.task_file import Variation


def add(parser: argparse.ArgumentParser) -> None:
    """The options of `qdhuac evaluate`."""
    parser.add_argument("run_dir", metavar="RUN_DIR")
    add_number(parser, "--episodes", "episodes per individual, default 8", high=100_000, default=8)
    add_seed(parser)
    text = "vary masses, friction, noise and so on as the task's file says: how much of the archive survives it"
    parser.add_argument("--vary", action="store_true", help=text)


def run(arguments: argparse.Namespace) -> int:
    """Print the stored archive and its re-evaluation, and write both to the run folder."""
    found = load(arguments.run_dir)
    found.folder.require_writable()
    from qdhuac.environment import prepare_jax
    from qdhuac.report.tables import print_evaluation
    from qdhuac.store.run_folder import EVALUATION
    from qdhuac.training import evaluation
    from qdhuac.training.build import build_task

    if arguments.vary and (found.config.task.name == OWN or facts(found.config).variation == Variation()):
        raise UserError("--vary: the task's file has no section variation")
    prepare_jax()
    task = build_task(config.replace(found.config, {"task.vary": True}) if arguments.vary else found.config)
    times = f"{arguments.episodes} times{', with variation (--vary)' if arguments.vary else ''}"
    print(f"evaluating {len(found)} individuals {times}", flush=True)
    options = {"episodes": arguments.episodes, "seed": arguments.seed, "vary": arguments.vary}
    print_evaluation(evaluation.evaluate(task, found, **options))
    print(f"written to {found.folder.path / EVALUATION}")
    return 0
