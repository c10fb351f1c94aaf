"""`qdhuac view`: a page for this machine alone, which shows the archive through the generations and its robots.

One server listens on one port. Each start draws a token, the first part of every address, as in `/TOKEN/page.js`. Other
pages and other users of the machine cannot guess it. The server sends only the constants in `ASSETS` and the answers
of an `Explorer`: no request names a file.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import secrets
import socket
import tempfile
import traceback
import webbrowser
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from http import HTTPStatus
from importlib import resources
from pathlib import Path
from typing import Any

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
PATIENCE_S = 10.0  # seconds for a request to arrive, and for its answer to be taken
LONGEST = 1 << 16  # bytes of a request; cookies of other pages on this machine come with it
MOST_SILENT, BACKLOG = 512, 1024  # connections without a request, and those that are not yet accepted
TEXT, JSON, BINARY = "text/plain; charset=utf-8", "application/json", "application/octet-stream"
_ID = "id=([0-9]{1,9})"
QUESTIONS = {"run": "", "archive": "generation=([0-9]{1,9})", "individual": _ID, "poses": _ID, "policy": _ID}
# Method, target, and lines of headers: what browsers send, and a part of what HTTP allows.
REQUEST = re.compile(rb"([A-Z]+) (/[!-~]*) HTTP/1\.[01]\r\n((?:[\w!#$%&'*+.^`|~-]+:[^\0\r\n]*\r\n)*)\r\n")
NOT_ANSWERED = b"not answered"
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
        h, names = self.history, self.metadata.get("operators") or ()
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


class Server:
    """Serves one explorer to this machine alone, at `address`, which contains the token of this start.

    One thread reads all requests and sends all answers, one other thread asks the explorer. A connection has one
    request, and `patience` seconds to send it and as long to take the answer. Beyond `MOST_SILENT` connections without
    a request, the oldest of these is closed.
    """

    def __init__(self, explorer: Explorer, port: int, patience: float = PATIENCE_S) -> None:
        try:
            self._socket = socket.create_server((HOST, port), backlog=BACKLOG)
        except OSError as error:
            raise UserError(f"--port {port}: cannot be used ({error.strerror}); name another one") from None
        self.explorer, self.token, self.patience = explorer, secrets.token_urlsafe(16), patience
        self.port = self._socket.getsockname()[1]
        at = "" if self.port == 80 else f":{self.port}"  # as browsers write it
        self._hosts = tuple(f"{name}{at}" for name in (HOST, "localhost"))
        self.address = f"http://{self._hosts[0]}/{self.token}/"
        self._asked = ThreadPoolExecutor(1)  # the explorer is not thread-safe
        self._silent: dict[asyncio.StreamWriter, None] = {}  # connections without a request, the oldest first
        self._stack = contextlib.ExitStack()
        self._loop: asyncio.AbstractEventLoop | None = None

    def open_browser(self) -> None:
        """Open the page in a browser, by a file that only its owner can read, as every user can read a command line."""
        page = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="qdhuac-"))) / "view.html"
        page.write_text(f'<!doctype html><meta http-equiv="refresh" content="0;url={self.address}">')
        webbrowser.open(page.as_uri())

    def serve_forever(self) -> None:
        """Serve until Ctrl-C, or until another thread leaves the `with` block of this server."""
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        self._loop, self._left = asyncio.get_running_loop(), asyncio.Event()
        server = await asyncio.start_server(self._serve_one, sock=self._socket, limit=LONGEST, backlog=BACKLOG)
        try:
            await self._left.wait()
        finally:
            server.close()

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        if self._loop is None:
            self._socket.close()
        elif not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._left.set)
        self._asked.shutdown(wait=False, cancel_futures=True)
        self._stack.close()

    async def _serve_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.set_write_buffer_limits(0)  # so that `drain` waits until all of it is sent
        self._silent[writer] = None
        if len(self._silent) > MOST_SILENT:
            oldest = next(iter(self._silent))
            del self._silent[oldest]
            oldest.transport.abort()
        with contextlib.suppress(EOFError, ConnectionError, TimeoutError):
            try:
                async with asyncio.timeout(self.patience):
                    head = await reader.readuntil(b"\r\n\r\n")
            except asyncio.LimitOverrunError:
                head = b""
            finally:
                self._silent.pop(writer, None)
            answer = await self._answer(head)
            async with asyncio.timeout(self.patience):
                writer.write(answer)
                await writer.drain()
        writer.transport.abort()

    async def _answer(self, head: bytes) -> bytes:
        """The answer to a request: its status, headers and content."""
        found = REQUEST.fullmatch(head)
        if found is None:
            return _response(400, TEXT, NOT_ANSWERED)
        method, target, lines = found[1], found[2].decode("latin-1"), found[3].decode("latin-1").split("\r\n")
        headers: dict[str, list[str]] = {}
        for name, _, value in (line.partition(":") for line in lines[:-1]):
            headers.setdefault(name.lower(), []).append(value.strip(" \t"))
        if method != b"GET":
            return _response(405, TEXT, NOT_ANSWERED, Allow="GET")
        if "transfer-encoding" in headers or headers.get("content-length", ["0"]) != ["0"]:
            return _response(400, TEXT, NOT_ANSWERED)
        path, _, query = target.partition("?")
        token, slash, name = path[1:].partition("/")
        if refusal := self._refusal(token, name, headers):
            return _response(403, TEXT, refusal.encode())
        if not slash:
            return _response(307, TEXT, b"", Location=f"/{self.token}/")
        if name in ASSETS and not query:
            kind, content = ASSETS[name]
            return _response(200, kind, content())
        asked = name in QUESTIONS and re.fullmatch(QUESTIONS[name], query)
        if not asked:
            return _response(404, TEXT, b"not found")
        return await asyncio.get_running_loop().run_in_executor(self._asked, self._ask, name, *map(int, asked.groups()))

    def _refusal(self, token: str, name: str, headers: dict[str, list[str]]) -> str:
        """Why a request is refused; empty if it is not."""
        host, origin, site, goal = (
            headers.get(name, [""]) for name in ("host", "origin", "sec-fetch-site", "sec-fetch-dest")
        )
        if host not in [[own] for own in self._hosts]:  # other names may resolve to this machine
            return f"this explorer answers on {HOST} only"
        # A link in notes or in a web terminal may lead to the page, but to nothing else.
        own_site = site in ([""], ["none"], ["same-origin"]) or (goal == ["document"] and not name)
        if origin not in ([""], [f"http://{host[0]}"]) or not own_site or len(site) > 1:
            return "this explorer answers no other page"
        if not secrets.compare_digest(token.encode("latin-1"), self.token.encode()):
            return "wrong or missing token: open the address that qdhuac view has printed"
        return ""

    def _ask(self, question: str, *number: int) -> bytes:
        try:
            answer = getattr(self.explorer, question)(*number)
            return _response(200, BINARY, answer) if isinstance(answer, bytes) else _response(200, JSON, _json(answer))
        except UserError as error:
            return _response(409, JSON, _json({"error": str(error)}))
        except Exception:  # a mistake of ours, which must not end the server
            traceback.print_exc()
            return _response(500, TEXT, b"failed: the terminal of qdhuac view says why")


def _response(code: int, kind: str, content: bytes, **more: str) -> bytes:
    """One answer. It never repeats what was sent."""
    headers = {"Content-Type": kind, "Content-Length": str(len(content)), "Connection": "close", **HEADERS, **more}
    lines = [f"HTTP/1.1 {code} {HTTPStatus(code).phrase}", *(f"{name}: {value}" for name, value in headers.items())]
    return "\r\n".join([*lines, "", ""]).encode() + content


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
