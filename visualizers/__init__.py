"""Charts: choosing one from the values of a stream, and drawing it with plotly, matplotlib or text."""

from looptap.visualizers.charts.chart import Chart, IncompatibleStreams, Series
from looptap.visualizers.charts.choice import Choice, choose
from looptap.visualizers.charts.registry import register

__all__ = ["Chart", "Choice", "IncompatibleStreams", "Series", "choose", "register"]
