"""`report.html`: one page, without scripts or outside parts, from the stored files of a run alone."""

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
from qdhuac.errors import RunFailed, UserError
from qdhuac.report.tables import EVALUATED, evaluation_rows
from qdhuac.store import repertoire
from qdhuac.store.files import replace_file
from qdhuac.store.run_folder import EVALUATION, REPERTOIRE, REPORT, RunDir
from qdhuac.text import METRICS, duration, number, shown

CURVES = {
    "qd_score": "QD score",
    "coverage": "coverage (%)",
    "max_fitness": "max fitness",
    "archive_mean_fitness": "mean fitness of the archive",
}
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"  # no script runs, nothing is fetched
ANIMATED = "3"  # seconds of the best individual
PATIENCE = 300  # seconds for the process that films it
MOST_POINTS = 1000  # of a curve: more cannot be seen
Row = Mapping[str, Any]

STYLE = """
:root { color-scheme: light dark; --ink: #1f2328; --soft: #646b75; --paper: #fff; --card: #f5f6f8; --line: #d9dce1 }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e8eb; --soft: #9aa2ad; --paper: #15181c; --card: #1e2228; --line: #343a43 }
}
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); margin: 0 auto;
  max-width: 62rem; padding: 2rem 1.25rem 4rem }
h1 { font-size: 1.6rem; margin: 0; overflow-wrap: anywhere } h2 { font-size: 1.15rem; margin: 2.2rem 0 .8rem }
p.sub, footer { color: var(--soft); margin: .2rem 0 1.4rem; overflow-wrap: anywhere }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(9rem, 1fr)); gap: .7rem }
.tile, figure { background: var(--card); border-radius: .6rem; margin: 0 }
.tile { padding: .7rem .9rem } .tile b { display: block; font-size: 1.3rem; font-weight: 600 }
.tile span { color: var(--soft); font-size: .85rem }
.curves { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(26rem, 100%), 1fr)); gap: .8rem }
figure { padding: .8rem; color: var(--soft) } figure svg { width: 100%; height: auto; display: block }
figure img { display: block; max-width: 100%; margin: 0 auto }
figure.narrow svg { max-width: 40rem; margin: 0 auto }
.wide { overflow-x: auto }
table { border-collapse: collapse; width: 100% } th, td { padding: .35rem .6rem; text-align: right }
th { color: var(--soft); font-weight: 500; border-bottom: 1px solid var(--line) }
th:first-child, td:first-child { text-align: left } tr + tr td { border-top: 1px solid var(--line) }
pre { background: var(--card); border-radius: .6rem; padding: 1rem; overflow-x: auto; font-size: .85rem }
summary { cursor: pointer; color: var(--soft) } footer { margin-top: 3rem; font-size: .85rem }
"""


def write_report(folder: RunDir) -> Path:
    """Write the page of a run and return where it is."""
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
    try:
        replace_file(path, page.encode())
    except OSError as error:
        raise RunFailed(f"{path}: cannot be written ({error.strerror})") from None
    return path


