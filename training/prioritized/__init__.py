"""Prioritized gradient descent: which examples move the loss.

>>> from looptap.training.prioritized import METHODS
>>> METHODS
('ghost', 'jvp', 'finite_difference')
"""

from looptap.training.prioritized.exact_priorities import METHODS, ExactPriorities, PriorityError
from looptap.training.prioritized.ghost_products import GhostPass

__all__ = ["METHODS", "ExactPriorities", "GhostPass", "PriorityError"]
