"""Mutated argument lists and configuration files: each ends in one line and exit code 2, or is a run that works.

A run that works is one whose configuration is accepted and, of a part of them, whose generation JAX can trace, with the
real algorithm over a toy task; compiling each of them would take hours.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import random
import shutil
import sys
import tempfile
import traceback
from pathlib import Path
from unittest import mock

import harness

sys.path.insert(0, str(Path(__file__).parents[1] / "helpers"))

from qdhuac import cli, config
from qdhuac.algorithms import specs
from qdhuac.store import run_folder as rundir
from qdhuac.training import launch

VALUES = (
    *("", "0", "1", "2", "3", "-1", "7", "0.5", "1e-9", "1e308", "1e309", "-0.0", "nan", "inf", "-inf", "9" * 25),
    *("9" * 5000, "0x10", "1_0", "true", "false", "[]", "[1]", "[16, 16]", "[0]", "[1.5]", "[" * 2000, "{a = 1}", "''"),
    *('"x"', "none", "dns", "grid", "cvt", "mlp", "scalar", "categorical", "reset", "stop", "project", "1979-05-27"),
    *(
        "ant",
        "hopper",
        "smoke",
        "\x00",
        "é",
        "\ud800",
        "a\nb",
        "<script>",
        "'",
        '"',
        "=",
        "a=b",
        "0/1@localhost:1",
        "1/0@x:1",
        "../../x",
        "{" * 500,
    ),
)
PATHS = (
    "run",
    "new",
    "new/er",
    "",
    ".",
    "..",
    "/proc/x",
    "x" * 300,
    "a\0b",
    "\ud800",
    "a\nb",
    "file",
    "empty",
    "-",
    "~",
)
COMMANDS = ("train", "resume", "evaluate", "report", "bench", "fly", "")
FLAGS = (
    "--task",
    "--algorithm",
    "--preset",
    "--backend",
    "--seed",
    "--seeds",
    "--devices",
    "--process",
    "--generations",
    "--env-steps",
    "--run-dir",
    "--set",
)


def arguments(chance: random.Random) -> list[str]:
    """A plausible command line."""
    algorithm = chance.choice(list(specs.ALGORITHMS))
    known = list(config.keys(specs.make(algorithm, "smoke")))
    line = [chance.choices(COMMANDS, (60, 12, 8, 8, 2, 2, 1))[0]]
    if line[0] in ("resume", "evaluate", "report"):
        line.append(chance.choice(PATHS))
    else:
        line += ["--algorithm", algorithm, "--preset", "smoke", "--run-dir", chance.choice(("new", *PATHS))]
    for _ in range(chance.choice((0, 1, 1, 2, 3))):
        line += ["--set", f"{chance.choice(known)}={chance.choice(VALUES)}"]
    if chance.random() < 0.5:
        mutate(line, chance)
    return line


def mutate(line: list[str], chance: random.Random) -> None:
    """Drop, double, exchange, invent or misspell something."""
    at = chance.randrange(len(line))
    match chance.randrange(6):
        case 0:
            del line[at]
        case 1:
            line.insert(at, line[at])
        case 2:
            other = chance.randrange(len(line))
            line[at], line[other] = line[other], line[at]
        case 3:
            line[at:at] = [chance.choice(FLAGS), chance.choice(VALUES)]
        case 4:
            line.insert(at, chance.choice((*FLAGS, *VALUES)))
        case 5:
            line[at] = misspelt(line[at], chance)


def misspelt(text: str, chance: random.Random) -> str:
    """Some characters of a text changed, dropped or doubled."""
    letters = list(text) or ["x"]
    for _ in range(chance.choice((1, 1, 2, 5))):
        at = chance.randrange(len(letters))
        letters[at] = chance.choice(("", letters[at] * 2, chr(chance.randrange(0x20, 0x7F)), "\n", "é", "[", '"', "="))
    return "".join(letters)


def configuration(good: str, chance: random.Random) -> bytes:
    """A damaged or edited `config.toml`, half of the time with a checksum that fits."""
    lines = good.splitlines()
    for _ in range(chance.choice((1, 1, 2, 4))):
        at = chance.randrange(len(lines))
        name, equals, _ = lines[at].partition(" = ")
        lines[at] = (
            f"{name} = {chance.choice(VALUES)}" if equals and chance.random() < 0.6 else misspelt(lines[at], chance)
        )
    body = "\n".join(lines).encode(errors="surrogatepass")
    if chance.random() < 0.5:
        return body
    return body + f"{rundir._CHECKSUM}{hashlib.sha256(body).hexdigest()}\n".encode()


def traced(runs: list[tuple[config.Config, rundir.RunDir]], *_: object, **__: object) -> int:
    """In place of a run: see that every compiled part of a generation can be traced."""
    import jax
    from reach import STEPS, ReachTask

    from qdhuac.algorithms.specs import build as build_algorithm
    from qdhuac.training import distributed
    from qdhuac.training.program import Program

    settings, _ = runs[0]
    task = ReachTask().changed(contacts=settings.algorithm == "qd_pg")
    settings = specs.validate(config.replace(settings, {"task.episode_length": STEPS}))
    program = Program.of(task, build_algorithm(settings, task))
    shapes = jax.eval_shape(program.init, jax.random.key(0))
    distributed.require_memory(shapes, distributed.placement(shapes), 1)

    def generation(key: jax.Array) -> object:
        state = program.init(key)
        emission, key = program.ask(state)
        evaluation = task.evaluate(emission.genotypes, key, emission.exploration)
        state, *_ = program.tell(state, emission, evaluation)
        return program.learn(state, jax.numpy.int32(1))

    jax.eval_shape(generation, jax.random.key(0))
    return 0


def accepted(*_: object, **__: object) -> int:
    """In place of a run, where there is no time to trace each of them."""
    return 0


def attempt(line: list[str]) -> str:
    """The outcome of a command: `refused`, `works`, or what went wrong."""
    out, err = io.StringIO(), io.StringIO()
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = cli.main(line)
    except SystemExit as ended:
        return "works" if ended.code == 0 else f"exit {ended.code}"
    except BaseException:
        return traceback.format_exc(limit=-3)
    text = err.getvalue()
    if code == 0:
        return "works"
    one_line = text.startswith("qdhuac: error: ") and text.count("\n") == 1
    return "refused" if code == 2 and one_line and "Traceback" not in text else f"exit {code}: {text}"


def fuzz(times: int, where: Path, seed: int = 0, trace: bool = True) -> dict:
    """So many commands in a folder of their own, each with a fresh run folder beside it."""
    chance, here = random.Random(seed), os.getcwd()
    verdicts, wrong = {"refused": 0, "works": 0}, []
    pristine, cwd = where / "pristine", where / "a/b/c"
    with rundir.RunDir.create(pristine, specs.make("dns", "smoke")) as folder:
        good = (folder.path / rundir.CONFIG).read_text().rpartition(rundir._CHECKSUM)[0]
    try:
        for i in range(times):
            shutil.rmtree(where / "a", ignore_errors=True)
            cwd.mkdir(parents=True)
            os.chdir(cwd)
            (cwd / "file").touch()
            (cwd / "empty").mkdir()
            shutil.copytree(pristine, cwd / "run")
            if i % 3 == 2:
                (cwd / "run" / rundir.CONFIG).write_bytes(configuration(good, chance))
                if chance.random() < 0.5:
                    shutil.rmtree(cwd / "run/checkpoints")
                line = [chance.choice(("resume", "report")), "run"]
            else:
                line = arguments(chance)
            with (
                mock.patch.object(launch, "_run", traced if trace else accepted),
                mock.patch("qdhuac.cli.bench.run", return_value=0),
                mock.patch("qdhuac.cli.train.write_reports"),
                mock.patch("qdhuac.cli.resume.write_reports"),
            ):
                verdict = attempt(line)
            if verdict in verdicts:
                verdicts[verdict] += 1
            else:
                wrong.append(f"{ascii(line)[:300]}: {verdict}")
    finally:
        os.chdir(here)
    return {"commands": times, **verdicts, "wrong": wrong}


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as where:
        (Path(where) / "traced").mkdir()
        times = [int(n) for n in sys.argv[1:]] or [500, 100]
        result = {"validated": fuzz(times[0], Path(where), trace=False)}
        harness.write("fuzz", result | {"traced_too": fuzz(times[1], Path(where) / "traced", seed=1)})
