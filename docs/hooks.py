"""What `make docs` adds to the pages in this folder: reference pages, and code beside formulas."""

from __future__ import annotations

import argparse
import ast
import dataclasses
import html
import importlib
import math
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from qdhuac import cli, config
from qdhuac.algorithms import specs
from qdhuac.config import Config
from qdhuac.keys import allowed

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "qdhuac"
PAGES = {"README.md": "index.md", "CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md"}
SHARED = ("task.", "policy.", "archive.", "run.")  # sections of every configuration
PACKAGES = ("qdhuac", *(f"qdhuac.{name}" for name in ("algorithms", "emitters", "archives", "tasks", "learning")))
LINK = re.compile(r"\]\((?!https?:|#)([^)#\s]+)")


def commands_page() -> str:
    """Every command and its options, from the parser itself."""
    parser = cli.parser()
    out = [
        "# Commands",
        parser.description,
        "Every command has `--help`; `qdhuac --version` prints the version.",
        f"{cli.EXIT_CODES[0].upper()}{cli.EXIT_CODES[1:]}.",
    ]
    for name, sub in _commands(parser):
        usage = " ".join(sub.format_usage().removeprefix("usage: ").split())
        rows = [(_flag(a), _cell(a.help)) for a in sub._actions if a.dest != "help" and a.help]
        out += [f"## {name}", sub.description, f"```\n{usage}\n```", _table(("", "meaning"), rows) if rows else ""]
    return "\n\n".join(part for part in out if part) + "\n"


def _commands(parser: argparse.ArgumentParser, before: str = "") -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Each command by its name, such as "train" or "task new"."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, sub in action.choices.items():
                below = list(_commands(sub, f"{before}{name} "))
                yield from below or [(f"{before}{name}", sub)]


def configuration_page() -> str:
    """Every configuration key, from the dataclasses, with its value in each algorithm and preset."""
    shared = specs.make(), Config()
    names = [name for name in config.keys(shared[0]) if name.startswith(SHARED)]
    rows = [
        (f"`{name}`", _shown(config.get(shared[1], name)), *_explained(config.keys(shared[0])[name])) for name in names
    ]
    out = [
        "# Configuration",
        "`qdhuac train --set section.key=value` sets every key except `algorithm` and `preset`, which are options. A "
        "configuration has the keys below and those of its algorithm. `config.toml` of a run has them all, and "
        "`qdhuac train --algorithm NAME --help-keys` lists them.",
        "## Every algorithm",
        _table(("key", "default", "allowed", "meaning"), rows),
    ]
    for spec in specs.ALGORITHMS.values():
        presets = {preset: specs.make(spec.name, preset) for preset in spec.presets}
        rows = []
        for name, field in config.keys(next(iter(presets.values()))).items():
            values = [_shown(config.get(made, name)) for made in presets.values()]
            changed = name in names and set(values) != {_shown(config.get(shared[1], name))}
            if "." in name and (changed or name not in names):
                rows.append((f"`{name}`", *values, *_explained(field)))
        out += [
            f"## {spec.name}",
            f"{spec.title}: {spec.purpose}.",
            _table(("key", *presets, "allowed", "meaning"), rows),
        ]
    return "\n\n".join(out) + "\n"


def api_page() -> str:
    """What each package exports; mkdocstrings replaces each `:::` line by signature and docstring."""
    out = ["# Python", "Everything else in the package may change without notice."]
    for name in PACKAGES:
        package = importlib.import_module(name)
        out += [f"## {name}", package.__doc__ or ""]
        out += [f"::: {name}.{one}" for one in package.__all__ if not one.isupper()]
    return "\n\n".join(out) + "\n"


def source(path: str, name: str) -> str:
    """The text of a function or `Class.method` of the package."""
    text = (SOURCE / path).read_text()
    node: Any = ast.parse(text)
    for part in name.split("."):
        found = [n for n in ast.walk(node) if isinstance(n, ast.FunctionDef | ast.ClassDef) and n.name == part]
        if not found:
            raise ValueError(f"{path} has no {name}")
        node = found[0]
    lines = text.splitlines()[node.lineno - 1 : node.end_lineno]
    return "\n".join(line[node.col_offset :] for line in lines)


