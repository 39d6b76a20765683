"""Selection: trains most often on instances that the model still learns from.

>>> from looptap.training.selection import Selection
>>> selection = Selection(1000, batch_size=50, epochs=10)
>>> selection.method, len(selection)
('norm', 20)
"""

from looptap.training.instances import WithIndex
from looptap.training.recalibration import recalibrate
from looptap.training.sampling.per_example import BinaryCrossEntropy, CrossEntropy, PerExample, SquaredError
from looptap.training.selection.methods.catalog import METHODS
from looptap.training.selection.selection import Selection

__all__ = [
    "METHODS",
    "BinaryCrossEntropy",
    "CrossEntropy",
    "PerExample",
    "Selection",
    "SquaredError",
    "WithIndex",
    "recalibrate",
]
