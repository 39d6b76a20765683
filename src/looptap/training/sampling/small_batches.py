"""Cross-entropy of batches that are small and in memory, where numpy is quicker.

An operation of torch on some hundred numbers takes longer to begin than to do, and one of numpy on a batch hardly less
than one on ten of them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from looptap.training.sampling.permutation_walk import Floats, Ints

MAX_NUMBERS = 16_384
"""Of the logits of a batch that counts as small."""
_MAX_HELD_STEPS = 16
_ROWS = np.arange(MAX_NUMBERS)


class HeldSteps:
    """Copies of the small outputs of up to 16 steps, to be worked on together.

    >>> import torch
    >>> held = HeldSteps()
    >>> [held.add(np.array([place]), torch.zeros(1, 2), torch.tensor([1])) for place in (7, 3)]
    [True, True]
    >>> ids, logits, classes, steps = held.taken()
    >>> ids.tolist(), tuple(logits.shape), classes.tolist(), steps, len(held)
    ([7, 3], (2, 2), [1, 1], 2, 0)
    """

    def __init__(self) -> None:
        self._steps: list[tuple[Ints, Any, Any]] = []

    def __len__(self) -> int:
        return len(self._steps)

    @property
    def full(self) -> bool:
        """Whether another step of the size of the last would be too much."""
        count = len(self._steps)
        return count >= _MAX_HELD_STEPS or (count > 0 and (count + 1) * self._steps[-1][1].size > MAX_NUMBERS)

    def add(self, ids: Ints, outputs: Any, targets: Any) -> bool:
        """Hold a step; False if its outputs are not small logits with class indices.

        ``ids`` stay as they are. Outputs and targets are copied: the loop may fill the same tensors again.
        """
        found = _small_arrays(outputs, targets)
        if found is None or len(found[0]) != len(ids):
            return False
        logits, classes = found
        if self._steps and (self._steps[0][1].shape[1] != logits.shape[1] or self.full):
            return False
        self._steps.append((ids, logits.copy(), classes.copy()))
        return True

    def taken(self) -> tuple[Ints, Any, Any, int]:
        """Return what was held as ids, logits, classes and the number of steps.

        Logits and classes are tensors. Nothing is held after that.
        """
        import torch

        steps, self._steps = self._steps, []
        ids, logits, classes = (np.concatenate(parts) for parts in zip(*steps, strict=True))
        return ids, torch.from_numpy(logits), torch.from_numpy(classes), len(steps)


@np.errstate(all="ignore")  # what is not finite is left out later
def small_cross_entropy(outputs: Any, targets: Any, ignored: int) -> tuple[Floats, Floats] | None:
    """Return the losses and scores of a batch; None if it is none for this.

    Those of `CrossEntropy` without smoothing, for logits (n, classes) and class indices of which none is ``ignored``.
    """
    found = _small_arrays(outputs, targets)
    if found is None:
        return None
    logits, classes = found
    if np.minimum.reduce(classes) < 0 or (ignored >= 0 and (classes == ignored).any()):
        return None
    shifted = logits - np.maximum.reduce(logits, 1, keepdims=True)
    chosen = shifted[_ROWS[: len(classes)], classes]  # raises where torch raised
    powers = np.exp(shifted, out=shifted)
    total = np.add.reduce(powers, 1)
    losses = np.log(total) - chosen
    squares = np.einsum("ij,ij->i", powers, powers) / (total * total) - 2 * np.exp(-losses) + 1
    return losses, np.sqrt(np.maximum(squares, 0, out=squares), out=squares)


def _small_arrays(outputs: Any, targets: Any) -> tuple[Floats, Ints] | None:
    """Return logits (n, classes) and class indices (n,) as arrays of the same memory.

    None if they are not that, or too large.
    """
    if not (getattr(outputs, "is_cpu", False) and outputs.ndim == 2 and outputs.numel() <= MAX_NUMBERS):
        return None
    try:
        logits, classes = outputs.detach().numpy(), targets.numpy()
    except (AttributeError, TypeError, RuntimeError):  # no tensors, of a type that numpy has not, or on a device
        return None
    if logits.dtype != np.float32 or classes.shape != logits.shape[:1] or classes.dtype.kind != "i" or not logits.size:
        return None
    return logits, classes
