"""The benchmarks: FLOP counted by hand and by XLA, a replay buffer that is never copied, and their output."""

import itertools
import json
import re

import jax
import jax.numpy as jnp
import pytest

from qdhuac import bench, cli
from qdhuac.algorithms import specs
from qdhuac.bench import archive, learner, replay, rollout
from qdhuac.bench.learner import Product
from qdhuac.bench.timing import best_times
from qdhuac.config import CriticConfig, LearnerConfig
from qdhuac.learning.policy import Policy
from qdhuac.learning.target_free import TargetFreeLearner
from qdhuac.types import Evaluation

SMALLEST = {"critic.critics": 1, "critic.blocks": 0, "policy.hidden": (16,)}


def tiny(critics=1, policy_delay=1, **changes):
    critic = CriticConfig(width=4, blocks=1, atoms=5, critics=critics, v_min=-1.0, v_max=1.0, **changes)
    return TargetFreeLearner(Policy(3, 2, (7,)), critic, LearnerConfig(batch_size=6, policy_delay=policy_delay))


# Multiply-adds per row. Critic: 5 x 4, 4 x 4, 4 x 4, 4 x 5; policy: 3 x 7, then 7 x 2 for mean and for log-std.
JOINT = 12 * (20 + 16 + 16 + 20) + 2 * (12 * (20 + 16 + 16) + 6 * 20)  # forward; weights' and inputs' gradients
THROUGH = 6 * (20 + 16 + 16 + 20) + 6 * (2 * 4 + 16 + 16 + 20)  # forward; back to the two numbers of the action
NEXT = 6 * (21 + 14 + 14)  # forward
ACTOR = NEXT + 6 * (21 + 14 + 14) + 6 * (14 + 14)  # forward; weights' gradients; inputs' gradients of all but the first


def test_flop_is_the_hand_count():
    assert learner.flop(tiny()) == 2 * (JOINT + THROUGH + NEXT + ACTOR) == 8388
    assert learner.flop(tiny(critics=2)) == 2 * (2 * JOINT + 2 * THROUGH + NEXT + ACTOR)
    assert learner.flop(tiny(policy_delay=3)) == pytest.approx(2 * (JOINT + NEXT + (THROUGH + ACTOR) / 3))
    # Without a norm of the inputs nobody asks for the gradient of the joint pass's inputs.
    assert learner.flop(tiny(input_norm=False)) == learner.flop(tiny()) - 2 * 12 * 20


def test_flop_agrees_with_the_cost_analysis_of_xla():
    settings = specs.make("qdhuac", "laptop", {"critic.critics": 1, "replay.capacity": 1000})
    agent, buffer = learner.build(settings)
    key = jax.random.key(0)
    state = jax.eval_shape(agent.init, key)
    batch = jax.eval_shape(lambda b: buffer.sample(b, key, agent.config.batch_size), jax.eval_shape(buffer.init))
    seen = jax.jit(agent.update).lower(state, batch, key).cost_analysis()["flops"]
    # XLA also counts what is not a matrix product; there is at most a quarter of that.
    assert 1.0 <= seen / learner.flop(agent) <= 1.25


def test_replay_is_updated_in_place():
    """At this capacity a single copy of the rows would show: the network's own buffers are a hundredth of them."""
    settings = specs.make("qdhuac", "smoke", SMALLEST | {"replay.capacity": 500_000})
    agent, buffer = learner.build(settings)
    state, rows = jax.eval_shape(agent.init, jax.random.key(0)), jax.eval_shape(buffer.init)
    learn = jax.jit(lambda s, b, k, n: agent.learn(s, buffer, b, k, n), donate_argnums=(0, 1))
    memory = learn.lower(state, rows, jax.random.key(0), jnp.int32(3)).compile().memory_analysis()
    size = rows.rows.size * 4
    assert memory.alias_size_in_bytes >= size + rows.tree.size * 4
    assert memory.temp_size_in_bytes < 0.1 * size


def test_the_reference_products_have_the_right_shapes_and_are_all_computed():
    needed = {Product("nn", 3, 4, 5): 2.0, Product("nn", 4, 3, 5): 1.0, Product("nt", 3, 5, 4): 0.5}
    results = learner.bare(needed, updates=2)()
    assert [r.shape for r in results] == [(p.m, p.n) for p in needed]
    assert all(bool(jnp.all(jnp.isfinite(r)) & jnp.any(r != 0)) for r in results)


def test_the_compiler_leaves_a_product_in_its_loop():
    program = jax.jit(learner.bare({Product("nn", 16, 16, 16): 20}, 1)).lower().compile().as_text()
    parts = {part.partition(" (")[0].strip(): part for part in program.split("\n\n")}
    (product,) = (name for name, part in parts.items() if " dot(" in part)
    bodies = [parts[name] for name in re.findall(r" while\(.*body=(%[\w.]+)", program)]
    assert any(f"calls={product}," in body or " dot(" in body for body in bodies)


