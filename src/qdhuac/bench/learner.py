"""Milliseconds per update, beside the time of its matrix products alone.

The ceiling is a program of nothing but these products, with the same shapes and layouts and as many of each. It takes
turns with the updates. Normalisation, softmax, the projection of the target, Adam and sampling keep the ratio below 1.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from qdhuac.algorithms import specs
from qdhuac.bench.replay import filled, sample_and_set
from qdhuac.bench.timing import Result, Stepper, best_times
from qdhuac.config import Config
from qdhuac.learning.policy import Policy
from qdhuac.learning.replay import Replay
from qdhuac.learning.target_free import TargetFreeLearner
from qdhuac.tasks.task_file import builtin
from qdhuac.types import Array

OBS, ACTIONS = 17, 6  # HalfCheetah's
CASES: dict[str, tuple[str, dict[str, Any]]] = {  # preset and changes
    "paper/1-critic": ("paper", {"critic.critics": 1}),
    "paper/2-critics": ("paper", {"critic.critics": 2}),
    "laptop": ("laptop", {}),
}
REPLAY_CASE = "paper/1-critic"  # where the share of the replay buffer is largest
REPEATS = 8
WORK = 2e10  # approximate FLOP of one measurement

Layer = tuple[int, int]  # inputs, outputs


class Product(NamedTuple):
    """A matrix product [m, k] x [k, n]."""

    layout: str  # "nn", or "nt" if the right operand is stored transposed
    m: int
    k: int
    n: int


def products(learner: TargetFreeLearner) -> dict[Product, float]:
    """The matrix products of one update and how often each occurs, a fraction for an actor that is updated less often.

    For a layer [i, o] on r rows the forward pass is x W: [r, i] x [i, o]. The gradient of the weights is x' g:
    [i, r] x [r, o], where x' is stored as such. The gradient of the input is g W': [r, o] x [o, i].
    """
    count: dict[Product, float] = defaultdict(float)

    def forward(rows: int, layer: Layer, times: float) -> None:
        count[Product("nn", rows, *layer)] += times

    def weights(rows: int, layer: Layer, times: float) -> None:
        count[Product("nn", layer[0], rows, layer[1])] += times

    def inputs(rows: int, layer: Layer, times: float) -> None:
        count[Product("nt", rows, layer[1], layer[0])] += times

    critic, policy, batch = learner.critic, learner.policy, learner.config.batch_size
    critics, often = learner.critic_config.critics, 1 / learner.config.policy_delay

    # The critic's joint pass over (s, a) and (s', a'). No gradient flows through the output of the second half, so the
    # head is differentiated on the first half alone. Batch statistics make the layers below it depend on both halves.
    stem, hidden = (critic.obs_size + critic.action_size, critic.width), (critic.width, critic.width)
    layers = [stem, *[hidden] * 2 * critic.blocks, (critic.width, critic.outputs)]
    for i, layer in enumerate(layers):
        rows = batch if i == len(layers) - 1 else 2 * batch
        forward(2 * batch, layer, critics * (2 if learner.config.target_tau else 1))
        weights(rows, layer, critics)
        if i > 0 or (critic.batch_norm and critic.input_norm):  # the norm of the inputs has parameters
            inputs(rows, layer, critics)

    # The actor's pass through the critic: the gradient of the action, not of any weight.
    for i, layer in enumerate(layers):
        forward(batch, layer, critics * often)
        inputs(batch, layer if i > 0 else (critic.action_size, critic.width), critics * often)

    # The policy, which ends in mean and log-std: forward for the next action, forward and backward for its loss.
    layers = [*pairwise((policy.obs_size, *policy.hidden)), *[(policy.hidden[-1], policy.action_size)] * 2]
    for i, layer in enumerate(layers):
        forward(batch, layer, 1 + often)
        weights(batch, layer, often)
        if i > 0:
            inputs(batch, layer, often)
    return dict(count)


def flop(learner: TargetFreeLearner) -> float:
    """FLOP of all matrix products of one update."""
    return sum(2 * p.m * p.k * p.n * times for p, times in products(learner).items())


def build(settings: Config) -> tuple[TargetFreeLearner, Replay]:
    """Learner and replay buffer of a run on HalfCheetah."""
    critic = settings.settings.critic.on_support(*builtin("halfcheetah").support)
    learner = TargetFreeLearner(Policy(OBS, ACTIONS, settings.policy.hidden), critic, settings.settings.learner)
    return learner, Replay.of(settings.settings.replay, OBS, ACTIONS)


def measure() -> Iterator[Result]:
    """The paper's shapes with one and two critics, and the laptop preset."""
    for case, (preset, changes) in CASES.items():
        yield from _measure(case, *build(specs.make("qdhuac", preset, changes)))


def _measure(case: str, learner: TargetFreeLearner, replay: Replay) -> Iterator[Result]:
    key, work = jax.random.key(0), flop(learner)
    updates = max(2, round(WORK / work))

    def learn(state: Any, updates: Array) -> Any:
        return learner.learn(state[0], replay, state[1], key, updates)[:2]

    calls: dict[str, Callable[[], Any]] = {
        "update": Stepper(learn, (jax.jit(learner.init)(key), filled(replay, key)), jnp.int32(updates)),
        "products": bare(products(learner), updates),
    }
    if case == REPLAY_CASE:
        calls["replay"] = Stepper(sample_and_set(replay, learner.config.batch_size, updates), filled(replay, key), key)
    times = {name: seconds / updates for name, seconds in best_times(calls, REPEATS).items()}

    extra = {"flop": work, "gflops": work / times["update"] / 1e9, "ceiling_gflops": work / times["products"] / 1e9}
    ratio = times["products"] / times["update"]
    yield Result("learner", case, 1e3 * times["update"], "ms/update", ratio, "gemm ceiling", extra)
    if case == REPLAY_CASE:
        share, ms = times["replay"] / times["update"], {"ms": 1e3 * times["replay"]}
        yield Result("learner", f"{case.split('/')[0]}/per-share", share, "share", share, "full update", ms)


def bare(needed: Mapping[Product, float], updates: int) -> Callable[[], list[Array]]:
    """A program of the matrix products of so many updates, and nothing else."""

    def repeat(product: Product, left: Array, right: Array, times: int) -> Array:
        contracted = ((1,), (1 if product.layout == "nt" else 0,))

        def body(i: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
            left = carry[0].at[0, 0].set(i.astype(float))  # a constant product would be moved out of the loop
            return left, jax.lax.dot_general(left, right, (contracted, ((), ())))

        return jax.lax.fori_loop(0, times, body, (left, jnp.zeros((product.m, product.n))))[1]

    shapes = [((p.m, p.k), (p.n, p.k) if p.layout == "nt" else (p.k, p.n)) for p in needed]
    operands = [[jax.random.normal(jax.random.key(0), shape) for shape in pair] for pair in shapes]
    loops = [(product, max(1, round(often * updates))) for product, often in needed.items()]
    run = jax.jit(lambda pairs: [repeat(p, x, w, n) for (p, n), (x, w) in zip(loops, pairs, strict=True)])
    return lambda: run(operands)
