"""Guesses epochs and evaluations from passes over DataLoaders.

What a pass is shows while its batches are fetched: it learns if a step came after a batch that was fetched to learn
from. Such a pass is an epoch. It ends when its DataLoader is exhausted, or with the update after that if its batches
are fetched one ahead, as Accelerate does; where that cannot be known, or the loop breaks off, when the next pass over
the same data begins. A pass that does not learn is an evaluation once it is exhausted.
"""

from __future__ import annotations

import weakref
from typing import Any

EPOCH, EVALUATION = "epoch", "evaluation"
MAX_PASSES_COUNT = 64
"""Passes that are followed."""
_MAP_STYLE_NUMBER = 0


class LoaderPass:
    """A pass over a DataLoader; ``length`` is the number of its batches if known."""

    __slots__ = (
        "ahead", "backwards", "count", "data", "ended", "gradients", "iterator", "learned", "learns", "length", "steps",
    )  # fmt: skip

    def __init__(self, iterator: Any, backwards: int) -> None:
        self.iterator = weakref.ref(iterator)
        data = _data_of(iterator)
        self.data = weakref.ref(data) if type(data).__weakrefoffset__ else None
        self.length = _length(iterator)
        self.count = self.steps = 0
        self.gradients = self.learns = self.learned = self.ended = self.ahead = False
        self.backwards = backwards

    def reads(self, iterator: Any) -> bool:
        """Return True if ``iterator`` is over the same data."""
        return self.data is not None and self.data() is _data_of(iterator)


class LoaderPasses:
    """The passes over the DataLoaders of a process."""

    def __init__(self) -> None:
        self._by_iterator: dict[int, LoaderPass] = {}
        self._epoch_steps = 0  # updates before the last epoch ended
        self._last: LoaderPass | None = None
        self._backwards = 0
        self._due = False

    def before_batch(self, iterator: Any, steps: int, gradients: bool, in_mode: bool = True) -> str | None:
        """Note that a batch will be fetched; return the event that this is, if any.

        ``steps`` is how many updates the thread has done; ``gradients`` says that they are on, ``in_mode`` that the
        model is in the mode in which it is trained.
        """
        learns = gradients and in_mode
        now, count, event = self._by_iterator.get(id(iterator)), iterator._num_yielded, None
        if now is None or now.iterator() is not iterator or count < now.count:
            event = EPOCH if self._broken_off(iterator) else None
            now = self._by_iterator[id(iterator)] = LoaderPass(iterator, self._backwards)
        elif steps > now.steps and now.learns:
            now.learned = True
        if count == 1:  # the second batch is fetched before the first is learned from
            now.ahead = self._backwards == now.backwards
        now.count, now.steps, now.gradients, now.learns, self._last = count, steps, gradients, learns, now
        if now.length is not None and count >= now.length and not now.ended:
            now.ended = True
            event = EPOCH if now.learned else None if learns else EVALUATION
        if event == EPOCH:  # of loaders side by side one makes the epoch: the others have had no step since
            event, self._epoch_steps = EPOCH if steps > self._epoch_steps else None, steps
            if event is not None and now.ended and now.ahead:
                event, self._due = None, True
        return event

    def take_due(self) -> bool:
        """Return True once for an epoch whose last batch was fetched ahead."""
        due, self._due = self._due, False
        return due

    def note_backward(self) -> bool:
        """Note a backward pass; return True if the last batch turns out to be for it.

        Some loops set the mode of the model after they have fetched the first batch.
        """
        self._backwards += 1
        last = self._last
        if last is None or last.learns or not last.gradients:
            return False
        last.learns = True
        return True

    def _broken_off(self, iterator: Any) -> bool:
        """Return True if a pass over this data has ended early; forget those that have."""
        found = False
        for key, old in [*self._by_iterator.items()]:
            holder = old.iterator()
            if holder is iterator or (holder is None and (old.ended or not old.learned or old.reads(iterator))):
                del self._by_iterator[key]
                found = found or (old.learned and not old.ended)
        if len(self._by_iterator) >= MAX_PASSES_COUNT:
            del self._by_iterator[next(iter(self._by_iterator))]
        return found


def _data_of(iterator: Any) -> Any:
    return iterator._index_sampler


def _length(iterator: Any) -> int | None:
    """Return how many batches a pass has; None if that is not known before its end."""
    try:
        return len(iterator) if iterator._dataset_kind == _MAP_STYLE_NUMBER else None
    except Exception:  # a sampler without a length
        return None
