"""Evaluate the archive of a run again: fitness and descriptors over several episodes."""

from __future__ import annotations

import argparse

from qdhuac.cli.common import add_number, add_seed, load


def add(parser: argparse.ArgumentParser) -> None:
    """The options of `qdhuac evaluate`."""
    parser.add_argument("run_dir", metavar="RUN_DIR")
    add_number(parser, "--episodes", "episodes per individual, default 8", high=100_000, default=8)
    add_seed(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print the stored archive and its re-evaluation, and write both to the run folder."""
    found = load(arguments.run_dir)
    found.folder.require_writable()
    from qdhuac.environment import prepare_jax
    from qdhuac.report.tables import print_evaluation
    from qdhuac.store.run_folder import EVALUATION
    from qdhuac.training import evaluation
    from qdhuac.training.build import build_task

    prepare_jax()
    task = build_task(found.config)
    print(f"evaluating {len(found)} individuals {arguments.episodes} times", flush=True)
    print_evaluation(evaluation.evaluate(task, found, episodes=arguments.episodes, seed=arguments.seed))
    print(f"written to {found.folder.path / EVALUATION}")
    return 0
