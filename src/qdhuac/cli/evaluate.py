"""Evaluate a run's archive again: fitness and descriptors under noise."""

from __future__ import annotations

import argparse

from qdhuac.cli.common import add_run_dir, add_seed, load, whole


def add(parser: argparse.ArgumentParser) -> None:
    """The options of `qdhuac evaluate`."""
    add_run_dir(parser)
    parser.add_argument(
        "--episodes", type=whole(1, 100_000), default=8, metavar="N", help="episodes per individual, default 8"
    )
    add_seed(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print the stored archive beside its re-evaluation, and write it to the run folder."""
    found = load(arguments.run_dir)
    folder, settings = found.folder, found.config
    folder.require_writable()
    from qdhuac.environment import prepare_jax
    from qdhuac.report.tables import print_evaluation, write_json
    from qdhuac.store import repertoire
    from qdhuac.store.run_folder import EVALUATION, REPERTOIRE
    from qdhuac.training import evaluation
    from qdhuac.training.build import build_task

    prepare_jax()
    task, genotypes = build_task(settings), repertoire.genotypes(found.archive)
    evaluation.check_genotypes(task, genotypes, str(folder.path / REPERTOIRE))
    print(f"evaluating {len(found)} individuals {arguments.episodes} times", flush=True)
    fitness, descriptor = evaluation.evaluate_again(
        task,
        genotypes,
        episodes=arguments.episodes,
        batch_size=getattr(getattr(settings.settings, "emitter", None), "batch_size", 10),
        seed=arguments.seed,
    )
    summary = evaluation.summarise(task, found.archive, fitness, descriptor)
    write_json(folder.path / EVALUATION, summary)
    print_evaluation(summary)
    print(f"written to {folder.path / EVALUATION}")
    return 0
