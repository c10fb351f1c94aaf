"""Toys that compile in a moment: a task without physics and an algorithm that learns nothing useful."""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import dataclasses
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from qdhuac import cli, presets
from qdhuac.algorithms.evolution import Evolution
from qdhuac.archives.dns import DominatedNoveltyArchive
from qdhuac.running.rundir import RunDir
from qdhuac.running.runner import Runner
from qdhuac.types import Evaluation


@pytest.fixture(scope="session", autouse=True)
def compile_each_program_once(tmp_path_factory):
    """Every runner jits anew, mostly the same toys: a cache on disk saves minutes."""
    jax.config.update("jax_compilation_cache_dir", str(tmp_path_factory.mktemp("jax")))
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


@dataclasses.dataclass
class ToyTask:
    """Fitness is best at the origin; the descriptor is the first two numbers; `poison` makes a result not finite."""

    poison: str | None = None
    descriptor_bounds = ((0.0, 0.0), (1.0, 1.0))
    reward_offset = 1.0
    episode_length = 10
    policy = None

    def evaluate(self, genotypes, key, exploration=None):
        x = genotypes["x"]
        noise = 0.01 * jax.random.normal(key, x.shape[:1])
        fitness = -jnp.sum(x**2, axis=-1) + noise
        descriptor = jax.nn.sigmoid(x[:, :2])
        if self.poison == "fitness":
            fitness = fitness.at[0].set(jnp.nan)
        if self.poison == "descriptor":
            descriptor = descriptor.at[1].set(jnp.inf)
        return Evaluation(fitness, descriptor, jnp.full(len(x), self.episode_length, jnp.int32))


class ToyLearner(Evolution):
    """Evolution beside a random walk, whose every step is an update; `broken` makes each update a skipped one."""

    broken = False

    def init(self, key):
        learner = {"walk": jnp.zeros(3), "key": jax.random.fold_in(key, 7), "raw": jax.random.PRNGKey(3)}
        return super().init(key)._replace(learner=learner)

    def learn(self, state, updates):
        def update(_, carry):
            walk, key, total = carry
            key, here = jax.random.split(key)
            walk = 0.9 * walk + jax.random.normal(here, walk.shape)
            return walk, key, total + jnp.sum(walk**2)

        learner = state.learner
        walk, key, total = jax.lax.fori_loop(0, updates, update, (learner["walk"], learner["key"], 0.0))
        skipped = updates if self.broken else jnp.zeros_like(updates)
        metrics = {"critic_loss": total / updates, "count_skipped_critic": skipped}
        return state._replace(learner={**learner, "walk": walk, "key": key}), metrics


def toy_algorithm(kind=Evolution):
    def fresh(key):
        return {"x": jax.random.normal(key, (4,))}

    return kind(DominatedNoveltyArchive(16, 3), fresh, descriptor_size=2, batch_size=6)


def toy_config(learning=False, **overrides):
    """6 individuals x 10 steps a generation; with learning 30 updates, in chunks of 7."""
    values = {"run.generations": 6, "learner.utd": 0.5, "run.chunk": 7, "run.checkpoint_minutes": 1000.0}
    values |= {name.replace("__", "."): value for name, value in overrides.items()}
    return presets.make("qdhuac" if learning else "dns", "smoke", values)


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
        algorithm = algorithm or toy_algorithm(ToyLearner if learning else Evolution)
        runner = Runner(settings, task or ToyTask(), algorithm, folder, progress, stop)
        runner.restore() if again else runner.start()
        return runner

    return make


@pytest.fixture
def toys(monkeypatch):
    """Let the command line build toys instead of robots."""
    monkeypatch.setattr("qdhuac.running.build.build_task", lambda settings: ToyTask())
    monkeypatch.setattr(
        "qdhuac.running.build.build_algorithm",
        lambda settings, task: toy_algorithm(ToyLearner if settings.algorithm == "qdhuac" else Evolution),
    )
    monkeypatch.setattr("qdhuac.running.jax_setup.prepare_jax", lambda: None)
