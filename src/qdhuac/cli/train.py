"""Start a new run."""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

import tomli_w

from qdhuac import config
from qdhuac.algorithms import specs
from qdhuac.cli.common import add_number, add_open_choice, add_training, changes, process, write_reports
from qdhuac.config import OWN, Config
from qdhuac.errors import UserError, reason
from qdhuac.files import read
from qdhuac.keys import allowed
from qdhuac.tasks.bundle import facts
from qdhuac.tasks.task_file import TASKS

_DEFAULT = Config()


def add(parser: argparse.ArgumentParser) -> None:
    """The options of `qdhuac train`."""
    for flag, dest, default, values, more in (
        ("--task", "task.name", _DEFAULT.task.name, TASKS, "; or the path of a task file, NAME.toml"),
        ("--algorithm", "algorithm", _DEFAULT.algorithm, specs.ALGORITHMS, "; or package.module:NAME"),
        ("--preset", "preset", _DEFAULT.preset, specs.preset_names(), ""),
        ("--backend", "task.backend", _DEFAULT.task.backend, config.BACKENDS, " (physics engine)"),
    ):
        text = f"default {default}; one of: {', '.join(values)}{more}"
        add_open_choice(parser, flag, values, dest=dest, metavar="NAME", help=text)
    text = "what policies should differ in: one of the descriptors of the task (qdhuac list)"
    parser.add_argument("--descriptor", dest="task.descriptor", metavar="NAME", help=text)
    parser.add_argument("--seed", dest="run.seed", metavar="N", help="seed of everything random, default 0")
    add_number(parser, "--seeds", "train N seeds side by side in one program, from --seed on", high=1000)
    text = "start from the configuration in a file, such as that of a run folder; other options change it"
    parser.add_argument("--config", metavar="FILE.toml", help=text)
    parser.add_argument("--run-dir", metavar="DIR", help="a new folder; default runs/<algorithm>-<task>-s<seed>-<time>")
    add_training(parser, "any configuration key; see --help-keys")
    text = "list the configuration keys of the algorithm with their values, and stop"
    parser.add_argument("--help-keys", action="store_true", help=text)


def run(arguments: argparse.Namespace) -> int:
    """Train. Returns the exit code."""
    settings = configuration(arguments)
    if arguments.help_keys:
        print(keys(settings))
        return 0
    if settings.task.name == OWN and not settings.task.file:
        raise UserError("task.name='own': is not part of qdhuac; train it from Python with qdhuac.train")
    facts(settings).dimensions(settings.task.descriptor)  # refuses a bad task file
    together = process(arguments.process)
    if arguments.seeds is not None and (together.of > 1 or settings.run.devices > 1):
        raise UserError("--seeds: runs side by side share one device; leave out --devices and --process")
    from qdhuac.training import launch

    path = _default_folder(settings) if arguments.run_dir is None else Path(arguments.run_dir)
    code = launch.train(settings, path, seeds=arguments.seeds, process=together, log=arguments.log)
    if code == 0 and together.rank == 0:
        write_reports(path)
    return code


def configuration(arguments: argparse.Namespace) -> Config:
    """Return the configuration that the options describe."""
    overrides = changes(arguments)
    if str(overrides.get("task.name", "")).endswith(".toml"):
        overrides["task.file"] = overrides.pop("task.name")
    for name in ("algorithm", "preset"):
        if name in overrides:
            raise UserError(f"--set {name}: use --{name}, which also brings the values that belong to it")
    if arguments.config is not None:
        return _from_file(arguments, overrides)
    return specs.make(arguments.algorithm or _DEFAULT.algorithm, arguments.preset or _DEFAULT.preset, overrides)


def _from_file(arguments: argparse.Namespace, overrides: specs.Values) -> Config:
    """The configuration in a file. A file may name code outside of the package, but only options have it imported."""
    path = arguments.config
    try:
        text = read(Path(os.path.realpath(path))).decode()
    except (OSError, ValueError) as error:
        raise UserError(f"--config {path}: cannot be read ({reason(error)})") from None
    if arguments.preset is not None:
        raise UserError("--preset: a file given with --config has the values of its preset; leave out one of them")
    if arguments.algorithm is not None:
        specs.algorithm(arguments.algorithm)
    found = config.with_task_file(specs.from_toml(text, f"--config {path}"), Path(path).parent)
    if arguments.algorithm not in (None, found.algorithm):
        raise UserError(f"--algorithm {arguments.algorithm}: {path} is of algorithm {found.algorithm}; leave it out")
    for flag, name, given in (
        ("--algorithm ", found.algorithm, arguments.algorithm),
        ("--set archive.kind=", found.archive.kind, "archive.kind" in overrides),
    ):
        if ":" in name and not given:
            raise UserError(f"--config {path}: {name} is not part of qdhuac; to import it add {flag}{name}")
    return specs.validate(config.replace(found, overrides))


def keys(settings: Config) -> str:
    """Return a text with the keys of a configuration: value, meaning and allowed values of each."""
    lines = []
    for name, field in config.keys(settings).items():
        if "." in name:
            found = config.get(settings, name)
            shown = found if isinstance(found, str) else tomli_w.dumps({"v": found})[len("v = ") :]
            shown = "".join(shown.split()).replace(",]", "]")
            values = allowed(field)
            lines.append(f"{name}={shown}\n    {field.metadata['doc']}{f' [{values}]' if values else ''}")
    return "\n".join(lines)


def _default_folder(settings: Config) -> Path:
    algorithm = settings.algorithm.replace(":", "-")
    stamp = time.strftime("%Y%m%d-%H%M%S")
    return Path("runs") / f"{algorithm}-{settings.task.name}-s{settings.run.seed}-{stamp}"
