"""`qdhuac view`: a page on this machine alone, with the archive through the generations and robots that walk."""

from __future__ import annotations

import json
import mimetypes
import re
import socket
import sys
import threading
from collections.abc import Callable
from functools import lru_cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import numpy as np

from qdhuac.analysis.figures import descriptor_labels
from qdhuac.analysis.history import History, rebuild
from qdhuac.errors import UserError
from qdhuac.running import repertoire
from qdhuac.running.rundir import HISTORY, REPERTOIRE, RunDir
from qdhuac.viewing.scene import SIDES, Scene
from qdhuac.viewing.trajectory import Trajectory, simulate

HOST = "127.0.0.1"
MOST_POINTS = 1000  # of a trace: more cannot be seen
SCENE = "/scene/"
NOTHING = b'<svg xmlns="http://www.w3.org/2000/svg"/>'
OURS = "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:"
VISERS = f"default-src 'self' 'unsafe-inline' 'unsafe-eval' data: blob: ws://{HOST}:*"  # nothing from elsewhere
HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}


class Explorer:
    """What the page asks for, from the files of a run, which may still be growing."""

    def __init__(self, folder: RunDir, task: Any, scene: Scene) -> None:
        self.folder, self.task, self.scene = folder, task, scene
        self.settings = folder.read_config()
        self._lock = threading.Lock()
        self._stamp: tuple[Any, ...] = ()
        self.refresh()

    def refresh(self) -> None:
        """Read the files again if they have changed."""
        stamp = tuple(_stamp(self.folder.path / name) for name in (HISTORY, REPERTOIRE))
        if stamp == self._stamp:
            return
        self.arrays, self.metadata = repertoire.find(self.folder)
        size = self.arrays["descriptor"].shape[1]
        rows = self.folder.read_history()
        self.recorded = bool(rows)
        self.history: History = rebuild(rows or [_as_history(self.arrays, self.metadata)], size)
        last = self.metadata["generation"]
        self.generations = (rows[0]["generation"], rows[-1]["generation"]) if rows else (last, last)
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
                "recorded": self.recorded,
                "fitness": [float(h.fitness.min()), float(h.fitness.max())],  # of everybody: colours must not change
                "operators": {int(i): _operator(int(i)) for i in np.unique(h.operator)},
                "best": int(self.arrays["provenance/id"][self.arrays["fitness"].argmax()]),
            }

    def archive(self, generation: int) -> dict[str, Any]:
        """Who was there after a generation."""
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

    def show(self, side: str, id: int) -> dict[str, Any]:
        """Let an individual walk, and say what is known about it."""
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
            trajectory = self._trajectory(id) if id in self._where else None
            self.scene.show(side, trajectory)
            return facts | (_traces(trajectory) if trajectory is not None else {})

    def clear(self, side: str) -> dict[str, Any]:
        """Take a robot away."""
        with self._lock:
            self.scene.show(side, None)
            return {}

    def policy(self, id: int) -> bytes:
        """The genotype of an individual as a safetensors file."""
        from safetensors.numpy import save

        with self._lock:
            if id not in self._where:
                raise UserError(f"id {id}: its policy is not kept")
            index = self._where[id]
            named = {k.partition("/")[2]: v for k, v in self.arrays.items() if k.startswith("genotypes/")}
            arrays = {k: np.ascontiguousarray(v[index]) for k, v in named.items()}
            about = {"task": self.settings.task.name, "id": str(id), "fitness": str(self.arrays["fitness"][index])}
            return save(arrays, about)

    def _trajectory(self, id: int) -> Trajectory:
        return simulate(self.task, repertoire.genotypes(self.arrays), self._where[id])


