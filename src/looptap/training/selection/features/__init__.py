"""Features: what an assistant reads of an instance before it is decoded.

>>> import numpy as np
>>> from looptap.training.selection.features import pixels_and_class
>>> pixels_and_class(np.zeros((5, 28, 28), np.uint8), [0, 1, 2, 1, 0])
<DenseFeatures: 5 rows of 64 numbers and 3 classes, 1.3 KB>
"""

from looptap.training.selection.features.features import (
    ComputedFeatures,
    DenseFeatures,
    Features,
    Rows,
    SparseFeatures,
    features_of,
)
from looptap.training.selection.features.images import pixels, pixels_and_class
from looptap.training.selection.features.text import tfidf

__all__ = [
    "ComputedFeatures",
    "DenseFeatures",
    "Features",
    "Rows",
    "SparseFeatures",
    "features_of",
    "pixels",
    "pixels_and_class",
    "tfidf",
]
