"""What running several seeds in one program gains: updates and simulated steps per second, against one seed alone.

    python benchmarks/seeds.py OUTPUT.json [--preset laptop] [--seeds 1 2 5] [--steps 100]

One process; each number of seeds is timed in turn, five rounds, and the median of the ratios within a round counts. One
seed is the program of an ordinary run. The physics is MJX, which takes the policies of all runs at once; the native
engine simulates one run after the other and gains nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from qdhuac import presets
from qdhuac.environment import prepare_jax
from qdhuac.training.build import build
from qdhuac.training.program import Ring

UPDATES = 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path)
    parser.add_argument("--preset", default="laptop")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 5])
    parser.add_argument("--steps", type=int, default=100)
    arguments = parser.parse_args()
    prepare_jax()
    changes = {"task.backend": "mjx", "task.episode_length": arguments.steps, "replay.capacity": 100_000}
    config = presets.make("qdhuac", arguments.preset, changes)
    task, algorithm = build(config)
    ring = Ring.of(task, algorithm)
    ask, tell = jax.jit(jax.vmap(ring.ask)), jax.jit(jax.vmap(ring.tell))
    alone, together = jax.jit(ring.learn, donate_argnums=0), jax.jit(jax.vmap(ring.learn), donate_argnums=0)

    work: dict[int, dict[str, Callable[[], Any]]] = {}
    for count in arguments.seeds:
        state = jax.jit(jax.vmap(ring.init))(jax.random.split(jax.random.key(0), count))
        emission, keys = ask(state)
        policies = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), (emission.genotypes, emission.exploration))

        def evaluate(policies: Any = policies, keys: Any = keys) -> Any:
            return task.evaluate(policies[0], keys, policies[1])

        evaluation = jax.tree.map(lambda x, n=count: x.reshape(n, -1, *x.shape[1:]), evaluate())
        states = [tell(state, emission, evaluation)[0]]
        if count == 1:
            states = [jax.tree.map(lambda x: x[0], states[0])]
        updates = jnp.int32(UPDATES) if count == 1 else jnp.full(count, UPDATES, jnp.int32)
        function = alone if count == 1 else together

        def learn(states: Any = states, updates: Any = updates, function: Any = function) -> Any:
            states[0], metrics = function(states[0], updates)
            return metrics

        work[count] = {"learn": learn, "evaluate": evaluate}
    rounds: list[dict[tuple[int, str], float]] = []
    for _ in range(6):
        rounds.append({})
        for count, parts in work.items():
            for name, call in parts.items():
                before = time.perf_counter()
                jax.block_until_ready(call())
                rounds[-1][count, name] = time.perf_counter() - before
    rows = []
    for count in arguments.seeds:
        row: dict[str, Any] = {"seeds": count}
        for name in ("learn", "evaluate"):
            row[f"{name}_s"] = round(statistics.median(r[count, name] for r in rounds[1:]), 4)
            gains = [count / arguments.seeds[0] * r[arguments.seeds[0], name] / r[count, name] for r in rounds[1:]]
            row[f"{name}_gain"] = round(statistics.median(gains), 2)
        rows.append(row)
        print(json.dumps(row), flush=True)
    machine = {"cores": os.cpu_count(), "load": round(os.getloadavg()[0], 1), "jax": jax.__version__}
    record = {
        "machine": machine,
        "preset": arguments.preset,
        "steps": arguments.steps,
        "updates": UPDATES,
        "rows": rows,
    }
    arguments.output.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
