"""`qdhuac view`: a page for this machine alone, which shows the archive through the generations and its robots.

One server listens on one port. Each start draws a token, the first part of every address, as in `/TOKEN/page.js`. Other
pages and other users of the machine cannot guess it. The server sends only the constants in `ASSETS` and the answers
of an `Explorer`: no request names a file.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import sys
import tempfile
import threading
import webbrowser
from collections.abc import Callable
from functools import lru_cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import numpy as np

from qdhuac.algorithms import specs
from qdhuac.errors import UserError
from qdhuac.report.run_figures import descriptor_labels
from qdhuac.store import repertoire
from qdhuac.store.history import History, rebuild
from qdhuac.store.run import Run
from qdhuac.store.run_folder import HISTORY, REPERTOIRE, RunDir
from qdhuac.tasks.base import Trajectory, Viewable
from qdhuac.training.evaluation import check_genotypes
from qdhuac.view import scene
from qdhuac.view.trajectory import simulate

HOST = "127.0.0.1"
MAX_POINTS = 1000  # of a trace; more cannot be seen
REMEMBERED = 8  # episodes, as the page asks twice for each: for its facts and for its poses
PATIENCE_S = 10  # seconds after which a silent connection is closed
TEXT, JSON, BINARY = "text/plain; charset=utf-8", "application/json", "application/octet-stream"
QUESTIONS = {"archive": "generation", "individual": "id", "poses": "id", "policy": "id"}  # each with its parameter
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; "
        "connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",  # addresses contain the token
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}


class Explorer:
    """Answers the page from the files of a run, which may still be growing. Not thread-safe."""

    def __init__(self, folder: RunDir, task: Viewable) -> None:
        self.folder, self.task = folder, task
        self.settings = folder.read_config()
        self._stamp: tuple[Any, ...] = ()
        self._trajectories: dict[int, Trajectory] = {}  # by id, the newest last
        self.refresh()

    def refresh(self) -> None:
        """Read the files again if they have changed."""
        stamp = tuple(_stamp(self.folder.path / name) for name in (HISTORY, REPERTOIRE))
        if stamp == self._stamp:
            return
        self.arrays, self.metadata = repertoire.find(self.folder)
        rows = self.folder.read_history()
        if not rows:
            raise UserError(f"{self.folder.path}: {HISTORY} is missing or empty, so there is nothing to show")
        self.history: History = rebuild(rows, self.arrays["descriptor"].shape[1])
        self.generations = rows[0]["generation"], rows[-1]["generation"]
        self._rows = {int(id): row for row, id in enumerate(self.arrays["provenance/id"])}
        self._stamp = stamp

    def run(self) -> dict[str, Any]:
        """Facts about the run."""
        self.refresh()
        h, names = self.history, self.metadata.get("operators", ())
        numbers = np.unique(h.operator).tolist()
        operators = {i: specs.title(names[i]) if 0 <= i < len(names) else "unknown" for i in numbers}
        return {
            "name": self.folder.path.absolute().name,
            "title": f"{self.settings.algorithm} on {self.settings.task.name}",
            "labels": descriptor_labels(self.metadata, self.arrays["descriptor"].shape[1]),
            "bounds": self.metadata["descriptor_bounds"],
            "first": self.generations[0],
            "last": self.generations[1],
            "fitness": [h.fitness.min(), h.fitness.max()],  # of all individuals that were ever in the archive
            "operators": operators,
            "best": self.arrays["provenance/id"][self.arrays["fitness"].argmax()],
            "shapes": scene.shapes(self.task.model),
        }

    def archive(self, generation: int) -> dict[str, Any]:
        """The individuals in the archive after a generation."""
        h = self.history
        now = h.at(generation)
        facts = {name: getattr(h, name)[now] for name in ("id", "fitness", "descriptor", "operator")}
        return facts | {"kept": [id in self._rows for id in h.id[now].tolist()]}

    def individual(self, id: int) -> dict[str, Any]:
        """Facts about an individual, and about one episode of it if its policy is stored."""
        h = self.history
        line = h.lineage(id)
        if not line:
            raise UserError(f"id {id}: was never in this archive")
        ancestors = {"id": h.id, "generation": h.came, "operator": h.operator, "fitness": h.fitness}
        facts = {
            "id": id,
            "fitness": h.fitness[line[0]],
            "descriptor": h.descriptor[line[0]],
            "lineage": [{name: column[i] for name, column in ancestors.items()} for i in line],
            "kept": id in self._rows,
        }
        return facts | (_traces(self._trajectory(id)) if id in self._rows else {})

    def poses(self, id: int) -> bytes:
        """Seconds per frame, then the pose of every geom in that episode [frames, geoms, 7], as float32."""
        poses, dt = scene.poses(self.task.model, self._trajectory(id))
        return np.float32(dt).tobytes() + np.ascontiguousarray(poses, "<f4").tobytes()

    def policy(self, id: int) -> bytes:
        """The genotype of an individual as a safetensors file."""
        from safetensors.numpy import save

        row = self._row(id)
        named = {k.partition("/")[2]: v for k, v in self.arrays.items() if k.startswith("genotypes/")}
        arrays = {k: np.ascontiguousarray(v[row]) for k, v in named.items()}
        return save(
            arrays, {"task": self.settings.task.name, "id": str(id), "fitness": str(self.arrays["fitness"][row])}
        )

    def _row(self, id: int) -> int:
        if id not in self._rows:
            raise UserError(f"id {id}: its policy is not stored")
        return self._rows[id]

    def _trajectory(self, id: int) -> Trajectory:
        row = self._row(id)
        if id not in self._trajectories:
            self._trajectories[id] = simulate(self.task, repertoire.genotypes(self.arrays), row)
            if len(self._trajectories) > REMEMBERED:
                del self._trajectories[next(iter(self._trajectories))]
        return self._trajectories[id]


class Server(ThreadingHTTPServer):
    """Serves one explorer to this machine alone, at `address`, which contains the token of this start."""

    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, explorer: Explorer, port: int) -> None:
        try:
            super().__init__((HOST, port), Handler)
        except OSError as error:
            raise UserError(f"--port {port}: cannot be used ({error.strerror}); name another one") from None
        self.explorer, self.token = explorer, secrets.token_urlsafe(16)
        self.lock = threading.Lock()  # of the explorer
        self._stack = contextlib.ExitStack()
        self.hosts = tuple(f"{name}:{self.server_port}" for name in (HOST, "localhost"))
        self.address = f"http://{HOST}:{self.server_port}/{self.token}/"

    def open_browser(self) -> None:
        """Open the page in a browser, by a file that only its owner can read, as every user can read a command line."""
        page = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="qdhuac-"))) / "view.html"
        page.write_text(f'<!doctype html><meta http-equiv="refresh" content="0;url={self.address}">')
        webbrowser.open(page.as_uri())

    def server_close(self) -> None:
        super().server_close()
        self._stack.close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore browsers that disconnect. Show any other error."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)


class Handler(BaseHTTPRequestHandler):
    """Answers GET requests of the page itself, and of a browser that opens its address."""

    server: Server
    timeout = PATIENCE_S
    server_version, sys_version = "qdhuac", ""

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        token, slash, name = parts.path.removeprefix("/").partition("/")
        if refusal := self._refusal(token):
            self._send(403, TEXT, refusal.encode())
        elif not slash:
            self._send(307, TEXT, b"", Location=f"/{self.server.token}/")
        else:
            try:
                self._send(200, *self._answer(name, dict(parse_qsl(parts.query))))
            except KeyError:
                self._send(404, TEXT, b"not found")
            except UserError as error:
                self._send(409, JSON, _json({"error": str(error)}))

    def _refusal(self, token: str) -> str:
        """Why a request is refused; empty if it is not."""
        repeated = [n for n in ("Host", "Origin", "Sec-Fetch-Site") if len(self.headers.get_all(n, ())) > 1]
        if repeated or self.headers.get("Host") not in self.server.hosts:  # other names may resolve to this machine
            return "this explorer answers on 127.0.0.1 only"
        own_origin = self.headers.get("Origin") in (None, f"http://{self.headers['Host']}")
        followed = self.headers.get("Sec-Fetch-Dest") == "document"  # by a link in notes or in a web terminal
        own_site = followed or self.headers.get("Sec-Fetch-Site", "none") in ("none", "same-origin")
        if not (own_origin and own_site):
            return "this explorer answers no other page"
        if not secrets.compare_digest(token.encode(), self.server.token.encode()):
            return "wrong or missing token: open the address that qdhuac view has printed"
        return ""

    def _answer(self, name: str, query: dict[str, str]) -> tuple[str, bytes]:
        """Content type and content. Raise KeyError if there is no such thing."""
        if name in ASSETS:
            kind, content = ASSETS[name]
            return kind, content()
        explorer = self.server.explorer
        number = None if name == "run" else _number(query[QUESTIONS[name]])
        with self.server.lock:
            answer = explorer.run() if number is None else getattr(explorer, name)(number)
        return (BINARY, answer) if isinstance(answer, bytes) else (JSON, _json(answer))

    def _send(self, code: int, kind: str, content: bytes, **more: str) -> None:
        self.send_response(code)
        for name, value in {"Content-Type": kind, "Content-Length": str(len(content)), **HEADERS, **more}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answer anything but a valid GET, without repeating what was sent."""
        self._send(code, TEXT, b"not answered")

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: the terminal belongs to the command."""


def serve(task: Viewable, run: Run, port: int = 8080, *, browser: bool = True) -> None:
    """Show a run in the browser until Ctrl-C.

    Args:
        task: the task of the run, or one with the same policies.
        run: the run.
        port: port on 127.0.0.1.
        browser: open a browser if there is a display.

    Raises:
        UserError: the genotypes are not policies of the task, or the port cannot be used.
    """
    check_genotypes(task, repertoire.genotypes(run.archive), str(run.folder.path / REPERTOIRE))
    with Server(Explorer(run.folder, task), port) as server:
        print(f"open {server.address} in a browser; Ctrl-C ends", flush=True)
        if browser and (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
            server.open_browser()
        with contextlib.suppress(KeyboardInterrupt):
            server.serve_forever()


def _number(text: str) -> int:
    if not re.fullmatch("[0-9]{1,9}", text):
        raise KeyError(text)
    return int(text)


@lru_cache
def _plotly() -> bytes:
    from plotly.offline import get_plotlyjs

    return get_plotlyjs().encode()


def _asset(name: str) -> Callable[[], bytes]:
    return lambda: (resources.files("qdhuac.view") / name).read_bytes()


JAVASCRIPT = "text/javascript; charset=utf-8"
ASSETS: dict[str, tuple[str, Callable[[], bytes]]] = {
    "": ("text/html; charset=utf-8", _asset("page.html")),
    "page.js": (JAVASCRIPT, _asset("page.js")),
    "scene.js": (JAVASCRIPT, _asset("scene.js")),
    "three.js": (JAVASCRIPT, _asset("three.js")),
    "plotly.js": (JAVASCRIPT, _plotly),
}


def _traces(trajectory: Trajectory) -> dict[str, Any]:
    """Curves of an episode, thinned to `MAX_POINTS`. A contact at any of the steps that a point stands for counts."""
    steps = len(trajectory.reward)
    starts = np.arange(0, steps, -(-steps // MAX_POINTS))
    return {
        "time": trajectory.dt * (starts + 1),
        "reward": [float(v) if np.isfinite(v) else None for v in trajectory.reward[starts]],
        "contacts": np.maximum.reduceat(trajectory.contacts.astype(int), starts, axis=0).T,
        "fitness_here": np.nan_to_num(trajectory.reward).sum(),
        "steps": steps,
    }


def _json(value: dict[str, Any]) -> bytes:
    return json.dumps(value, allow_nan=False, default=lambda array: array.tolist()).encode()


def _stamp(path: Any) -> tuple[int, int]:
    try:
        status = path.stat()
        return status.st_size, status.st_mtime_ns
    except OSError:
        return 0, 0
