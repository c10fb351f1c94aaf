"""The command line. Everything that can be refused is refused before JAX is imported."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from qdhuac import __version__, config, presets
from qdhuac.algorithms import specs
from qdhuac.config import Config
from qdhuac.errors import RunFailed, UserError
from qdhuac.studies.catalogue import MOST_SEEDS, SCALES, STUDIES

EXIT_CODES = (
    "exit codes: 0 done, 1 the run failed, 2 bad input; "
    "stopped and saved: 130 by Ctrl-C, 143 by SIGTERM, 129 by closing the terminal"
)


class Parser(argparse.ArgumentParser):
    """Errors are one line, without the usage text."""

    def error(self, message: str) -> NoReturn:
        raise UserError(message)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code."""
    try:
        arguments = _parser().parse_args(argv)
        return arguments.command(arguments)
    except UserError as error:
        return _complain(error, 2)
    except RunFailed as error:
        return _complain(error, 1)
    except BrokenPipeError:  # the reader of our output has gone, as in `qdhuac doctor | head -1`
        sys.stdout = None
        return 1
    except KeyboardInterrupt:
        return 130


def train(arguments: argparse.Namespace) -> int:
    """A new run."""
    settings = _configuration(arguments)
    seeds = None if arguments.seeds is None else _whole_number("--seeds", arguments.seeds, 1, 1000)
    process = _process(arguments.process)
    if seeds is not None and (process.of > 1 or settings.run.devices > 1):
        raise UserError("--seeds: runs side by side share one device; leave out --devices and --process")
    from qdhuac.training import launch, loggers

    loggers.check(arguments.log)
    path = Path(arguments.run_dir) if arguments.run_dir is not None else _default_folder(settings)
    return launch.train(settings, path, seeds=seeds, process=process, log=arguments.log)


def resume(arguments: argparse.Namespace) -> int:
    """Go on with a run."""
    changes = _devices(arguments) | _goal(arguments) | config.parse_assignments(arguments.set)
    process = _process(arguments.process)
    from qdhuac.training import launch, loggers

    loggers.check(arguments.log)
    return launch.resume(Path(arguments.run_dir), changes, process=process, log=arguments.log)


def evaluate(arguments: argparse.Namespace) -> int:
    """Evaluate the archive again."""
    episodes = _whole_number("--episodes", arguments.episodes, 1, 100_000)
    seed = _whole_number("--seed", arguments.seed, 0, 2**31 - 1)
    from qdhuac.store import repertoire
    from qdhuac.store.run_folder import EVALUATION, REPERTOIRE, RunDir

    folder = RunDir.open(Path(arguments.run_dir))
    folder.require_writable()
    settings = folder.read_config()
    arrays, _ = repertoire.find(folder)
    _warn(folder.notes)
    if not len(arrays["fitness"]):
        raise UserError(f"{folder.path}: the archive is empty")
    from qdhuac.environment import prepare_jax
    from qdhuac.report.tables import print_evaluation, write_json
    from qdhuac.training import evaluation
    from qdhuac.training.build import build_task

    prepare_jax()
    task, genotypes = build_task(settings), repertoire.genotypes(arrays)
    evaluation.check_genotypes(task, genotypes, str(folder.path / REPERTOIRE))
    print(f"evaluating {len(arrays['fitness'])} individuals {episodes} times", flush=True)
    fitness, descriptor = evaluation.evaluate_again(
        task,
        genotypes,
        episodes=episodes,
        batch_size=getattr(settings.settings.emitter, "batch_size", 10),
        seed=seed,
    )
    summary = evaluation.summarise(task, arrays, fitness, descriptor)
    write_json(folder.path / EVALUATION, summary)
    print_evaluation(summary)
    print(f"written to {folder.path / EVALUATION}")
    return 0


def report(arguments: argparse.Namespace) -> int:
    """Figures and tables from stored files alone, of a run or of a study."""
    from qdhuac.store.run_folder import RunDir
    from qdhuac.studies.folder import STUDY

    if (Path(arguments.run_dir) / STUDY).exists():
        from qdhuac.report.study_page import write_report

        page, notes = write_report(Path(arguments.run_dir))
        print(f"report: {page}")
        _warn(notes)
        return 0

    folder = RunDir.open(Path(arguments.run_dir))
    print(f"report: {_write_report(folder)}")
    _warn(folder.notes)
    return 0


