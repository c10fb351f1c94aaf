"""Fixtures of all tests."""

import quick  # isort: skip  # before JAX

import os
import shutil
import sys
from pathlib import Path

import jax
import pytest
from absl import logging as absl_logging
from runs import OneRun
from toys import ToyLearner, ToyTask, toy_algorithm, toy_config

from qdhuac import cli
from qdhuac.store.run_folder import RunDir

# Ray closes the streams of all log handlers when it starts: that of absl must not be the one that pytest reads.
absl_logging.get_absl_handler().python_handler.stream = sys.__stderr__
CACHE = quick.CACHE
# Longest first, so that no worker is left with a long file at the end.
SLOW = (
    "test_commands.py",
    "learning/test_learner.py",
    "tasks/test_oracle.py",
    "training/test_devices.py",
    "tasks/test_tasks.py",
    "test_golden.py",
    "algorithms/test_baselines.py",
    "studies/test_cluster.py",
    "training/test_side_by_side.py",
    "resilience/test_short.py",
    "training/test_platforms.py",
    "learning/",
    "algorithms/",
    "tasks/",
)


def pytest_collection_modifyitems(items):
    """Slow files first."""

    def rank(item):
        path = str(item.path)
        return next((i for i, name in enumerate(SLOW) if name in path), len(SLOW))

    items.sort(key=rank)


def pytest_unconfigure():
    """The first process removes the cache."""
    if CACHE.endswith(f"-{os.getpid()}"):
        shutil.rmtree(CACHE, ignore_errors=True)


@pytest.fixture(scope="module", autouse=True)
def one_file():
    """Cache small programs too, whatever a test has set, and clear those of this file when it ends.

    JAX keeps programs, each in many memory maps; a process that needs more than 65 530 of them crashes.
    """
    jax.config.update("jax_compilation_cache_dir", CACHE)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
    yield
    maps = Path("/proc/self/maps")  # Linux alone has it
    assert not maps.exists() or maps.read_bytes().count(b"\n") < 55_000, "this file compiles too much for one process"
    jax.clear_caches()


@pytest.fixture
def refused(capsys):
    """A command that ends with code 2 and one line, which is returned."""

    def command(*arguments):
        capsys.readouterr()
        assert cli.main(list(arguments)) == 2
        err = capsys.readouterr().err
        assert err.startswith("qdhuac: error: ")
        assert err.count("\n") == 1
        return err

    return command


@pytest.fixture
def make_runner(tmp_path):
    """The trainer of one toy run in a new folder, or (`again`) in an existing one."""

    def make(
        name="run", *, learning=False, again=False, task=None, algorithm=None, progress=None, stop=None, **overrides
    ):
        settings = toy_config(learning, **overrides)
        if again:
            folder = RunDir.open(tmp_path / name)
            folder.lock()
        else:
            folder = RunDir.create(tmp_path / name, settings)
        algorithm = algorithm or toy_algorithm(ToyLearner if learning else None)
        runner = OneRun(settings, task or ToyTask(), algorithm, folder, progress, stop)
        runner.restore() if again else runner.start()
        return runner

    return make


@pytest.fixture
def toys(monkeypatch):
    """Let the command line build toys instead of robots."""
    monkeypatch.setattr("qdhuac.training.build.build_task", lambda settings: ToyTask())
    monkeypatch.setattr(
        "qdhuac.algorithms.specs.build",
        lambda settings, task: toy_algorithm(ToyLearner if settings.algorithm == "qdhuac" else None),
    )
    monkeypatch.setattr("qdhuac.environment.prepare_jax", lambda: None)
