"""`qdhuac report STUDY_DIR`: figures, tables and one page from stored files alone."""

from __future__ import annotations

import base64
import csv
import io
import statistics
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import Any

from qdhuac import __version__
from qdhuac.errors import RunFailed, UserError
from qdhuac.report.run_page import POLICY
from qdhuac.report.run_page import STYLE as PAGE_STYLE
from qdhuac.store import history, repertoire
from qdhuac.store.files import replace_file
from qdhuac.store.run_folder import REPERTOIRE, RunDir
from qdhuac.studies import results as tables
from qdhuac.studies.folder import RUNS
from qdhuac.studies.results import Results, collect

Table = tuple[list[str], list[list[str]]]
STYLE = PAGE_STYLE + "figure { background: #fff } figure img { max-width: 100%; height: auto; display: block }\n"


def write_report(folder: Path) -> tuple[Path, list[str]]:
    """Write everything into the study folder; returns the page, and what the reader should be told."""
    results = collect(folder)
    shown = shown_tables(results)
    try:
        pictures = _figures(results, folder / "figures")
        _write(folder / "table.md", _markdown(results, shown))
        for name, table in {**shown, "curves": tables.curves(results), "runs": tables.provenance(results)}.items():
            _write(folder / f"{name}.csv", _csv(table))
        page = folder / "report.html"
        _write(page, _html(results, shown, pictures))
    except OSError as error:
        raise RunFailed(f"{folder}: cannot be written ({error.strerror or error})") from None
    left_out = [f"left out: {text}" for text in results.unfinished]
    if len(left_out) > 3:
        left_out = [f"left out: {_count(results)}; {page.name} names them"]
    return page, results.notes + left_out


def shown_tables(results: Results) -> dict[str, Table]:
    """What is on the page of a study, by name."""
    shown = {"summary": tables.summary(results)}
    if results.study.name == "latency":
        shown["false_negatives"] = tables.false_negatives(results)
        return shown
    if len(results.labels) > 1 and results.common_seeds:
        shown["aggregate"] = tables.aggregate(results)
    if results.study.name in ("benchmark", "target"):
        shown["efficiency"] = tables.efficiency(results)
    if results.study.name in ("benchmark", "archive"):
        shown["own"] = tables.own(results)
    return shown


def _figures(results: Results, folder: Path) -> dict[str, str]:
    """Draw and save every figure; returns the SVGs by name, in their order."""
    from qdhuac.report import study_figures as figures

    folder.mkdir(parents=True, exist_ok=True)
    drawn = {}
    for name, figure in figures.draw(results, kept_archives(results)):
        figures.save(figure, folder, name)
        drawn[name] = (folder / f"{name}.svg").read_text(encoding="utf-8")
    return drawn


def kept_archives(results: Results) -> dict[str, dict[str, Any]]:
    """Per task the archives of the settings at the study's horizon, all of the seed that most of them have."""
    found: dict[str, dict[str, Any]] = {}
    if results.study.name not in ("benchmark", "archive"):
        return found
    there = [run for run in results.runs if (results.root / RUNS / run.folder / REPERTOIRE).exists()]
    seeds = {task: statistics.mode([run.seed for run in there if run.task == task]) for task in {r.task for r in there}}
    for run in there:
        if run.seed != seeds[run.task]:
            continue
        mine = found.setdefault(run.task, {})
        path = results.root / RUNS / run.folder
        generation = results.curves[run.task, run.label][run.seed][-1]["generation"]
        try:
            _, metadata = repertoire.read(path / REPERTOIRE)
            bounds = metadata["descriptor_bounds"]
            past = history.rebuild(RunDir.open(path).read_history(), len(bounds[0]))  # the run may have gone further
        except UserError as error:
            results.notes.append(str(error))
            continue
        alive = past.at(generation)
        if len(alive):
            mine[run.label] = (past.descriptor[alive], past.fitness[alive], bounds)
    return {task: mine for task, mine in found.items() if mine}


