"""Prioritized gradient descent: which examples move the loss.

>>> from looptap.training.prioritized import METHODS, Prioritized
>>> METHODS
('ghost', 'jvp', 'finite_difference')
>>> Prioritized(1000, None, batch_size=50).method
'norm'
"""

from looptap.training.prioritized.exact_priorities import METHODS, BatchPriorities, ExactPriorities
from looptap.training.prioritized.ghost_products import GhostPass
from looptap.training.prioritized.layer_plan import PriorityError
from looptap.training.prioritized.prioritized import Prioritized

__all__ = [
    "METHODS",
    "BatchPriorities",
    "ExactPriorities",
    "GhostPass",
    "Prioritized",
    "PriorityError",
]
