"""Prioritized gradient descent on several ranks."""

from looptap.training.prioritized.distributed.async_worker import AsyncWorker
from looptap.training.prioritized.distributed.parameter_server import ParameterServer
from looptap.training.prioritized.distributed.reduced_gradients import ReducedGradients
from looptap.training.prioritized.distributed.server_channel import RankLost

__all__ = ["AsyncWorker", "ParameterServer", "RankLost", "ReducedGradients"]
