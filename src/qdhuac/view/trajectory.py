"""One individual, step by step: the first episode of its policy on MuJoCo's C engine, with every pose."""

from __future__ import annotations

from typing import NamedTuple

import jax
import numpy as np

from qdhuac.config import Config
from qdhuac.tasks.engine import Network, Simulation, act, failed, measure, observe, restart, step
from qdhuac.tasks.native import NativeLocomotion, _unstable_is_no_news
from qdhuac.types import Genotype


class Trajectory(NamedTuple):
    """An episode of `T` steps; it ends where the robot fell."""

    qpos: np.ndarray  # [T + 1, nq] the pose at the start and after each step
    reward: np.ndarray  # [T]
    contacts: np.ndarray  # [T, feet] 1 where a foot is on the ground; no columns for a task without feet
    dt: float  # seconds per step


def viewing_task(settings: Config) -> NativeLocomotion:
    """The run's task on the C engine, whatever engine it was trained on."""
    t = settings.task
    return NativeLocomotion(
        t.name, episode_length=t.episode_length, after_termination="stop", hidden=settings.policy.hidden, threads=1
    )


def simulate(task: NativeLocomotion, genotypes: Genotype, index: int, seed: int = 0) -> Trajectory:
    """The individual at `index` of genotypes with leaves [N, ...]; a seed always gives the same start."""
    robot, tables = task.robot, task.robot.tables
    one = jax.tree.map(lambda x: np.ascontiguousarray(x[index : index + 1]), genotypes)
    network: Network = task._network(0, one, None)
    draws = task._draw(jax.random.key(seed), 1, False)
    simulation = Simulation(robot.model)
    addresses, fields = simulation.addresses, simulation.fields
    obs, action = np.zeros(task.obs_size, np.float32), np.zeros(task.action_size, np.float32)
    heights = np.zeros(len(tables.features), np.float32)
    silence = np.zeros(0, np.float32)
    poses, actions, gains, features = [], [], [], []
    with _unstable_is_no_news():
        restart(addresses, fields, np.array(draws.qpos[0, 0], float), np.array(draws.qvel[0, 0], float))
        poses.append(simulation.data.qpos.copy())
        x = fields[tables.progress[0]][tables.progress[1]]
        for _ in range(task.episode_length):
            observe(tables, fields, obs)
            act(network, obs, silence, action)
            step(tables, addresses, fields, action)
            measure(tables, fields, heights)
            after = fields[tables.progress[0]][tables.progress[1]]
            poses.append(simulation.data.qpos.copy())
            actions.append(action.copy())
            gains.append(after - x)
            features.append(heights.copy())
            x = after
            if not np.isfinite(poses[-1]).all() or failed(tables, fields):
                break
    reward = robot.reward(np.array(gains), np.array(actions))
    contacts = np.array(features) <= 0.0
    dt = tables.frames * float(robot.model.opt.timestep)
    return Trajectory(np.array(poses), reward, contacts[:, :0] if task.spec.omni else contacts, dt)
