"""Prioritized gradient descent on several ranks.

>>> from looptap.training.prioritized.distributed import RankCheckpoint, load_parts
>>> RankCheckpoint("checkpoints", lambda: {}, every=100).step
0
"""

from looptap.training.prioritized.distributed.async_worker import AsyncWorker
from looptap.training.prioritized.distributed.parameter_server import ParameterServer
from looptap.training.prioritized.distributed.rank_checkpoint import RankCheckpoint, RankLost
from looptap.training.prioritized.distributed.rank_parts import load_parts
from looptap.training.prioritized.distributed.reduced_gradients import ReducedGradients
from looptap.training.prioritized.distributed.resharding import merge_states, resharded, split_state

__all__ = [
    "AsyncWorker", "ParameterServer", "RankCheckpoint", "RankLost", "ReducedGradients", "load_parts", "merge_states",
    "resharded", "split_state",
]  # fmt: skip
