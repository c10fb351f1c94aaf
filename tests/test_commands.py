"""Every command that README and docs show runs on real robots; only budgets are made small."""

import importlib.util
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path
from urllib.request import urlopen

import fake_study
import jax
import pytest
import quick

from qdhuac import cli
from qdhuac.bench import archive

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"(?:<!-- not run: (?P<why>.+?) -->\n\n?)?^```(?P<kind>\w*)\n(?P<code>.*?)^```", re.M | re.S)
COMMAND = re.compile(r"^(\S+=\S+ )*(\.venv/bin/)?(qdhuac|make|python|source)\b", re.M)
ROBOTS = {"my-ant": "ant", "my-walker": "walker2d"}  # of runs that a page has and does not make
BUDGETS = (
    "--preset",
    "--generations",
    "--env-steps",
    "--episodes",
    "--trials",
    "--seconds",
    "--port",
    "--scale",
    "--root",
)


def blocks(page):
    """The commands of each shell block; a block that is not run says why."""
    return [
        m["code"].replace("\\\n", " ").splitlines()
        for m in BLOCK.finditer(page.read_text())
        if m["kind"] == "bash" and not m["why"]
    ]


SHOWN = [page for page in PAGES if blocks(page)]
MODEL = re.compile(r"^```xml\n<!-- (?P<name>\S+) -->\n(?P<text>.*?)^```", re.M | re.S)  # that a page has one save


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_shell_command_of_a_page_is_in_a_block_that_is_tested(page):
    for match in BLOCK.finditer(page.read_text()):
        assert match["kind"] or not COMMAND.search(match["code"]), match["code"]


@pytest.mark.parametrize("page", SHOWN, ids=lambda page: page.name)
def test_every_command_of_a_page_runs(page, tmp_path, monkeypatch, runs, done):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("QDHUAC_CACHE", jax.config.jax_compilation_cache_dir)  # of processes too
    monkeypatch.setattr("qdhuac.report.run_page._film", lambda folder: "")  # a process for each run; tested elsewhere
    monkeypatch.setattr(archive, "CAPACITIES", (20, 40))
    for model in MODEL.finditer(page.read_text()):
        Path(model["name"]).write_text(model["text"])
    for block in blocks(page):
        meeting = []  # commands that make one run together
        for line in block:
            words = shlex.split(line, comments=True)
            environment, words = split(words)
            if "--process" in words:
                meeting.append((environment, words))
            elif words:
                run(line, environment, words, runs, done)
        if meeting:
            together(meeting)


def split(words):
    """Variables before a command, and the command."""
    count = next((i for i, word in enumerate(words) if not re.fullmatch(r"[A-Z_]+=.*", word)), len(words))
    return dict(word.split("=", 1) for word in words[:count]), words[count:]


def run(line, environment, words, runs, done):
    program, *rest = words
    if program == "make":
        target, *variables = rest
        assert re.search(rf"^{re.escape(target)}:", (ROOT / "Makefile").read_text(), re.M), line
        if target not in ("train", "view"):
            return
        options = dict(v.split("=", 1) for v in variables).get("ARGS", "")
        program, rest = "qdhuac", [target, *shlex.split(options)]
    if program.endswith("python"):
        example(*rest)
    elif program == "source":
        sourced(line)
    else:
        assert Path(program).name == "qdhuac", line
        provide(rest, runs)
        qdhuac(small(rest), done)


def qdhuac(arguments, done):
    """A command, in this process if that is possible; one that names no run and has run before is not run again."""
    if arguments in done and "runs" not in " ".join(arguments):
        return
    done.append(arguments)
    if arguments[0] == "view":
        view(arguments)
    elif "--devices" in arguments:
        finish(start(arguments, int(arguments[arguments.index("--devices") + 1])))
    elif arguments[0] in ("render", "task") or (arguments[0] == "study" and "--dry-run" not in arguments):
        finish(start(arguments))  # before MuJoCo is imported; a study waits for processes and signals
    else:
        assert cli.main(arguments) == 0, arguments


