"""Guesses epochs and evaluations from passes over DataLoaders.

What a pass is shows while its batches are fetched: it learns if a step came after a batch that was fetched to learn
from. Such a pass is an epoch. It ends when its DataLoader is exhausted, or with the updates on its last batches if
these are fetched ahead, as Accelerate does; where that cannot be known, or the loop breaks off, when the next pass that
learns, or over the same data, begins. A pass that does not learn is an evaluation once it is exhausted. One with
updates between its batches is several, and the last of them continues with the next pass.

The iterator of a loop that failed may live on, in a traceback. So a pass is over, too, once another one that learns
begins at its place in the script, or after the function of its loop, in which the steps were.
"""

from __future__ import annotations

import sys
import weakref
from types import FrameType
from typing import Any

from looptap.agent.loop.calls.frame_variables import variable_names, variables_in
from looptap.agent.loop.sight.frames import LIBRARY, USER, kind_of_file
from looptap.streams.loop.loop_place import CallSite, LoopPlace, frames_to_loop, is_left, place_of_loop, spots_from

EPOCH, EVALUATION = "epoch", "evaluation"
RENEWAL = "renewal"
"""In place of an event: the script will take a new iterator in the middle of an evaluation."""
MAX_PASSES_COUNT = 64
"""Passes that are followed."""
MAX_AHEAD_COUNT = 16
"""Batches that may be fetched before the loop gets the first."""
_MAP_STYLE_NUMBER = 0
_BURSTS_COUNT = 2


