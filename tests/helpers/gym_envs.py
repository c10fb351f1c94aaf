"""Gymnasium environments without physics, and one for each kind of mistake. Without JAX: processes import it."""

import ctypes
import os
import signal
import sys
import time

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete


class Walk(gymnasium.Env):
    """A point on a line; its action is a step between 0 and 4; beyond 10 it has fallen."""

    observation_space = Box(-np.inf, np.inf, (2,), np.float32)
    action_space = Box(0.0, 4.0, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.x, self.tag = 0.0, self.np_random.random()
        return self._obs(), {}

    def step(self, action):
        assert self.action_space.contains(action), action
        self.x += float(action[0])
        return self._obs(), float(action[0]), self.x > 10.0, False, {}

    def _obs(self):
        return np.array([self.x, self.tag], np.float32)


class Unbounded(Walk):
    action_space = Box(-np.inf, np.inf, (1,), np.float32)


class Boundless(Walk):
    """Bounded by the largest number there is."""

    action_space = Box(np.finfo(np.float32).min, np.finfo(np.float32).max, (1,), np.float32)


class Whole(Walk):
    action_space = Box(0, 4, (1,), np.int64)


class Strong(Walk):
    action_space = Box(0.0, 400.0, (1,), np.float32)


class Buttons(Walk):
    action_space = Discrete(3)


class Image(Walk):
    observation_space = Box(0, 1, (4, 4), np.float32)


class Wide(Walk):
    """Observes one number more."""

    observation_space = Box(-np.inf, np.inf, (3,), np.float32)

    def _obs(self):
        return np.array([self.x, self.tag, 0.0], np.float32)


class Liar(Walk):
    """Says that it observes three numbers, and gives two."""

    observation_space = Box(-np.inf, np.inf, (3,), np.float32)


def position(env):
    """The feature: how far it is, in shares of its reach."""
    return [min(env.x, 14.0) / 14.0]


def two_numbers(env):
    return [0.1, 0.2]


def table(env):
    return [[0.1]]


def metres(env):
    return [env.x]


def nowhere(env):
    return [np.nan]


def more_and_more(env):
    return [0.5] * (1 + (env.x > 5.0))


class Trouble(Walk):
    """After so many steps in one process it is in trouble."""

    steps = int(os.environ.get("TROUBLE_AFTER", 2))

    def step(self, action):
        self.steps -= 1
        if self.steps < 0:
            self.trouble()
        return super().step(action)


class Hangs(Trouble):
    def trouble(self):
        time.sleep(1e6)


class HangsInC(Trouble):
    """In code that no signal interrupts, and that lets other threads run: a lock that is taken twice."""

    def trouble(self):
        lock, libc = ctypes.create_string_buffer(64), ctypes.CDLL(None)
        libc.pthread_mutex_lock(lock)
        libc.pthread_mutex_lock(lock)


class Exits(Trouble):
    def trouble(self):
        sys.exit(3)


class Dies(Trouble):
    def trouble(self):
        os._exit(7)


class Crashes(Trouble):
    def trouble(self):
        os.kill(os.getpid(), signal.SIGSEGV)


class Raises(Trouble):
    def trouble(self):
        raise KeyError("wheel")


class Shouts(Walk):
    def step(self, action):
        os.write(1, b"x" * 100_000)
        return super().step(action)


class Leaks(Walk):
    kept = ()

    def reset(self, **options):
        self.kept = (*self.kept, np.ones(2**20))  # 8 MB
        return super().reset(**options)
