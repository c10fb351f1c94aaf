"""How long a save interrupts training with a full replay buffer, and how long a stop takes at the paper's scale."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import time
from pathlib import Path

import harness
import numpy as np

NEW_ROWS = 10_000  # of one generation: more come in only where a generation takes less than the interval
ROWS = 1_000_000


def stall(task_name: str, where: Path) -> dict:
    """Saves of a state with a full buffer, one generation of new rows apart."""
    import jax
    import jax.numpy as jnp

    from qdhuac.algorithms import specs
    from qdhuac.store.run_folder import RunDir
    from qdhuac.training.build import build
    from qdhuac.training.loop import Trainer

    config = specs.make("qdhuac", "paper", {"task.name": task_name, "task.backend": "native"})
    with RunDir.create(where / task_name, config) as folder:
        runner = Trainer([(config, folder)], *build(config))
        (recorder,) = runner.recorders
        runner.start()
        chance = np.random.default_rng(0)
        tree = runner.state.algorithm.replay.tree.shape

        @jax.jit
        def fill(key: jax.Array, shape: jax.Array) -> jax.Array:
            return jax.random.uniform(key, shape.shape)

        rows = fill(jax.random.key(0), runner.state.algorithm.replay.rows)
        write = jax.jit(lambda rows, new, at: jax.lax.dynamic_update_slice(rows, new, (at, 0)), donate_argnums=0)
        seconds = []
        for i in range(5):
            new = jnp.asarray(chance.random((NEW_ROWS, rows.shape[1]), np.float32))
            rows = jax.block_until_ready(write(rows, new, np.int32(i * NEW_ROWS)))
            # All priorities change between two saves.
            replay = runner.state.algorithm.replay._replace(
                rows=rows, tree=jnp.asarray(chance.random(tree, np.float32))
            )
            runner.state = runner.state._replace(algorithm=runner.state.algorithm._replace(replay=replay))
            recorder.counters.generation, recorder.unsaved = i + 1, True
            before, before_cpu = time.monotonic(), time.process_time()
            runner.save()
            seconds.append((round(time.monotonic() - before, 2), round(time.process_time() - before_cpu, 2)))
    interval = 60 * config.run.checkpoint_minutes
    steady = max(wall for wall, _ in seconds[2:])
    return {
        "buffer_mb": round(rows.nbytes / 1e6),
        "first_two_saves_s": [wall for wall, _ in seconds[:2]],  # they write everything
        "later_saves_s": [wall for wall, _ in seconds[2:]],
        "later_saves_cpu_s": [cpu for _, cpu in seconds[2:]],
        "interval_s": interval,
        "share_of_wall_time": round(steady / (interval + steady), 4),
        "share_in_cpu_time": round(max(cpu for _, cpu in seconds[2:]) / interval, 4),
    }


def stop_in_learning(number: int, folder: Path, *command: object, patience: float = 900.0) -> dict:
    """Start, wait until a checkpoint shows that learning is under way, send the signal, wait for the end."""
    process = harness.start(*command, log=folder.with_suffix(".log"))
    seen, deadline = set(_checkpoints(folder)), time.monotonic() + patience
    while not any(int(name.split("-")[1]) for name in set(_checkpoints(folder)) - seen):
        if process.poll() is not None or time.monotonic() > deadline:
            process.kill()
            raise SystemExit(folder.with_suffix(".log").read_text())
        time.sleep(0.1)
    before = time.monotonic()
    process.send_signal(number)
    code = process.wait(timeout=600)
    return {"signal": signal.Signals(number).name, "seconds": round(time.monotonic() - before, 1), "exit_code": code}


def _checkpoints(folder: Path) -> list[str]:
    try:
        return [name for name in os.listdir(folder / "checkpoints") if name[0].isdigit()]
    except FileNotFoundError:
        return []


def stops(where: Path, preset: str = "paper", task: str = "humanoid") -> list[dict]:
    """SIGTERM to a new run, SIGINT to the same run resumed."""
    folder = where / "run"
    often = ("--set", "run.checkpoint_minutes=0.2")
    train = ("train", "--preset", preset, "--task", task, "--backend", "native", "--run-dir", folder, *often)
    return [
        stop_in_learning(signal.SIGTERM, folder, *train),
        stop_in_learning(signal.SIGINT, folder, "resume", folder),
    ]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as where:
        stalls = {task: stall(task, Path(where)) for task in sys.argv[1:] or ("halfcheetah", "humanoid")}
        harness.write("save", {"stalls": stalls, "stops_at_paper_scale": stops(Path(where))})
