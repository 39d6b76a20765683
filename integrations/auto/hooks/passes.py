"""Guesses epochs and evaluations from passes over DataLoaders.

A pass with steps in it is an epoch; one without, an evaluation if gradients are off or the model is in evaluation
mode. It ends when its DataLoader is exhausted; where that cannot be known, or the loop breaks off, when the next
pass over the same data begins.
"""

from __future__ import annotations

from typing import Any

EPOCH, EVALUATION = "epoch", "evaluation"
MAX_PASSES_COUNT = 64
"""DataLoaders whose passes are followed."""
_MAP_STYLE_NUMBER = 0


class LoaderPass:
    """A pass over a DataLoader.

    ``steps`` are the updates before it, ``length`` its batches if known."""

    __slots__ = ("count", "ended", "learns", "length", "steps")

    def __init__(self, steps: int, length: int | None) -> None:
        self.steps, self.length = steps, length
        self.count = 0
        self.ended = False
        self.learns = True
        """True if the newest batch was to learn from: with gradients, and a model in training mode."""

    def kind(self, steps: int) -> str | None:
        """Return the event that its end is, after ``steps`` updates; None if unknown."""
        return EPOCH if steps > self.steps else None if self.learns else EVALUATION


class LoaderPasses:
    """The passes over the DataLoaders of a process."""

    def __init__(self) -> None:
        self._by_sampler: dict[int, LoaderPass] = {}

    def before_batch(self, iterator: Any, steps: int, learns: bool) -> str | None:
        """Note that a batch will be fetched; return the event that this is, if any.

        ``steps`` is how many updates the thread has done; ``learns`` is False in an evaluation.
        """
        key = id(iterator._index_sampler)
        now, count, event = self._by_sampler.get(key), iterator._num_yielded, None
        if now is None or (count == 0 and now.count) or count < now.count:
            if now is not None and not now.ended:
                event = now.kind(steps)
            now = self._by_sampler[key] = LoaderPass(steps, _length(iterator))
            if len(self._by_sampler) > MAX_PASSES_COUNT:
                del self._by_sampler[next(iter(self._by_sampler))]
        now.count = count
        now.learns = learns
        if now.length is not None and count >= now.length and not now.ended:
            now.ended = True
            event = now.kind(steps)
        return event


def _length(iterator: Any) -> int | None:
    """Return how many batches a pass has; None if that is not known before its end."""
    try:
        return len(iterator) if iterator._dataset_kind == _MAP_STYLE_NUMBER else None
    except Exception:  # a sampler without a length
        return None
