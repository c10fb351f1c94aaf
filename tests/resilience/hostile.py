"""Hostile folders from a seeded generator, each given to a command that reads: it ends in one line, or it works.

In the process of this program, so that a hang, memory and writes to other folders are seen: the folder is one of a run
or of a study, most of it intact, beside files of the user that nothing may touch.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import itertools
import json
import math
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import fuzz  # adds the folder of helpers to the path
import harness
import numpy as np

import qdhuac
from qdhuac import cli
from qdhuac.algorithms import specs
from qdhuac.files import replace_file
from qdhuac.store import checkpoint, repertoire
from qdhuac.store.run_folder import _CHECKSUM as CHECKSUM
from qdhuac.store.run_folder import _CRC as CRC
from qdhuac.store.run_folder import CONFIG, EVALUATION, HISTORY, METRICS, REPERTOIRE, RunDir
from qdhuac.store.run_folder import _crc as crc

LIMIT_S, LIMIT_MB = 10, 1000  # seconds of the processor, as the machine may be busy
PATIENCE_S = 300  # for a command, which hangs if it takes longer
GENERATIONS, SIZES = 3, (11, 16, 16, 3)  # of Hopper's policy with preset smoke
ARCHIVE = "algorithm/archive/"
NAMES = (CONFIG, METRICS, HISTORY, REPERTOIRE)
COMMANDS = ("report", "evaluate", "render", "view", "export", "adapt", "resume", "load")


# Intact folders


def state(rows: int = 12) -> dict[str, np.ndarray]:
    """An archive of policies of Hopper, as a checkpoint holds it."""
    chance = np.random.default_rng(0)
    arrays = {f"provenance/{name}": np.zeros(rows, np.int32) for name in ("operator", "generation")}
    arrays |= {"provenance/id": np.arange(rows, dtype=np.int32), "provenance/parents": np.full((rows, 2), -1, np.int32)}
    arrays |= {"fitness": chance.normal(size=rows), "descriptor": chance.random((rows, 1))}
    for i, (m, n) in enumerate(itertools.pairwise(SIZES)):
        arrays |= {f"genotypes/Dense_{i}/kernel": chance.normal(size=(rows, m, n)) / 4}
        arrays |= {f"genotypes/Dense_{i}/bias": np.zeros((rows, n))}
    arrays = {name: a.astype(np.float32) if a.dtype.kind == "f" else a for name, a in arrays.items()}
    return {ARCHIVE + name: array for name, array in arrays.items()}


METADATA = {
    "descriptor_bounds": [[0.0], [1.0]],
    "operators": ["random", "isoline"],
    "action_bounds": None,
    "policy": {"obs_size": SIZES[0], "hidden": SIZES[1:-1], "action_size": SIZES[-1]},
}


def make_run(path: Path) -> None:
    """A run of Hopper with two checkpoints, which do not hold what is needed to go on."""
    config = specs.make("dns", "smoke", {"task.name": "hopper", "task.backend": "native", "run.generations": 9})
    with RunDir.create(path, config) as folder:
        for generation in range(1, GENERATIONS + 1):
            folder.append_metrics({"generation": generation, "env_steps": 120 * generation, "qd_score": 1.0})
            ids = list(range(4 * generation - 4, 4 * generation))
            columns = {"slot": ids, "id": ids, "parents": [[-1, -1]] * 4, "operator": [0] * 4}
            folder.append_history(generation, {**columns, "fitness": [0.5] * 4, "descriptor": [[0.5]] * 4})
            record = {"counters": {"generation": generation, "env_steps": 120 * generation}, "pending": None}
            repertoire.write(path / REPERTOIRE, state(), METADATA)
            name = checkpoint.name(generation, 0)
            checkpoint.save(folder.checkpoints, name, record | {"repertoire": METADATA}, folder.texts(), state())


def make_study(root: Path) -> None:
    """A study with two finished runs, one of which has a log."""
    import fake_study

    fake_study.write_study(root, "target", "smoke", 1, generations=4)
    for run in sorted((root / "runs").iterdir()):
        (run / "report.html").touch()
        (root / "logs").mkdir(exist_ok=True)
    (root / "logs" / f"{run.name}.log").write_text("$ qdhuac train\n")


# Files that agree with the hashes that others have of them


def forge(path: Path, contents: dict[str, bytes] | None = None, **changes: object) -> None:
    """Change a checkpoint and make its manifest agree."""
    manifest = json.loads((path / "manifest.json").read_bytes()) | changes
    for file, data in (contents or {}).items():
        (path / file).write_bytes(data)
        manifest["files"][file] = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    manifest["digest"] = checkpoint._digest(manifest)
    (path / "manifest.json").write_bytes(checkpoint._serialised(manifest))


def header(content: bytes, length: int | None = None) -> bytes:
    """The beginning of a safetensors file."""
    return (len(content) if length is None else length).to_bytes(8, "little") + content


F32 = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
MALFORMED = {
    "empty": b"",
    "short": b"\x01",
    "a header of 2^63 bytes": header(b"{}", 1 << 63),
    "a header larger than the file": header(b"{}", 1 << 40),
    "not JSON": header(b"{{{{"),
    "a bomb of brackets": header(b'{"a":' + b"[" * 100_000),
    "no dictionary": header(b"[]"),
    "offsets beyond the end": header(json.dumps({"a": {**F32, "data_offsets": [0, 1 << 50]}}).encode()),
    "negative offsets": header(b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[-8,0]}}') + bytes(8),
    "a shape that overflows": header(json.dumps({"a": {**F32, "shape": [1 << 62, 1 << 62]}}).encode()) + bytes(8),
    "a million dimensions": header(json.dumps({"a": {**F32, "shape": [8] * 1_000_000}}).encode()) + bytes(8),
    "an unknown type": header(json.dumps({"a": {**F32, "dtype": "PICKLE"}}).encode()) + bytes(8),
    "overlapping arrays": header(json.dumps({"a": F32, "b": F32}).encode()) + bytes(8),
    "texts that are none": header(json.dumps({"__metadata__": {"metadata": 1}, "a": F32}).encode()) + bytes(8),
    "a pickle": b"cos\nsystem\n(S'touch hacked'\ntR.",
}


def write_sparse(path: Path, entries: dict[str, tuple[str, list[int]]], metadata: dict[str, str]) -> None:
    """A safetensors file of zeros, of which only the header is stored."""
    sizes, content, end = {"F32": 4, "I32": 4, "U8": 1}, {"__metadata__": metadata}, 0
    for name, (dtype, shape) in entries.items():
        begin, end = end, end + math.prod(shape) * sizes[dtype]
        content[name] = {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}
    data = header(json.dumps(content).encode())
    path.write_bytes(data)
    os.truncate(path, len(data) + end)


def line(row: object) -> bytes:
    """A line of metrics or history with a checksum that fits."""
    text = json.dumps(row)[:-1]
    return f'{text}{CRC}{crc(text)}"}}\n'.encode()


# Damage. Each function changes a run folder; `chance` decides how.


def not_a_file(path: Path, chance: random.Random) -> str:
    """A link, a pipe, a device, a socket or a folder in place of a file or a folder."""
    shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink(missing_ok=True)
    away = path.parents[1] / "outside"
    kinds = ["link", "dangling", "loop", "zero", "random", "tree", "proc", "pipe", "pipe", "socket", "folder", "node"]
    match kind := chance.choice(kinds):
        case "pipe":
            os.mkfifo(path)
        case "folder":
            (path / "x").mkdir(parents=True)
        case "socket":
            with socket.socket(socket.AF_UNIX) as made, contextlib.chdir(path.parent):
                made.bind(path.name)
        case "node":
            try:
                os.mknod(path, 0o666 | 0o020000, os.makedev(1, 5))  # as /dev/zero
            except PermissionError:
                os.mkfifo(path)
        case _:
            places = {"link": away / "precious.toml", "dangling": away / "new", "loop": path, "tree": away}
            places |= {"zero": "/dev/zero", "random": "/dev/urandom", "proc": "/proc/self/mem"}
            path.symlink_to(places[kind])
    return f"{path.name}: {kind}"


def replaced(run: Path, chance: random.Random) -> str:
    """One of the files of a run, or of its checkpoints, is no file."""
    inner = sorted(run.glob("checkpoints/*/*")) + sorted(run.glob("checkpoints/*"))
    names = (*NAMES, REPERTOIRE, EVALUATION, "report.html", ".lock", "checkpoints")
    return not_a_file(chance.choice([run / chance.choice(names), *([chance.choice(inner)] if inner else [])]), chance)


def large(run: Path, chance: random.Random) -> str:
    """A file of gigabytes, of which the disk has nothing."""
    path = run / chance.choice((*NAMES, EVALUATION, "manifest"))
    if path.name == "manifest":
        path = chance.choice(sorted(run.glob("checkpoints/*/*")))
    if path.name == EVALUATION:
        path.write_text("{")
    if chance.random() < 0.5:
        path.write_bytes(b"")
    os.truncate(path, chance.choice((1 << 20, 1 << 28, 1 << 31, 5 << 30, 1 << 40)))
    return f"{path.name}: {path.stat().st_size} bytes"


def garbled(run: Path, chance: random.Random) -> str:
    """Random bytes, a part, or a few other bytes."""
    path = run / chance.choice(NAMES)
    data = bytearray(path.read_bytes())
    match kind := chance.choice(("random", "cut", "flip", "empty", "doubled")):
        case "random":
            data = bytearray(chance.randbytes(chance.choice((10, 1000, 100_000))))
        case "cut":
            del data[chance.randrange(len(data)) :]
        case "flip":
            for _ in range(chance.choice((1, 10, 100))):
                data[chance.randrange(len(data))] = chance.randrange(256)
        case "empty":
            data.clear()
        case "doubled":
            data *= 2
    path.write_bytes(data)
    return f"{path.name}: {kind}"


WEIRD = (
    *(None, True, "x", "<script>", "\x1b[2J", [], {}, [[]], -1, 1e300, 1e39, float("nan"), float("inf"), 10**30, 2**62),
    *(2**31, -(2**63), "x" * 5000, "\ud800", {"a": {"b": [1]}}, [1, [2]], [None], 0.5, 0, "__class__"),
)


def odd_lines(run: Path, chance: random.Random) -> str:
    """Metrics or history with lines that fit their checksums but make no sense."""
    path = run / chance.choice((METRICS, HISTORY))
    rows = [json.loads(text) for text in path.read_text().splitlines()]
    row = {k: v for k, v in chance.choice(rows).items() if k != "crc"}
    match kind := chance.choice(("value", "value", "value", "keys", "deep", "long", "missing", "wide", "again")):
        case "value":
            name = chance.choice(list(row))
            listed = isinstance(row[name], list) and chance.random() < 0.7
            row[name] = [chance.choice(WEIRD)] * 4 if listed else chance.choice(WEIRD)
        case "keys":
            row |= {chance.choice(("k{}", "\x1b[{}m", "{}<b>")).format(i): i for i in range(5000)}
        case "missing":
            del row[chance.choice(list(row))]
        case "wide":
            row |= {"descriptor": [[0.5] * 200] * 4, "parents": [[0] * 3] * 4}
    written = [line(row)] if kind != "again" else [line(row)] * 3
    written = {"deep": [b"[" * 200_000 + b"\n"], "long": [b'{"a": "' + b"x" * (40 << 20) + b'"}\n']}.get(kind, written)
    path.write_bytes(b"".join(written if chance.random() < 0.5 else [*map(line, rows[:1]), *written]))
    shutil.rmtree(run / "checkpoints")  # which has a copy
    return f"{path.name}: {kind} {ascii(row)[:200]}"


def odd_repertoire(run: Path, chance: random.Random) -> str:
    """A repertoire that fits its hash but makes no sense."""
    arrays, metadata = dict(state()), dict(METADATA)
    name = chance.choice(list(arrays))
    match kind := chance.choice(("dtype", "shape", "value", "metadata", "keys", "missing", "none", "deep", "policy")):
        case "dtype":
            arrays[name] = arrays[name].astype(chance.choice(("f2", "f8", "u1", "i8", "?", "i4")))
        case "shape":
            arrays[name] = chance.choice(
                (arrays[name][:-1], arrays[name][None], arrays[name].reshape(-1), arrays[name][:0])
            )
        case "value":
            bad = chance.choice((np.nan, np.inf, 1e30, -1e38, -5, 2**31 - 1, 0))
            arrays[name] = np.full_like(arrays[name], bad if arrays[name].dtype.kind == "f" or abs(bad) < 2**31 else 0)
        case "metadata":
            metadata[chance.choice(list(metadata))] = chance.choice(
                [w for w in WEIRD if w != "\ud800" and w == w and w != math.inf]
            )
        case "keys":
            arrays |= {f"{ARCHIVE}genotypes/{i}": np.zeros(12, np.float32) for i in range(3000)}
        case "missing":
            del arrays[name]
        case "none":
            arrays = {name: array[:0] for name, array in arrays.items()}
        case "deep":
            arrays[f"{ARCHIVE}genotypes/" + "x/" * chance.choice((5, 50, 5000))] = np.zeros(12, np.float32)
        case "policy":
            wrong = chance.choice(({}, {"obs_size": "11"}, {"hidden": [16]}, {"action_size": 10**9}, {"hidden": 5}))
            metadata["policy"] = {**metadata["policy"], **wrong} if wrong else {}
    kept = {n.removeprefix(ARCHIVE): np.ascontiguousarray(a) for n, a in arrays.items()}
    with mock.patch.object(repertoire, "_occupied", return_value=kept):
        repertoire.write(run / REPERTOIRE, arrays, metadata)
    if chance.random() < 0.8:
        shutil.rmtree(run / "checkpoints")
    return f"repertoire: {kind} {name}"


def lying_header(run: Path, chance: random.Random) -> str:
    """A repertoire or a state whose header lies, also with a manifest that agrees."""
    kind = chance.choice([*MALFORMED, "sparse"])
    if kind == "sparse":
        rows = chance.choice((5, 1 << 10, 1 << 19, 1 << 28))
        entries = {"fitness": ("F32", [rows]), "descriptor": ("F32", [rows, 1]), "genotypes/x": ("U8", [rows, 700])}
        entries |= {
            f"provenance/{n}": ("I32", [rows, 2][: 1 + (n == "parents")])
            for n in ("id", "parents", "operator", "generation")
        }
        write_sparse(run / REPERTOIRE, entries, {"metadata": json.dumps(METADATA | {"policy": None}), "sha256": "0"})
    else:
        (run / REPERTOIRE).write_bytes(MALFORMED[kind])
    if chance.random() < 0.5:
        for path in (run / "checkpoints").iterdir():
            forge(path, {"state.safetensors": MALFORMED[chance.choice(list(MALFORMED))]})
    return f"header: {kind}"


def odd_configuration(run: Path, chance: random.Random) -> str:
    """A configuration that was edited, half of the time with a checksum that fits."""
    good = (run / CONFIG).read_text().rpartition(CHECKSUM)[0]
    data = fuzz.configuration(good, chance)
    if chance.random() < 0.2:
        nested = chance.choice(("a = " + "[" * 7000, ".".join("a" * 7000) + " = 1", "[" + ".".join("a" * 7000) + "]"))
        body = nested.encode()
        data = body + f"{CHECKSUM}{hashlib.sha256(body).hexdigest()}\n".encode()
    (run / CONFIG).write_bytes(data)
    if chance.random() < 0.8:
        shutil.rmtree(run / "checkpoints")
    return "configuration"


def odd_checkpoint(run: Path, chance: random.Random) -> str:
    """Checkpoints whose manifests fit but make no sense."""
    kind = chance.choice(("record", "record", "files", "large", "many", "elsewhere", "schema", "arrays"))
    piece = {"dtype": "<f4", "shape": [8192, 4], "pieces": ["../../../outside/precious.toml"] * 16}
    for path in sorted((run / "checkpoints").iterdir()):
        match kind:
            case "record":
                part = chance.choice(("counters", "pending", "repertoire"))
                values = chance.choice(
                    (
                        {chance.choice(("generation", "failures", "learnt")): chance.choice(WEIRD[:12])},
                        chance.choice(WEIRD[:10]),
                    )
                )
                with contextlib.suppress(ValueError):  # NaN
                    forge(path, record={"counters": {}, "pending": None, "repertoire": METADATA, part: values})
            case "files":
                forge(path, files={"config.toml": {"size": 1 << 50, "sha256": 5}, "manifest.json": None})
            case "large":
                shape = chance.choice(([1 << 60], [-1], ["x"], [1 << 33, 2], [8192, 4]))
                forge(path, large={f"{ARCHIVE}fitness": piece | {"shape": shape}, "\x1b[2J": 7})
            case "many":
                for i in range(300):
                    shutil.copytree(path, path.with_name(checkpoint.name(100 + i, 0)), dirs_exist_ok=True)
                    (path.with_name(checkpoint.name(100 + i, 0)) / HISTORY).write_bytes(b"x")
                break
            case "elsewhere":
                moved = run.parent / "outside" / path.name
                path.rename(moved)
                path.symlink_to(moved)
            case "schema":
                forge(path, schema=chance.choice((99, "x", None)))
            case "arrays":
                forge(path, {"state.safetensors": MALFORMED[chance.choice(list(MALFORMED))]})
    (run / REPERTOIRE).unlink()
    return f"checkpoint: {kind}"


def odd_evaluation(run: Path, chance: random.Random) -> str:
    """A re-evaluation that makes no sense."""
    good = {"episodes": 2, "stored": {"qd_score": 1.0}, "again": {"qd_score": 1.0}}
    good[chance.choice(list(good))] = chance.choice(WEIRD)
    data = chance.choice(
        (ascii(good).encode(), b"[" * 100_000, json.dumps(good).encode(), b"[[]," * 4_000_000 + b"[]]")
    )
    (run / EVALUATION).write_bytes(data)
    return "evaluation"


def odd_names(run: Path, chance: random.Random) -> str:
    """Other files with names that control a terminal, and folders that look like those of several seeds."""
    name = chance.choice(("seed-\x1b[2J", "seed-1", "seed-x\ny", "seed-999999999999", "seed-\udcff", "\x1b]0;x\x07"))
    match chance.randrange(3):
        case 0:
            (run / name).mkdir()
        case 1:
            (run / name).symlink_to(run.parent / "outside")
        case 2:
            (run / name).write_text("x")
    return f"name: {name!a}"


DAMAGE: tuple[Callable[[Path, random.Random], str], ...] = (
    *(odd_names, odd_evaluation, odd_checkpoint, odd_checkpoint, odd_configuration, lying_header),
    *(odd_repertoire, odd_repertoire, odd_lines, odd_lines, garbled, large, replaced, replaced),
)


def odd_study(root: Path, chance: random.Random) -> str:
    """A file or folder of a study that is none, or a record or a run that makes no sense."""
    record = root / "target-smoke/study.toml"
    run = chance.choice(sorted((root / "runs").iterdir()))
    match kind := chance.choice(("place", "place", "record", "run", "run")):
        case "place":
            inner = (
                "logs",
                "configs",
                "runs",
                "target-smoke/figures",
                "target-smoke/report.html",
                "target-smoke/study.toml",
            )
            inner += tuple(
                f"{folder}/{run.name}{end}" for folder, end in (("logs", ".log"), ("configs", ".toml"), ("runs", ""))
            )
            return not_a_file(root / chance.choice(inner), chance)
        case "record":
            lines = record.read_text().splitlines()
            name = lines[at := chance.randrange(len(lines))].partition(" = ")[0]
            lines[at] = f"{name} = {chance.choice(fuzz.VALUES)}"
            record.write_bytes("\n".join(lines).encode(errors="surrogatepass"))
        case "run":
            (run / "checkpoints").mkdir(exist_ok=True)
            return chance.choice((garbled, odd_lines, large, replaced))(run, chance)
    return f"study: {kind}"


# Commands


def attempt(command: str, folder: Path) -> str:
    """The outcome of a command: `refused`, `works`, `failed` in one line, or what went wrong."""
    out, err = io.StringIO(), io.StringIO()

    def stop(*_: object) -> None:
        raise TimeoutError("hangs")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(PATIENCE_S)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), warnings.catch_warnings():
            warnings.simplefilter("default")
            code = run(command, folder)
    except SystemExit as ended:
        code = ended.code
    except BaseException:
        return traceback.format_exc(limit=-6)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    lines = err.getvalue().splitlines()
    last = [lines.pop()] if code and lines else []
    quiet = all(text.startswith("warning: ") for text in lines) and all(
        text.startswith("qdhuac: error: ") for text in last
    )
    printable = (out.getvalue() + err.getvalue()).replace("\n", "").isprintable()
    verdict = {0: "works", 1: "failed", 2: "refused"}.get(code)
    if verdict and quiet and printable and len(last) == (code != 0):
        return verdict
    return f"exit {code}: {err.getvalue()[-1500:]!a} {'' if printable else ascii(out.getvalue()[-500:])}"


def run(command: str, folder: Path) -> int:
    """A command on a folder, in this process. The explorer is asked by itself, and nothing is drawn in 3-D."""
    from qdhuac.report import run_page, study_figures
    from qdhuac.view import video
    from qdhuac.view.explorer import Server

    def ask_all(server: Server) -> None:
        explorer = server.explorer
        best = int(explorer.run()["best"])
        for question in (
            ("run",),
            ("archive", 2),
            ("individual", best),
            ("individual", 0),
            ("poses", best),
            ("policy", 1),
        ):
            answer = server._ask(*question)
            assert answer.startswith((b"HTTP/1.1 200", b"HTTP/1.1 409")), answer

    arguments = {
        "evaluate": ["--episodes", "1"],
        "render": ["--output", "best.gif", "--seconds", "1"],
        "view": ["--no-browser", "--port", str(20_000 + os.getpid() % 20_000)],
        "export": ["--output", "exported"],
        "adapt": ["--damage", "friction=0.5", "--trials", "2"],
        "resume": ["--generations", "10"],
    }
    with (  # what takes long and reads nothing
        mock.patch.object(run_page, "_film", return_value=""),
        mock.patch.object(study_figures, "save", lambda figure, place, name: replace_file(place / f"{name}.svg", b"-")),
        mock.patch.object(video, "frames", lambda model, qpos, *size: np.zeros((len(qpos), 24, 32, 3), np.uint8)),
        mock.patch.object(video, "choose_library"),
        mock.patch.object(Server, "serve_forever", ask_all),
    ):
        if command == "load":
            return load(folder)
        if command == "study":
            return cli.main(["study", "target", "--scale", "smoke", "--seeds", "1", "--root", str(folder), "--dry-run"])
        if command == "study report":
            return cli.main(["report", str(folder / "target-smoke")])
        return cli.main([command, str(folder), *arguments.get(command, [])])


def load(folder: Path) -> int:
    """`qdhuac.load` and what it offers, with the exit code that a command would have."""
    try:
        with warnings.catch_warnings(record=True):
            found = qdhuac.load(folder)
        found.folder.read_metrics()
        found.policies  # noqa: B018
        if len(found):
            found.best(np.zeros(SIZES[0]))
            found.nearest([0.5])
            found.individuals  # noqa: B018
    except qdhuac.UserError as error:
        return cli._fail(error, 2)
    return 0


def snapshot(*folders: Path) -> list[tuple[str, int, int, int]]:
    """What is in folders: names, sizes, times and kinds."""
    paths = sorted(p for folder in folders for p in (folder, *folder.rglob("*")))
    facts = [(p, p.lstat()) for p in paths]
    return [(str(p), s.st_size if p.is_file() else 0, s.st_mtime_ns, s.st_mode) for p, s in facts]


def memory_mb(reset: bool = False) -> float:
    """The most memory that this process has had since the last reset."""
    if reset:
        Path("/proc/self/clear_refs").write_text("5")
    rows = Path("/proc/self/status").read_text().splitlines()
    return next(int(row.split()[1]) / 1024 for row in rows if row.startswith("VmHWM"))


def attack(numbers: range, where: Path, commands: tuple[str, ...] = (*COMMANDS, "study", "study report")) -> dict:
    """One hostile folder for each number, given to one command."""
    verdicts: Counter[str] = Counter()
    wrong, slowest, largest = [], 0.0, 0.0
    make_run(where / "pristine-run")
    make_study(where / "pristine-study")
    here = os.getcwd()
    for command in commands:  # works, and compiles what is needed
        os.chdir(where)
        verdict = attempt(command, where / ("pristine-study" if command.startswith("study") else "pristine-run"))
        assert verdict == ("refused" if command == "resume" else "works"), (command, verdict)
        os.chdir(here)
    shutil.rmtree(where / "exported", ignore_errors=True)
    for number in numbers:
        chance = random.Random(number)
        command = commands[number % len(commands)]
        trial = where / "trial"
        shutil.rmtree(trial, ignore_errors=True)
        (trial / "outside").mkdir(parents=True)
        (trial / "here").mkdir()
        (trial / "outside/precious.toml").write_text("precious = 1\n")
        (trial / "outside/precious.json").write_text("{}")
        folder = trial / "hostile"
        is_study = command.startswith("study")
        shutil.copytree(where / ("pristine-study" if is_study else "pristine-run"), folder)
        if is_study:
            what = [odd_study(folder, chance)]
        else:
            what = []
            # In this order, so that none reads what another has made a pipe or a file of gigabytes.
            chosen = chance.sample(range(len(DAMAGE)), chance.choice((1, 1, 2)))
            for damage in (DAMAGE[i] for i in sorted(chosen)):
                with contextlib.suppress(OSError, ValueError, IndexError):  # what it would change is gone
                    what.append(damage(folder, chance))
        os.chdir(trial / "here")
        before, begun = snapshot(trial / "outside"), time.process_time()
        with contextlib.suppress(OSError):
            memory_mb(reset=True)
        already = memory_mb()  # in a process that has run other tests
        try:
            verdict = attempt(command, folder)
        finally:
            os.chdir(here)
        took, used = time.process_time() - begun, memory_mb() - already
        slowest, largest = max(slowest, took), max(largest, used)
        if snapshot(trial / "outside") != before:
            verdict = f"WROTE OUTSIDE ({verdict})"
        if extra := {p.name for p in (trial / "here").iterdir()} - {"best.gif", "exported"}:
            verdict = f"left {extra} ({verdict})"
        if took > LIMIT_S or used > LIMIT_MB:
            verdict = f"took {took:.1f} s and {used:.0f} MB ({verdict})"
        verdicts[verdict if verdict in ("refused", "works", "failed") else "wrong"] += 1
        if verdict not in ("refused", "works"):
            wrong.append(f"{number} {command} {what}: {verdict}")
        print(number, command, what, verdict, f"{took:.1f} s, {used:.0f} MB", file=sys.stderr, flush=True)
    return {"folders": len(numbers), **verdicts, "slowest_s": slowest, "largest_mb": largest, "wrong": wrong}


def whole(times: int, each: int = 125) -> dict:
    """All folders, `each` of them in one process."""
    total: Counter[str] = Counter()
    wrong, slowest, largest = [], 0.0, 0.0
    for start in range(0, times, each):
        words = [sys.executable, __file__, str(start), str(min(times, start + each))]
        done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True)
        part = json.loads(done.stdout.splitlines()[-1])
        wrong += part.pop("wrong")
        slowest, largest = max(slowest, part.pop("slowest_s")), max(largest, part.pop("largest_mb"))
        total.update(part)
        print(dict(total), *wrong, sep="\n", file=sys.stderr)
    return {**total, "slowest_s": round(slowest, 1), "largest_mb": round(largest), "wrong": wrong}


if __name__ == "__main__":
    if len(sys.argv) == 3:
        with tempfile.TemporaryDirectory() as place:
            print(json.dumps(attack(range(int(sys.argv[1]), int(sys.argv[2])), Path(place))))
    else:
        harness.write("hostile", whole(int(sys.argv[1]) if len(sys.argv) > 1 else 500))
