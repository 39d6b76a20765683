"""Cross-entropy of a batch that is small and in memory, where numpy is quicker.

An operation of torch on some hundred numbers takes longer to begin than to do.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from looptap.training.sampling.permutation_walk import Floats

MAX_NUMBERS = 16_384
"""Of the logits of a batch that counts as small."""
_ROWS = np.arange(MAX_NUMBERS)


@np.errstate(all="ignore")  # what is not finite is left out later
def small_cross_entropy(outputs: Any, targets: Any, ignored: int) -> tuple[Floats, Floats] | None:
    """Return the losses and scores of a batch; None if it is none for this.

    Those of `CrossEntropy` without smoothing, for logits (n, classes) and class indices of which none is ``ignored``.
    """
    if not (getattr(outputs, "is_cpu", False) and outputs.ndim == 2 and outputs.numel() <= MAX_NUMBERS):
        return None
    try:
        logits, classes = outputs.detach().numpy(), targets.numpy()
    except (AttributeError, TypeError, RuntimeError):  # no tensors, of a type that numpy has not, or on a device
        return None
    if logits.dtype != np.float32 or classes.shape != logits.shape[:1] or classes.dtype.kind != "i" or not logits.size:
        return None
    if np.minimum.reduce(classes) < 0 or (ignored >= 0 and (classes == ignored).any()):
        return None
    shifted = logits - np.maximum.reduce(logits, 1, keepdims=True)
    chosen = shifted[_ROWS[: len(classes)], classes]  # raises where torch raised
    powers = np.exp(shifted, out=shifted)
    total = np.add.reduce(powers, 1)
    losses = np.log(total) - chosen
    squares = np.einsum("ij,ij->i", powers, powers) / (total * total) - 2 * np.exp(-losses) + 1
    return losses, np.sqrt(np.maximum(squares, 0, out=squares), out=squares)
