"""Arguments that make no sense are refused at the door, in one line that names them."""

import dataclasses
import functools
import math
from types import SimpleNamespace

import gym_envs
import jax.numpy as jnp
import numpy as np
import pytest
from reach import POLICY, SPEC, ReachTask
from toys import ToyTask, toy_algorithm

import qdhuac
from qdhuac.algorithms import QDAlgorithm
from qdhuac.archives import DominatedNoveltyArchive, GridArchive
from qdhuac.emitters import ExploringActor, GradientChildren, InjectedActor, IsoLine
from qdhuac.errors import UserError
from qdhuac.learning import Policy, Replay
from qdhuac.metrics import PassiveGrid
from qdhuac.tasks import GymnasiumTask, PlaygroundTask, TaskSpec
from qdhuac.tasks.checks import Watched
from qdhuac.types import Evaluation, Transition

BOUNDS, NAN, INF = ((0.0,), (1.0,)), math.nan, math.inf
ALGORITHM = toy_algorithm()
spec = functools.partial(TaskSpec, BOUNDS, 10)
train = functools.partial(qdhuac.train, algorithm="dns", preset="smoke")
gym = functools.partial(
    GymnasiumTask, gym_envs.Walk, gym_envs.position, descriptor_bounds=BOUNDS, support=(0.0, 1.0), workers=0
)
ENV = SimpleNamespace(reset=None, step=None, action_size=1)
playground = functools.partial(
    PlaygroundTask, ENV, lambda state: jnp.zeros(1), descriptor_bounds=BOUNDS, support=(0.0, 1.0)
)
climb = functools.partial(
    GradientChildren, value=max, policy=POLICY, replay=Replay(8, 2, 1), batch_size=1, steps=1, learning_rate=0.1
)
replay = functools.partial(Replay, capacity=8, obs_size=2, action_size=1)
changed = functools.partial(dataclasses.replace, ALGORITHM)
RESULTS = Evaluation(jnp.zeros(6), jnp.zeros((6, 2)), jnp.ones(6, jnp.int32))


@dataclasses.dataclass
class Gives(ToyTask):
    """A task with any result."""

    result: object = None

    def evaluate(self, genotypes, key, exploration=None):
        return self.result


def evaluate(**changes):
    return Watched(Gives(result=RESULTS._replace(**changes))).evaluate({"x": jnp.zeros((6, 4))}, None)


class Bare:
    spec, policy = SPEC, None


