"""Charts: choosing one from the values of a stream, and drawing it with plotly, matplotlib or text."""

from looptap.visualizers.chart import Chart, IncompatibleStreams, Series
from looptap.visualizers.choice import Choice, choose
from looptap.visualizers.registry import register

__all__ = ["Chart", "Choice", "IncompatibleStreams", "Series", "choose", "register"]
