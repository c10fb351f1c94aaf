"""Tasks evaluate policies: robots, Gymnasium, MuJoCo Playground, or one of your own."""

from typing import TYPE_CHECKING

from qdhuac.exports import lazy

if TYPE_CHECKING:
    from qdhuac.tasks.base import Task as Task
    from qdhuac.tasks.base import TaskSpec as TaskSpec
    from qdhuac.tasks.base import Trajectory as Trajectory
    from qdhuac.tasks.base import Viewable as Viewable
    from qdhuac.tasks.gym import GymnasiumTask as GymnasiumTask
    from qdhuac.tasks.mjx import MjxTask as MjxTask
    from qdhuac.tasks.native import NativeTask as NativeTask
    from qdhuac.tasks.playground import PlaygroundTask as PlaygroundTask
    from qdhuac.types import Evaluation as Evaluation
    from qdhuac.types import Exploration as Exploration
    from qdhuac.types import Transition as Transition

__getattr__, __all__ = lazy(__name__)