TITLES = {
    "summary": "At the last step: mean and standard deviation over seeds",
    "aggregate": "Over all tasks: scores from 0 (the lowest run of a task) to 1 (the highest)",
    "efficiency": "Steps for the final mean of each other setting: its own, and the reference's",
    "own": "What the algorithms keep in their own archives at the last step",
    "false_negatives": "Agents above the archive's 90th percentile that a critic values below it",
}
CAPTIONS = {
    "curves": "Thick: mean over seeds. Band: one standard deviation. Thin: every seed.",
    "own": "The archives that the algorithms keep themselves, not the grid that has seen everybody.",
    "relative": "Each seed divided by the reference's mean at the same step, once that is a tenth of its last value.",
    "final": "At the last step, divided by the reference's mean. A point is a seed, the bar their mean.",
    "utd": "At the last step. Small points: seeds. Line: mean. Band: one standard deviation.",
    "latency": "A positive gap means that the shadow target is the more pessimistic of the two.",
    "aggregate": "Interquartile mean and probability of improvement with 95 % stratified bootstrap intervals.",
    "profiles": "Share of runs above each normalised score, with 95 % stratified bootstrap bands.",
    "archives": "The first seed that most settings have an archive of, at the last step of the study.",
}


def _html(results: Results, shown: dict[str, Table], pictures: dict[str, str]) -> str:
    study = results.study
    seeds = sorted({run.seed for run in results.runs})
    parts = [
        f"<h1>{escape(study.title)}</h1>",
        f'<p class="sub">study {escape(study.name)} · scale {escape(results.scale)} · {study.steps:,} steps · '
        f"{len(results.runs)} runs, seeds {seeds[0]} to {seeds[-1]}</p>",
    ]
    if results.notes:
        parts.append("<h2>Notes</h2>" + _html_list(results.notes))
    if results.unfinished:
        names = _html_list(results.unfinished)
        parts.append(f"<details><summary>Left out: {_count(results)}</summary>{names}</details>")
    for name, svg in pictures.items():
        data = base64.b64encode(svg.encode()).decode()
        caption = CAPTIONS[name.split("-")[0]]
        parts.append(
            f'<figure><img alt="{escape(name)}" src="data:image/svg+xml;base64,{data}"></figure>'
            f'<p class="sub">{escape(caption)}</p>'
        )
    for name, table in shown.items():
        parts.append(f"<h2>{escape(TITLES[name])}</h2>" + _html_table(*table))
    head, rows = tables.provenance(results)
    short = [[cell[:12] if len(cell) == 64 else cell for cell in row] for row in rows]
    parts.append(f"<h2>Runs</h2><details><summary>every run</summary>{_html_table(head, short)}</details>")
    parts.append(
        f"<footer>Written by qdhuac {escape(__version__)} from config.toml and metrics.jsonl of each run.</footer>"
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        f"<title>{escape(study.name)} · qdhuac</title><style>{STYLE}</style></head>\n<body>\n"
        + "\n".join(parts)
        + "\n</body></html>\n"
    )


def _count(results: Results) -> str:
    return f"{len(results.unfinished)} runs that are missing or have not come far enough"


def _html_list(lines: Iterable[str]) -> str:
    return "<ul>" + "".join(f"<li>{escape(line)}</li>" for line in lines) + "</ul>"


def _html_table(head: Iterable[str], rows: Iterable[Sequence[str]]) -> str:
    top = "".join(f"<th>{escape(h)}</th>" for h in head)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f'<div class="wide"><table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'


def _markdown(results: Results, shown: dict[str, Table]) -> str:
    out = [f"# {results.study.title}", f"Scale {results.scale}, {results.study.steps:,} steps."]
    for name, (head, rows) in shown.items():
        out += [f"## {TITLES[name]}", markdown_table(head, rows)]
    out += [f"- {note}" for note in (*results.notes, *(f"left out: {text}" for text in results.unfinished))]
    return "\n\n".join(out) + "\n"


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Lines of Markdown, the last one without its end."""
    lines = [" | ".join(cells) for cells in (head, ["---"] * len(head), *rows)]
    return "\n".join(f"| {line} |" for line in lines)


def _csv(table: Table) -> str:
    head, rows = table
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(head)
    writer.writerows(rows)
    return buffer.getvalue()


def _write(path: Path, text: str) -> None:
    replace_file(path, text.encode())
