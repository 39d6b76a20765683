"""Guesses epochs and evaluations from passes over DataLoaders.

What a pass is shows while its batches are fetched: it learns if a step came after a batch that was fetched to learn
from. Such a pass is an epoch. It ends when its DataLoader is exhausted, or with the updates on its last batch if its
batches are fetched one ahead, as Accelerate does; where that cannot be known, or the loop breaks off, when the next
pass that learns, or over the same data, begins. A pass that does not learn is an evaluation once it is exhausted.
"""

from __future__ import annotations

import inspect
import sys
import weakref
from types import FrameType
from typing import Any

from looptap.agent.loop.sight.frames import LIBRARY, USER, kind_of_file

EPOCH, EVALUATION = "epoch", "evaluation"
MAX_PASSES_COUNT = 64
"""Passes that are followed."""
MAX_FRAMES_COUNT = 40
"""Frames that tell where a batch is fetched."""
_MAP_STYLE_NUMBER = 0
_BURSTS_COUNT = 2

Stack = tuple[tuple[int, int], ...]


class LoaderPass:
    """A pass over a DataLoader; ``length`` is the number of its batches if known."""

    __slots__ = (
        "ahead", "count", "data", "done", "ended", "gradients", "iterator", "learned", "learns", "length", "moved",
        "pauses", "stack", "steps",
    )  # fmt: skip

    def __init__(self, iterator: Any, done: int, ahead: bool) -> None:
        self.iterator = weakref.ref(iterator)
        data = _data_of(iterator)
        self.data = weakref.ref(data) if type(data).__weakrefoffset__ else None
        self.length = _length(iterator)
        self.count = self.steps = 0
        self.ahead = ahead
        """True if a batch of the pass before is left to learn from as this one begins."""
        self.gradients = self.learns = self.learned = self.ended = False
        self.done = done
        """Backward passes and updates of the thread at the last batch."""
        self.pauses = [iterator._num_yielded]
        """How many batches it had fetched at first, and when the thread had first, and next, learned from some."""
        self.stack: Stack | None = None
        self.moved = False
        """True if the second batch is fetched elsewhere in the script than the first, which nothing has used."""

    def note_fetch(self, count: int, done: int, caller: FrameType) -> None:
        """Note that a batch will be fetched, after ``count`` of them."""
        if done != self.done:
            self.done = done
            if len(self.pauses) <= _BURSTS_COUNT:
                self.pauses.append(count)
        elif count < _BURSTS_COUNT:
            stack = _stack_of(caller)
            self.moved, self.stack = self.stack not in (None, stack), stack

    def is_ahead(self, caller: FrameType) -> bool:
        """Return True if a batch is left to learn from now that all are fetched.

        More were fetched before the first update than before the next one then: from elsewhere, or by a generator, and
        one more. A script that resumes may leave out the first batches, too. If such a batch was left when this pass
        began, one is left at its end.
        """
        begin, then, next_time = (*self.pauses, *[self.count] * _BURSTS_COUNT)[: _BURSTS_COUNT + 1]
        first, second = then - begin, next_time - then
        known = len(self.pauses) > _BURSTS_COUNT
        one_more = known and first == second + 1 and _is_in_generator(caller)
        return self.ahead or (first > max(second, 1) and (self.moved or one_more))

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
        self._due = 0  # updates until an epoch ends whose last batch was fetched ahead
        self._perhaps = False  # an update before the next pass ends an epoch of which all batches were fetched ahead

    def before_batch(self, iterator: Any, steps: int, gradients: bool, in_mode: bool = True) -> tuple[bool, str | None]:
        """Note a fetch; return if an epoch is overdue, and the event of the fetch.

        ``steps`` is how many updates the thread has done; ``gradients`` says that they are on, ``in_mode`` that the
        model is in the mode in which it is trained.
        """
        learns, done, caller = gradients and in_mode, self._backwards + steps, sys._getframe(1)
        now, count, event, ahead = self._by_iterator.get(id(iterator)), iterator._num_yielded, None, False
        begins = now is None or now.iterator() is not iterator or count < now.count
        if now is None or begins:
            event = EPOCH if self._broken_off(iterator, learns) else None
            ahead = bool(self._due and self._last and self._last.reads(iterator))
            now = self._by_iterator[id(iterator)] = LoaderPass(iterator, done, ahead)
            self._perhaps = False
        elif steps > now.steps and now.learns:
            now.learned = True
        now.note_fetch(count, done, caller)
        last_steps = steps - now.steps
        now.count, now.steps, now.gradients, now.learns, self._last = count, steps, gradients, learns, now
        if now.length is not None and count >= now.length and not now.ended:
            now.ended = True
            event = EPOCH if now.learned else None if learns else EVALUATION
            self._perhaps = event is None
        if event == EPOCH:  # of loaders side by side one makes the epoch: the others have had no step since
            event, self._epoch_steps = EPOCH if steps > self._epoch_steps else None, steps
        overdue = not ahead and (begins or not learns or event is not None) and self.take_due()
        if event == EPOCH and now.ended and now.is_ahead(caller):
            event, self._due = None, max(last_steps, 1)
        return overdue, event

    def note_epoch(self, steps: int) -> None:
        """Note an epoch that a framework has announced, after so many updates."""
        self._epoch_steps = steps

    def note_update(self) -> bool:
        """Note an update; return True if an epoch has waited for it."""
        perhaps, self._perhaps = self._perhaps, False
        due, self._due = self._due, max(self._due - 1, 0)
        return perhaps or due == 1

    def take_due(self) -> bool:
        """Return True once for an epoch that waits for its last update."""
        due, self._due = self._due, 0
        return due > 0

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

    def _broken_off(self, iterator: Any, learns: bool) -> bool:
        """Return True if a pass that learned has ended early; forget those that have.

        A new pass shows it that ``learns``, such as that of a training after one that failed, or is over the same data.
        """
        found = False
        for key, old in [*self._by_iterator.items()]:
            holder = old.iterator()
            over = holder is None and (learns or old.ended or not old.learned or old.reads(iterator))
            if holder is iterator or over:
                del self._by_iterator[key]
                found = found or (old.learned and not old.ended)
        if len(self._by_iterator) >= MAX_PASSES_COUNT:
            del self._by_iterator[next(iter(self._by_iterator))]
        return found


def _stack_of(frame: FrameType | None) -> Stack:
    """Return at which instructions the functions are, outward from ``frame``."""
    found: list[tuple[int, int]] = []
    while frame is not None and len(found) < MAX_FRAMES_COUNT:
        found.append((id(frame.f_code), frame.f_lasti))
        frame = frame.f_back
    return tuple(found)


def _is_in_generator(frame: FrameType | None) -> bool:
    """Return True if what fetches, outward from ``frame``, is a generator."""
    while frame is not None and kind_of_file(frame.f_code.co_filename) not in (USER, LIBRARY):
        frame = frame.f_back
    return frame is not None and bool(frame.f_code.co_flags & inspect.CO_GENERATOR)


def _data_of(iterator: Any) -> Any:
    return iterator._index_sampler


def _length(iterator: Any) -> int | None:
    """Return how many batches a pass has; None if that is not known before its end."""
    try:
        return len(iterator) if iterator._dataset_kind == _MAP_STYLE_NUMBER else None
    except Exception:  # a sampler without a length
        return None
