"""The metrics of a study, read from its runs or from the CSV file made of them."""

from __future__ import annotations

import csv
import dataclasses
import io
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from qdhuac.errors import UserError
from qdhuac.files import read as read_file
from qdhuac.store import repertoire
from qdhuac.store.run_folder import REPERTOIRE
from qdhuac.studies import catalogue, statistics
from qdhuac.studies.catalogue import Setting, Study
from qdhuac.studies.folder import FINISHED, PROBED, RUNS, look, read
from qdhuac.tasks.task_file import TASKS, builtin

MEASURES = {"qd_score": "QD score", "coverage": "coverage (%)", "max_fitness": "max fitness", "qd_score_auc": "QD AUC"}
# Measures of the archive that the algorithm keeps.
KEPT = {
    "archive_size": "policies kept",
    "archive_qd_score": "their QD score",
    "archive_mean_fitness": "their mean fitness",
}
NAMES = {name: builtin(name).title for name in TASKS}
COUNTS = ("generation", "gradient_updates", "policies")  # `policies`: evaluated so far
# The states on which the probe compares critic and shadow, by the prefix of its metrics.
PROBES = {"probe_": "start states, whole batch", "probe_path_": "along the best agents' way"}
Row = Mapping[str, Any]
Rows = Sequence[Row]
Table = tuple[list[str], list[list[str]]]  # head and rows


class Origin(NamedTuple):
    """The run that a curve comes from."""

    config_sha256: str
    versions: str
    physics: str = ""  # the engine
    folder: Path | None = None  # None if the results come from a CSV file


@dataclasses.dataclass(frozen=True)
class Results:
    """The runs of a study that have reached its horizon, cut off there."""

    study: Study
    scale: str
    curves: dict[tuple[str, str], dict[int, Rows]]  # by task and setting, then by seed
    origins: dict[tuple[str, str, int], Origin]  # by task, setting and seed
    unfinished: list[str]  # one line for each run that is left out
    notes: list[str]  # warnings

    @property
    def tasks(self) -> list[str]:
        return [task for task in self.study.tasks if any(key[0] == task for key in self.curves)]

    @property
    def labels(self) -> list[str]:
        return [s.label for s in self.study.settings if any(key[1] == s.label for key in self.curves)]

    @property
    def common_seeds(self) -> list[int]:
        """Seeds that every task and setting has. Statistics over all tasks use only these."""
        return sorted(set.intersection(*(set(self.curves.get((t, s), {})) for t in self.tasks for s in self.labels)))

    def curve(self, task: str, label: str, measure: str, summed: bool = False) -> tuple[np.ndarray, np.ndarray]:
        """Steps [T] and values [seeds, T] of a setting, empty if it has no run. `summed` gives cumulative sums."""
        found = list(self.curves.get((task, label), {}).values())
        steps = np.array(sorted({row["env_steps"] for rows in found for row in rows}))
        values = []
        for rows in found:
            numbers = np.array([number(row, measure) for row in rows])
            numbers = np.nancumsum(numbers) if summed else numbers
            values.append(_at(measure, [row["env_steps"] for row in rows], numbers, steps))
        return steps, np.array(values).reshape(len(found), len(steps))

    def mean_at(self, task: str, label: str, measure: str, when: np.ndarray) -> np.ndarray:
        """The mean over seeds at the steps `when`, nan where there is none. [T]"""
        steps, values = self.curve(task, label, measure)
        return _at(measure, steps, values.mean(axis=0), when) if len(values) else np.full(len(when), np.nan)

    def final(self, task: str, label: str, measure: str) -> np.ndarray:
        """The last value of every seed. [seeds]"""
        return np.array([number(rows[-1], measure) for rows in self.curves.get((task, label), {}).values()])

    def scores(self, measure: str) -> dict[str, np.ndarray]:
        """Last values [seeds, tasks] of each setting, for the common seeds."""
        seeds = self.common_seeds
        return {
            s: np.array([[number(self.curves[t, s][seed][-1], measure) for t in self.tasks] for seed in seeds])
            for s in self.labels
        }


def number(row: Row, name: str) -> float:
    """A metric of a generation, coverage in per cent. It is nan if missing."""
    value = row.get(name)
    return math.nan if value is None else 100.0 * value if name == "coverage" else float(value)


def collect(folder: Path) -> Results:
    """Read the results in a study folder. Runs that are missing, unfinished or not as planned are left out and named.

    Raises:
        UserError: this is not a study folder, or none of its runs has reached the horizon.
    """
    study, scale, runs, notes = read(folder)
    root = folder.absolute().parent
    results = Results(study, scale, {}, {}, [], notes)
    for run in runs:
        try:
            found = look(root, run)
        except UserError as error:
            notes.append(f"left out: {error}")
            continue
        notes += found.notes
        emitter = run.config.settings.emitter
        batch = emitter.batch_size - getattr(emitter, "exploration_rollouts", 0)  # policies per generation
        rows = cut([{**row, "policies": batch * row["generation"]} for row in found.rows], study.steps)
        if found.steps < study.steps or not rows:
            reached = f"has {found.steps:,} of {study.steps:,} steps" if found.steps else "is missing"
            if found.steps >= study.steps:
                reached = f"has a first generation longer than {study.steps:,} steps"
            results.unfinished.append(f"{run.name} {reached} ({run.folder})")
            continue
        if found.state != FINISHED:
            notes.append(f"not finished, but past the horizon of this study: {run.name} ({run.folder})")
        path = root / RUNS / run.folder
        results.curves.setdefault((run.task, run.label), {})[run.seed] = rows
        origin = Origin(run.fingerprint, _versions(path), found.backend, path)
        results.origins[run.task, run.label, run.seed] = origin
    if not results.curves:
        raise UserError(f"{folder}: no run has reached {study.steps:,} steps yet; run: qdhuac study {study.name}")
    notes += _caveats(results)
    return results


