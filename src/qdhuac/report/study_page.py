"""`qdhuac report STUDY_DIR`: the figures, the tables and the page of a study, from stored files alone."""

from __future__ import annotations

import base64
import csv
import io
from collections.abc import Iterable
from html import escape
from pathlib import Path

from qdhuac import __version__
from qdhuac.errors import RunFailed, UserError, os_errors_as
from qdhuac.files import inside, read, replace_file
from qdhuac.report.run_page import document, html_table
from qdhuac.report.study_tables import TABLES, provenance, tables
from qdhuac.studies.results import Results, Table, as_csv, collect

STYLE = "figure { background: #fff } figure img { max-width: 100%; height: auto; display: block }\n"


def write_report(folder: Path) -> tuple[Path, list[str]]:
    """Write figures, tables and the page into a study folder. Return the page and warnings.

    Raises:
        UserError: this is not a study folder, or none of its runs has reached the horizon.
        RunFailed: a file cannot be written.
    """
    from qdhuac.report import study_figures

    results = collect(folder)
    shown = tables(results)
    pictures = []
    figures = inside(folder, "figures")
    with os_errors_as(UserError, f"{figures}: cannot be made"):
        figures.mkdir(exist_ok=True)
    try:
        for name, figure, caption in study_figures.draw(results):
            study_figures.save(figure, figures, name)
            pictures.append((name, caption, read(figures / f"{name}.svg")))
        for name, (head, rows) in {**shown, "results": as_csv(results)}.items():
            text = io.StringIO()
            csv.writer(text, lineterminator="\n").writerows([head, *rows])
            replace_file(folder / f"{name}.csv", text.getvalue().encode())
        page = folder / "report.html"
        replace_file(page, _html(results, shown, pictures).encode())
    except OSError as error:
        raise RunFailed(f"{folder}: cannot be written ({error.strerror or error})") from None
    left_out = [f"left out: {text}" for text in results.unfinished]
    if len(left_out) > 3:
        left_out = [f"left out: {_count(results)}; {page.name} names them"]
    return page, results.notes + left_out


def _html(results: Results, shown: dict[str, Table], pictures: Iterable[tuple[str, str, bytes]]) -> str:
    study = results.study
    seeds = sorted({seed for *_, seed in results.origins})
    parts = [
        f"<h1>{escape(study.title)}</h1>",
        f'<p class="sub">study {escape(study.name)} · scale {escape(results.scale)} · {study.steps:,} steps · '
        f"{len(results.origins)} runs, seeds {seeds[0]} to {seeds[-1]}</p>",
    ]
    if results.notes:
        parts.append("<h2>Notes</h2>" + _html_list(results.notes))
    if results.unfinished:
        left_out = _html_list(results.unfinished)
        parts.append(f"<details><summary>Left out: {_count(results)}</summary>{left_out}</details>")
    for name, caption, svg in pictures:
        data = base64.b64encode(svg).decode()
        parts.append(
            f'<figure><img alt="{escape(name)}" src="data:image/svg+xml;base64,{data}"></figure>'
            f'<p class="sub">{escape(caption)}</p>'
        )
    for name, table in shown.items():
        parts.append(f"<h2>{escape(TABLES[name][1])}</h2>" + html_table(*table))
    runs = html_table(*provenance(results))
    parts.append(f"<h2>Runs</h2><details><summary>every run</summary>{runs}</details>")
    parts.append(
        f"<footer>Written by qdhuac {escape(__version__)} from config.toml and metrics.jsonl of each run.</footer>"
    )
    return document(f"{study.name} · qdhuac", parts, STYLE)


def _count(results: Results) -> str:
    return f"{len(results.unfinished)} runs that are missing or have not come far enough"


def _html_list(lines: Iterable[str]) -> str:
    return "<ul>" + "".join(f"<li>{escape(line)}</li>" for line in lines) + "</ul>"
