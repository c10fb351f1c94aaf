"""SIGKILL at random moments, also during a save, then resume; the end is compared with a run never killed.

Each life is a fork of this process, which has everything imported but JAX not yet started: what is killed is a process
of its own, without the seconds that imports take.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import tempfile
import time
from pathlib import Path

import harness

os.environ.update(harness.ONE_THREAD)
sys.path.insert(0, str(Path(__file__).parents[1] / "helpers"))

import jax
import jax.numpy as jnp
from toys import ToyLearner, ToyTask, toy_algorithm

from qdhuac import cli, environment
from qdhuac.store import checkpoint
from qdhuac.training import build

LIFE = 4.0  # seconds after which those are killed at the latest that may be killed before they have written anything


class ToyWithBuffer(ToyLearner):
    """A random walk and a buffer that fills up slowly: the part of a state that is saved in pieces."""

    def init(self, key):
        return super().init(key) | {"buffer": jnp.zeros((65_536, 16)), "updates": jnp.int32(0)}

    def learn(self, learner, replay, buffer, key, updates):
        learner, buffer, metrics = super().learn(learner, replay, buffer, key, updates)
        rows = jnp.broadcast_to(learner["walk"][0], (512, 16))
        start = (512 * learner["updates"]) % 65_536
        filled = jax.lax.dynamic_update_slice(learner["buffer"], rows, (start, 0))
        return learner | {"buffer": filled, "updates": learner["updates"] + 1}, buffer, metrics


def use_toys() -> None:
    """A task and a learner that start in a moment, with a state of 4 MB that is saved in 64 pieces."""
    build.build_task = lambda settings: ToyTask()
    build.specs.build = lambda settings, task: toy_algorithm(ToyWithBuffer)
    checkpoint.LARGE, checkpoint.PIECE = 1 << 20, 1 << 16
    environment.prepare_jax = cache_everything


def cache_everything() -> None:
    """Toys compile in less time than is usually worth a file, but here they are compiled a hundred times."""
    folder = environment.cache_folder()
    jax.config.update("jax_compilation_cache_dir", None if folder is None else str(folder))
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)


def fork(*arguments: object, log: Path, toys: bool) -> int:
    """A process that runs the command."""
    child = os.fork()
    if child == 0:
        if toys:
            use_toys()
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os._exit(cli.main([str(a) for a in arguments]))
    return child


def saving(folder: Path, since: float) -> bool:
    """A save has begun after that moment and not ended; what an earlier kill has left does not count."""
    try:
        return any(path.stat().st_ctime > since for path in (folder / "checkpoints").glob("tmp-*"))
    except FileNotFoundError:  # it has just ended
        return False


def kill(child: int, folder: Path, chance: random.Random) -> str:
    """Wait for a random instant, then kill; returns what the instant was."""
    first, since = metrics_size(folder), time.time()
    kind = chance.choices(("anywhere", "running", "saving"), (0.2, 0.4, 0.4))[0]
    deadline = time.monotonic() + (chance.uniform(0.0, LIFE) if kind == "anywhere" else 300.0)
    while kind != "anywhere" and metrics_size(folder) == first:  # until a generation has been written
        if time.monotonic() > deadline or os.waitpid(child, os.WNOHANG)[0]:
            raise SystemExit(f"the process did not go on; see the log beside {folder}")
        first = min(first, metrics_size(folder))  # a resumed run first takes back what was not saved
        time.sleep(0.001)
    if kind == "running":
        time.sleep(chance.uniform(0.0, 1.0))
    elif kind == "saving":
        wait = time.monotonic() + 30
        while not saving(folder, since) and time.monotonic() < wait:
            pass
        time.sleep(chance.choice((0.0, chance.uniform(0.0, 0.02))))
    else:
        time.sleep(max(0.0, deadline - time.monotonic()))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return "in a save" if saving(folder, since) else kind if kind != "saving" else "just after a save"


def metrics_size(folder: Path) -> int:
    return (folder / "metrics.jsonl").stat().st_size


def harass(kills: int, where: Path, seed: int = 0, toys: bool = True) -> dict:
    """Kill a run so often, let it finish, and compare it with one that was left alone."""
    chance, folder, log = random.Random(seed), where / "killed", where / "log.txt"
    before = checkpoint.LARGE, checkpoint.PIECE
    if toys:
        checkpoint.LARGE, checkpoint.PIECE = 1 << 20, 1 << 16  # to read what the children write
    try:
        return _harass(kills, where, chance, folder, log, toys)
    finally:
        checkpoint.LARGE, checkpoint.PIECE = before


def _harass(kills: int, where: Path, chance: random.Random, folder: Path, log: Path, toys: bool) -> dict:
    options = ("--preset", "smoke", "--backend", "native")
    often = ("--set", "run.checkpoint_generations=1", "learner.utd=0.5", "run.chunk=7")

    def through(*arguments: object) -> None:
        assert os.waitpid(fork(*arguments, log=log, toys=toys), 0)[1] == 0, log.read_text()[-2000:]

    through("train", *options, "--run-dir", folder, "--generations", 2, *often)
    instants: dict[str, int] = {}
    reached, valid, in_order = 2, 0, 0
    for _ in range(kills):
        instant = kill(fork("resume", folder, "--generations", 10**9, log=log, toys=toys), folder, chance)
        instants[instant] = instants.get(instant, 0) + 1
        found = checkpoint.load(folder / "checkpoints").record["counters"]["generation"]
        valid += found >= reached  # nothing that was saved before is lost
        reached = found
        complete = (folder / "metrics.jsonl").read_bytes().rpartition(b"\n")[0]
        (where / "metrics.jsonl").write_bytes(complete + b"\n")
        generations = [row["generation"] for row in harness.metrics(where)]
        in_order += generations == list(range(1, len(generations) + 1)) and len(generations) >= reached
    goal = reached + 3
    through("resume", folder, "--generations", goal)
    alone = where / "alone"
    through("train", *options, "--run-dir", alone, "--generations", goal, *often)
    return {
        "kills": kills,
        "instants": instants,
        "went_on_from_a_valid_checkpoint": valid,
        "metrics_in_order": in_order,
        "generations": goal,
        "same_metrics_as_a_run_never_killed": harness.metrics(folder) == harness.metrics(alone),
        "same_state_as_a_run_never_killed": harness.state_hash(folder) == harness.state_hash(alone),
    }


def together(results: list[dict]) -> dict:
    """Several runs as one result: numbers add up, and what must hold must hold for all."""
    first = results[0]
    if isinstance(first, dict):
        keys = dict.fromkeys(key for result in results for key in result)
        return {key: together([result[key] for result in results if key in result]) for key in keys}
    return all(results) if isinstance(first, bool) else sum(results)


if __name__ == "__main__":
    kills = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    with tempfile.TemporaryDirectory() as where:
        folders = [Path(where) / str(seed) for seed in range(3)]
        for folder in folders:
            folder.mkdir()
        toys = [harass(kills // 2, folder, seed) for seed, folder in enumerate(folders[:2])]
        robot = harass(max(1, kills // 20), folders[2], seed=2, toys=False)
        harness.write("kill", {**together(toys), "and_a_real_robot": robot})