def _caveats(results: Results) -> Iterator[str]:
    """Caveats of a comparison."""
    first = results.study.settings[0].label
    if results.labels[0] != first:
        yield f"{first} has no run yet: comparisons are with {results.labels[0]}"
    seeds = results.common_seeds
    if len(results.labels) > 1 and not seeds:
        yield "no IQM, probabilities and profiles: no seed has every task and setting"
    elif len(results.labels) > 1 and set(seeds) != {seed for *_, seed in results.origins}:
        yield f"IQM, probabilities and profiles use only seeds {', '.join(map(str, seeds))}, which all settings have"
    for what in ("physics", "versions"):
        made: dict[str, list[str]] = {}
        for origin in results.origins.values():
            made.setdefault(getattr(origin, what), []).append(origin.folder.name if origin.folder else "")
        if len(made) > 1:
            every = "; ".join(f"{name} ({len(runs)} runs, such as {runs[0]})" for name, runs in made.items())
            yield f"runs with different {what} are compared: {every}"


def cut(rows: Rows, horizon: int) -> Rows:
    """Rows up to the horizon. If a generation ends beyond it, a row at the horizon repeats the values before."""
    within = [row for row in rows if row["env_steps"] <= horizon]
    if not within or within[-1]["env_steps"] == horizon:
        return within
    last = within[-1]
    held = {k: last.get(k) for k in (*COUNTS, "wall_s", *MEASURES, *KEPT)}
    area = last["qd_score_auc"] + last["qd_score"] * (horizon - last["env_steps"])
    return [*within, {**held, "env_steps": horizon, "qd_score_auc": area}]


# Results as one CSV file with a line for each generation. Only the first line of a run has the columns ONCE.

ONCE = ("study", "scale", "config_sha256", "versions")
RUN = ("task", "setting", "seed")


def as_csv(results: Results) -> Table:
    """Head and rows with all numbers that tables and figures show. `read_csv` is the inverse."""
    names = ["generation", "env_steps", *COUNTS[1:], *MEASURES, *KEPT, "wall_s"]
    every = {name for seeds in results.curves.values() for rows in seeds.values() for row in rows for name in row}
    names += [name for name in ("probe_threshold", *PROBED) if name in every]
    lines = []
    for (task, label), seeds in results.curves.items():
        for seed, rows in seeds.items():
            origin = results.origins[task, label, seed]
            once = [results.study.name, results.scale, origin.config_sha256, origin.versions]
            for row in rows:
                numbers = (_text(row.get(name)) for name in names)
                lines.append([*once, task, label, str(seed), *numbers])
                once = [""] * len(once)
    return [*ONCE, *RUN, *names], lines


def read_csv(path: Path) -> Results:
    """Read the results in a file that `qdhuac report` has written; the runs are not needed."""
    curves: dict[tuple[str, str], dict[int, Rows]] = {}
    origins = {}
    try:
        lines = list(csv.DictReader(io.StringIO(read_file(path).decode(), newline="")))
        name, scale = lines[0]["study"], lines[0]["scale"]
        for line in lines:
            task, label, seed = line["task"], line["setting"], int(line["seed"])
            if line["config_sha256"]:
                origins[task, label, seed] = Origin(line["config_sha256"], line["versions"])
            row = {k: _number(v) for k, v in line.items() if k not in (*ONCE, *RUN)}
            seeds = curves.setdefault((task, label), {})
            seeds[seed] = [*seeds.get(seed, ()), row]
    except (OSError, ValueError, KeyError, IndexError) as error:
        raise UserError(f"{path}: not the CSV file of a study ({error!r})") from None
    # Tasks and settings are those of the file, so that it stays readable when the catalogue changes.
    planned = catalogue.study(name, scale)
    known = {setting.label: setting for setting in planned.settings}
    tasks, labels = (tuple(dict.fromkeys(key[i] for key in curves)) for i in (0, 1))
    settings = tuple(known.get(label, Setting(label)) for label in labels)
    steps = max(rows[-1]["env_steps"] for seeds in curves.values() for rows in seeds.values())
    study = dataclasses.replace(planned, tasks=tasks, settings=settings, steps=steps)
    return Results(study, scale, curves, origins, [], [])


def _text(value: float | None) -> str:
    return "" if value is None else str(value) if isinstance(value, int) else f"{value:.8g}"


def _number(text: str) -> float | None:
    return None if not text else int(text) if text.isdecimal() else float(text)


def _at(measure: str, steps: Sequence[float] | np.ndarray, values: np.ndarray, when: np.ndarray) -> np.ndarray:
    """A curve at the steps `when`. An area grows between two generations; other metrics keep their last value."""
    if measure == "qd_score_auc":
        return np.interp(when, steps, values, left=np.nan)
    return statistics.at(steps, values, when)


def _versions(path: Path) -> str:
    """The versions that a run was made with, as its repertoire names them."""
    try:
        found = repertoire.read(path / REPERTOIRE)[1]["versions"]
        return ", ".join(f"{name} {version}" for name, version in sorted(found.items()))
    except (UserError, KeyError, TypeError, AttributeError):
        return "unknown"
