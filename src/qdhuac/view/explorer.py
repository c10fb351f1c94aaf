"""`qdhuac view`: a page on this machine alone, with the archive through the generations and robots that walk.

One server on one port. Each start draws a token, which is the first part of every address: `/TOKEN/page.js`. A page
elsewhere cannot guess it, and neither can another user of this machine. What the server hands out are the constants in
`ASSETS` and the answers of an `Explorer`: no request names a file.
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
from urllib.parse import parse_qs, urlsplit

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
MAX_POINTS = 1000  # of a trace: more cannot be seen
REMEMBERED = 8  # episodes: the page asks for the facts and the poses of each
PATIENCE_S = 10  # a connection that sends nothing for so long is closed
BINARY = "application/octet-stream"
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; "
        "connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",  # an address has the token in it
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}


class Explorer:
    """What the page asks for, from the files of a run, which may still be growing."""

    def __init__(self, folder: RunDir, task: Viewable) -> None:
        self.folder, self.task = folder, task
        self.settings = folder.read_config()
        self._lock = threading.Lock()
        self._stamp: tuple[Any, ...] = ()
        self._trajectories: dict[int, Trajectory] = {}  # by id, the newest last
        self.refresh()

    def refresh(self) -> None:
        """Read the files again if they have changed."""
        stamp = tuple(_stamp(self.folder.path / name) for name in (HISTORY, REPERTOIRE))
        if stamp == self._stamp:
            return
        self.arrays, self.metadata = repertoire.find(self.folder)
        size = self.arrays["descriptor"].shape[1]
        rows = self.folder.read_history()
        if not rows:
            raise UserError(f"{self.folder.path}: {HISTORY} is missing or empty, so there is nothing to show")
        self.history: History = rebuild(rows, size)
        self.generations = rows[0]["generation"], rows[-1]["generation"]
        self._where = {int(one): index for index, one in enumerate(self.arrays["provenance/id"])}
        self._stamp = stamp

    def run(self) -> dict[str, Any]:
        """What the page says about the run as a whole."""
        with self._lock:
            self.refresh()
            h = self.history
            return {
                "name": self.folder.path.absolute().name,
                "title": f"{self.settings.algorithm} on {self.settings.task.name}",
                "labels": descriptor_labels(self.settings.task.name, self.arrays["descriptor"].shape[1]),
                "bounds": self.metadata["descriptor_bounds"],
                "first": self.generations[0],
                "last": self.generations[1],
                "fitness": [
                    float(h.fitness.min()),
                    float(h.fitness.max()),
                ],  # of the whole run
                "operators": {int(i): self._operator(int(i)) for i in np.unique(h.operator)},
                "best": int(self.arrays["provenance/id"][self.arrays["fitness"].argmax()]),
                "shapes": scene.shapes(self.task.model),
            }

    def _operator(self, index: int) -> str:
        """An operator's name as pages and tables show it."""
        names = self.metadata.get("operators", ())
        return specs.title(names[index]) if 0 <= index < len(names) else "unknown"

    def archive(self, generation: int) -> dict[str, Any]:
        """The individuals of the archive after a generation."""
        with self._lock:
            h = self.history
            now = h.at(generation)
            return {
                "id": h.id[now].tolist(),
                "fitness": h.fitness[now].tolist(),
                "descriptor": h.descriptor[now].tolist(),
                "operator": h.operator[now].tolist(),
                "kept": [int(one) in self._where for one in h.id[now]],
            }

    def individual(self, id: int) -> dict[str, Any]:
        """What is known about an individual, and one episode of it if its policy is stored."""
        with self._lock:
            h = self.history
            line = h.lineage(id)
            if not line:
                raise UserError(f"id {id}: was never in this archive")
            facts = {
                "id": id,
                "fitness": float(h.fitness[line[0]]),
                "descriptor": h.descriptor[line[0]].tolist(),
                "lineage": [
                    {
                        "id": int(h.id[i]),
                        "generation": int(h.came[i]),
                        "operator": int(h.operator[i]),
                        "fitness": float(h.fitness[i]),
                    }
                    for i in line
                ],
                "kept": id in self._where,
            }
            return facts | (_traces(self._trajectory(id)) if id in self._where else {})

    def poses(self, id: int) -> bytes:
        """Where every geom of the robot is in that episode: seconds per frame, then [frames, geoms, 7], as float32."""
        with self._lock:
            poses, dt = scene.poses(self.task.model, self._trajectory(id))
            return np.float32(dt).tobytes() + np.ascontiguousarray(poses, "<f4").tobytes()

    def policy(self, id: int) -> bytes:
        """The genotype of an individual as a safetensors file."""
        from safetensors.numpy import save

        with self._lock:
            index = self._row(id)
            named = {k.partition("/")[2]: v for k, v in self.arrays.items() if k.startswith("genotypes/")}
            arrays = {k: np.ascontiguousarray(v[index]) for k, v in named.items()}
            about = {"task": self.settings.task.name, "id": str(id), "fitness": str(self.arrays["fitness"][index])}
            return save(arrays, about)

    def _row(self, id: int) -> int:
        if id not in self._where:
            raise UserError(f"id {id}: its policy is not stored")
        return self._where[id]

    def _trajectory(self, id: int) -> Trajectory:
        row = self._row(id)
        if id not in self._trajectories:
            self._trajectories[id] = simulate(self.task, repertoire.genotypes(self.arrays), row)
            if len(self._trajectories) > REMEMBERED:
                del self._trajectories[next(iter(self._trajectories))]
        return self._trajectories[id]


