"""Resident memory of a run with a full-size replay buffer: is the buffer ever copied?

    python benchmarks/replay_memory.py [--task humanoid] [--capacity 1000000]

Three tiny generations and a checkpoint, with a buffer of the given size. One JSON object: gigabytes of the state, of
the process before the state exists, of its peak, and the part of the peak above that beginning, as a multiple of the
state.
"""

from __future__ import annotations

import argparse
import json
import resource
import tempfile
from pathlib import Path

import jax

from qdhuac import presets
from qdhuac.environment import prepare_jax
from qdhuac.store.run_folder import RunDir
from qdhuac.training.build import build
from qdhuac.training.loop import Runner


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", default="humanoid")
    parser.add_argument("--capacity", type=int, default=1_000_000)
    arguments = parser.parse_args()
    prepare_jax()
    changes = {"task.name": arguments.task, "replay.capacity": arguments.capacity, "run.generations": 3}
    config = presets.make("qdhuac", "smoke", changes)
    task, algorithm = build(config)
    before = peak()
    with tempfile.TemporaryDirectory() as place, RunDir.create(Path(place) / "run", config) as folder:
        runner = Runner(config, task, algorithm, folder)
        runner.start()
        runner.run()
        state = sum(leaf.nbytes for leaf in jax.tree.leaves(runner.state) if hasattr(leaf, "nbytes")) / 1e9
    numbers = {"state": state, "before": before, "peak": peak(), "above_over_state": (peak() - before) / state}
    print(json.dumps({"task": arguments.task, **{k: round(v, 3) for k, v in numbers.items()}}))


def peak() -> float:
    """The largest resident size of this process so far, in gigabytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6


if __name__ == "__main__":
    main()
