"""Memory that the compiled programs of a preset ask for: what a device must have.

    python benchmarks/paper_memory.py OUTPUT.json [--preset paper] [--tasks halfcheetah ant humanoid]

Each part of the ring is compiled for this machine, rollouts on MJX too, and nothing is run. `state` stays on the device
all the time; to it comes what one part needs while it runs (`temporary` and results), the largest of which counts.
Another platform's compiler fuses differently: its temporary memory may differ, the state does not.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from qdhuac import presets
from qdhuac.environment import prepare_jax
from qdhuac.training.build import build
from qdhuac.training.program import Ring


def megabytes(preset: str, name: str) -> dict[str, Any]:
    """Of one task: the state, and each part of the ring beside it."""
    task, algorithm = build(presets.make("qdhuac", preset, {"task.name": name, "task.backend": "mjx"}))
    ring = Ring.of(task, algorithm)
    state = jax.eval_shape(ring.init, jax.random.key(0))
    emission, key = jax.eval_shape(ring.ask, state)
    evaluation = jax.eval_shape(task.evaluate, emission.genotypes, key, emission.exploration)
    updates = jax.ShapeDtypeStruct((), jnp.int32)
    programs = {
        "ask": jax.jit(ring.ask).lower(state),
        "evaluate": jax.jit(task.evaluate).lower(emission.genotypes, key, emission.exploration),
        "tell": jax.jit(ring.tell, donate_argnums=0).lower(state, emission, evaluation),
        "learn": jax.jit(ring.learn, donate_argnums=0).lower(state, updates),
    }
    out: dict[str, Any] = {"task": name}
    for part, program in programs.items():
        used = program.compile().memory_analysis()
        new = used.output_size_in_bytes - used.alias_size_in_bytes  # a donated state is not there twice
        out[part] = round((used.temp_size_in_bytes + new) / 1e6)
        if part == "learn":
            out["state"] = round(used.argument_size_in_bytes / 1e6)
    rollouts = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(evaluation)) / 1e6
    # While it is told, an evaluation is there beside the state.
    out["largest"] = round(out["state"] + max(out["ask"], out["evaluate"], rollouts + out["tell"], out["learn"]))
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path)
    parser.add_argument("--preset", default="paper")
    parser.add_argument("--tasks", nargs="+", default=["halfcheetah", "ant", "humanoid"])
    arguments = parser.parse_args()
    prepare_jax()
    rows = []
    for name in arguments.tasks:
        rows.append(megabytes(arguments.preset, name))
        print(json.dumps(rows[-1]), flush=True)
    record = {"preset": arguments.preset, "jax": jax.__version__, "platform": jax.default_backend(), "megabytes": rows}
    arguments.output.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
