"""One process that simulates Gymnasium episodes. Imports no JAX, so that it starts quickly."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib
import json
import os
import queue
import resource
import runpy
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import numpy as np
from safetensors.numpy import load, save

from qdhuac.environment import require
from qdhuac.errors import UserError
from qdhuac.learning import run_policy
from qdhuac.learning.run_policy import LOG_STD_RANGE, Layers

Features = Callable[[Any], Sequence[float]]
Make = str | Callable[[], Any]


class Rows(NamedTuple):
    """What an episode leaves behind; rows that were never simulated stay zero. [T, ...]"""

    obs: np.ndarray
    action: np.ndarray
    reward: np.ndarray
    terminal: np.ndarray
    next_obs: np.ndarray
    features: np.ndarray
    living: np.ndarray  # the step belongs to the first episode
    valid: np.ndarray  # the step was simulated


class Simulator:
    """An environment, the user's features of it, and its spaces, which are checked."""

    def __init__(self, make: Make, features: Features) -> None:
        self.env = _named(make) if isinstance(make, str) else make()
        self.features = features
        self._features: int | None = None  # how many there are
        observed, acted = self.env.observation_space, self.env.action_space
        if getattr(observed, "shape", None) is None or len(observed.shape) != 1 or not hasattr(observed, "low"):
            raise UserError(
                f"observation_space: expected a Box of one dimension, got {observed}; "
                "gymnasium.wrappers.FlattenObservation makes one"
            )
        if not hasattr(acted, "low") or len(acted.shape) != 1:
            raise UserError(f"action_space: expected a Box of one dimension, got {acted}")
        if np.dtype(acted.dtype).kind != "f":
            raise UserError(f"action_space: expected continuous actions, got {acted}")
        # The largest number there is, is what some environments have for no bound.
        if not max(np.abs(acted.low).max(), np.abs(acted.high).max()) < 1e38:
            raise UserError(
                f"action_space: is unbounded, {acted}; gymnasium.wrappers.RescaleAction or ClipAction bounds it"
            )
        self.obs_size, self.action_size = int(observed.shape[0]), int(acted.shape[0])

    def reset(self, seed: int) -> np.ndarray:
        """The first observation of an episode."""
        return self._observation(self.env.reset(seed=seed)[0])

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool]:
        """Observation, reward, terminated and truncated after an action between -1 and 1."""
        space = self.env.action_space
        # Bounds of -1 and 1 change nothing, not even the last digit.
        scaled = 0.5 * (space.low + space.high) + action * (0.5 * (space.high - space.low))
        inside = np.clip(scaled, space.low, space.high).astype(space.dtype)
        obs, reward, terminated, truncated, _ = self.env.step(inside)
        return self._observation(obs), float(reward), bool(terminated), bool(truncated)

    def look(self) -> np.ndarray:
        """The features of the present state [F]."""
        found = np.asarray(self.features(self.env.unwrapped), np.float32)
        if found.ndim != 1:
            raise UserError(f"features: expected a list of numbers, got an array of shape {found.shape}")
        if self._features not in (None, len(found)):
            raise UserError(f"features: were {self._features} numbers at first, and are {len(found)} now")
        self._features = len(found)
        return found

    def _observation(self, obs: Any) -> np.ndarray:
        found = np.asarray(obs, np.float32)
        if found.shape != (self.obs_size,):
            raise UserError(
                f"observation: expected shape ({self.obs_size},), as observation_space says, got {found.shape}"
            )
        return found


def _named(name: str) -> Any:
    """The environment of Gymnasium with this name."""
    gymnasium = require("gymnasium", "gymnasium")
    try:
        return gymnasium.make(name)
    except (gymnasium.error.Error, ImportError) as error:
        raise UserError(f"make={name!r}: {error}") from None


def episode(
    simulator: Simulator, layers: Layers, head: tuple[np.ndarray, np.ndarray] | None, seed: int, length: int, stop: bool
) -> Rows:
    """`length` steps of one policy; it explores if it has a head. After an end it starts again, or it stops."""
    random = np.random.default_rng(seed)
    obs = simulator.reset(int(random.integers(2**31)))
    size = len(simulator.look())

    def zeros(*shape: int, dtype: Any = np.float32) -> np.ndarray:
        return np.zeros((length, *shape), dtype)

    o, a = simulator.obs_size, simulator.action_size
    flags = zeros(dtype=bool), zeros(dtype=bool)
    rows = Rows(zeros(o), zeros(a), zeros(), zeros(), zeros(o), zeros(size), *flags)
    living = True
    for t in range(length):
        action = _act(layers, head, obs, random)
        after, reward, terminated, truncated = simulator.step(action)
        row = (obs, action, reward, float(terminated), after, simulator.look(), living, True)
        for column, value in zip(rows, row, strict=True):
            column[t] = value
        obs = after
        if terminated or truncated:
            living = False
            if stop:
                break
            if t + 1 < length:
                obs = simulator.reset(int(random.integers(2**31)))
    return rows