def with_code(markdown: str) -> str:
    """Replace each `<!-- code: file name -->` by that code, folded."""

    def block(match: re.Match[str]) -> str:
        path, name = match[1], match[2]
        body = "\n".join(f"    {line}".rstrip() for line in source(path, name).splitlines())
        return f'??? example "{path}: {name}"\n\n    ```python\n{body}\n    ```'

    return re.sub(r"<!-- code: (\S+) (\S+) -->", block, markdown)


def with_links(markdown: str, where: str) -> tuple[str, set[str]]:
    """Links of a page of the repository (`where`) as links of the site, and the files that need a page of their own."""
    needed: set[str] = set()

    def link(match: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(where), match[1]))
        if target in PAGES:
            return f"]({PAGES[target]}"
        if target.startswith("docs/"):
            return f"]({target.removeprefix('docs/')}"
        needed.add(target)
        return f"](files/{target}.md"

    return LINK.sub(link, markdown), needed


def with_mathml(page: str) -> str:
    """Formulas as MathML, which browsers render without a script."""
    from latex2mathml.converter import convert

    def formula(match: re.Match[str]) -> str:
        return convert(html.unescape(match[2]).strip(), display="block" if match[1] == "div" else "inline")

    return re.sub(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', formula, page, flags=re.DOTALL)


# What mkdocs calls


def on_files(files: Any, config: Any) -> Any:
    """Add the pages that are made from code, and those outside this folder."""
    from mkdocs.structure.files import File

    made, needed = (
        {"commands.md": commands_page(), "configuration.md": configuration_page(), "api.md": api_page()},
        set(),
    )
    for name, page in PAGES.items():
        made[page], more = with_links((ROOT / name).read_text(), name)
        needed |= more
    for file in (ROOT / "docs").glob("*.md"):
        needed |= with_links(file.read_text(), f"docs/{file.name}")[1]
    for name in sorted(needed):
        kind = {".py": "python", ".cff": "yaml"}.get(Path(name).suffix, "")
        made[f"files/{name}.md"] = f"# {name}\n\n````{kind}\n{(ROOT / name).read_text()}\n````\n"
    for name, content in made.items():
        files.append(File.generated(config, name, content=content))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Convert links of the repository, and insert code."""
    if page.file.generated_by is None:
        markdown, _needed = with_links(markdown, f"docs/{page.file.src_uri}")
    return with_code(markdown)


def on_page_content(html: str, **_: Any) -> str:
    """Convert formulas."""
    return with_mathml(html)


def on_post_build(config: Any) -> None:
    """Fail if a page would fetch anything from another site."""
    for file in Path(config.site_dir).rglob("*.html"):
        outside = re.findall(
            r'<(?:script|img|iframe|link)\b[^>]*(?:src|href)="?(?:https?:)?//[^"\s>]*', file.read_text()
        )
        outside = [tag for tag in outside if 'rel="canonical"' not in tag]
        if outside:
            raise SystemExit(f"{file}: would fetch from elsewhere: {outside[0]}")


def _flag(action: argparse.Action) -> str:
    value = action.metavar or (action.dest.upper() if action.nargs != 0 else "")
    return f"`{' '.join(filter(None, (*action.option_strings, str(value))))}`"


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and math.isnan(value):
        return "nan"
    return str(list(value)) if isinstance(value, tuple) else f"{value:g}" if isinstance(value, float) else str(value)


def _explained(field: dataclasses.Field[Any]) -> tuple[str, str]:
    return _cell(allowed(field)), _cell(field.metadata["doc"])


def _cell(text: str) -> str:
    return html.escape(text, quote=False).replace("|", "\\|")


def _table(heads: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [heads, ("---",) * len(heads), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
