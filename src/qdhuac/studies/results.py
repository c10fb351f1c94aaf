"""The stored metrics of a study: what is there, what is left out and why, and its numbers as tables."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from qdhuac.errors import UserError
from qdhuac.store import repertoire
from qdhuac.store.files import sha256
from qdhuac.store.run_folder import METRICS, REPERTOIRE
from qdhuac.studies import catalogue, statistics
from qdhuac.studies.catalogue import Run, Study
from qdhuac.studies.folder import FINISHED, RUNS, look, read

MEASURES = {"qd_score": "QD score", "coverage": "coverage (%)", "max_fitness": "max fitness", "qd_score_auc": "QD AUC"}
# The same of what an algorithm keeps itself, which is what its user gets.
OWN = {
    "archive_size": "policies kept",
    "archive_qd_score": "their QD score",
    "archive_mean_fitness": "their mean fitness",
}
ORIGIN = "origin.json"  # of a run that is kept without its repertoire: hashes and versions of what it was made from
NAMES = {"hopper": "Hopper", "walker2d": "Walker2d", "halfcheetah": "HalfCheetah", "ant": "Ant", "humanoid": "Humanoid"}
Rows = Sequence[Mapping[str, Any]]


@dataclasses.dataclass(frozen=True)
class Results:
    """Runs that reached the study's horizon, cut off there; and one line for each that did not."""

    study: Study
    scale: str
    root: Path
    curves: dict[tuple[str, str], dict[int, Rows]]  # by task and setting, then by seed
    runs: list[Run]  # those in `curves`
    unfinished: list[str]
    notes: list[str]  # what else the reader should be told

    @property
    def tasks(self) -> list[str]:
        return [task for task in self.study.tasks if any(key[0] == task for key in self.curves)]

    @property
    def labels(self) -> list[str]:
        return [s.label for s in self.study.settings if any(key[1] == s.label for key in self.curves)]

    def curve(self, task: str, label: str, measure: str, summed: bool = False) -> tuple[np.ndarray, np.ndarray]:
        """Steps [T] and values [seeds, T] of a setting, or their sums until then; empty if there are none."""
        found = list(self.curves.get((task, label), {}).values())
        steps = np.array(sorted({row["env_steps"] for rows in found for row in rows}))
        values = []
        for rows in found:
            mine = np.array([number(row, measure) for row in rows])
            values.append(_at(measure, [r["env_steps"] for r in rows], np.nancumsum(mine) if summed else mine, steps))
        return steps, np.array(values).reshape(len(found), len(steps))

    def mean_at(self, task: str, label: str, measure: str, when: np.ndarray) -> np.ndarray:
        """The mean over seeds at other steps, nan where there is none. [T]"""
        steps, values = self.curve(task, label, measure)
        return _at(measure, steps, values.mean(axis=0), when) if len(values) else np.full(len(when), np.nan)

    def final(self, task: str, label: str, measure: str) -> np.ndarray:
        """The last value of every seed. [seeds]"""
        return np.array([number(rows[-1], measure) for rows in self.curves.get((task, label), {}).values()])

    def scores(self, measure: str) -> dict[str, np.ndarray]:
        """Last values [seeds, tasks] of the settings, of the seeds that every task and setting has."""
        seeds = self.common_seeds
        if not seeds:
            return {}
        return {
            s: np.array([[number(self.curves[t, s][seed][-1], measure) for t in self.tasks] for seed in seeds])
            for s in self.labels
        }

    @property
    def common_seeds(self) -> list[int]:
        """Seeds that every task and setting has: what is said over all tasks is said of these."""
        return sorted(set.intersection(*(set(self.curves.get((t, s), {})) for t in self.tasks for s in self.labels)))


def number(row: Mapping[str, Any], name: str) -> float:
    """A number of a line of metrics, coverage in per cent; nan if it has none."""
    value = row.get(name)
    return float("nan") if value is None else 100.0 * value if name == "coverage" else float(value)


def collect(folder: Path) -> Results:
    """The results in a study folder; runs that are missing, unfinished or not what was planned are named."""
    name, scale, runs, notes = read(folder)
    study = catalogue.study(name, scale)
    curves: dict[tuple[str, str], dict[int, Rows]] = {}
    used: list[Run] = []
    unfinished: list[str] = []
    engines: dict[str, list[str]] = {}
    made_with: dict[str, list[str]] = {}
    for run in runs:
        try:
            found = look(folder.absolute().parent, run)
        except UserError as error:
            notes.append(f"left out: {error}")
            continue
        notes += found.notes
        if found.steps < study.steps:
            reached = f"has {found.steps:,} of {study.steps:,} steps" if found.steps else "is missing"
            unfinished.append(f"{run.name} {reached} ({run.folder})")
            continue
        if found.state != FINISHED:
            notes.append(f"still going on, but far enough for this study: {run.name} ({run.folder})")
        rows = cut(found.rows, study.steps)
        if not rows:
            unfinished.append(f"{run.name} has a first generation longer than {study.steps:,} steps ({run.folder})")
            continue
        curves.setdefault((run.task, run.label), {})[run.seed] = rows
        used.append(run)
        engines.setdefault(found.backend, []).append(run.folder)
        made_with.setdefault(_versions(folder.absolute().parent / RUNS / run.folder), []).append(run.folder)
    if not used:
        raise UserError(f"{folder}: no run of the study has reached {study.steps:,} steps yet; qdhuac study {name}")
    results = Results(study, scale, folder.absolute().parent, curves, used, unfinished, notes)
    notes += _doubts(results, {"physics": engines, "versions": made_with})
    return results


