"""Estimate when training will end: speeds, early-stopping rules, forecasts.

>>> from looptap.training.progress import Patience, Progress
>>> Progress(100, epochs=20, rule=Patience(5)).fraction
0.0
"""

from looptap.training.progress.estimate import Remaining
from looptap.training.progress.forecast.metrics import Metric
from looptap.training.progress.forecast.stopping_rules import Function, Never, Paper, Patience, StopRule, Threshold
from looptap.training.progress.progress import Progress
from looptap.training.progress.validation_subsets import Inserting

__all__ = [
    "Function",
    "Inserting",
    "Metric",
    "Never",
    "Paper",
    "Patience",
    "Progress",
    "Remaining",
    "StopRule",
    "Threshold",
]