def test_best_times_alternates_and_keeps_the_fastest(monkeypatch):
    calls = []
    clock = itertools.count()
    monkeypatch.setattr("time.perf_counter", lambda: next(clock) ** 2)  # every call seems slower than the one before
    times = best_times({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, repeats=3)
    assert calls == ["a", "b"] * 4
    assert times == {"a": 1, "b": 5}


class ToyTask:
    policy = Policy(3, 2, (4,))

    def __init__(self, steps=rollout.STEPS):
        self.steps = steps

    def evaluate(self, genotypes, key):
        zeros = jnp.zeros(rollout.BATCH)
        return Evaluation(zeros, zeros[:, None], jnp.full(rollout.BATCH, self.steps, jnp.int32))


class FallsAtOnce(ToyTask):
    """A robot whose episode ends with its first step, if falling ends it."""

    def __init__(self, settings):
        self.steps = 1 if settings.task.after_termination == "stop" else settings.task.episode_length


WHOLE = rollout.BATCH * rollout.STEPS


def test_rollouts_of_a_robot_that_falls_at_once_have_all_their_steps(monkeypatch):
    monkeypatch.setattr(rollout, "build_task", FallsAtOnce)
    monkeypatch.setattr(rollout, "bare", lambda name, key: (None, WHOLE))
    monkeypatch.setattr(rollout, "best_times", lambda calls, repeats: {"mjx": 4.0, "native": 2.0, "bare": 1.0})
    results = list(rollout.measure(("hopper",)))
    assert [(r.value, r.ratio) for r in results] == [(WHOLE / 4.0, 1.0), (WHOLE / 2.0, 2.0), (WHOLE, 0.5)]


def test_steps_that_were_not_simulated_are_not_counted(monkeypatch):
    slow, fast = ToyTask(steps=rollout.STEPS), ToyTask(steps=1)
    monkeypatch.setattr(rollout, "build_task", lambda s: fast if s.task.backend == "native" else slow)
    monkeypatch.setattr(rollout, "bare", lambda name, key: (None, WHOLE))
    monkeypatch.setattr(rollout, "best_times", lambda calls, repeats: {"mjx": 4.0, "native": 2.0, "bare": 1.0})
    native = list(rollout.measure(("hopper",)))[1]
    assert native.value == rollout.BATCH / 2.0
    assert native.ratio == pytest.approx(2.0 / rollout.STEPS)


@pytest.fixture
def small(monkeypatch):
    """Every benchmark at small sizes, with a learner that learns nothing and so compiles quickly."""
    monkeypatch.setattr(TargetFreeLearner, "learn", lambda self, state, replay, buffer, key, n: (state, buffer, {}))
    monkeypatch.setattr(learner, "CASES", {"paper/1-critic": ("smoke", SMALLEST)})
    monkeypatch.setattr(learner, "WORK", 1e6)
    monkeypatch.setattr(replay, "CAPACITY", 1000)
    monkeypatch.setattr(replay, "ADDED", 50)
    monkeypatch.setattr(replay, "LOOPS", {"tree": 2, "flat": 2})
    monkeypatch.setattr(archive, "CAPACITIES", (20, 40))
    monkeypatch.setattr(rollout, "build_task", lambda settings: ToyTask())
    monkeypatch.setattr(rollout, "bare", lambda name, key: (lambda: None, 1000))
    monkeypatch.setattr("qdhuac.environment.prepare_jax", lambda: None)
    for module in (learner, replay, archive, rollout):
        monkeypatch.setattr(module, "best_times", one_more_second_each)


def one_more_second_each(calls, repeats):
    """In place of times: the first function takes a second, the next two, and so on. Each is called once."""
    jax.block_until_ready([call() for call in calls.values()])
    return {name: float(seconds) for seconds, name in enumerate(calls, 1)}


CASES = {  # value, unit, ratio
    "learner": {"paper/1-critic": (None, "ms/update", 2.0), "paper/per-share": (3.0, "share", 3.0)},
    "rollout": {
        f"{task}/{backend}": case
        for task in rollout.TASKS
        for backend, case in {
            "mjx": (WHOLE, "steps/s", 1.0),
            "native": (WHOLE / 2, "steps/s", 0.5),
            "bare": (1000 / 3, "steps/s", WHOLE / 2 / (1000 / 3)),
        }.items()
    },
    "archive": {"dns/20": (2000.0, "ms", 2.0), "dns/40": (2000.0, "ms", 2.0)},
    "replay": {
        "add/50": (1000.0, "ms", 0.5),
        "sample+set/512": (500.0, "ms", 0.5),
        "memory/humanoid": (None, "GB", None),
    },
}


def test_all_benches_as_json(small, capsys):
    assert cli.main(["bench", "--json"]) == 0
    out, err = capsys.readouterr()
    objects = json.loads(out)
    assert [o["bench"] for o in objects] == [name for name in bench.BENCHES for _ in CASES[name]]
    for o in objects:
        assert list(o)[:6] == ["bench", "case", "value", "unit", "ratio", "against"]
        value, unit, ratio = CASES[o["bench"]][o["case"]]
        assert o["unit"] == unit
        assert (value, ratio) == (value and pytest.approx(o["value"]), ratio and pytest.approx(o["ratio"]))
        assert o["against"]
    first = objects[0]
    agent, _ = learner.build(specs.make("qdhuac", "smoke", SMALLEST))
    assert first["flop"] == learner.flop(agent)
    assert first["value"] == pytest.approx(1e3 / max(2, round(1e6 / first["flop"])))  # a second for so many updates
    assert first["gflops"] == pytest.approx(first["flop"] / first["value"] / 1e6)
    assert first["ratio"] == pytest.approx(first["gflops"] / first["ceiling_gflops"])
    assert err.count("done\n") == len(objects)


def test_one_bench_as_a_table(small, capsys):
    assert cli.main(["bench", "replay"]) == 0
    out = capsys.readouterr().out
    assert "memory/humanoid" in out
    assert "2.2 GB" in out
    assert "learner" not in out


def test_unknown_bench(capsys):
    assert cli.main(["bench", "magic"]) == 2
    err = capsys.readouterr().err
    assert all(word in err for word in ("magic", *bench.BENCHES))


def test_a_full_humanoid_replay_fits_its_budget():
    memory = replay.memory(1_000_000)
    assert 1e6 * (2 * 244 + 17 + 2) * 4 / 1e9 < memory.value <= 2.2
    assert memory.ratio == pytest.approx(memory.value / 2.2)
