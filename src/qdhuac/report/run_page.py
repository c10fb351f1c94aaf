"""`report.html`: a page from the stored files of a run, without scripts or links to other files."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from qdhuac import __version__, config
from qdhuac.config import Config
from qdhuac.errors import RunFailed, UserError, os_errors_as
from qdhuac.files import read, replace_file
from qdhuac.report.tables import evaluation_rows
from qdhuac.store import repertoire
from qdhuac.store.run_folder import EVALUATION, REPERTOIRE, REPORT, RunDir
from qdhuac.text import METRICS, PHASES, duration, number, shown

CURVES = {
    "qd_score": "QD score",
    "coverage": "coverage (%)",
    "max_fitness": "max fitness",
    "archive_mean_fitness": "mean fitness of the archive",
}
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"  # no scripts, no requests
FILM_SECONDS = "3"  # of the best individual
FILM_TIMEOUT = 300  # seconds
MOST_POINTS = 1000  # of a curve
COUNTS = {
    "archive_size": "archive size",
    "env_steps": "environment steps",
    "gradient_updates": "gradient updates",
    "generation": "generations",
}
STATISTICS = ("tried", "survived", "fitness", "gain")  # of each operator
STYLE = (Path(__file__).parent / "page.css").read_text(encoding="utf-8")
Row = dict[str, Any]


def write_report(folder: RunDir) -> Path:
    """Write the report of a run.

    Returns:
        The path of the page.

    Raises:
        UserError: no generation has ended yet.
        RunFailed: the page cannot be written.
    """
    settings, rows = folder.read_config(), folder.read_metrics()
    if not rows:
        raise UserError(f"{folder.path}: no generation has ended yet, so there is nothing to report")
    try:
        found = repertoire.find(folder)
    except UserError as error:
        if (folder.path / REPERTOIRE).exists():
            folder.notes.append(str(error))
        found = None
    known = settings.task.name != config.OWN
    film = _film(folder) if known and found is not None and found[1].get("policy") and len(found[0]["fitness"]) else ""
    page = render(folder.path.absolute().name, settings, rows, found, _evaluation(folder), film)
    path = folder.path / REPORT
    with os_errors_as(RunFailed, f"{path}: cannot be written"):
        replace_file(path, page.encode())
    return path


def render(
    name: str,
    settings: Config,
    rows: Sequence[Row],
    found: tuple[dict[str, Any], dict[str, Any]] | None,
    evaluation: str = "",
    film: bytes | str = "",
) -> str:
    """Return the page as HTML.

    Args:
        name: the name of the run folder.
        settings: the configuration.
        rows: the metrics of each generation.
        found: arrays and metadata of the repertoire.
        evaluation: the section of the re-evaluation, as HTML.
        film: a GIF, or a sentence that says why there is none.
    """
    title = f"{settings.algorithm} on {settings.task.name}"
    operators = found[1].get("operators") or () if found else ()
    sections = [
        f"<h1>{escape(title)}</h1>",
        f'<p class="sub">{escape(name)} · preset {escape(settings.preset)} · physics {escape(settings.task.backend)} · '
        f"seed {settings.run.seed}</p>",
        _tiles(rows),
        "<h2>Learning curves</h2>",
        _curves(rows, CURVES),
        _archive(settings, found),
        _animation(film),
        evaluation,
        _operators(rows, operators),
        _time(rows),
        _diagnostics(rows, operators),
        "<h2>Configuration</h2><details><summary>every key</summary>"
        f"<pre>{escape(config.to_toml(settings))}</pre></details>",
        f"<footer>Written by qdhuac {escape(__version__)} from metrics.jsonl, repertoire.safetensors and config.toml. "
        "QD score, coverage and max fitness are measured on one grid of 1024 cells that every algorithm shares."
        "</footer>",
    ]
    return document(f"{title} · {name}", sections)


def document(title: str, sections: Iterable[str], style: str = "") -> str:
    """Return a page as HTML.

    Args:
        title: the title as text.
        sections: the content as HTML; empty ones are left out.
        style: more rules for the style sheet.
    """
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        f"<title>{escape(title)}</title><style>{STYLE}{style}</style></head>\n<body>\n"
        + "\n".join(section for section in sections if section)
        + "\n</body></html>\n"
    )


def _tiles(rows: Sequence[Row]) -> str:
    last = rows[-1]
    facts = {label: shown(name, last.get(name)) for name, label in METRICS.items()}
    facts |= {label: number(last.get(name), whole=True) for name, label in COUNTS.items()}
    facts["wall time"] = duration(last.get("wall_s") or 0)
    tiles = "".join(f'<div class="tile"><b>{escape(v)}</b><span>{escape(k)}</span></div>' for k, v in facts.items())
    return f'<div class="tiles">{tiles}</div>'


def _curves(rows: Sequence[Row], names: Mapping[str, str]) -> str:
    from qdhuac.report import run_figures as figures

    seen = _thinned(rows)
    steps = [row["env_steps"] for row in seen]
    out = []
    for key, label in names.items():
        factor = 100 if key == "coverage" else 1
        values = [None if (value := row.get(key)) is None else factor * value for row in seen]
        if any(v is not None for v in values):
            out.append(f"<figure>{figures.svg(figures.curve(steps, values, label))}</figure>")
    return f'<div class="curves">{"".join(out)}</div>'


def _archive(settings: Config, found: tuple[dict[str, Any], dict[str, Any]] | None) -> str:
    if found is None or not len(found[0]["fitness"]):
        return ""
    from qdhuac.report import run_figures as figures

    arrays, metadata = found
    descriptor, fitness = arrays["descriptor"], arrays["fitness"]
    size = descriptor.shape[1]
    labels = figures.descriptor_labels(metadata, size)
    picture = figures.svg(figures.archive(descriptor, fitness, metadata["descriptor_bounds"], labels))
    best = int(fitness.argmax())
    where = ", ".join(f"{v:.2f}" for v in descriptor[best])
    return (
        f"<h2>The archive</h2><figure{'' if size > 2 else ' class=narrow'}>{picture}</figure>"
        f'<p class="sub">{len(fitness)} individuals; the fittest ({number(float(fitness[best]))}) is at ({where}).</p>'
    )


def _film(folder: RunDir) -> bytes | str:
    """A GIF of the best individual, or why there is none. Made in another process, because OpenGL can crash it."""
    with tempfile.TemporaryDirectory() as where:
        output = Path(where) / "best.gif"
        command = [sys.executable, "-m", "qdhuac.cli", "render", str(folder.path.absolute())]
        try:
            done = subprocess.run(
                [*command, "--output", str(output), "--seconds", FILM_SECONDS],
                capture_output=True,
                text=True,
                errors="replace",
                timeout=FILM_TIMEOUT,
                check=False,
            )
            if done.returncode == 0:
                return output.read_bytes()
            reason = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        except (OSError, subprocess.TimeoutExpired) as error:
            reason = str(error)
    return f"The best individual could not be filmed: {reason}"


def _animation(film: bytes | str) -> str:
    if not film:
        return ""
    if isinstance(film, str):
        return f'<p class="sub">{escape(film)}</p>'
    picture = f"data:image/gif;base64,{base64.b64encode(film).decode()}"
    return f'<h2>The best individual</h2><figure class="narrow"><img alt="the robot moving" src="{picture}"></figure>'


def _operators(rows: Sequence[Row], names: Sequence[str]) -> str:
    table = []
    for name in sorted(names):
        tried = [row.get(f"{name}/tried") or 0 for row in rows]
        if not sum(tried):
            continue
        survived = sum(row.get(f"{name}/survived") or 0 for row in rows)
        means = (_weighted([row.get(f"{name}/{key}") for row in rows], tried) for key in ("fitness", "gain"))
        counts = (number(sum(tried), whole=True), number(survived, whole=True), f"{100 * survived / sum(tried):.1f} %")
        table.append((name, *counts, *map(number, means)))
    heads = ("operator", "tried", "survived", "survival", "mean fitness", "mean gain over the parent")
    return "<h2>Operators</h2>" + html_table(heads, table) if table else ""


def _time(rows: Sequence[Row]) -> str:
    totals = {phase: sum(row.get(f"time_{phase}") or 0.0 for row in rows) for phase in PHASES}
    whole = sum(totals.values())
    if not whole:
        return ""
    table = [(phase, duration(seconds), f"{100 * seconds / whole:.1f} %") for phase, seconds in totals.items()]
    return "<h2>Time</h2>" + html_table(("phase", "total", "share"), table)


def _diagnostics(rows: Sequence[Row], operators: Sequence[str]) -> str:
    """Curves of the metrics that no other section shows, unless they are 0 throughout."""
    known = {
        "wall_s",
        "devices",
        *COUNTS,
        *METRICS,
        *CURVES,
        *(f"archive_{name}" for name in METRICS),
        *(f"time_{phase}" for phase in PHASES),
    }
    known |= {f"{name}/{statistic}" for name in operators for statistic in STATISTICS}
    names = [key for key in rows[0] | rows[-1] if key not in known and any(row.get(key) for row in rows)]
    return "<h2>Diagnostics</h2>" + _curves(rows, {key: key.replace("_", " ") for key in names}) if names else ""


def _evaluation(folder: RunDir) -> str:
    """The table of the re-evaluation, if there is one."""
    path = folder.path / EVALUATION
    try:
        summary = json.loads(read(path))
        head = f"<h2>Evaluated again, {int(summary['episodes'])} times each</h2>"
        return head + html_table(("", "stored", "again"), evaluation_rows(summary))
    except FileNotFoundError:
        return ""
    except (OSError, ValueError, RecursionError, KeyError, TypeError, AttributeError, OverflowError):
        folder.notes.append(f"{path}: not readable; left out of the report")
        return ""


def html_table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a table of texts as HTML."""
    head = "".join(f"<th>{escape(h)}</th>" for h in heads)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _thinned(rows: Sequence[Row]) -> Sequence[Row]:
    """About `MOST_POINTS` rows at most, with the last one."""
    step = -(-len(rows) // MOST_POINTS)
    return rows if step == 1 else [*rows[:-1:step], rows[-1]]


def _weighted(values: Sequence[float | None], weights: Sequence[float]) -> float | None:
    pairs = [(v, w) for v, w in zip(values, weights, strict=True) if v is not None and w]
    return sum(v * w for v, w in pairs) / sum(w for _, w in pairs) if pairs else None
