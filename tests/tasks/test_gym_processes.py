"""Environments that hang, exit, crash, shout and leak, and what becomes of the processes that simulate them."""

import functools
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import gym_envs
import jax
import pytest

import qdhuac
from qdhuac.errors import RunFailed, UserError
from qdhuac.tasks import gym_pool
from qdhuac.tasks.gym import GymnasiumTask

KEY = jax.random.key(1)
GENERATION = 6 * 12  # steps of a generation with preset smoke
OPTIONS = {
    "descriptor_bounds": ((0.0,), (1.0,)),
    "support": (0.0, 50.0),
    "episode_length": 12,
    "after_termination": "reset",
    "hidden": (8,),
}


def task(make, **options):
    return GymnasiumTask(make, gym_envs.position, **OPTIONS | {"workers": 1} | options)


def evaluate(one, n=1):
    with one:
        return one.evaluate(jax.vmap(one.policy.init)(jax.random.split(KEY, n)), KEY)


@functools.cache
def proc():
    if not Path("/proc/self/stat").exists():
        pytest.skip("needs /proc")
    return Path("/proc")


def children(parent):
    """The processes that a process has started and that have not ended."""
    stats = []
    for path in proc().glob("[0-9]*/stat"):
        try:
            stats.append((int(path.parent.name), *path.read_text().rpartition(")")[2].split()[:2]))
        except OSError:
            continue
    return {pid for pid, state, of in stats if int(of) == parent and state != "Z"}


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (gym_envs.Hangs, "deadline=1: individual 0 is not done after so many seconds; the environment hangs, or is sl"),
        (gym_envs.HangsInC, "deadline=1: individual 0"),
        (gym_envs.Exits, r"the environment failed: sys.exit\(3\)"),
        (gym_envs.Dies, "a process that simulates was ended with exit code 7"),
        (gym_envs.Crashes, "a process that simulates was ended by SIGSEGV"),
        (gym_envs.Raises, "the environment failed: KeyError: 'wheel'"),
    ],
)
def test_trouble_in_an_environment_ends_the_evaluation_and_its_processes(make, words):
    before = children(os.getpid())
    with pytest.raises(RunFailed, match=words) as error:
        evaluate(task(make, deadline=1))
    assert children(os.getpid()) == before
    assert make is not gym_envs.Raises or "in trouble" in error.value.__notes__[0]


def test_a_mistake_in_another_process_is_reported_as_in_this_one():
    with pytest.raises(UserError, match="features: were 1 numbers at first, and are 2 now"):
        evaluate(GymnasiumTask(gym_envs.Strong, gym_envs.more_and_more, **OPTIONS, workers=1))


def test_a_machine_that_slept_does_not_miss_a_deadline(monkeypatch):
    now = iter(range(10**9))
    monkeypatch.setattr(gym_pool, "time", type("", (), {"monotonic": lambda: 3600.0 * next(now)}))
    assert evaluate(task(gym_envs.Walk, deadline=30)).steps[0] == 12


@pytest.mark.parametrize("workers", [0, 1])
def test_an_environment_that_exits_loses_no_generation(tmp_path, monkeypatch, workers):
    monkeypatch.setattr(gym_envs.Trouble, "steps", GENERATION + 2)
    monkeypatch.setenv("TROUBLE_AFTER", str(GENERATION + 2))
    settings = {"run.generations": 9, "run.checkpoint_minutes": 1000.0}
    with pytest.raises(RunFailed, match=r"sys.exit\(3\)"):
        qdhuac.train(
            task(gym_envs.Exits, workers=workers), tmp_path / "run", algorithm="dns", preset="smoke", settings=settings
        )
    assert qdhuac.load(tmp_path / "run").metadata["generation"] == 1


def test_what_environments_print_is_bounded(capsys):
    evaluate(task(gym_envs.Shouts))
    err = capsys.readouterr().err
    assert err.count("x") == gym_pool.SHOWN
    assert err.count("environments have printed 65,536 bytes; no more is shown") == 1


