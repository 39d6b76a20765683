"""Charts: chosen by a stream's values, drawn by plotly, matplotlib or as text."""

from looptap.visualizers.charts.chart import Chart, IncompatibleStreams, Series
from looptap.visualizers.charts.choice import Choice, choose
from looptap.visualizers.charts.registry import register

__all__ = ["Chart", "Choice", "IncompatibleStreams", "Series", "choose", "register"]