def _act(layers: Layers, head: tuple[np.ndarray, np.ndarray] | None, obs: np.ndarray, random: Any) -> np.ndarray:
    if head is None:
        return run_policy.act(layers, obs)
    x, (low, high) = run_policy.hidden(layers, obs), LOG_STD_RANGE
    mean = x @ layers[-1][0] + layers[-1][1]
    log_std = low + 0.5 * (high - low) * (np.tanh(x @ head[0] + head[1]) + 1.0)
    return np.tanh(mean + np.exp(log_std) * random.standard_normal(mean.shape, np.float32))


# The process. It gets what to make as JSON, then a message of arrays per episode, and answers each message.

DONE, MISTAKE, FAILURE = b"d", b"m", b"f"  # the first byte of an answer; after a failure JSON of an error, a traceback


def serve(number: int, dies_with_parent: bool) -> None:
    """Answer the messages of the connection with file number `number` until it ends."""
    if dies_with_parent and sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: even if an environment never lets Python run
    connection, messages = Connection(number), queue.SimpleQueue[bytes]()

    def listen() -> None:
        # In a thread, as an environment that hangs must end with those who wait for it, on every system.
        try:
            while True:
                messages.put(connection.recv_bytes())
        except (EOFError, OSError):
            os._exit(1)

    threading.Thread(target=listen, daemon=True).start()
    simulator: Simulator | None = None
    while True:
        message = messages.get()
        try:
            if simulator is None:
                simulator, answer = _made(json.loads(message)), b""
            else:
                answer = pack({**episode(simulator, *_unpacked(message))._asdict(), "memory": np.int64(_memory())})
            connection.send_bytes(DONE + answer)
        except UserError as error:
            connection.send_bytes(MISTAKE + str(error).encode())
        except BaseException as error:  # SystemExit too
            text = f"sys.exit({error})" if isinstance(error, SystemExit) else f"{type(error).__name__}: {error}"
            connection.send_bytes(FAILURE + json.dumps([text, traceback.format_exc()]).encode())


def pack(arrays: Mapping[str, Any]) -> bytes:
    """A message of named arrays and numbers."""
    return save({name: np.asarray(array, order="C") for name, array in arrays.items()})


def request(layers: Layers, head: tuple[np.ndarray, np.ndarray] | None, *rest: int) -> bytes:
    """The message that asks for an episode, with the arguments of `episode` after the simulator."""
    pairs = [*layers, *([head] if head else [])]
    arrays = {f"{i:03}{name}": x for i, pair in enumerate(pairs) for name, x in zip("kb", pair, strict=True)}
    return pack({**arrays, "rest": np.array([bool(head), *rest], np.int64)})


def _unpacked(message: bytes) -> tuple[Any, ...]:
    arrays = load(message)
    explores, seed, length, stop = arrays.pop("rest").tolist()
    named = [arrays[name] for name in sorted(arrays, key=lambda name: (name[:3], name[3] == "b"))]
    pairs = list(zip(named[::2], named[1::2], strict=True))
    head = pairs.pop() if explores else None
    return pairs, head, seed, length, bool(stop)


def _made(wanted: dict[str, Any]) -> Simulator:
    """The environment and its features; `wanted` says where other processes find them."""
    made, script = wanted["make"], functools.cache(lambda: runpy.run_path(wanted["script"], run_name="__mp_main__"))

    def function(module: str, name: str) -> Any:
        scope = script() if module == "__main__" else vars(importlib.import_module(module))
        first, *rest = name.split(".")
        return functools.reduce(getattr, rest, scope[first])

    if isinstance(made, str) and wanted["script"] and made not in require("gymnasium", "gymnasium").registry:
        script()  # which may register it
    return Simulator(made if isinstance(made, str) else function(*made), function(*wanted["features"]))


def _memory() -> int:
    """The memory that this process has, in bytes; where the system does not say, the most that it has had."""
    with contextlib.suppress(OSError), open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * resource.getpagesize()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # macOS counts in bytes
