"""Data echoing: a slow pipeline's items are used several times, as often as is worth it, and that can be turned.

>>> from looptap.training.echoing import Echo
>>> list(Echo(["ab", "cd"], factor=2))
['ab', 'ab', 'cd', 'cd']
"""

from looptap.training.echoing.echo_arguments import AFTER, BATCH, BEFORE, MODES, SHUFFLED
from looptap.training.echoing.loader import Echo

__all__ = ["AFTER", "BATCH", "BEFORE", "MODES", "SHUFFLED", "Echo"]
