"""Statistics over seeds and tasks, compared with stored results of rliable and with cases known by hand."""

import json
from pathlib import Path

import numpy as np
import pytest

from qdhuac.studies import statistics

# Scores [runs, tasks] of three settings, and what rliable 1.2.0 says of them (benchmarks/peers/rliable_answers.py).
RLIABLE = json.loads(Path(__file__).with_name("rliable.json").read_text())
SCORES = {name: np.array(values) for name, values in RLIABLE["scores"].items()}
PAIR = [SCORES[name] for name in RLIABLE["pair"]]


@pytest.mark.parametrize("name", SCORES)
def test_interquartile_mean_is_rliables(name):
    assert statistics.iqm(SCORES[name]) == pytest.approx(RLIABLE["iqm"][name], abs=1e-12)


@pytest.mark.parametrize("name", SCORES)
def test_its_interval_is_rliables_up_to_sampling_noise(name):
    ours = statistics.interval(statistics.iqm, SCORES[name], repetitions=20_000)
    theirs = RLIABLE["iqm_interval"][name]
    assert ours == pytest.approx(theirs, abs=0.02 * (theirs[1] - theirs[0]))


def test_probability_of_improvement_is_rliables():
    chance = statistics.probability_of_improvement(*PAIR)
    assert chance == pytest.approx(RLIABLE["probability_of_improvement"], abs=1e-12)
    ours = statistics.interval(statistics.probability_of_improvement, *PAIR, repetitions=5000)
    assert ours == pytest.approx(RLIABLE["probability_of_improvement_interval"], abs=0.02)


@pytest.mark.parametrize("name", SCORES)
def test_performance_profile_is_rliables(name):
    ours = statistics.profile(SCORES[name], RLIABLE["thresholds"])
    np.testing.assert_allclose(ours, RLIABLE["profile"][name], atol=1e-12)


def test_a_tie_is_half_an_improvement():
    one = np.ones((3, 2))
    assert statistics.probability_of_improvement(one, one) == 0.5
    assert statistics.probability_of_improvement(one + 1, one) == 1.0


def mean(scores):
    return scores.mean(axis=(-2, -1))


def test_bootstrap_samples_are_drawn_per_task():
    # Two tasks that mirror each other: if they drew the same runs, the mean would never move.
    scores = np.array([[0.0, 1.0], [1.0, 0.0]])
    low, high = statistics.interval(mean, scores)
    assert low < 0.5 < high
    # And a task never draws from another: every draw of these is the same.
    assert statistics.interval(mean, np.array([[0.0, 10.0], [0.0, 10.0]])) == (5.0, 5.0)


def test_normalised_scores_go_from_the_lowest_run_to_the_highest():
    out = statistics.normalised({"a": np.array([[1.0, -4.0]]), "b": np.array([[3.0, -2.0], [2.0, -3.0]])})
    np.testing.assert_allclose(out["a"], [[0.0, 0.0]])
    np.testing.assert_allclose(out["b"], [[1.0, 1.0], [0.5, 0.5]])
    np.testing.assert_allclose(statistics.normalised({"a": np.ones((2, 1))})["a"], 0.0)


def test_steps_to_reach_a_level():
    assert statistics.steps_to_reach([10, 20, 30], [1.0, 5.0, 4.0], 4.5) == 20
    assert statistics.steps_to_reach([10, 20, 30], [1.0, 5.0, 4.0], 6.0) is None


def test_a_curve_holds_its_last_value():
    np.testing.assert_array_equal(statistics.at([10, 20], [1.0, 2.0], [5, 10, 15, 25]), [np.nan, 1.0, 1.0, 2.0])
