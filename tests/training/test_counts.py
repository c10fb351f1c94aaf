"""What a run counts and is measured by, read from the lines of its metrics."""

from __future__ import annotations

import math

import jax.numpy as jnp
import pytest
from reach import STEPS, ReachTask
from toys import ToyLearner, toy_algorithm

from qdhuac import presets
from qdhuac.algorithms import qdhuac
from qdhuac.archives.dns import DominatedNoveltyArchive


def lines(runner):
    assert runner.run()
    return runner.folder.read_metrics()


@pytest.mark.parametrize("utd", [0.26, 0.005])
def test_updates_that_are_owed_in_part_wait_until_they_are_whole(make_runner, utd):
    """60 environment steps a generation: 15.6 updates by the end of the first, 31.2 of the second, ..."""
    rows = lines(make_runner(learning=True, algorithm=toy_algorithm(ToyLearner, utd)))
    assert [row["gradient_updates"] for row in rows] == [math.floor(utd * 60 * n) for n in range(1, 7)]


def test_the_qd_score_is_offset_by_every_step_of_the_episode(make_runner):
    """1 for each of the 10 steps, and for every individual."""
    for row in lines(make_runner()):
        offset = row["archive_qd_score"] - row["archive_size"] * row["archive_mean_fitness"]
        assert offset == pytest.approx(10.0 * row["archive_size"], rel=1e-4)
    first = next(iter(lines(make_runner("one", run__generations=1))))
    cells = round(1024 * first["coverage"])
    assert first["archive_size"] == cells == 6  # nobody shares a cell, so grid and archive hold the same
    assert first["qd_score"] == pytest.approx(first["archive_qd_score"], rel=1e-5)


class Flattered(ReachTask):
    """Explorers do extremely well, and each ends somewhere else."""

    def evaluate(self, genotypes, key, exploration=None):
        found = super().evaluate(genotypes, key, exploration)
        far = jnp.where(exploration.active, 1e6, 0.0)
        return found._replace(fitness=found.fitness + far)


def test_rollouts_that_explore_count_neither_for_the_passive_grid_nor_for_the_archive(make_runner):
    values = {
        "task.episode_length": STEPS,
        "emitter.batch_size": 10,
        "emitter.exploration_rollouts": 5,
        "learner.utd": 0.1,
    }
    task = Flattered()
    algorithm = qdhuac.build(presets.make("qdhuac", "smoke", values).settings, task, DominatedNoveltyArchive(64, 3))
    rows = lines(make_runner(learning=True, task=task, algorithm=algorithm, run__generations=3))
    for row in rows:
        assert row["archive_max_fitness"] < 100.0
        assert row["max_fitness"] == row["archive_max_fitness"]
        assert row["env_steps"] == row["generation"] * 10 * STEPS  # but they cost steps
        assert row["archive_size"] <= row["generation"] * 5
    assert rows[0]["archive_size"] == 5
    assert round(1024 * rows[0]["coverage"]) <= 5
    assert rows[0]["explore/tried"] == 5
    assert rows[-1]["explore/fitness"] > 1e5
