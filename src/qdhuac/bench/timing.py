"""What the benches share: a result, and timing that is fair on a busy machine."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import jax

Name = TypeVar("Name")


@dataclasses.dataclass(frozen=True)
class Result:
    """One measurement. `ratio` is relative to what `against` names, measured in the same process."""

    bench: str
    case: str
    value: float
    unit: str
    ratio: float
    against: str
    extra: dict[str, float] = dataclasses.field(default_factory=dict)


def best_times(calls: Mapping[Name, Callable[[], Any]], repeats: int) -> dict[Name, float]:
    """Seconds of the fastest of `repeats` calls of each function, after a first call to compile it.

    The functions take turns, so that a slow phase of the machine affects them all.
    """
    for call in calls.values():
        jax.block_until_ready(call())
    best = dict.fromkeys(calls, float("inf"))
    for _ in range(repeats):
        for name, call in calls.items():
            start = time.perf_counter()
            jax.block_until_ready(call())
            best[name] = min(best[name], time.perf_counter() - start)
    return best


class Stepper:
    """A call without arguments that applies a jitted function to a donated state and keeps the result."""

    def __init__(self, step: Callable[..., Any], state: Any, *arguments: Any) -> None:
        self._step, self._state, self._arguments = jax.jit(step, donate_argnums=0), state, arguments

    def __call__(self) -> Any:
        self._state = self._step(self._state, *self._arguments)
        return self._state
