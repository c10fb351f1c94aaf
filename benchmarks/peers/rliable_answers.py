"""What rliable says about the scores in a file: the oracle of tests/test_statistics.py, in an environment of its own.

Run it with ``python benchmarks/peers/rliable_answers.py tests/data/rliable.json``: it reads ``scores`` and writes the
other keys anew.
"""

import json
import sys

import numpy as np
from rliable import library, metrics

REPETITIONS = 20_000


def main(path):
    with open(path) as file:
        data = json.load(file)
    scores = {name: np.array(values) for name, values in data["scores"].items()}
    thresholds = np.linspace(0.0, 1.0, 11)
    np.random.seed(0)  # rliable draws from the global generator
    _, intervals = library.get_interval_estimates(
        scores, lambda x: np.array([metrics.aggregate_iqm(x)]), reps=REPETITIONS
    )
    first, second = list(scores)[:2]
    pair = {"pair": (scores[first], scores[second])}
    improvement = lambda x, y: np.array([metrics.probability_of_improvement(x, y)])  # noqa: E731
    chance, chances = library.get_interval_estimates(pair, improvement, reps=2000)
    profiles, _ = library.create_performance_profile(scores, thresholds, reps=10)
    answers = {
        "scores": data["scores"],
        "iqm": {name: float(metrics.aggregate_iqm(values)) for name, values in scores.items()},
        "iqm_interval": {name: intervals[name][:, 0].tolist() for name in scores},
        "pair": [first, second],
        "probability_of_improvement": float(chance["pair"][0]),
        "probability_of_improvement_interval": chances["pair"][:, 0].tolist(),
        "thresholds": thresholds.tolist(),
        "profile": {name: values.tolist() for name, values in profiles.items()},
    }
    with open(path, "w") as file:
        json.dump(answers, file, indent=1)


if __name__ == "__main__":
    main(sys.argv[1])
