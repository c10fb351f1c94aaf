"""Our update beside those of other packages, each in its own process on one core, taking turns.

    python benchmarks/peers/speed.py --sbx SBX_PYTHON --qdax QDAX_PYTHON [--core 0] [--rounds 3]

SBX_PYTHON and QDAX_PYTHON are the interpreters of environments made from `sbx.txt` and `qdax.txt` beside this file. One
JSON object per line: milliseconds per update, the best of each round.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
UPDATES = {512: 10, 128: 200}  # per measurement, by width
TD3_STEPS = 300


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sbx", help="interpreter with SBX")
    parser.add_argument("--qdax", help="interpreter with QDax")
    parser.add_argument("--core", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--ours", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.ours:
        print(json.dumps({"ms": ours(**json.loads(arguments.ours))}))
        return

    def us(algorithm: str, preset: str, updates: int, changes: dict[str, object]) -> list[str]:
        wanted = {"algorithm": algorithm, "preset": preset, "updates": updates, "changes": changes}
        return [sys.executable, __file__, "--ours", json.dumps(wanted)]

    plain = {"critic.kind": "scalar", "replay.priority_exponent": 0.0}
    commands: dict[str, list[str]] = {}
    for width, preset in ((512, "paper"), (128, "laptop")):
        batch = width  # both presets have batches as large as their critic is wide
        commands[f"qdhuac {preset}"] = us("qdhuac", preset, UPDATES[width], {})
        commands[f"qdhuac {preset}, scalar critic, uniform replay"] = us("qdhuac", preset, UPDATES[width], plain)
        if arguments.sbx:
            peer = str(HERE / "sbx_crossq.py")
            shape = [str(width), str(batch), str(UPDATES[width])]
            commands[f"sbx crossq, shapes of {preset}"] = [arguments.sbx, peer, *shape]
    commands["qdhuac pga_me"] = us("pga_me", "original", TD3_STEPS, {})
    if arguments.qdax:
        commands["qdax pga_me"] = [arguments.qdax, str(HERE / "qdax_pga_me.py"), str(TD3_STEPS)]

    times: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(arguments.rounds):
        for name, command in commands.items():
            pinned = ["taskset", "-c", str(arguments.core), *command]
            done = subprocess.run(pinned, capture_output=True, text=True, check=False)
            if done.returncode:
                raise SystemExit(f"{name}: {done.stderr[-2000:]}")
            times[name].append(json.loads(done.stdout.splitlines()[-1])["ms"])
    for name, values in times.items():
        rounds = [round(v, 3) for v in values]
        print(json.dumps({"name": name, "ms": statistics.median(rounds), "rounds": rounds}))


def ours(algorithm: str, preset: str, updates: int, changes: dict[str, object]) -> float:
    """Milliseconds per update of our own learner, the best of four."""
    import jax
    import jax.numpy as jnp

    from qdhuac.algorithms import specs
    from qdhuac.bench.learner import ACTIONS, OBS, build
    from qdhuac.bench.replay import filled
    from qdhuac.bench.timing import Stepper, best_times
    from qdhuac.environment import prepare_jax
    from qdhuac.learning.policy import Policy
    from qdhuac.learning.replay import Replay
    from qdhuac.learning.td3 import TD3Learner

    prepare_jax()
    config = specs.make(algorithm, preset, changes)
    settings = config.settings
    if algorithm == "qdhuac":
        learner, replay = build(config)
    else:
        learner = TD3Learner(Policy(OBS, ACTIONS, config.policy.hidden), settings.critic, settings.learner)
        replay = Replay.of(settings.replay, OBS, ACTIONS)
    key = jax.random.key(0)

    def learn(state, updates):
        return learner.learn(state[0], replay, state[1], key, updates)[:2]

    state = (jax.jit(learner.init)(key), filled(replay, key))
    seconds = best_times({"ours": Stepper(learn, state, jnp.int32(updates))}, 4)["ours"]
    return 1e3 * seconds / updates


if __name__ == "__main__":
    main()