def export(arguments: argparse.Namespace) -> int:
    """Policies of the archive for use elsewhere."""
    from qdhuac.exchange import export as write
    from qdhuac.store.run import load_run

    output = Path(arguments.output)
    write.check_output(output)
    found = load_run(arguments.run_dir)
    policies = write.choose(found, arguments.policy)
    notes = write.export(found, policies, output, each=arguments.policy == "all")
    print(f"exported {len(policies)} of {len(found)} policies to {output}")
    _warn([*found.folder.notes, *notes])
    return 0


def adapt(arguments: argparse.Namespace) -> int:
    """Who of the archive still works on a damaged robot."""
    from qdhuac.adaptation.damage import parse
    from qdhuac.environment import require
    from qdhuac.store.run import load_run

    damages = parse(arguments.damage)
    trials = _whole_number("--trials", arguments.trials, 1, 100_000)
    seed = _whole_number("--seed", arguments.seed, 0, 2**31 - 1)
    found = load_run(arguments.run_dir)
    if found.config.task.name == config.OWN:
        raise UserError(f"{found.folder.path}: its task is your own, so qdhuac has no model of it to damage")
    if not len(found):
        raise UserError(f"{found.folder.path}: the archive is empty")
    require("sklearn", "adapt")
    _warn(found.folder.notes)
    from qdhuac.environment import prepare_jax

    prepare_jax()
    from qdhuac.adaptation.adapt import adapt as find
    from qdhuac.report.tables import print_adaptation

    result = find(found, damages, trials=trials, seed=seed)
    if arguments.json:
        print(json.dumps(result, indent=1, allow_nan=False))
    else:
        print_adaptation(result)
    return 0


def render(arguments: argparse.Namespace) -> int:
    """A video of one individual."""
    from qdhuac.store import repertoire
    from qdhuac.store.run_folder import REPERTOIRE, RunDir
    from qdhuac.view import video

    name = "best" if arguments.policy == "best" else f"policy-{arguments.policy}"
    output = Path(arguments.output) if arguments.output is not None else Path(arguments.run_dir) / f"{name}.mp4"
    best = arguments.policy == "best"
    index = 0 if best else _whole_number("--policy", arguments.policy, 0, 2**31 - 1)
    seed = _whole_number("--seed", arguments.seed, 0, 2**31 - 1)
    seconds = _whole_number("--seconds", arguments.seconds, 1, 100_000)
    folder = RunDir.open(Path(arguments.run_dir))
    video.check_output(output)
    settings = folder.read_config()
    _require_robot(folder, settings)
    arrays, _ = repertoire.find(folder)
    _warn(folder.notes)
    size = len(arrays["fitness"])
    if not size:
        raise UserError(f"{folder.path}: the archive is empty")
    if index >= size:
        raise UserError(f"--policy {index}: expected best or a number from 0 to {size - 1}")
    video.choose_library()
    if best:
        index = int(arrays["fitness"].argmax())
    from qdhuac.environment import prepare_jax
    from qdhuac.training.evaluation import check_genotypes

    prepare_jax()
    from qdhuac.view.trajectory import simulate, viewing_task

    task, genotypes = viewing_task(settings), repertoire.genotypes(arrays)
    check_genotypes(task, genotypes, str(folder.path / REPERTOIRE))
    shown = simulate(task, genotypes, index, seed)
    print(
        f"individual {index} of {size}: stored fitness {arrays['fitness'][index]:.1f}, here {shown.reward.sum():.1f} "
        f"in {len(shown.reward)} steps",
        flush=True,
    )
    video.write(output, task.robot.model, shown.qpos[: round(seconds / shown.dt) + 1], shown.dt)
    print(f"video: {output}")
    return 0


