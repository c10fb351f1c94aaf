"""Time and memory of a generation over the number of policies per generation and the size of the archive.

    python benchmarks/population.py OUTPUT.json [--policies 10 64 256 1024 4096] [--archives 1024 5000 10000 20000]

One process per point, so that the peak of resident memory is its own. The task is HalfCheetah with episodes of 250
steps, the networks are the paper's, the archive is full. A gradient mutation makes one step, not ten: asking is made of
little else, and grows with them. A point is the median of three generations after one that compiles; of one from 1000
policies on.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

STEPS = 250


def measure(policies: int, archive: int) -> dict[str, float]:
    """Seconds of the parts of a generation, and gigabytes."""
    import jax
    import jax.numpy as jnp

    from qdhuac import presets
    from qdhuac.environment import prepare_jax
    from qdhuac.training.build import build
    from qdhuac.training.program import Ring

    prepare_jax()
    changes = {
        "task.backend": "native",
        "task.episode_length": STEPS,
        "emitter.batch_size": policies,
        "emitter.gradient_steps": 1,
        "archive.capacity": archive,
        "replay.capacity": max(100_000, policies * STEPS),
    }
    task, algorithm = build(presets.make("qdhuac", "paper", changes))
    ring = Ring.of(task, algorithm)
    ask, tell = jax.jit(ring.ask), jax.jit(ring.tell, donate_argnums=0)

    @jax.jit
    def full(key: jax.Array) -> object:
        """A state whose archive is full; the genotypes stay zero, as drawing them would be the peak of memory."""
        state = ring.init(key)
        places = state.algorithm.archive
        known = places._replace(
            fitness=jax.random.normal(key, places.fitness.shape),
            descriptor=jax.random.uniform(key, places.descriptor.shape),
        )
        return state._replace(algorithm=state.algorithm._replace(archive=known))

    state = jax.block_until_ready(full(jax.random.key(0)))
    seconds: dict[str, list[float]] = {"ask": [], "evaluate": [], "tell": []}
    for generation in range(4 if policies < 1000 else 2):
        clock = [time.perf_counter()]
        emission, key = jax.block_until_ready(ask(state))
        clock.append(time.perf_counter())
        evaluation = jax.block_until_ready(task.evaluate(emission.genotypes, key, emission.exploration))
        clock.append(time.perf_counter())
        state, *_ = jax.block_until_ready(tell(state, emission, evaluation))
        clock.append(time.perf_counter())
        if generation:
            for name, before, after in zip(seconds, clock, clock[1:], strict=False):
                seconds[name].append(after - before)
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(state) if hasattr(leaf, "nbytes"))
    assert bool(jnp.all(jnp.isfinite(state.algorithm.archive.fitness)))
    return {
        **{name: round(statistics.median(values), 4) for name, values in seconds.items()},
        "state_gb": round(size / 1e9, 3),
        "peak_gb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6, 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path)
    parser.add_argument("--policies", type=int, nargs="+", default=[10, 64, 256, 1024, 4096])
    parser.add_argument("--archives", type=int, nargs="+", default=[1024, 5000, 10_000, 20_000])
    parser.add_argument("--point", type=int, nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.point:
        print(json.dumps(measure(*arguments.point)))
        return
    points = [(n, arguments.archives[0]) for n in arguments.policies]
    points += [(arguments.policies[0], n) for n in arguments.archives[1:]]
    rows = []
    for policies, archive in points:
        words = [sys.executable, __file__, str(arguments.output), "--point", str(policies), str(archive)]
        done = subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True)
        rows.append({"policies": policies, "archive": archive, **json.loads(done.stdout.splitlines()[-1])})
        print(json.dumps(rows[-1]), flush=True)
    where = {"cores": os.cpu_count(), "load": round(os.getloadavg()[0], 1), "python": platform.python_version()}
    arguments.output.write_text(json.dumps({"machine": where, "points": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
