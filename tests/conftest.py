"""Fixtures of all tests."""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")

from pathlib import Path

import jax
import pytest
from toys import ToyLearner, ToyTask, toy_algorithm, toy_config

from qdhuac import cli
from qdhuac.store.run_folder import RunDir
from qdhuac.training.loop import Runner


@pytest.fixture(scope="session", autouse=True)
def compile_each_program_once(tmp_path_factory):
    """Every runner jits anew, mostly the same toys: a cache on disk saves minutes."""
    folder = os.environ.get("JAX_COMPILATION_CACHE_DIR") or str(tmp_path_factory.mktemp("jax"))
    jax.config.update("jax_compilation_cache_dir", folder)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)


@pytest.fixture(scope="module", autouse=True)
def forget_what_a_file_compiled():
    """JAX keeps programs, each in many memory maps; a process that needs more than 65 530 of them crashes."""
    yield
    maps = Path("/proc/self/maps")  # Linux alone has it
    assert not maps.exists() or maps.read_bytes().count(b"\n") < 50_000, "this file compiles too much for one process"
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
    """A runner over toys in a new folder, or (`again`) in a folder that is there already."""

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
        runner = Runner(settings, task or ToyTask(), algorithm, folder, progress, stop)
        runner.restore() if again else runner.start()
        return runner

    return make


@pytest.fixture
def toys(monkeypatch):
    """Let the command line build toys instead of robots."""
    monkeypatch.setattr("qdhuac.training.build.build_task", lambda settings: ToyTask())
    monkeypatch.setattr(
        "qdhuac.training.build.build_algorithm",
        lambda settings, task, outside=None: toy_algorithm(ToyLearner if settings.algorithm == "qdhuac" else None),
    )
    monkeypatch.setattr("qdhuac.environment.prepare_jax", lambda: None)