def small(words):
    """The same command with a small budget."""
    command, *options = words
    kept, skip = [command], False
    for word in options:
        if not skip and word not in BUDGETS:
            kept.append(word)
        skip = word in BUDGETS
    seeds = ["--seeds", "2"] if "--seeds" in options else []
    preset = [] if "--config" in options else ["--preset", "smoke"]
    # How algorithms learn, on several devices too, is tested elsewhere: here one command compiles a learner's updates.
    if {"--devices", "--process", "--seeds"} & set(options) and "--algorithm" not in options:
        preset += ["--algorithm", "dns"]
    elif "--config" not in options and "map_elites" not in options and "learner.utd" not in " ".join(options):
        preset += ["--set", "learner.utd=1e-6"]
    smoke = ["--scale", "smoke", "--seeds", "1"]
    more = {
        "train": [*preset, "--generations", "2", *seeds],
        "resume": ["--generations", "4"],
        "evaluate": ["--episodes", "2"],
        "adapt": ["--trials", "2"],
        "render": ["--seconds", "1"],
        "study": smoke if "smoke" in options and "--executor" not in options else ["--dry-run"],
        "view": ["--no-browser", "--port", str(free_port())],
    }
    return [*kept, *more.get(command, [])]


def provide(words, runs):
    """Copy a run, or make up a study, that the page uses without making it."""
    for word in words:
        path = Path(word)
        if path == Path("studies/target-smoke") and not path.exists():
            fake_study.write_study(path.parent, "target", "smoke", 1)
        if path.parent == Path("runs") and path.name in ROBOTS and words[0] != "train" and not path.exists():
            shutil.copytree(runs / path.name, path)


@pytest.fixture(scope="module")
def done():
    """Commands that have run."""
    return []


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("qdhuac.report.run_page._film", lambda folder: "")
        for name, task in ROBOTS.items():
            options = ["--algorithm", "dns", "--preset", "smoke", "--task", task, "--generations", "2"]
            assert cli.main(["train", *options, "--run-dir", str(folder / name)]) == 0
    return folder


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return probe.getsockname()[1]


def start(arguments, devices=1):
    """A command in a separate process, with this number of CPU devices."""
    environment = {**os.environ, "XLA_FLAGS": quick.flags(devices)}
    command = [sys.executable, "-m", "qdhuac.cli", *arguments]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def finish(process):
    said, _ = process.communicate(timeout=600)
    assert process.returncode == 0, said


def together(meeting):
    """Commands of several machines, as processes on this one that meet at a free port."""
    address, started = f"127.0.0.1:{free_port()}", []
    for _, words in meeting:
        arguments = [re.sub(r"@\S+:\d+$", f"@{address}", word) for word in small(words[1:])]
        arguments = [word.replace("/shared/", "shared/") for word in arguments]
        devices = int(arguments[arguments.index("--devices") + 1]) // len(meeting)
        started.append(start(arguments, devices))
    try:
        for process in started:
            finish(process)
    finally:
        for process in started:
            process.kill()
            process.wait()


def view(arguments):
    """Start the explorer, fetch its page and the run behind it, and stop it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job would hand on that it is ignored
    with start(arguments) as process:
        said = []
        for line in process.stdout:
            said.append(line)
            if found := re.search(r"open (http://\S+)", line):
                break
        try:
            assert found, said
            assert b"page.js" in urlopen(found[1], timeout=60).read()
            assert b'"title"' in urlopen(f"{found[1]}run", timeout=60).read()
        finally:
            process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0


def example(path, *arguments):
    spec = importlib.util.spec_from_file_location("example", ROOT / path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.main([*arguments, "--generations", "2"])


def sourced(line):
    """Run a line in a shell in which `qdhuac` is this package."""
    Path("qdhuac").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m qdhuac.cli "$@"\n')
    Path("qdhuac").chmod(0o755)
    environment = {**os.environ, "PATH": f"{Path.cwd()}{os.pathsep}{os.environ['PATH']}"}
    subprocess.run(["bash", "-euc", line], env=environment, check=True)
