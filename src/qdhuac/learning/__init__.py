"""Policies, critics, learners and the replay buffer."""

from typing import TYPE_CHECKING

from qdhuac.exports import lazy

if TYPE_CHECKING:
    from qdhuac.learning.policy import Policy as Policy
    from qdhuac.learning.replay import Batch as Batch
    from qdhuac.learning.replay import Replay as Replay
    from qdhuac.learning.replay import ReplayState as ReplayState
    from qdhuac.learning.run_policy import act as act
    from qdhuac.learning.target_free import TargetFreeLearner as TargetFreeLearner
    from qdhuac.learning.td3 import TD3Learner as TD3Learner

__getattr__, __all__ = lazy(__name__)