def serve(explorer: Explorer, port: int, scene_port: int) -> ThreadingHTTPServer:
    """A server for the page; the caller lets it run. A UserError if the port is taken."""

    def answer(path: str, query: dict[str, str]) -> tuple[str, bytes]:
        if path in PAGES:
            return PAGES[path][0], PAGES[path][1]()
        if path.startswith(SCENE):
            return _viser(unquote(path.removeprefix(SCENE)))
        if path == "/run":
            scene = f"{SCENE}index.html?websocket=ws://{HOST}:{scene_port}"
            return "application/json", _json(explorer.run() | {"scene": scene})
        if path == "/archive":
            return "application/json", _json(explorer.archive(int(query["generation"])))
        if path == "/show" and query["side"] in SIDES:
            return "application/json", _json(explorer.show(query["side"], int(query["id"])))
        if path == "/clear" and query["side"] in SIDES:
            return "application/json", _json(explorer.clear(query["side"]))
        if path == "/policy":
            return "application/octet-stream", explorer.policy(int(query["id"]))
        raise KeyError(path)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            host = (self.headers.get("Host") or "").rpartition(":")[0]
            try:
                if host not in (HOST, "localhost"):  # a page elsewhere that has our address under its own name
                    raise KeyError("host")
                kind, content = answer(parts.path, {k: v[0] for k, v in parse_qs(parts.query).items()})
                code = 200
            except (KeyError, ValueError):
                code, kind, content = 404, "text/plain", b"not found"
            except UserError as error:
                code, kind, content = 409, "application/json", _json({"error": str(error)})
            self.send_response(code)
            for name, value in {"Content-Type": kind, "Content-Length": str(len(content)), **HEADERS}.items():
                self.send_header(name, value)
            self.send_header("Content-Security-Policy", VISERS if parts.path.startswith(SCENE) else OURS)
            if kind == "application/octet-stream":
                self.send_header("Content-Disposition", "attachment; filename=policy.safetensors")
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    class Server(ThreadingHTTPServer):
        allow_reuse_address = True
        daemon_threads = True

        def handle_error(self, request: Any, client_address: Any) -> None:
            if not isinstance(sys.exception(), ConnectionError):  # a browser that went away is no news
                super().handle_error(request, client_address)

    try:
        return Server((HOST, port), Handler)
    except OSError as error:
        raise UserError(f"--port {port}: cannot be used ({error.strerror}); name another one") from None


def free_port() -> int:
    """A port that nobody uses."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return probe.getsockname()[1]


@lru_cache
def _plotly() -> bytes:
    from plotly.offline import get_plotlyjs

    return get_plotlyjs().encode()


def _viser(name: str) -> tuple[str, bytes]:
    """A file of viser's page, without the visitors' count that it would report to a company."""
    import viser

    root = (Path(viser.__file__).parent / "client" / "build").resolve()
    file = (root / name).resolve()
    if root not in file.parents or not file.is_file():
        raise KeyError(name)
    content = file.read_bytes()
    if file.suffix == ".html":
        content = re.sub(rb"<!--.*?-->", b"", content, flags=re.DOTALL)
        content = re.sub(
            rb"<script\b(?:(?!</script>).)*gtag(?:(?!</script>).)*</script>", b"", content, flags=re.DOTALL
        )
        content = re.sub(rb'<link rel="manifest"[^>]*>', b"", content)  # it names an icon that is not there
        content = content.replace(
            b"</head>", b"<style>.mantine-Paper-root { display: none }</style></head>"
        )  # its panel
    return mimetypes.guess_type(file.name)[0] or "application/octet-stream", content


def _asset(name: str) -> Callable[[], bytes]:
    return lambda: (resources.files("qdhuac.viewing") / name).read_bytes()


PAGES: dict[str, tuple[str, Callable[[], bytes]]] = {
    "/": ("text/html; charset=utf-8", _asset("page.html")),
    "/page.js": ("text/javascript; charset=utf-8", _asset("page.js")),
    "/plotly.js": ("text/javascript; charset=utf-8", _plotly),
    "/favicon.ico": ("image/svg+xml", lambda: NOTHING),
    "/logo.svg": ("image/svg+xml", lambda: NOTHING),  # viser asks for it before it hears that it should not show it
}


def _traces(trajectory: Trajectory) -> dict[str, Any]:
    step = -(-len(trajectory.reward) // MOST_POINTS)
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


def _as_history(arrays: dict[str, Any], metadata: dict[str, Any]) -> dict[str, Any]:
    """A run that recorded no history, as if everybody had come in its last generation."""
    size = len(arrays["fitness"])
    columns = {name: arrays[f"provenance/{name}"] for name in ("id", "parents", "operator")}
    columns |= {"slot": np.arange(size), "fitness": arrays["fitness"], "descriptor": arrays["descriptor"]}
    return {"generation": metadata["generation"], **columns}


def _operator(index: int) -> str:
    """An operator as people call it."""
    from qdhuac.types import OPERATORS

    name = OPERATORS[index] if 0 <= index < len(OPERATORS) else "unknown"
    return {"isoline": "Iso+Line", "actor": "injected actor", "diversity": "diversity gradient"}.get(name, name)


def _json(value: dict[str, Any]) -> bytes:
    return json.dumps(value, allow_nan=False).encode()


def _stamp(path: Any) -> tuple[int, int]:
    try:
        status = path.stat()
        return status.st_size, status.st_mtime_ns
    except OSError:
        return 0, 0