def view(arguments: argparse.Namespace) -> int:
    """A page on this machine, until Ctrl-C."""
    port = _whole_number("--port", arguments.port, 1, 65535)
    from qdhuac.store import repertoire
    from qdhuac.store.run_folder import REPERTOIRE

    folder, settings, arrays = _newest_to_see() if arguments.run_dir is None else _to_see(Path(arguments.run_dir))
    _warn(folder.notes)
    from qdhuac.environment import require

    require("plotly", "view")
    _require_port(port)
    from qdhuac.environment import prepare_jax

    prepare_jax()
    from qdhuac.training.evaluation import check_genotypes
    from qdhuac.view import explorer
    from qdhuac.view.trajectory import viewing_task

    task = viewing_task(settings)
    check_genotypes(task, repertoire.genotypes(arrays), str(folder.path / REPERTOIRE))
    with explorer.Server(explorer.Explorer(folder, task), port) as server:
        print(f"open {server.address} in a browser; Ctrl-C ends", flush=True)
        if not arguments.no_browser and (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
            server.open_browser()
        with contextlib.suppress(KeyboardInterrupt):
            server.serve_forever()
    return 0


def study(arguments: argparse.Namespace) -> int:
    """All runs of a study."""
    from qdhuac.studies.commands import EXECUTORS
    from qdhuac.studies.commands import study as run_study

    config.check_choice("study", arguments.name, STUDIES)
    config.check_choice("--scale", arguments.scale, SCALES)
    config.check_choice("--executor", arguments.executor, EXECUTORS)
    seeds = None if arguments.seeds is None else _whole_number("--seeds", arguments.seeds, 1, MOST_SEEDS)
    jobs = None if arguments.jobs is None else _whole_number("--jobs", arguments.jobs, 1, 1000)
    root, dry_run = Path(arguments.root), arguments.dry_run
    return run_study(arguments.name, arguments.scale, seeds, root, jobs, dry_run, arguments.executor)


def bench(arguments: argparse.Namespace) -> int:
    """Measure the stations of the ring."""
    from qdhuac import bench as benches

    if arguments.name is not None:
        config.check_choice("bench", arguments.name, benches.BENCHES)
    from qdhuac.environment import prepare_jax

    prepare_jax()
    results = benches.run(benches.BENCHES if arguments.name is None else (arguments.name,))
    if arguments.json:
        print(json.dumps(benches.as_objects(results), indent=1, allow_nan=False))
    else:
        benches.print_table(results)
    return 0


def run_doctor(arguments: argparse.Namespace) -> int:
    """What this machine has and what will work."""
    from qdhuac.cli.doctor import examine

    return examine()


def _write_report(folder: Any) -> Path:
    from qdhuac.report.run_page import write_report

    return write_report(folder)


def _configuration(arguments: argparse.Namespace) -> Config:
    named = {"task.name": arguments.task, "task.backend": arguments.backend, "run.seed": arguments.seed}
    for name, value, choices in (
        ("task", arguments.task, config.TASKS),
        ("backend", arguments.backend, config.BACKENDS),
    ):
        if value is not None:
            config.check_choice(name, value, choices)
    flags = {k: _value(v) if k == "run.seed" else v for k, v in named.items() if v is not None}
    overrides = flags | _devices(arguments) | _goal(arguments) | config.parse_assignments(arguments.set)
    for name in ("algorithm", "preset"):
        if name in overrides:
            raise UserError(f"--set {name}: use --{name}, which also brings the values that belong to it")
    return presets.make(arguments.algorithm, arguments.preset, overrides)


def _goal(arguments: argparse.Namespace) -> dict[str, Any]:
    """The goal that the flags set; one given alone lifts the other bound, so that it decides."""
    given = {"run.generations": arguments.generations, "run.env_steps": arguments.env_steps}
    if all(value is None for value in given.values()):
        return {}
    return {name: 0 if value is None else _value(value) for name, value in given.items()}


def _devices(arguments: argparse.Namespace) -> dict[str, Any]:
    return {} if arguments.devices is None else {"run.devices": _value(arguments.devices)}


def _process(text: str | None) -> Any:
    """`RANK/COUNT@HOST:PORT`."""
    from qdhuac.training.launch import ALONE, Process

    if text is None:
        return ALONE
    found = re.fullmatch(r"(\d{1,6})/(\d{1,6})@([\w.-]+:\d{1,5})", text)
    port = int(found[3].rpartition(":")[2]) if found else 0
    if not found or not int(found[1]) < int(found[2]) or not 1 <= port <= 65535 or ".." in found[3]:
        raise UserError(f"--process {text!r}: expected RANK/COUNT@HOST:PORT, such as 0/2@10.0.0.1:1234, RANK from 0")
    return Process(int(found[1]), int(found[2]), found[3])


def _value(text: str) -> Any:
    return config.parse_assignments([f"v={text}"])["v"]


def _whole_number(flag: str, text: str, low: int, high: int) -> int:
    value = _value(text)
    if type(value) is not int or not low <= value <= high:
        raise UserError(f"{flag} {text!r}: expected a whole number from {low} to {high}")
    return value


def _require_robot(folder: Any, settings: Config) -> None:
    """Refuse a run on a task of the user's own: the folder does not have its robot."""
    if settings.task.name == config.OWN:
        raise UserError(f"{folder.path}: its task is one of your own, so its robot cannot be shown; try qdhuac report")


def _to_see(path: Path) -> tuple[Any, Config, Any]:
    """A run that the explorer can show: its folder, configuration and repertoire."""
    from qdhuac.store import repertoire
    from qdhuac.store.run_folder import RunDir

    folder = RunDir.open(path)
    settings = folder.read_config()
    _require_robot(folder, settings)
    if not folder.read_metrics():
        raise UserError(f"{folder.path}: no generation has ended yet, so there is nothing to see")
    arrays, _ = repertoire.find(folder)
    if not len(arrays["fitness"]):
        raise UserError(f"{folder.path}: the archive is empty")
    return folder, settings, arrays


def _newest_to_see() -> tuple[Any, Config, Any]:
    """The newest run in runs/ that the explorer can show."""
    runs = [*Path("runs").glob("*/metrics.jsonl"), *Path("runs").glob("*/*/metrics.jsonl")]
    for path in sorted(runs, key=lambda path: path.stat().st_mtime, reverse=True):
        with contextlib.suppress(UserError):
            found = _to_see(path.parent)
            print(f"run folder: {path.parent}", flush=True)
            return found
    raise UserError("view: runs/ has no run that can be shown; name a run folder, or make one with: qdhuac train")


def _require_port(port: int) -> None:
    """Refuse a port that is taken, before anything is loaded."""
    try:
        socket.create_server(("127.0.0.1", port)).close()
    except OSError as error:
        raise UserError(f"--port {port}: cannot be used ({error.strerror}); name another one") from None


def _default_folder(settings: Config) -> Path:
    stamp = time.strftime("%Y%m%d-%H%M%S")
    return Path("runs") / f"{settings.algorithm}-{settings.task.name}-s{settings.run.seed}-{stamp}"


def _complain(error: Exception, code: int) -> int:
    print(f"qdhuac: error: {' '.join(str(error).split())}", file=sys.stderr)
    return code


def _warn(notes: Sequence[str]) -> None:
    for note in notes:
        print(f"warning: {note}", file=sys.stderr)


def _parser() -> Parser:
    parser = Parser(
        prog="qdhuac",
        description="Many different, good policies for one robot, in few simulator steps.",
        epilog=EXIT_CODES,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"qdhuac {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, run: Any, text: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=text, description=text, epilog=EXIT_CODES, allow_abbrev=False)
        sub.set_defaults(command=run)
        return sub

    def goal(sub: argparse.ArgumentParser) -> None:
        sub.add_argument("--generations", metavar="N", help="stop after N generations")
        sub.add_argument("--env-steps", metavar="N", help="stop after N environment steps")
        sub.add_argument("--devices", metavar="N", help="spread the run over N devices, default 1")
        sub.add_argument(
            "--process", metavar="I/N@HOST:PORT", help="this is process I of N that make one run; 0 is at HOST:PORT"
        )
        sub.add_argument("--log", metavar="NAME", help="metrics also to tensorboard or wandb (extras of that name)")

    settings = "KEY=VALUE"
    sub = command("train", train, "start a new run")
    sub.add_argument("--task", help=f"default {Config().task.name}; one of: {', '.join(config.TASKS)}")
    sub.add_argument("--algorithm", default=Config().algorithm, help=f"one of: {', '.join(specs.ALGORITHMS)}")
    sub.add_argument("--preset", default=Config().preset, help=f"one of: {', '.join(specs.preset_names())}")
    sub.add_argument("--backend", help=f"physics; default {Config().task.backend}; of: {', '.join(config.BACKENDS)}")
    sub.add_argument("--seed", metavar="N", help="seed of everything random, default 0")
    sub.add_argument("--seeds", metavar="N", help="N runs side by side in one program, from that seed on")
    sub.add_argument("--run-dir", metavar="DIR", help="a new folder; default runs/<algorithm>-<task>-s<seed>-<time>")
    goal(sub)
    sub.add_argument("--set", nargs="+", action="extend", default=[], metavar=settings, help="any configuration key")

    sub = command("resume", resume, "go on with a run, also beyond its first goal")
    sub.add_argument("run_dir", metavar="RUN_DIR")
    goal(sub)
    sub.add_argument("--set", nargs="+", action="extend", default=[], metavar=settings, help="keys of section run")

    sub = command("evaluate", evaluate, "evaluate a run's archive again: fitness and descriptors under noise")
    sub.add_argument("run_dir", metavar="RUN_DIR")
    sub.add_argument("--episodes", default="8", metavar="N", help="evaluations per individual, default 8")
    sub.add_argument("--seed", default="0", metavar="N", help="seed of the starts, default 0")

    sub = command("report", report, "write report.html from the stored files of a run or a study")
    sub.add_argument("run_dir", metavar="DIR")
    sub = command("export", export, "write policies for use elsewhere: safetensors, ONNX, a runner in NumPy")
    sub.add_argument("run_dir", metavar="RUN_DIR")
    sub.add_argument(
        "--policy", default="best", help="best (default), all, nearest:0.3,0.7, id:40, or a row of the archive"
    )
    sub.add_argument("--output", required=True, metavar="DIR", help="a folder that does not exist yet")

    sub = command("adapt", adapt, "after damage to the robot, find the individual that still works in a few trials")
    sub.add_argument("run_dir", metavar="RUN_DIR")
    sub.add_argument(
        "--damage",
        nargs="+",
        action="extend",
        default=[],
        metavar="NAME=FACTOR",
        help="a motor or limb and its strength from 0 to 1, or blocked; mass:BODY=FACTOR; friction=FACTOR",
    )
    sub.add_argument("--trials", default="10", metavar="N", help="at most so many trials, default 10")
    sub.add_argument("--seed", default="0", metavar="N", help="seed of the starts, default 0")
    sub.add_argument("--json", action="store_true", help="one object instead of a table")

    sub = command("render", render, "film an individual of a run's archive")
    sub.add_argument("run_dir", metavar="RUN_DIR")
    sub.add_argument("--policy", default="best", metavar="best|N", help="the fittest (default), or its number, from 0")
    sub.add_argument("--output", metavar="FILE", help="a file that ends in .mp4 or .gif; default RUN_DIR/best.mp4")
    sub.add_argument("--seed", default="0", metavar="N", help="seed of the start, default 0")
    sub.add_argument("--seconds", default="100000", metavar="N", help="simulated time; default the whole episode")
    sub = command("view", view, "look at a run in the browser: its archive through the generations, robots that walk")
    sub.add_argument("run_dir", metavar="RUN_DIR", nargs="?", help="default: the newest in runs/ that can be shown")
    sub.add_argument("--port", default="8080", metavar="N", help="port on this machine, default 8080")
    sub.add_argument("--no-browser", action="store_true", help="do not open a browser, only say the address")
    sub = command("study", study, "all runs of one of the paper's figures; goes on where it was stopped")
    sub.add_argument("name", metavar="NAME", help=f"one of: {', '.join(STUDIES)}")
    sub.add_argument("--scale", default="laptop", help="smoke (minutes), laptop (hours, default) or paper")
    sub.add_argument("--seeds", metavar="N", help="so many seeds, from 100 on; default: smoke 2, laptop 3, paper 5")
    sub.add_argument(
        "--root", default="studies", metavar="DIR", help="where runs and studies are kept, default studies"
    )
    sub.add_argument("--executor", default="local", help="local (default); ray or slurm (extras of that name)")
    sub.add_argument(
        "--jobs", metavar="N", help="runs at a time; default the number of cores, at scale paper 1, on a cluster all"
    )
    sub.add_argument("--dry-run", action="store_true", help="list the runs and their cost, and stop")
    sub = command("bench", bench, "how fast learner, rollouts, archive and replay buffer are on this machine")
    sub.add_argument("name", nargs="?", metavar="NAME", help="learner, rollout, archive or replay; default all")
    sub.add_argument("--json", action="store_true", help="one list of objects instead of a table")
    command("doctor", run_doctor, "what this machine has and what will work")
    return parser