class Server(ThreadingHTTPServer):
    """Serves one explorer on this machine alone; `address` is where it is, with the token of this start."""

    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, explorer: Explorer, port: int) -> None:
        try:
            super().__init__((HOST, port), Handler)
        except OSError as error:
            raise UserError(f"--port {port}: cannot be used ({error.strerror}); name another one") from None
        self.explorer, self.token = explorer, secrets.token_urlsafe(16)
        self._stack = contextlib.ExitStack()
        self.hosts = tuple(f"{name}:{self.server_port}" for name in (HOST, "localhost"))
        self.address = f"http://{HOST}:{self.server_port}/{self.token}/"

    def open_browser(self) -> None:
        """Open the page. Its address goes through a file of the owner alone: everyone can read a command line."""
        page = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="qdhuac-"))) / "view.html"
        page.write_text(f'<!doctype html><meta http-equiv="refresh" content="0;url={self.address}">')
        webbrowser.open(page.as_uri())

    def server_close(self) -> None:
        super().server_close()
        self._stack.close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that goes away is normal; anything else is shown."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)


class Handler(BaseHTTPRequestHandler):
    """Answers a GET that comes from the page itself, or from a browser in which its address was opened."""

    server: Server
    timeout = PATIENCE_S
    server_version, sys_version = "qdhuac", ""

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        _, token, *rest = [*parts.path.split("/", 2), ""]
        if refusal := self._refusal(token):
            self._send(403, "text/plain; charset=utf-8", refusal.encode())
            return
        try:
            query = {name: values[0] for name, values in parse_qs(parts.query).items()}
            self._send(200, *self._answer(rest[0], query))
        except KeyError:
            self._send(404, "text/plain; charset=utf-8", b"not found")
        except UserError as error:
            self._send(409, "application/json", _json({"error": str(error)}))

    def _refusal(self, token: str) -> str:
        """Why a request is not answered; empty if it is."""
        repeated = [n for n in ("Host", "Origin", "Sec-Fetch-Site") if len(self.headers.get_all(n, ())) > 1]
        if repeated or self.headers.get("Host") not in self.server.hosts:  # a name may resolve to us
            return "this explorer answers on 127.0.0.1 only"
        if self.headers.get("Origin") not in (None, f"http://{self.headers['Host']}"):
            return "this explorer answers no other page"
        followed = self.headers.get("Sec-Fetch-Dest") == "document"  # a link in notes or in a web terminal
        if self.headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin") and not followed:
            return "this explorer answers no other page"
        if not secrets.compare_digest(token.encode(), self.server.token.encode()):
            return "wrong or missing token: open the address that qdhuac view has printed"
        return ""

    def _answer(self, name: str, query: dict[str, str]) -> tuple[str, bytes]:
        """Content type and content. A KeyError: there is no such thing."""
        explorer = self.server.explorer
        if name in ASSETS:
            kind, content = ASSETS[name]
            return kind, content()
        if name == "run":
            return "application/json", _json(explorer.run())
        if name == "archive":
            return "application/json", _json(explorer.archive(_number(query["generation"])))
        if name == "individual":
            return "application/json", _json(explorer.individual(_number(query["id"])))
        if name == "poses":
            return BINARY, explorer.poses(_number(query["id"]))
        if name == "policy":
            return BINARY, explorer.policy(_number(query["id"]))
        raise KeyError(name)

    def _send(self, code: int, kind: str, content: bytes) -> None:
        self.send_response(code)
        for name, value in {"Content-Type": kind, "Content-Length": str(len(content)), **HEADERS}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Anything but a GET that can be read; what was sent is not repeated."""
        self._send(code, "text/plain; charset=utf-8", b"not answered")

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: the terminal belongs to the command."""


def serve(task: Viewable, run: Run, port: int = 8080, *, browser: bool = True) -> None:
    """Show a run of this task in the browser until Ctrl-C."""
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
    step = -(-len(trajectory.reward) // MAX_POINTS)
    starts = np.arange(0, len(trajectory.reward), step)
    return {
        "time": (trajectory.dt * np.arange(1, len(trajectory.reward) + 1))[::step].tolist(),
        "reward": [float(v) if np.isfinite(v) else None for v in trajectory.reward[::step]],
        "contacts": np.maximum.reduceat(
            trajectory.contacts.astype(int), starts, axis=0
        ).T.tolist(),  # at any step of those
        "fitness_here": float(np.nan_to_num(trajectory.reward).sum()),
        "steps": len(trajectory.reward),
    }


def _json(value: dict[str, Any]) -> bytes:
    return json.dumps(value, allow_nan=False).encode()


def _stamp(path: Any) -> tuple[int, int]:
    try:
        status = path.stat()
        return status.st_size, status.st_mtime_ns
    except OSError:
        return 0, 0