def _doubts(results: Results, made_with: Mapping[str, Mapping[str, Sequence[str]]]) -> Iterator[str]:
    """What speaks against taking a comparison at its word."""
    first = results.study.settings[0].label
    if results.labels[0] != first:
        yield f"{first} has no run yet: comparisons are with {results.labels[0]}"
    seeds = results.common_seeds
    if len(results.labels) > 1 and set(seeds) != {run.seed for run in results.runs}:
        if seeds:
            yield f"IQM, chances and profiles are of seeds {', '.join(map(str, seeds))} alone, which all settings have"
        else:
            yield "no IQM, chances and profiles: no seed has every task and setting"
    for what, folders in made_with.items():
        if len(folders) > 1:
            told = "; ".join(f"{name} ({len(runs)} runs, as {runs[0]})" for name, runs in folders.items())
            yield f"runs with different {what} are compared: {told}"


def cut(rows: Rows, horizon: int) -> Rows:
    """Lines until the horizon. A generation that ends beyond it does not count: what was there before holds."""
    within = [row for row in rows if row["env_steps"] <= horizon]
    if not within or within[-1]["env_steps"] == horizon:
        return within
    last = within[-1]
    held = {k: last.get(k) for k in ("generation", "gradient_updates", "wall_s", *MEASURES, *OWN)}
    area = last["qd_score_auc"] + last["qd_score"] * (horizon - last["env_steps"])
    return [*within, {**held, "env_steps": horizon, "qd_score_auc": area}]


def summary(results: Results) -> tuple[list[str], list[list[str]]]:
    """Head and rows: mean and standard deviation of every measure per task and setting, and their generations."""
    return _final(results, {"generation": "generations", **MEASURES})


def own(results: Results) -> tuple[list[str], list[list[str]]]:
    """Head and rows: the same of the archives that the algorithms keep themselves."""
    return _final(results, OWN)


def _final(results: Results, measures: Mapping[str, str]) -> tuple[list[str], list[list[str]]]:
    rows = []
    for task in results.tasks:
        for label in results.labels:
            values = {m: results.final(task, label, m) for m in measures}
            if seeds := len(next(iter(values.values()))):
                cells = [f"{np.mean(v):.0f}" if m == "generation" else _spread(v) for m, v in values.items()]
                rows.append([NAMES[task], label, str(seeds), *cells])
    return ["task", "setting", "seeds", *measures.values()], rows


def aggregate(results: Results) -> tuple[list[str], list[list[str]]]:
    """Head and rows: IQM over tasks of normalised scores and the chance that the reference is better."""
    rows = []
    for measure, title in MEASURES.items():
        scores = statistics.normalised(results.scores(measure)) if results.scores(measure) else {}
        for label, values in scores.items():
            reference = scores[results.labels[0]]
            chance = ""
            if label != results.labels[0]:
                chance = _with_interval(statistics.probability_of_improvement, reference, values)
            rows.append([title, label, str(len(values)), _with_interval(statistics.iqm, values), chance])
    return ["measure", "setting", "seeds", "IQM [95 %]", f"P({results.labels[0]} is better) [95 %]"], rows


def efficiency(results: Results) -> tuple[list[str], list[list[str]]]:
    """Head and rows: the steps for the final mean score of each other setting, its own and the reference's."""
    rows = []
    first = results.labels[0]
    for task in results.tasks:
        for label in results.labels[1:]:
            for measure in ("max_fitness", "qd_score"):
                if (found := steps_needed(results, task, label, measure)) is None:
                    continue
                goal, own, ours = found
                seeds = results.curve(task, first, measure)[1]
                there = f"{(seeds >= goal).any(axis=1).sum()} of {len(seeds)}"
                words = (f"{ours:,.0f}", there, f"{own / ours:.2g}") if ours else ("not reached", there, "")
                rows.append([NAMES[task], label, MEASURES[measure], short(goal), f"{own:,.0f}", *words])
    head = ["task", "setting", "measure", "its final mean", "its own steps", f"{first}'s steps"]
    return [*head, f"{first}'s seeds that get there", "times fewer"], rows