class LoaderPass:
    """A pass over a DataLoader; ``length`` is the number of its batches if known."""

    def __init__(self, owner: LoaderPasses, iterator: Any, steps: int, ahead: bool, place: LoopPlace) -> None:
        self.owner = owner
        self.iterator = weakref.ref(iterator)
        data = _data_of(iterator)
        self.data = weakref.ref(data) if type(data).__weakrefoffset__ else None
        self.length = _length(iterator)
        self.count = self.steps = self.learned_at = 0
        self.began = steps
        """The updates before it, and, in `learned_at`, its batches at the last one."""
        self.ahead = ahead
        """True if a batch of the pass before is left to learn from as this one begins."""
        self.gradients = self.learns = self.learned = self.ended = False
        self.done = owner.backwards + steps
        """Backward passes and updates of the thread at the last batch."""
        self.pauses = [iterator._num_yielded]
        """How many batches it had fetched at first, and when the thread had first, and next, learned from some."""
        self.stack: list[tuple[int, int]] | None = None
        self.moved = False
        """True if the second batch is fetched elsewhere in the script than the first, which nothing has used."""
        self.variables: list[set[tuple[str, int]]] = []
        self.held = 0
        """Batches that a generator has fetched before the loop got its first."""
        self.place = place
        self.beside = False
        """True if it takes turns with another pass at its place, as those of ``zip`` do."""
        self.within: bool | None = None
        """True if the function of its loop runs in its backward passes: it is over once that does not."""

    def fetches(self, iterator: Any, count: int) -> bool:
        """Return True if ``iterator`` makes this pass, and has not begun again."""
        return self.iterator() is iterator and count >= self.count

    def go_on(self, count: int, done: int, steps: int) -> bool:
        """Note what followed the last batch, ``count`` having been fetched.

        Return True if its loop has begun again, and its last batch was fetched before that.
        """
        if steps > self.steps and self.learns:
            self.learned, self.learned_at = True, count
        again = self.ahead and done == self.done  # another one is fetched ahead
        self.ahead = self.ahead and not again
        self.ended = self.ended and count == self.length
        return again

    def note_fetch(self, count: int, done: int, caller: FrameType) -> None:
        """Note that a batch will be fetched, after ``count`` of them."""
        self.count = count
        if done != self.done:
            self.done = done
            if len(self.pauses) <= _BURSTS_COUNT:
                self.pauses.append(count)
        elif len(self.pauses) == 1 and count <= MAX_AHEAD_COUNT:
            if count < _BURSTS_COUNT:
                stack = [one[1:] for one in spots_from(caller)]
                self.moved, self.stack = self.stack not in (None, stack), stack
            before, self.variables = self.variables, _variables_of(caller)
            self.held += self.variables[-1:] == before[-1:] and self.variables != before

    def exhaust(self) -> str | None:
        """Note that all batches are fetched; return the event of that, if it is one."""
        self.ended = True
        if self.learned or self.learns:
            return EPOCH if self.learned else None
        return EVALUATION if self.steps == self.began else RENEWAL

    def break_off(self) -> bool:
        """End it; return True if that ends an epoch."""
        owner = self.owner
        early = self.learned and not self.ended and self.steps > owner.epoch_steps
        if early:
            owner.epoch_steps = self.steps
        self.ended = True
        return early

    def updates_left(self, steps: int) -> int:
        """Return how many updates follow on its batches, all of which are fetched.

        More were fetched before the first update than before the next one then. The loop had got none of them, or they
        were fetched elsewhere; a script that resumes may leave out the first batches, too. If a batch was left when
        this pass began, one is left at its end.
        """
        begin, then, next_time = (*self.pauses, *[self.count] * _BURSTS_COUNT)[: _BURSTS_COUNT + 1]
        more: int = max(then - begin - max(next_time - then, 1), 0)
        left = min(self.held, more) or int(self.ahead or (more > 0 and self.moved))
        used, updates = self.learned_at - more, steps - self.began
        return left and max(-(-(self.count - more + left) * updates // max(used, 1)) - updates, 1)

    def is_left(self, place: LoopPlace) -> bool:
        """Return True if its loop is over as one that learns begins at ``place``."""
        return is_left(self.place, place, bool(self.within), again=not self.beside)

    def reads(self, iterator: Any) -> bool:
        """Return True if ``iterator`` is over the same data."""
        return self.data is not None and self.data() is _data_of(iterator)


class LoaderPasses:
    """The passes of a thread over DataLoaders; ``by_iterator`` has those of all."""

    def __init__(self, by_iterator: dict[int, LoaderPass]) -> None:
        self._by_iterator = by_iterator
        self.epoch_steps = 0
        """Updates before the last epoch ended."""
        self._last: LoaderPass | None = None
        self.backwards = 0
        """Backward passes of the thread."""
        self._made: weakref.WeakKeyDictionary[Any, tuple[CallSite, ...]] = weakref.WeakKeyDictionary()
        self._due = 0  # updates until an epoch ends whose last batches were fetched ahead
        self._perhaps = 0  # the same of a pass of which all were, which may be none to learn from

    def note_made(self, iterator: Any, frame: FrameType) -> None:
        """Note where in the script an iterator is made."""
        self._made[iterator] = spots_from(frame)

    def before_batch(self, iterator: Any, steps: int, gradients: bool, in_mode: bool = True) -> tuple[bool, str | None]:
        """Note a fetch; return if an epoch is overdue, and the event of the fetch.

        ``steps`` is how many updates the thread has done; ``gradients`` says that they are on, ``in_mode`` that the
        model is in the mode in which it is trained.
        """
        learns, done, caller = gradients and in_mode, self.backwards + steps, sys._getframe(1)
        now, count = self._by_iterator.get(id(iterator)), iterator._num_yielded
        begins = now is None or not now.fetches(iterator, count)
        broken_off = again = False
        if now is None or begins:
            place = place_of_loop(caller, self._made.get(iterator, ()))
            broken_off = self._broken_off(iterator, learns, place)
            ahead = bool(self._due and self._last and self._last.reads(iterator))
            now = self._by_iterator[id(iterator)] = LoaderPass(self, iterator, steps, ahead, place)
            self._perhaps = 0
        else:
            again = now.go_on(count, done, steps)
            self._note_beside(now)
        now.note_fetch(count, done, caller)
        now.steps, now.gradients, now.learns, self._last = steps, gradients, learns, now
        event = self._event_of(now, begins, EPOCH if broken_off else None)
        if begins:  # a batch of the pass before may be left, for which the end of its epoch waits
            overdue = not now.ahead and self.take_due()
        else:
            overdue = (again or not learns or event is not None) and self.take_due()
        if event == EPOCH and now.ended and (left := now.updates_left(steps)):
            event, self._due = None, left
        return overdue, event

    def _event_of(self, now: LoaderPass, begins: bool, event: str | None) -> str | None:
        """Return the event of a fetch; ``event`` is that of a pass which ``now`` ends."""
        if now.length is not None and now.count >= now.length and not now.ended:
            event = now.exhaust()
            self._perhaps = 0 if event else max(now.held, 1)
        if event != EPOCH:
            return event
        before, self.epoch_steps = self.epoch_steps, now.steps
        return EPOCH if begins or now.steps > before else None  # of loaders side by side one makes the epoch

    def _note_beside(self, now: LoaderPass) -> None:
        """Note two passes that take turns at one place of the script."""
        last = self._last
        if last not in (None, now) and last.learns and now.place.is_at(last.place):
            last.beside = now.beside = True

    def note_epoch(self, steps: int) -> None:
        """Note an epoch that a framework has announced, after so many updates."""
        self.epoch_steps = steps

    def note_update(self) -> bool:
        """Note an update; return True if an epoch has waited for it."""
        due, self._perhaps = self._due or self._perhaps, 0
        self._due = max(due - 1, 0)
        return due == 1

    def take_due(self) -> bool:
        """Return True once for an epoch that waits for its last update."""
        due, self._due = self._due, 0
        return due > 0

    def note_backward(self) -> None:
        """Note a backward pass, which the last batch turns out to be for.

        Some loops set the mode of the model after they have fetched the first batch.
        """
        self.backwards += 1
        if self._last is not None and self._last.gradients:
            self._last.learns = True
            if self._last.within is None:
                self._last.place = self._last.place.at_steps()
                self._last.within = self._last.place.runs

    def _broken_off(self, iterator: Any, learns: bool, place: LoopPlace) -> bool:
        """Return True if a pass that learned has ended early; forget those that have.

        A new pass shows it that ``learns``, such as that of a training after one that failed, or is over the same data.
        """
        found = False
        for key, old in [*self._by_iterator.items()]:
            holder = old.iterator()
            over = holder is None and (learns or old.ended or not old.learned or old.reads(iterator))
            if holder is iterator or over:
                self._by_iterator.pop(key, None)
            elif not (learns and old.is_left(place)):
                continue
            found = old.break_off() or found
        if len(self._by_iterator) >= MAX_PASSES_COUNT:
            self._by_iterator.pop(next(iter(self._by_iterator)), None)
        return found


def _variables_of(frame: FrameType | None) -> list[set[tuple[str, int]]]:
    """Return what changes as a function gets a value, outward up to that of the loop."""
    shown = [one for one in frames_to_loop(frame) if kind_of_file(one.f_code.co_filename) in (USER, LIBRARY)]
    return [{(name, id(value)) for name, value in variables_in(one, variable_names(one))} for one in shown]


def _data_of(iterator: Any) -> Any:
    return iterator._index_sampler


def _length(iterator: Any) -> int | None:
    """Return how many batches a pass has; None if that is not known before its end."""
    try:
        return len(iterator) if iterator._dataset_kind == _MAP_STYLE_NUMBER else None
    except Exception:  # a sampler without a length
        return None