def test_a_leak_is_noticed_once(capsys, monkeypatch):
    monkeypatch.setattr(gym_pool, "GROWTH", 2**25)
    evaluate(task(gym_envs.Walk), 20)
    assert "grown" not in capsys.readouterr().err
    evaluate(task(gym_envs.Leaks), 20)
    assert capsys.readouterr().err.count("warning: a process that simulates has grown from") == 1


SCRIPT = """
import sys
import gym_envs, qdhuac
from test_gym_processes import task
if __name__ == "__main__":
    with task(getattr(gym_envs, sys.argv[2]), workers=int(sys.argv[3])) as made:
        qdhuac.train(made, sys.argv[1], algorithm="dns", preset="smoke", settings={"run.generations": 100000})
"""


@pytest.fixture
def started(tmp_path):
    """Starts a training in a process of its own, which is in trouble in its second generation."""
    (tmp_path / "script.py").write_text(SCRIPT)
    places = (
        Path(gym_envs.__file__).parent,
        Path(__file__).parent,
        *os.environ.get("PYTHONPATH", "").split(os.pathsep),
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, places)), "TROUBLE_AFTER": str(GENERATION + 2)}
    processes = []

    def start(make, workers):
        words = [sys.executable, str(tmp_path / "script.py"), str(tmp_path / "run"), make, str(workers)]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        processes.append(subprocess.Popen(words, env=environment, start_new_session=True, **pipes))
        return processes[-1]

    yield start
    for process in processes:
        process.kill()
        process.wait()
        process.stdout.close()


def wait_for(condition, seconds=60.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it never happened"
        time.sleep(0.1)


@pytest.mark.parametrize(("make", "workers"), [("Hangs", 0), ("Hangs", 1), ("HangsInC", 0)])
def test_ctrl_c_saves_within_seconds_whatever_the_environment_does(started, tmp_path, make, workers):
    process = started(make, workers)
    metrics = tmp_path / "run" / "metrics.jsonl"
    wait_for(lambda: metrics.exists() and metrics.stat().st_size)
    time.sleep(1.0)  # the second generation hangs
    began = time.monotonic()
    os.killpg(process.pid, signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    assert time.monotonic() - began < 30  # 5 on a machine that does nothing else
    assert process.returncode == (-signal.SIGINT if make == "Hangs" else 130), out
    assert "saved; " in out
    assert qdhuac.load(tmp_path / "run").metadata["generation"] == 1


def test_processes_end_with_a_trainer_that_is_killed(started):
    process = started("Hangs", 2)
    wait_for(lambda: len(children(process.pid)) == 2)
    theirs = children(process.pid)
    time.sleep(2.0)  # they hang
    process.kill()
    wait_for(lambda: not any((proc() / str(pid) / "exe").exists() for pid in theirs), 20.0)


NOTEBOOK = """
import sys
import gym_envs, jax
from qdhuac.errors import UserError
from test_gym_processes import OPTIONS, evaluate
from qdhuac.tasks.gym import GymnasiumTask
def mine(env):
    return gym_envs.position(env)
def steps(features, **options):
    with GymnasiumTask(gym_envs.Walk, features, **OPTIONS, **options) as task:
        return int(evaluate(task, 3).steps.sum())
print(steps(gym_envs.position, workers=2), steps(mine))
try:
    steps(mine, workers=2)
except UserError as error:
    print(error)
"""


def test_a_notebook_has_no_main_program_to_import():
    """Python that reads its program from standard input is as a notebook: no process can import its functions."""
    places = (
        Path(gym_envs.__file__).parent,
        Path(__file__).parent,
        *os.environ.get("PYTHONPATH", "").split(os.pathsep),
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, places))}
    done = subprocess.run(
        [sys.executable], input=NOTEBOOK, env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == "36 36"
    assert "features: other processes cannot import a function of a notebook; write it to a module" in done.stdout