MISUSES = {
    # the facts about a task
    "descriptor_bounds": [
        lambda: TaskSpec(None, 10),
        lambda: TaskSpec("01", 10),
        lambda: TaskSpec((0.0, 1.0), 10),
        lambda: TaskSpec(((0.0,),), 10),
        lambda: TaskSpec(((0.0,), (1.0, 2.0)), 10),
        lambda: TaskSpec(((1.0,), (0.0,)), 10),
        lambda: TaskSpec(((NAN,), (1.0,)), 10),
        lambda: TaskSpec(((0.0,), (INF,)), 10),
        lambda: TaskSpec((("a",), ("b",)), 10),
        lambda: TaskSpec(((), ()), 10),
        lambda: gym(descriptor_bounds=(np.zeros((1, 1)), np.ones((1, 1)))),
        lambda: playground(descriptor_bounds={}),
    ],
    "episode_length": [
        lambda: TaskSpec(BOUNDS, 0),
        lambda: TaskSpec(BOUNDS, "10"),
        lambda: TaskSpec(BOUNDS, 10.5),
        lambda: TaskSpec(BOUNDS, True),
        lambda: playground(episode_length=None),
    ],
    "reward_offset": [
        lambda: spec(reward_offset=NAN),
        lambda: spec(reward_offset=INF),
        lambda: spec(reward_offset="1"),
        lambda: spec(reward_offset=None),
        lambda: gym(reward_offset=NAN),
        lambda: playground(reward_offset=NAN),
    ],
    "support": [
        lambda: spec(support=None),
        lambda: spec(support=(5.0, 1.0)),
        lambda: spec(support=(0.0, INF)),
        lambda: spec(support=("0", "1")),
        lambda: spec(support=(0.0, 1.0, 2.0)),
        lambda: gym(support=3.0),
    ],
    "after_termination": [lambda: spec(after_termination="cry"), lambda: spec(after_termination=["stop"])],
    "contacts": [lambda: spec(contacts="yes"), lambda: gym(store_contacts=2)],
    "action_bounds": [lambda: spec(action_bounds=(0.0, 1.0)), lambda: spec(action_bounds=([NAN], [0.0]))],
    "takes_runs": [lambda: spec(takes_runs=1)],
    # tasks
    "hidden": [
        lambda: Policy(2, 1, "64"),
        lambda: Policy(2, 1, (0,)),
        lambda: Policy(2, 1, (8.5,)),
        lambda: gym(hidden=8),
    ],
    "obs_size": [lambda: Policy(0, 1, (8,)), lambda: Policy("2", 1, (8,)), lambda: replay(obs_size=-1)],
    "action_size": [lambda: Policy(2, 1.5, (8,)), lambda: replay(action_size=0)],
    "make": [lambda: GymnasiumTask(3, gym_envs.position, descriptor_bounds=BOUNDS, support=(0.0, 1.0))],
    "features": [
        lambda: GymnasiumTask(gym_envs.Walk, "x", descriptor_bounds=BOUNDS, support=(0.0, 1.0)),
        lambda: PlaygroundTask(ENV, 3, descriptor_bounds=BOUNDS, support=(0.0, 1.0)),
    ],
    "describe": [lambda: gym(describe=3), lambda: playground(describe="mean")],
    "workers": [lambda: gym(workers="2"), lambda: gym(workers=1.5), lambda: gym(workers=True)],
    "deadline": [lambda: gym(deadline=0), lambda: gym(deadline=NAN), lambda: gym(deadline="1 h")],
    "env": [lambda: PlaygroundTask(object(), max, descriptor_bounds=BOUNDS, support=(0.0, 1.0))],
    "can_terminate": [lambda: playground(can_terminate="no")],
    # archives and metrics
    "capacity": [
        lambda: DominatedNoveltyArchive(0),
        lambda: DominatedNoveltyArchive("8"),
        lambda: DominatedNoveltyArchive(2.5),
        lambda: GridArchive.cvt(0, *BOUNDS),
        lambda: GridArchive.regular(None, *BOUNDS),
        lambda: replay(capacity=0),
    ],
    "neighbours": [lambda: DominatedNoveltyArchive(8, NAN), lambda: DominatedNoveltyArchive(8, 0)],
    "low": [
        lambda: GridArchive.cvt(8, "a", "b"),
        lambda: GridArchive.regular(8, (0.0,), (NAN,)),
        lambda: GridArchive.cvt(8, (0.0,), (1.0, 2.0)),
        lambda: PassiveGrid.over((0.0,), None),
    ],
    "exponent": [lambda: replay(exponent=NAN), lambda: replay(exponent="0.6")],
    # emitters
    "sigma_iso": [lambda: IsoLine(NAN), lambda: IsoLine("0.1"), lambda: IsoLine(-1.0)],
    "sigma_line": [lambda: IsoLine(0.1, INF)],
    "tournament": [lambda: IsoLine(tournament=0), lambda: IsoLine(tournament=1.5)],
    "steps": [lambda: climb(steps=-1), lambda: climb(steps="10"), lambda: evaluate(steps=jnp.ones(5))],
    "batch_size": [lambda: climb(batch_size=0)],
    "learning_rate": [lambda: climb(learning_rate=NAN), lambda: climb(learning_rate=0)],
    "value": [lambda: climb(value=None)],
    "policy": [lambda: InjectedActor(3), lambda: ExploringActor("actor", max), lambda: climb(policy="mlp")],
    "head": [lambda: ExploringActor(max, None)],
    # an algorithm
    "fresh": [lambda: changed(fresh=None)],
    "emitters": [
        lambda: changed(emitters=None),
        lambda: changed(emitters=(IsoLine(),)),
        lambda: changed(emitters=((IsoLine(), 0),)),
        lambda: changed(emitters=((IsoLine(), 1.5),)),
        lambda: changed(emitters=((IsoLine, 3),)),
        lambda: changed(emitters=(("isoline", 3),)),
        lambda: changed(emitters=()),
    ],
    "archive": [lambda: changed(archive=None), lambda: changed(archive="dns"), lambda: changed(archive=GridArchive)],
    "descriptor_size": [lambda: changed(descriptor_size=0), lambda: changed(descriptor_size="2")],
    "updates_per_step": [lambda: changed(updates_per_step=NAN), lambda: changed(updates_per_step=-1.0)],
    "learner": [lambda: changed(learner="td3"), lambda: changed(learner=None, updates_per_step=1.0)],
    "replay": [lambda: changed(replay=100), lambda: climb(replay=3)],
    # results
    "fitness": [
        lambda: evaluate(fitness=jnp.zeros((6, 1))),
        lambda: evaluate(fitness=None),
        lambda: evaluate(fitness="good"),
    ],
    "descriptor": [lambda: evaluate(descriptor=jnp.zeros(6)), lambda: evaluate(descriptor=jnp.zeros((6, 3)))],
    "valid": [lambda: evaluate(transitions=Transition(*[jnp.zeros((6, 3))] * 5))],
    "Evaluation": [
        lambda: Watched(Gives(result=None)).evaluate({"x": jnp.zeros((6, 4))}, None),
        lambda: Watched(Gives(result={"fitness": 1})).evaluate({"x": jnp.zeros((6, 4))}, None),
        lambda: Watched(Gives(result=(1, 2))).evaluate({"x": jnp.zeros((6, 4))}, None),
    ],
    # functions; the folder is never made
    "task": [
        lambda: train(None, "nowhere"),
        lambda: train(ReachTask, "nowhere"),
        lambda: train(Bare(), "nowhere"),
        lambda: train("halfcheetah", "nowhere"),
        lambda: train(dataclasses.replace(ReachTask(), spec={}), "nowhere"),
        lambda: train(dataclasses.replace(ReachTask(), policy="mlp"), "nowhere"),
        lambda: qdhuac.evaluate(None, "nowhere"),
        lambda: qdhuac.resume(3, "nowhere"),
        lambda: qdhuac.render(None, "nowhere", "best.mp4"),
    ],
    "run_dir": [lambda: train(ReachTask(), None), lambda: train(ReachTask(), 3), lambda: qdhuac.load(None)],
    "algorithm": [
        lambda a=a: train(ReachTask(), "nowhere", algorithm=a) for a in (None, 3, ALGORITHM, QDAlgorithm, "dqn")
    ],
    "preset": [lambda p=p: train(ReachTask(), "nowhere", preset=p) for p in (None, ["smoke"], "tiny")],
    "settings": [
        lambda s=s: train(ReachTask(), "nowhere", settings=s) for s in ("run.seed=1", [("run.seed", 1)], {1: 2}, 7)
    ],
    "run.generations": [
        lambda v=v: train(ReachTask(), "nowhere", settings={"run.generations": v})
        for v in ("two", NAN, None, -1, 1.5, [])
    ],
    "log": [lambda: train(ReachTask(), "nowhere", log=3), lambda: train(ReachTask(), "nowhere", log="printer")],
    "episodes": [lambda e=e: qdhuac.evaluate(ReachTask(), "nowhere", episodes=e) for e in (0, "8", 1.5)],
    "seed": [lambda s=s: qdhuac.evaluate(ReachTask(), "nowhere", seed=s) for s in (-1, "a")],
    "seconds": [lambda s=s: qdhuac.render(ReachTask(), "nowhere", "best.mp4", seconds=s) for s in (0, NAN, "1")],
    "port": [lambda p=p: qdhuac.show(ReachTask(), "nowhere", port=p) for p in ("x", -1, 70_000)],
}


@pytest.mark.parametrize(
    ("named", "call"), [(name, call) for name, calls in MISUSES.items() for call in calls], ids=lambda x: str(x)[:20]
)
def test_a_misuse_is_refused_by_name(named, call, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError) as error:
        call()
    assert named in str(error.value)
    assert "\n" not in str(error.value)
    assert not list(tmp_path.iterdir())
