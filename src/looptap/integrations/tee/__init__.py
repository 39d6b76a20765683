"""Turns calls of trackers and progress bars into events and streams of an agent.

>>> import looptap
>>> from looptap.integrations import tee
>>> agent = looptap.Agent("doctest", enabled=False)
>>> with tee.start(agent) as noted:
...     pass
"""

from looptap.integrations.tee.start import Tee, start
from looptap.integrations.tee.trackers import SOURCES

__all__ = ["SOURCES", "Tee", "start"]
