"""Explore a run in the browser: its archive at every generation, and its robots."""

from __future__ import annotations

import argparse
import contextlib
import socket
from pathlib import Path
from typing import TYPE_CHECKING

from qdhuac.cli.common import add_number, require_robot, warn
from qdhuac.errors import UserError, os_errors_as

if TYPE_CHECKING:
    from qdhuac.store.run import Run


def add(parser: argparse.ArgumentParser) -> None:
    """The options of `qdhuac view`."""
    parser.add_argument("run_dir", metavar="RUN_DIR", nargs="?", help="default: the newest run in runs/")
    add_number(parser, "--port", "port on this machine, default 8080", high=65535, default=8080)
    parser.add_argument("--no-browser", action="store_true", help="print the address, but do not open a browser")


def run(arguments: argparse.Namespace) -> int:
    """Serve the page until Ctrl-C."""
    found = newest() if arguments.run_dir is None else showable(arguments.run_dir)
    warn(found.folder.notes)
    from qdhuac.environment import prepare_jax, require

    require("plotly", "view")
    _require_free(arguments.port)
    prepare_jax()
    from qdhuac.training.build import native_task
    from qdhuac.view import explorer

    explorer.serve(native_task(found.config, threads=1), found, arguments.port, browser=not arguments.no_browser)
    return 0


def showable(path: str | Path) -> Run:
    """Read a run that the explorer can show. Raises UserError for others."""
    from qdhuac.store.run import load_run
    from qdhuac.store.run_folder import RunDir

    if not RunDir.open(Path(path)).read_metrics():
        raise UserError(f"{path}: no generation has ended yet, so there is nothing to show")
    found = load_run(path)
    require_robot(found)
    found.require_individuals()
    return found


def newest() -> Run:
    """Read the newest run in runs/ that the explorer can show."""
    runs = [*Path("runs").glob("*/metrics.jsonl"), *Path("runs").glob("*/*/metrics.jsonl")]
    for path in sorted(runs, key=lambda path: path.stat().st_mtime, reverse=True):
        with contextlib.suppress(UserError):
            found = showable(path.parent)
            print(f"run folder: {path.parent}", flush=True)
            return found
    raise UserError("view: runs/ has no run that can be shown; name a run folder, or make one with: qdhuac train")


def _require_free(port: int) -> None:
    """Raise UserError for a port that is taken, before anything is loaded."""
    with os_errors_as(UserError, f"--port {port}: cannot be used", "; name another one"):
        socket.create_server(("127.0.0.1", port)).close()
