"""Random damage to the files of a run: it must be detected, and nothing wrong be read.

Needs no JAX: files are written and read here as the Recorder does it.
"""

from __future__ import annotations

import random
import shutil
import sys
import tempfile
from pathlib import Path
from unittest import mock

import harness
import numpy as np

from qdhuac.algorithms import specs
from qdhuac.errors import UserError
from qdhuac.store import checkpoint, repertoire
from qdhuac.store.run_folder import HISTORY, METRICS, REPERTOIRE, RunDir

METADATA = {"descriptor_bounds": [[0.0, 0.0], [1.0, 1.0]], "algorithm": "dns"}
# Small, so that the buffer is saved in pieces here too.
SIZES = {"LARGE": 1 << 15, "PIECE": 1 << 13}


def state(generation: int) -> dict[str, np.ndarray]:
    """An archive and a buffer that fills up, as the Trainer passes them to the Recorder."""
    chance = np.random.default_rng(0)
    buffer = np.zeros((8192, 4), np.float32)
    buffer[: 400 * generation] = chance.normal(size=(400 * generation, 4))
    fitness = chance.normal(size=16).astype(np.float32)
    fitness[generation:] = -np.inf
    return {
        "algorithm/archive/fitness": fitness,
        "algorithm/archive/descriptor": chance.random((16, 2), np.float32),
        "algorithm/archive/genotypes/x": chance.normal(size=(16, 5)).astype(np.float32),
        "algorithm/archive/provenance/id": np.arange(16, dtype=np.int32),
        "algorithm/archive/provenance/parents": np.full((16, 2), -1, np.int32),
        "algorithm/archive/provenance/operator": np.zeros(16, np.int32),
        "algorithm/archive/provenance/generation": np.ones(16, np.int32),
        "algorithm/key": np.array([1, generation], np.uint32),
        "algorithm/replay/rows": buffer,
    }


def make_run(path: Path, generations: int = 6) -> None:
    """A run folder with checkpoints of generations 1, 2, ... and one more line of metrics after the last of them."""
    with RunDir.create(path, specs.make("dns", "smoke")) as folder:
        for generation in range(1, generations + 1):
            folder.append_metrics(
                {"generation": generation, "env_steps": 120 * generation, "qd_score": 0.1 + generation}
            )
            folder.append_history(
                generation,
                {
                    **{name: [generation] for name in ("slot", "id", "operator", "fitness")},
                    **{name: [[generation, 0]] for name in ("parents", "descriptor")},
                },
            )
            if generation == generations:
                break
            arrays = state(generation)
            record = {"counters": {"generation": generation}, "pending": None, "repertoire": METADATA}
            repertoire.write(path / REPERTOIRE, arrays, METADATA)
            checkpoint.save(folder.checkpoints, checkpoint.name(generation, 0), record, folder.texts(), arrays)


def damage(folder: Path, chance: random.Random) -> tuple[str, Path]:
    """Flip bits in, cut off or delete one file, or delete a checkpoint; what was done, and to what."""
    files = sorted(p for p in folder.rglob("*") if p.is_file() and p.name != ".lock")
    # Half of the damage goes to the large files of checkpoints, half to those that a person sees.
    seen = [p for p in files if p.parent == folder]
    path = chance.choice(seen if chance.random() < 0.5 else files)
    kind = chance.choices(("flip", "several flips", "cut", "delete", "delete a checkpoint"), (40, 15, 25, 15, 5))[0]
    if kind == "delete a checkpoint":
        path = chance.choice(sorted(p for p in (folder / "checkpoints").iterdir()))
        shutil.rmtree(path)
    elif kind == "delete":
        path.unlink()
    else:
        data = bytearray(path.read_bytes())
        if kind == "cut":
            del data[chance.randrange(len(data)) :]
        else:
            for _ in range(1 if kind == "flip" else chance.randint(2, 100)):
                data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        path.write_bytes(data)
    return kind, path


def read(path: Path) -> dict:
    """Everything that a run folder says, and what the user is told about it."""
    folder = RunDir.open(path)
    found = checkpoint.load(folder.checkpoints)
    out = {
        "config": folder.read_config().run,
        "metrics": folder.read_metrics(),
        "history": folder.read_history(),
        "repertoire": {k: v.tobytes() for k, v in repertoire.find(folder)[0].items()},
        "checkpoint": found.path.name,
        "state": {k: v.tobytes() for k, v in (found.arrays or {}).items()},
        "record": found.record,
    }
    return out | {"told": " ".join(folder.notes + found.damaged)}


def judge(path: Path, touched: Path, whole: dict, previous: dict) -> str:
    """`told`, `as before` (the file is one that the run itself has written a moment earlier), or `WRONG`."""
    after = read(path)
    good = previous if after["checkpoint"] == previous["checkpoint"] else whole
    right = all(after[key] == good[key] for key in ("config", "checkpoint", "state", "record"))
    # The newest archive, or that of the checkpoint that is used now.
    right &= after["repertoire"] in (whole["repertoire"], good["repertoire"])
    for name in ("metrics", "history"):
        rows = after[name]
        right &= rows == whole[name][: len(rows)] and len(rows) >= after["record"]["counters"]["generation"]
    if not right:
        return "WRONG"
    if after["told"]:
        return "told"
    if "checkpoints" in touched.parts:  # the older one, which is not looked at while the newer one is good
        if not touched.exists() and touched.parent.name == "checkpoints":
            return "as before"
        older = path / "checkpoints" / previous["checkpoint"]
        try:
            checkpoint._read(older, "")
        except checkpoint.Damaged:
            return "told"
        return "WRONG"
    return "as before" if touched.name in (METRICS, HISTORY, REPERTOIRE) else "WRONG"


def corrupt(times: int, where: Path, seed: int = 0) -> dict:
    """Damage a copy of a run so often, each time anew."""
    chance = random.Random(seed)
    verdicts: dict[str, dict[str, int]] = {}
    wrong = []
    with mock.patch.multiple(checkpoint, **SIZES):
        make_run(where / "run")
        whole = read(where / "run")
        names = sorted(p.name for p in (where / "run/checkpoints").iterdir())
        shutil.copytree(where / "run", where / "trial")
        shutil.rmtree(where / "trial/checkpoints" / names[-1])
        previous = read(where / "trial")
        for _ in range(times):
            shutil.rmtree(where / "trial")
            shutil.copytree(where / "run", where / "trial")
            kind, touched = damage(where / "trial", chance)
            try:
                verdict = judge(where / "trial", touched, whole, previous)
            except UserError as error:
                verdict = f"refused: {error}"
            place = "checkpoint" if "checkpoints" in touched.parts else touched.name
            verdicts.setdefault(place, {}).setdefault(verdict, 0)
            verdicts[place][verdict] += 1
            if verdict not in ("told", "as before"):
                wrong.append(f"{kind}: {touched.relative_to(where)}: {verdict}")
    return {"damages": times, "wrong": wrong, "verdicts": verdicts}


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as where:
        harness.write("corrupt", corrupt(int(sys.argv[1]) if len(sys.argv) > 1 else 1000, Path(where)))
