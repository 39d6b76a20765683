"""Data echoing: use the items of a slow pipeline several times.

>>> from looptap.training.echoing import Echo
>>> list(Echo(["ab", "cd"], factor=2))
['ab', 'ab', 'cd', 'cd']
"""

from looptap.training.echoing.diagnosis import Diagnosis, diagnose
from looptap.training.echoing.echo_arguments import AFTER, BATCH, BEFORE, MODES, SHUFFLED
from looptap.training.echoing.loader import Echo

__all__ = ["AFTER", "BATCH", "BEFORE", "MODES", "SHUFFLED", "Diagnosis", "Echo", "diagnose"]
