"""Every algorithm on a real robot: 2 N generations at once against N, a stop in mid-learning, and N more."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import harness
import numpy as np

N = 3
SETTINGS = {"task.backend": "native", "run.chunk": 7, "run.generations": 2 * N, "run.env_steps": 0}


class StopInLearning:
    """Requests a stop while generation N is learning, or at its evaluation if nothing is learnt."""

    def __init__(self, stop: object) -> None:
        self.stop, self.left = stop, N

    def phase(self, name: str, done: int = 0, total: int = 0) -> None:
        self.left -= name == "asking"
        if self.left == 0 and not self.stop and ((name == "learning" and done == 14) or name == "telling"):
            self.stop.request(signal.SIGTERM)

    def generation(self, line: object) -> None: ...

    def note(self, text: str, *, warning: bool = False) -> None: ...

    def close(self) -> None: ...


def compare(algorithm: str, where: Path) -> dict:
    """Whether metrics and state are the same, and the largest difference if they are not."""
    from qdhuac.algorithms import specs
    from qdhuac.store.arrays import flatten
    from qdhuac.store.run_folder import RunDir
    from qdhuac.training.build import build
    from qdhuac.training.loop import Trainer
    from qdhuac.training.signals import Stop

    learning = "transitions" in specs.ALGORITHMS[algorithm].needs
    config = specs.make(algorithm, "smoke", SETTINGS | ({"learner.utd": 0.5} if learning else {}))
    task, method = build(config)

    def run(name: str, again: bool = False, stop: Stop | None = None) -> Trainer:
        folder = RunDir.open(where / name) if again else RunDir.create(where / name, config)
        with folder:
            progress = StopInLearning(stop) if stop is not None else None
            runner = Trainer([(config, folder)], task, method, progress, stop)
            runner.restore() if again else runner.start()
            assert runner.run() == (stop is None)
        return runner

    whole = run(f"{algorithm}-whole")
    stopped = run(f"{algorithm}-part", stop=Stop())
    done = stopped.recorders[0].counters
    at = done.generation, done.gradient_updates
    rest = run(f"{algorithm}-part", again=True)
    a, b = flatten(whole.state), flatten(rest.state)
    numbers = [name for name in a if a[name].dtype.kind == "f" and a[name].size]
    with np.errstate(invalid="ignore"):  # empty slots: -inf - -inf
        apart = [np.where(a[n] == b[n], 0.0, np.abs(a[n] - b[n])).max() for n in numbers]
    lines = [harness.metrics(where / f"{algorithm}-{name}") for name in ("whole", "part")]
    hashes = [harness.state_hash(where / f"{algorithm}-{name}") for name in ("whole", "part")]
    return {
        "stopped_at": {"generation": at[0], "updates": at[1]},
        "same_metrics": lines[0] == lines[1],
        "same_state": hashes[0] == hashes[1],
        "sha256": hashes[0],
        "largest_difference_in_state": float(max(apart)),
    }


def main(algorithms: list[str]) -> dict:
    """Each algorithm in one process."""
    from qdhuac.environment import prepare_jax

    prepare_jax()
    with tempfile.TemporaryDirectory() as where:
        return {name: compare(name, Path(where)) for name in algorithms}


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(json.dumps(main(sys.argv[1:])))
    else:
        from qdhuac.algorithms.specs import ALGORITHMS

        def there(algorithms: tuple[str, ...], **environment: str) -> dict:
            command = [sys.executable, __file__, *algorithms]
            done = subprocess.run(command, env={**os.environ, **environment}, check=True, stdout=subprocess.PIPE)
            return json.loads(done.stdout.splitlines()[-1])

        harness.write(
            "resume",
            {
                "generations": 2 * N,
                "one_thread": there(tuple(ALGORITHMS), **harness.ONE_THREAD),
                "all_threads": there(("qdhuac", "pga_me")),
            },
        )