def steps_needed(results: Results, task: str, label: str, measure: str) -> tuple[float, float, float | None] | None:
    """The final mean of a setting and the steps until the mean over seeds is there, its own and the reference's."""
    steps, values = results.curve(task, results.labels[0], measure)
    theirs, others = results.curve(task, label, measure)
    if not len(others) or not len(values):
        return None
    mean = others.mean(axis=0)
    own = statistics.steps_to_reach(theirs, mean, mean[-1])
    assert own is not None
    return float(mean[-1]), own, statistics.steps_to_reach(steps, values.mean(axis=0), mean[-1])


def false_negatives(results: Results) -> tuple[list[str], list[list[str]]]:
    """Head and rows: how often critic and shadow missed an agent above the archive's 90th percentile, all runs."""
    rows = []
    for name, prefix in (("start states, whole batch", "probe_"), ("along the best agents' way", "probe_path_")):
        lines = [row for seeds in results.curves.values() for rows_ in seeds.values() for row in probed(rows_)]
        high, missed, shadow = (sum(r[prefix + k] for r in lines) for k in ("high", "missed", "missed_shadow"))
        rates = [f"{100 * n / high:.1f} %" if high else "" for n in (missed, shadow)]
        rows.append([name, f"{high:,}", *rates, f"{np.mean([r[f'{prefix}gap'] for r in lines]):.2f}" if lines else ""])
    return ["where", "above the threshold", "missed by the critic", "missed by the shadow", "mean gap"], rows


def probed(rows: Rows) -> Rows:
    """Generations in which something can be missed.

    In the first there is no archive yet, and the shadow is the critic; the line that `cut` adds is no generation.
    """
    return [row for row in rows if row.get("probe_threshold") is not None]


def provenance(results: Results) -> tuple[list[str], list[list[str]]]:
    """Head and rows: which files the numbers come from."""
    rows = []
    for run in results.runs:
        path = results.root / RUNS / run.folder
        last = results.curves[run.task, run.label][run.seed][-1]
        wall = f"{last.get('wall_s') or 0:.0f}"
        rows.append([run.task, run.label, str(run.seed), run.folder, run.fingerprint, sha256(path / METRICS), wall])
    return ["task", "setting", "seed", "folder", "config_sha256", "metrics_sha256", "wall_s"], rows


def curves(results: Results) -> tuple[list[str], list[list[str]]]:
    """Head and rows: every number that is drawn."""
    names = ["generation", "env_steps", "gradient_updates", *MEASURES, *OWN]
    probes = sorted(
        {k for s in results.curves.values() for rows in s.values() for r in rows for k in r if "probe" in k}
    )
    rows = [
        [task, label, str(seed), *("" if row.get(k) is None else f"{row[k]:.8g}" for k in (*names, *probes))]
        for (task, label), seeds in results.curves.items()
        for seed, its in seeds.items()
        for row in its
    ]
    return ["task", "setting", "seed", *names, *probes], rows


def _at(measure: str, steps: Sequence[float] | np.ndarray, values: np.ndarray, when: np.ndarray) -> np.ndarray:
    """A curve at other moments. An area grows between two generations; anything else stays as it was."""
    if measure == "qd_score_auc":
        return np.interp(when, steps, values, left=np.nan)
    return statistics.at(steps, values, when)


def _versions(path: Path) -> str:
    """What a run was made with, as its repertoire says, or what was kept instead of it."""
    try:
        if (path / REPERTOIRE).exists():
            found = repertoire.read(path / REPERTOIRE)[1]["versions"]
        else:
            found = json.loads((path / ORIGIN).read_text(encoding="utf-8"))["versions"]
        return ", ".join(f"{name} {version}" for name, version in sorted(found.items()))
    except (UserError, OSError, ValueError, KeyError, TypeError, AttributeError):
        return "unknown"


def _with_interval(statistic: Callable[..., np.ndarray], *scores: np.ndarray) -> str:
    """A statistic with its interval, which one seed does not have."""
    value = f"{statistic(*scores):.2f}"
    if min(map(len, scores)) < 2:
        return value
    low, high = statistics.interval(statistic, *scores)
    return f"{value} [{low:.2f}, {high:.2f}]"


def short(value: float) -> str:
    """A number of at most about four digits."""
    for size, letter in ((1e9, " G"), (1e6, " M"), (1e4, " k")):
        if abs(value) >= size:
            return f"{value / (1e3 if letter == ' k' else size):.4g}{letter}"
    return f"{value:.4g}"


def _spread(values: np.ndarray) -> str:
    mean = short(float(np.mean(values)))
    return f"{mean} ± {short(float(statistics.spread(values)))}" if len(values) > 1 else mean
