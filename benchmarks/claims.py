"""The paper's claims beside the stored studies: one row each, with numbers and a verdict.

`benchmarks/results.py page` writes them into docs/results.md. A claim that one quantity is higher than another is
judged by a rank test over seeds. With three of each it holds if all seeds of the one are above all of the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from scipy.stats import binomtest, mannwhitneyu

from qdhuac.report.study_tables import probed, short, steps_needed
from qdhuac.studies.results import NAMES, Results

ENOUGH = 3  # seeds that a verdict needs
CHANCE = 0.05  # level of a one-sided test
WAITING = ("no run yet", "")
Row = tuple[str, str, str, str]  # claim, the paper's number, ours, verdict


def table(studies: Mapping[str, Results]) -> tuple[list[str], list[list[str]]]:
    """Head and rows of all claims about the studies, which are given by name."""
    rows = [row for name, claims in CLAIMS.items() if name in studies for row in claims(studies[name])]
    return ["claim", "paper", "here", "holds here"], [list(row) for row in rows]


def verdict(ours: np.ndarray, theirs: np.ndarray) -> str:
    """Whether ours are higher than theirs, by a rank test."""
    if few := _few(min(len(ours), len(theirs))):
        return few
    pairs = (ours, theirs), (theirs, ours)
    return _judged(*(mannwhitneyu(*pair, alternative="greater", method="exact").pvalue for pair in pairs))


def signs(differences: np.ndarray) -> str:
    """Whether one quantity is higher than another within runs, by a sign test."""
    up, down = int((differences > 0).sum()), int((differences < 0).sum())
    if not up + down:
        return "not seen"
    return _judged(*(binomtest(n, up + down, alternative="greater").pvalue for n in (up, down)))


def _judged(by_chance: float, contrary: float) -> str:
    enough = CHANCE + 1e-9  # for rounding: three seeds against three give exactly CHANCE
    return "yes" if by_chance <= enough else "no" if contrary <= enough else "unclear"


def _few(seeds: int) -> str:
    """Why there is no verdict yet; empty if there are enough seeds."""
    return "" if seeds >= ENOUGH else f"{seeds} seed{'s' * (seeds > 1)} of {ENOUGH}"


def _best(results: Results, task: str, measure: str, labels: Sequence[str]) -> str:
    """The label with the highest mean, or an empty text if one of them has no run."""
    means = [np.mean(values) if len(values := results.final(task, label, measure)) else None for label in labels]
    return "" if None in means else labels[int(np.argmax(means))]


def _higher(claim: str, paper: str, results: Results, task: str, measure: str, who: str, others: Sequence[str]) -> Row:
    """The claim that a setting has more of a measure than each of some others. The numbers are of the best of them."""
    ours, best = results.final(task, who, measure), _best(results, task, measure, others)
    if not len(ours) or not best:
        return claim, paper, *WAITING
    theirs = results.final(task, best, measure)
    words = f"{short(ours.mean())} against {short(theirs.mean())}" + f" ({best})" * (len(others) > 1)
    said = {verdict(ours, results.final(task, label, measure)) for label in others}  # against each, not only the best
    few = next((v for v in sorted(said) if v not in ("yes", "no", "unclear")), "")
    return claim, paper, words, few or ("no" if "no" in said else "unclear" if "unclear" in said else "yes")


def _less_fit(claim: str, paper: str, results: Results, task: str, who: str, reference: str) -> Row:
    """The claim that a setting's best policy is less fit than the reference's."""
    ours, theirs = (results.final(task, label, "max_fitness") for label in (who, reference))
    if not len(ours) or not len(theirs):
        return claim, paper, *WAITING
    words = f"{short(ours.mean())} against {short(theirs.mean())} ({ours.mean() / theirs.mean():.0%})"
    return claim, paper, words, verdict(theirs, ours)


def benchmark(results: Results) -> Iterator[Row]:
    """Fitness, QD score, coverage and steps, compared with the peers."""
    paper = {"halfcheetah": "nearly 8 000 against 3 500", "humanoid": "nearly 4 000, higher"}
    for task in results.tasks:
        claim = f"{NAMES[task]}: a fitter best policy than PGA-ME and QD-PG have"
        yield _higher(claim, paper.get(task, "higher"), results, task, "max_fitness", "QDHUAC", ["PGA-ME", "QD-PG"])
    for task in results.tasks:
        claim = f"{NAMES[task]}: fitter also than PGA-ME with as many updates"
        yield _higher(claim, "not compared", results, task, "max_fitness", "QDHUAC", ["PGA-ME, matched updates"])
    for task in ("hopper", "walker2d", "humanoid"):
        claim = f"{NAMES[task]}: a higher QD score than PGA-ME and QD-PG"
        yield _higher(claim, "higher", results, task, "qd_score", "QDHUAC", ["PGA-ME", "QD-PG"])
    for task in ("halfcheetah", "ant"):
        claim = f"{NAMES[task]}: PGA-ME covers more"
        yield _higher(claim, "more", results, task, "coverage", "PGA-ME", ["QDHUAC"])
    for label in ("PGA-ME", "PGA-ME, matched updates"):
        claim = f"the final fitness of {label}, in an order of magnitude fewer steps"
        found = {NAMES[task]: steps_needed(results, task, label, "max_fitness") for task in results.tasks}
        fewer = {name: steps[1] / (steps[2] or np.inf) for name, steps in found.items() if steps}
        if not fewer or results.labels[0] != "QDHUAC":
            yield claim, "10 times fewer", *WAITING
            continue
        words = ", ".join(f"{name} {f'{times:.2g}' if times else 'never'}" for name, times in fewer.items())
        many = sum(times >= 10 for times in fewer.values())
        yield claim, "10 times fewer", f"times fewer: {words}", f"on {many} of {len(fewer)} robots"


def latency(results: Results) -> Iterator[Row]:
    """Pessimism of a target network, and the good agents that it misses."""
    seeds = [probed(rows) for rows in results.curves["halfcheetah", "QDHUAC"].values()]
    high, missed, shadow = (
        np.array([sum(row[f"probe_path_{key}"] for row in rows) for rows in seeds])
        for key in ("high", "missed", "missed_shadow")
    )
    claim = "HalfCheetah: a shadow target misses more good agents than the critic does"
    words = f"{shadow.sum()} against {missed.sum()} of {high.sum()} states"
    yield claim, "persistent against negligible", words, signs(shadow - missed)
    claim = "HalfCheetah: it values the best agents lower (pessimism gap, raw units)"
    gaps = np.array([np.mean([row["probe_path_gap"] for row in rows]) for rows in seeds])
    yield claim, "positive", f"{gaps.mean():+.2f}", signs(gaps)


def target(results: Results) -> Iterator[Row]:
    """With and without a target network."""
    claim = "HalfCheetah: fitter without a target network than with one"
    names = [setting.label for setting in results.study.settings]
    yield _higher(claim, "the thesis, without a figure", results, "halfcheetah", "max_fitness", names[0], names[1:])


def utd(results: Results) -> Iterator[Row]:
    """Updates per step, with and without normalisation."""
    claim = "HalfCheetah, normalised: fitter at 2 updates per step than at 0.5, 1 and 4"
    others = [f"normalised, UTD {ratio}" for ratio in ("0.5", "1", "4")]
    yield _higher(claim, "yes", results, "halfcheetah", "max_fitness", "normalised, UTD 2", others)
    claim = "HalfCheetah, unnormalised: less fit at 4 updates per step than at the best of 0.5, 1 and 2"
    best = _best(results, "halfcheetah", "max_fitness", [f"unnormalised, UTD {ratio}" for ratio in ("0.5", "1", "2")])
    yield _less_fit(claim, "by about 30 %", results, "halfcheetah", "unnormalised, UTD 4", best)
    for ratio in ("4", "10"):
        claim = f"HalfCheetah: at {ratio} updates per step the normalised critic is the better one"
        names = [f"{kind}, UTD {ratio}" for kind in ("normalised", "unnormalised")]
        paper = "yes" if ratio == "4" else "claimed, not shown"
        yield _higher(claim, paper, results, "halfcheetah", "max_fitness", names[0], names[1:])


def normalisation(results: Results) -> Iterator[Row]:
    """Batch and weight normalisation."""
    for label, paper in (
        ("BN only", "not until 2 M steps"),
        ("WN only", "by up to 20 %"),
        ("no norm", "by up to 20 %"),
    ):
        claim = f"Humanoid: {label} is less fit than BN + WN"
        yield _less_fit(claim, paper, results, "humanoid", label, "BN + WN")


def archive(results: Results) -> Iterator[Row]:
    """DNS and MAP-Elites as the archive of QDHUAC."""
    for task in ("halfcheetah", "humanoid"):
        claim = f"{NAMES[task]}: with MAP-Elites as fit as with DNS"
        *row, holds = _less_fit(claim, "no significant difference", results, task, "MAP-Elites", "DNS")
        yield *row, {"unclear": "not refuted", "yes": "no"}.get(holds, holds)
        claim = f"{NAMES[task]}: MAP-Elites covers more"
        yield _higher(claim, "a little", results, task, "coverage", "MAP-Elites", ["DNS"])


def components(results: Results) -> Iterator[Row]:
    """The one component that the paper makes a claim about."""
    claim = "HalfCheetah: a scalar critic is less fit than C51 early on"
    yield _less_fit(claim, "said, not shown", results, "halfcheetah", "scalar critic", "QDHUAC")


CLAIMS = {
    "benchmark": benchmark,
    "target": target,
    "latency": latency,
    "utd": utd,
    "normalisation": normalisation,
    "archive": archive,
    "components": components,
}