def render(
    name: str,
    settings: Config,
    rows: Sequence[Row],
    found: tuple[dict[str, Any], dict[str, Any]] | None,
    evaluation: Row | None = None,
    film: bytes | str = "",
) -> str:
    """The page as HTML text. `film` is a GIF, or a sentence why there is none."""
    title = f"{settings.algorithm} on {settings.task.name}"
    sections = [
        f"<h1>{escape(title)}</h1>",
        f'<p class="sub">{escape(name)} · preset {escape(settings.preset)} · physics {escape(settings.task.backend)} · '
        f"seed {settings.run.seed}</p>",
        _tiles(rows),
        "<h2>Learning curves</h2>",
        _curves(rows, CURVES),
        _archive(settings, found),
        _animation(film),
        _evaluation_table(evaluation),
        _operators(rows),
        _time(rows),
        _diagnostics(rows),
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
    facts = [
        *((label, shown(name, last.get(name))) for name, label in METRICS.items()),
        ("archive size", number(last.get("archive_size"), whole=True)),
        ("environment steps", number(last.get("env_steps"), whole=True)),
        ("gradient updates", number(last.get("gradient_updates"), whole=True)),
        ("generations", number(last.get("generation"), whole=True)),
        ("wall time", duration(last.get("wall_s") or 0)),
    ]
    tiles = "".join(f'<div class="tile"><b>{escape(v)}</b><span>{escape(k)}</span></div>' for k, v in facts)
    return f'<div class="tiles">{tiles}</div>'


def _curves(rows: Sequence[Row], names: Mapping[str, str]) -> str:
    from qdhuac.report import run_figures as figures

    seen = _thinned(rows)
    steps = [row["env_steps"] for row in seen]
    out = []
    for key, label in names.items():
        values = [_scaled(row.get(key), 100 if key == "coverage" else 1) for row in seen]
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
    labels = figures.descriptor_labels(settings.task.name, size)
    picture = figures.svg(figures.archive(descriptor, fitness, metadata["descriptor_bounds"], labels))
    best = int(fitness.argmax())
    where = ", ".join(f"{v:.2f}" for v in descriptor[best])
    return (
        f"<h2>The archive</h2><figure{'' if size > 2 else ' class=narrow'}>{picture}</figure>"
        f'<p class="sub">{len(fitness)} individuals; the fittest ({number(float(fitness[best]))}) is at ({where}).</p>'
    )


def _film(folder: RunDir) -> bytes | str:
    """A GIF of the best individual, or why there is none. In a process of its own: drawing can crash a process."""
    with tempfile.TemporaryDirectory() as where:
        output = Path(where) / "best.gif"
        command = [sys.executable, "-m", "qdhuac.cli", "render", str(folder.path.absolute())]
        try:
            done = subprocess.run(
                [*command, "--output", str(output), "--seconds", ANIMATED],
                capture_output=True,
                text=True,
                errors="replace",
                timeout=PATIENCE,
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


def _operators(rows: Sequence[Row]) -> str:
    names = sorted({key.removesuffix("/tried") for row in rows for key in row if key.endswith("/tried")})
    table = []
    for name in names:
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
    names = [key for key in rows[-1] if key.startswith("time_")]
    totals = {name.removeprefix("time_"): sum(row.get(name) or 0.0 for row in rows) for name in names}
    whole = sum(totals.values())
    if not whole:
        return ""
    table = [(phase, duration(seconds), f"{100 * seconds / whole:.1f} %") for phase, seconds in totals.items()]
    return "<h2>Time</h2>" + html_table(("phase", "total", "share"), table)


def _diagnostics(rows: Sequence[Row]) -> str:
    """Curves of the metrics that no other section shows: the learner's own."""
    known = {"generation", "env_steps", "gradient_updates", "qd_score_auc", "wall_s", *CURVES}
    names = {
        key: key.replace("_", " ")
        for row in (rows[0], rows[-1])
        for key in row
        if key not in known and "/" not in key and not key.startswith(("archive_", "time_"))
        if not key.startswith(("rejected", "warning_", "count_skipped_")) or any(r.get(key) for r in rows)
    }
    return "<h2>Diagnostics</h2>" + _curves(rows, names) if names else ""


def _evaluation(folder: RunDir) -> Row | None:
    try:
        content = json.loads((folder.path / EVALUATION).read_bytes())
        values = [content[side].get(key) for side in ("stored", "again") for key in EVALUATED]
        if type(content["episodes"]) is int and all(v is None or type(v) in (int, float) for v in values):
            return content
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError, KeyError, TypeError, AttributeError):
        pass
    folder.notes.append(f"{folder.path / EVALUATION}: not readable; left out of the report")
    return None


def _evaluation_table(evaluation: Row | None) -> str:
    if evaluation is None:
        return ""
    head = f"<h2>Evaluated again, {evaluation['episodes']} times each</h2>"
    return head + html_table(("", "stored", "again"), evaluation_rows(evaluation))


def html_table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a table of texts as HTML."""
    head = "".join(f"<th>{escape(h)}</th>" for h in heads)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _thinned(rows: Sequence[Row]) -> Sequence[Row]:
    """At most about `MOST_POINTS` rows, the last one among them."""
    step = -(-len(rows) // MOST_POINTS)
    return rows if step == 1 else [*rows[:-1:step], rows[-1]]


def _scaled(value: Any, factor: float) -> float | None:
    return value * factor if isinstance(value, int | float) else None


def _weighted(values: Sequence[float | None], weights: Sequence[float]) -> float | None:
    pairs = [(v, w) for v, w in zip(values, weights, strict=True) if v is not None and w]
    return sum(v * w for v, w in pairs) / sum(w for _, w in pairs) if pairs else None
