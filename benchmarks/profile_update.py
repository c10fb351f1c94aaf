"""Where the time of one learner update goes, operation by operation.

    taskset -c 0 python benchmarks/profile_update.py paper|laptop [--updates 20]

Prints one JSON object: milliseconds per update in matrix products, in the transposed copies that some of them need, in
everything else that computes, and how many operations each group has. Tracing itself slows small operations down.
"""

from __future__ import annotations

import argparse
import collections
import gzip
import json
import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp

from qdhuac import presets
from qdhuac.bench.learner import build
from qdhuac.bench.replay import filled
from qdhuac.environment import prepare_jax

CONTROL = ("while", "cond", "call")  # their time is that of the operations inside them


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("preset", choices=["paper", "laptop"])
    parser.add_argument("--updates", type=int, default=20)
    arguments = parser.parse_args()
    prepare_jax()

    learner, replay = build(presets.make("qdhuac", arguments.preset))
    key = jax.random.key(0)
    learn = jax.jit(lambda s, b, n: learner.learn(s, replay, b, key, n)[:2], donate_argnums=(0, 1))
    state = learn(jax.jit(learner.init)(key), filled(replay, key), jnp.int32(2))
    jax.block_until_ready(state)
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            jax.block_until_ready(learn(*state, jnp.int32(arguments.updates)))
        (trace,) = Path(folder).rglob("*.trace.json.gz")
        events = json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]

    milliseconds: dict[str, float] = collections.defaultdict(float)
    names: dict[str, set[str]] = collections.defaultdict(set)
    for event in events:
        operation = event.get("args", {}).get("hlo_op", "")
        if event.get("ph") == "X" and operation and not operation.startswith(CONTROL):
            milliseconds[group(operation)] += event["dur"] / 1e3 / arguments.updates
            names[group(operation)].add(operation)
    record = {k: {"ms": round(ms, 3), "operations": len(names[k])} for k, ms in sorted(milliseconds.items())}
    print(json.dumps({"preset": arguments.preset, "updates": arguments.updates, **record}))


def group(operation: str) -> str:
    """XLA's libraries for matrix products name what they do."""
    if operation.startswith(("ynn", "dot")):
        return "products"
    return "transposed copies" if operation.startswith(("transpose", "copy_transpose")) else "other"


if __name__ == "__main__":
    main()
