"""Files of a study: `ROOT/<study>-<scale>/study.toml`, and `runs`, `configs` and `logs` of all studies.

Does not import JAX.
"""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tomli_w

from qdhuac import __version__, config
from qdhuac.errors import UserError, reason
from qdhuac.files import inside, replace_file
from qdhuac.files import read as read_file
from qdhuac.store.run_folder import REPORT, RunDir
from qdhuac.studies import catalogue
from qdhuac.studies.catalogue import Run, Study

STUDY, RUNS, CONFIGS, LOGS = "study.toml", "runs", "configs", "logs"
# Metrics that every generation must have; a run with a probe also needs `PROBED`.
NEEDED = (
    *("qd_score", "coverage", "max_fitness", "qd_score_auc", "wall_s"),
    *("archive_size", "archive_qd_score", "archive_mean_fitness"),
)
PROBED = tuple(
    f"probe_{path}{what}"
    for path in ("", "path_")
    for what in ("return", "q", "q_shadow", "gap", "high", "missed", "missed_shadow")
)
AGAIN = "move the folder away, and the study will repeat the run"
MISSING, STARTED, FINISHED = "missing", "started", "finished"


@dataclasses.dataclass(frozen=True)
class Found:
    """What is stored of a run."""

    state: str
    rows: Sequence[Mapping[str, Any]] = ()  # metrics of each generation
    backend: str = ""  # physics engine of the run
    notes: Sequence[str] = ()  # warnings about damaged files that a resumed run repairs

    @property
    def steps(self) -> int:
        return self.rows[-1]["env_steps"] if self.rows else 0


def write(root: Path, name: str, scale: str, seeds: int) -> Path:
    """Write the record of a study and the configurations of its runs. Return its folder."""
    folder = root / f"{name}-{scale}"
    for other in sorted(root.glob(f"*/{STUDY}")):  # all studies of a root share its runs
        record = _load(other)
        if record["version"] != __version__:
            raise UserError(
                f"{other}: made by qdhuac {record['version']}, and this is {__version__}; runs of two versions are not "
                "mixed: name another --root"
            )
        if other.parent == folder:
            seeds = max(seeds, record["seeds"])  # a smaller number does not forget the other runs
    try:
        for path in (RUNS, CONFIGS, folder.name):
            inside(root, path).mkdir(parents=True, exist_ok=True)
        for run in catalogue.runs(name, scale, seeds):
            replace_file(config_file(root, run.folder), config.to_toml(run.config).encode())
        record = {"study": name, "scale": scale, "version": __version__, "seeds": seeds}
        replace_file(folder / STUDY, tomli_w.dumps(record).encode())
    except OSError as error:
        raise UserError(f"--root {root}: cannot be written ({reason(error)})") from None
    return folder


def config_file(root: Path, name: str) -> Path:
    """The configuration that the run folder of that name starts from."""
    return inside(root, CONFIGS, f"{name}.toml")


def read(folder: Path) -> tuple[Study, str, list[Run], list[str]]:
    """Return the study of a study folder, its scale, its runs, and warnings."""
    where = folder / STUDY
    record = _load(where)
    try:
        wanted = catalogue.study(record["study"], record["scale"])
    except UserError as error:
        raise UserError(f"{where}: {error}") from None
    notes = []
    if record["version"] != __version__:
        notes.append(f"{where}: made by qdhuac {record['version']}, read by {__version__}")
    return wanted, record["scale"], catalogue.runs(wanted.name, record["scale"], record["seeds"]), notes


def look(root: Path, run: Run) -> Found:
    """Read what is stored of a run. Raise UserError if its configuration differs or its metrics have a gap."""
    path = inside(root, RUNS, run.folder)
    if not path.exists():
        return Found(MISSING)
    folder = RunDir.open(path)
    theirs = folder.read_config()
    if folder.notes:
        raise UserError(f"{folder.notes[0]}; {AGAIN}")
    goal: dict[str, Any] = {"run.env_steps": run.config.run.env_steps, "run.generations": 0}
    if run.config.task.backend == "auto":
        goal["task.backend"] = "auto"
    ours, same = config.to_toml(run.config), config.to_toml(config.replace(theirs, goal))
    if ours != same:
        changed = next(b for a, b in zip(ours.splitlines(), same.splitlines(), strict=True) if a != b)
        raise UserError(f"{path}: its configuration is not that of {run.name}: it has {changed}")
    rows = folder.read_metrics()
    learner = getattr(run.config.settings, "learner", None)
    _check(path, rows, (*NEEDED, *PROBED) if getattr(learner, "probe", False) else NEEDED)
    done = bool(rows) and rows[-1]["env_steps"] >= run.config.run.env_steps
    # The report is written last: without it, the last checkpoint and repertoire may be missing too.
    whole = (path / REPORT).exists() or not folder.checkpoints.exists()
    return Found(FINISHED if done and whole else STARTED, rows, theirs.task.backend, folder.notes)


def _check(path: Path, rows: Sequence[Mapping[str, Any]], needed: Sequence[str]) -> None:
    """Raise UserError unless each generation is there once, in order, and has all metrics in `needed`."""
    for i, row in enumerate(rows, 1):
        missing = [name for name in needed if row.get(name) is None]
        if row["generation"] != i:
            raise UserError(f"{path}: metrics.jsonl has a gap: no generation {i}; {AGAIN}")
        if missing:
            raise UserError(f"{path}: metrics.jsonl has no {missing[0]} in generation {i}; {AGAIN}")


def _load(where: Path) -> dict[str, Any]:
    try:
        record = tomllib.loads(read_file(where).decode())
        if not all(isinstance(record[key], str) for key in ("study", "scale", "version")):
            raise ValueError("study, scale and version must be strings")
        if type(record["seeds"]) is not int or not 1 <= record["seeds"] <= catalogue.MOST_SEEDS:
            raise ValueError(f"seeds must be a whole number from 1 to {catalogue.MOST_SEEDS}")
    except FileNotFoundError:
        raise UserError(f"{where}: no such file; make a study folder with: qdhuac study NAME") from None
    except (OSError, ValueError, KeyError, RecursionError) as error:
        raise UserError(f"{where}: not the record of a study ({reason(error)})") from None
    return record
