"""A custom task from Python: trained, evaluated again, viewed."""

import json
import math

import pytest
from reach import ReachTask

import qdhuac
from qdhuac.errors import UserError
from qdhuac.tasks import NativeTask
from qdhuac.view import explorer
from qdhuac.view.trajectory import simulate, viewable

SETTINGS = {"run.generations": 2, "run.env_steps": 0, "emitter.batch_size": 4}


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
    folder = tmp_path_factory.mktemp("own") / "run"
    qdhuac.train(ReachTask(), folder, algorithm="dns", preset="smoke", settings=SETTINGS)
    return folder


def test_it_is_evaluated_again(run_dir):
    run = qdhuac.load(run_dir)
    summary = qdhuac.evaluate(ReachTask(), run_dir, episodes=3)
    assert summary == json.loads((run_dir / "evaluation.json").read_text())
    assert (summary["episodes"], len(summary["individuals"])) == (3, len(run))
    # Only the starts differ, by 0.4 at most, and the reward of 8 steps with them.
    assert abs(summary["mean_fitness_loss"]) < 4.0
    assert 0.0 < summary["mean_fitness_std"] < 4.0


def test_another_task_is_refused(run_dir):
    with pytest.raises(UserError, match="descriptor_bounds: the run was trained with"):
        qdhuac.evaluate(ReachTask().changed(descriptor_bounds=((-9.0,), (9.0,))), run_dir)
    with pytest.raises(UserError, match=r"critic\.v_min, critic\.v_max: missing"):
        qdhuac.train(ReachTask().changed(support=(math.nan, math.nan)), run_dir.parent / "none", preset="smoke")
    with pytest.raises(UserError, match="task: expected an object with a `spec`"):
        qdhuac.train(object(), run_dir.parent / "none")


def test_a_task_without_a_model_cannot_be_viewed(run_dir, tmp_path):
    for look in (qdhuac.show, lambda task, run: qdhuac.render(task, run, tmp_path / "best.gif")):
        with pytest.raises(UserError, match="cannot be viewed"):
            look(ReachTask(), run_dir)


def test_a_task_with_a_model_is_shown(tmp_path):
    task = NativeTask("hopper", episode_length=10, after_termination="stop", hidden=(8,))
    run = qdhuac.train(task, tmp_path / "run", algorithm="dns", preset="smoke", settings=SETTINGS)
    shown = explorer.Explorer(run.folder, viewable(task))
    facts = shown.individual(run.best.id)
    episode = simulate(task, run.individuals.genotypes, run.best.index)
    assert facts["fitness_here"] == pytest.approx(episode.reward.sum())
    assert facts["steps"] == len(episode.reward) <= 10
