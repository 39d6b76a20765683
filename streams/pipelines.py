"""Compiled queries: push stages that run to completion at each event.

`Pipeline.post(item)` is the paper's postable iterator: an event goes in, none, one or several outputs come out;
`Pipeline.close()` is its flag B, the end of a window. Nothing is suspended between two calls, so that no mode of
torch can leak into the loop and any thread may post.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from looptap.streams.reducers import Reducer
from looptap.streams.snapshots import take_item
from looptap.streams.syntax import format_error
from looptap.streams.trust import Sight
from looptap.streams.windows import Count, Group, Seconds, Sliding, Window

PARTIAL, ERROR = 1, 2
"""Flags of an output: a cut window; the text of an error in place of a value."""

Output = tuple[int, Any]
Feed = Callable[[Any], Any]


class Items:
    """A per-event sequence: ``feed(event)`` gives its item (``one``) or the items that this event adds."""

    __slots__ = ("bare", "copied", "feed", "one", "resets")

    def __init__(
        self,
        feed: Feed,
        one: bool,
        bare: bool = False,
        copied: bool = False,
        resets: Iterable[Callable[[], None]] = (),
    ) -> None:
        self.feed, self.one, self.bare, self.copied = feed, one, bare, copied
        self.resets = list(resets)

    def items(self, event: Any) -> Iterable[Any]:
        """The items that this event adds."""
        return (self.feed(event),) if self.one else self.feed(event)


class Slot:
    """One reducing part of a query: its items stream into a reducer that starts anew with each window."""

    def __init__(self, sequence: Items, make: Callable[[], Reducer]) -> None:
        self.sequence, self.make = sequence, make
        self._feed, self._one, self._ours = sequence.feed, sequence.one, sequence.bare or sequence.copied
        self.reset()

    def reset(self) -> None:
        """Begin a window."""
        self.reducer = self.make()
        self._add = self.reducer.add
        for reset in self.sequence.resets:
            reset()

    def post(self, event: Any) -> None:
        """Let the items of this event into the reducer."""
        if self._ours:
            self._add(self._feed(event))
        elif self._one:
            self._add(take_item(self._feed(event)))
        else:
            for item in self._feed(event):
                self._add(take_item(item))

    def result(self) -> Any:
        """What the window has come to."""
        return self.reducer.result()

    def total(self) -> Reducer:
        """The reducer of the window's items."""
        return self.reducer


class SlidingSlot:
    """A reducing part over the last ``size`` events.

    A reducer that merges in constant time is kept as two stacks of partial results (amortized O(1) an event); any
    other is fed again from the kept items when somebody asks.
    """

    def __init__(self, sequence: Items, make: Callable[[], Reducer], size: int, merges: bool) -> None:
        self.sequence, self.make, self.size, self.merges = sequence, make, size, merges
        self.reset()

    def reset(self) -> None:
        """Forget all events."""
        self._front: list[Reducer] = []  # suffixes of the older half, the longest last
        self._back: deque[list[Any]] = deque()  # the items of the younger half, event by event
        self._tail = self.make()  # all of the younger half
        for reset in self.sequence.resets:
            reset()

    def post(self, event: Any) -> None:
        """Let this event in and the oldest out."""
        items: list[Any]
        if self.sequence.bare:
            items = [None]  # only counted: the event itself must not outlive emit
        elif self.sequence.copied:
            items = [self.sequence.feed(event)]
        else:
            items = [take_item(x) for x in self.sequence.items(event)]
        if len(self._front) + len(self._back) == self.size:
            self._drop_oldest()
        self._back.append(items)
        if self.merges:
            for item in items:
                self._tail.add(item)

    def _drop_oldest(self) -> None:
        if not self.merges:
            self._back.popleft()
            return
        if not self._front:
            suffix: Reducer | None = None
            for items in reversed(self._back):
                reducer = self.make()
                for item in items:
                    reducer.add(item)
                if suffix is not None:
                    reducer.merge(suffix)
                self._front.append(reducer)
                suffix = reducer
            self._back.clear()
            self._tail = self.make()
        self._front.pop()

    def result(self) -> Any:
        """What the last events come to."""
        return self.total().result()

    def total(self) -> Reducer:
        """A reducer of the items of the last events."""
        total = self.make()
        if self.merges:
            if self._front:
                total.merge(self._front[-1])
            total.merge(self._tail)
        else:
            for items in self._back:
                for item in items:
                    total.add(item)
        return total


class Latest:
    """A place for the newest value of an observable of another event type."""

    def __init__(self, event: str, name: str) -> None:
        self.event, self.name, self.value = event, name, None
        self.problem = ""
        """Why the event does not have it."""

    def get(self) -> Any:
        """The newest value, None before the first."""
        return self.value


class Pipeline:
    """What mapped and reducing pipelines share; ``every`` and ``throttle`` live here.

    ``errors`` are formatted tracebacks' sources: outputs flagged ERROR carry text. ``skipped`` counts the values
    that ``throttle`` held back.
    """

    mapped: bool

    def __init__(self, text: str, window: Window, every: int, throttle: float) -> None:
        self.text, self.window, self.every, self.throttle = text, window, every, throttle
        self.fields: tuple[str, ...] | None = None
        self.notes: list[str] = []
        self.explanation: list[str] = []
        self.sight: Sight | None = None
        """What it reads of an event, if it is harmless where that is plain."""
        self.reads: frozenset[str] = frozenset()
        self.mentions: frozenset[str] = frozenset()  # names and texts in the code, where it is not known to be harmless
        self.hands_over = False  # whether it hands an event to other code, which may read anything of it
        self.function: Callable[..., Any] | None = None  # the Python function that it was made of
        self.language: frozenset[str] = frozenset()  # the names it uses that an observable may turn out to hide
        self.numbers: frozenset[str] | None = None  # all that it reads of an event, if it is arithmetic
        self.latest: list[Latest] = []
        self.skipped = 0
        self.events = 0  # in the open window
        self.partial = False
        self._next = -math.inf
        self._start: float | None = None

    @property
    def trusted(self) -> bool:
        """Whether it is harmless where what it reads is plain."""
        return self.sight is not None

    def explain(self) -> str:
        """What of the query streams, what is collected, and when it yields."""
        return "\n".join([*self.explanation, *self.notes])

    def post(self, item: Any, number: int = 0, now: float = 0.0) -> Sequence[Output]:
        """The outputs that this event brings. A mapped query raises what its expression raises."""
        raise AssertionError("a pipeline is Mapped or Reducing")

    def close(self, now: float = 0.0) -> Sequence[Output]:
        """End the window (flag B); the outputs that this brings."""
        raise AssertionError("a pipeline is Mapped or Reducing")

    def begin(self, partial: bool) -> None:
        """Say that the open window began before the query did."""
        self.partial = partial

    def _due(self, now: float) -> bool:
        """Whether ``throttle`` lets a value out now."""
        if now < self._next:
            self.skipped += 1
            return False
        self._next = now + self.throttle
        return True

    def _elapsed(self, now: float, size: float) -> bool:
        """Whether a window of ``size`` seconds ended before this event; windows stay aligned to the first."""
        if self._start is None:
            self._start = now
        passed = now - self._start
        if passed < size:
            return False
        self._start += math.floor(passed / size) * size
        return True


class Mapped(Pipeline):
    """A query that yields at each event: an expression, a function, a generator, a running fold."""

    mapped = True

    def __init__(
        self,
        text: str,
        window: Window,
        every: int,
        throttle: float,
        sequence: Items,
        slots: Sequence[SlidingSlot],
        rebind: Callable[[Any], Items | None],
    ) -> None:
        super().__init__(text, window, every, throttle)
        self.sequence, self.slots = sequence, slots
        self._rebind: Callable[[Any], Items | None] | None = rebind
        self.restarts = bool(sequence.resets)
        self._plain = sequence.one and not slots and not self.restarts and not throttle

    def feed(self) -> Feed | None:
        """What `post` comes to where it is no more than one function of the event; None before the first event.

        To whoever looks at ``every`` itself.
        """
        return self.sequence.feed if self._plain and self._rebind is None else None

    def post(self, item: Any, number: int = 0, now: float = 0.0) -> Sequence[Output]:
        """Evaluate the query at this event. Raises what its expression raises."""
        if self._rebind is not None:
            self.sequence = self._rebind(item) or self.sequence
            self._rebind = None
        if self.every != 1 and number % self.every:
            return ()
        if self.restarts:
            self._restart(now)
        for slot in self.slots:
            slot.post(item)
        if self.throttle and not self._due(now):
            return ()
        return [(0, value) for value in self.sequence.items(item)]

    def close(self, now: float = 0.0) -> Sequence[Output]:
        """Start running folds anew; a mapped query has nothing to yield at a close."""
        self.events = 0
        for reset in self.sequence.resets:
            reset()
        return ()

    def _restart(self, now: float) -> None:
        window = self.window
        over = isinstance(window, Seconds) and self._elapsed(now, window.size)
        if over or (isinstance(window, Count) and self.events == window.size):
            self.close(now)
        self.events += 1


class Reducing(Pipeline):
    """A query that yields when its window closes; with a sliding window, at every event."""

    mapped = False

    def __init__(
        self,
        text: str,
        window: Window,
        every: int,
        throttle: float,
        slots: Sequence[Slot | SlidingSlot],
        inner: Sequence[SlidingSlot],
        finish: Callable[[], Any],
    ) -> None:
        super().__init__(text, window, every, throttle)
        self.slots, self.inner, self.finish = slots, inner, finish
        self.failure: str | None = None
        # Asked for at each event: what kind of window it is.
        self._count = window.size if isinstance(window, Count) else math.inf
        self._seconds = window.size if isinstance(window, Seconds) else 0.0
        self._slides = isinstance(window, Sliding)

    def post(self, item: Any, number: int = 0, now: float = 0.0) -> Sequence[Output]:
        """Let the event into every part; the outputs of windows that this closes. Errors become outputs."""
        if self.every != 1 and number % self.every:
            return ()
        outputs: Sequence[Output] = ()
        if self._seconds and self._elapsed(now, self._seconds):
            outputs = self.close(now)
        self.events += 1
        if self.failure is None:
            try:
                if self.inner:
                    for inner in self.inner:
                        inner.post(item)
                for slot in self.slots:
                    slot.post(item)
            except Exception as error:  # this window is lost; the next one starts clean
                self.failure = format_error(error, self.text)
            except BaseException:  # Ctrl-C between two parts: the window is not whole any more
                self.partial = True
                raise
        if self._slides:
            return self._sliding(now)
        return self.close(now) if self.events >= self._count else outputs

    def close(self, now: float = 0.0) -> Sequence[Output]:
        """Yield the window, if it had events and is not sliding, and begin the next."""
        if not self.events or isinstance(self.window, Sliding):
            return ()
        output = self._value()
        self._reset()
        return () if self.throttle and not self._due(now) else (output,)

    def merge(self, later: Reducing) -> None:
        """Take in the open window of another instance of this query: of another rank, or a later part of the window.

        Raises TypeError if a part of the query cannot be merged.
        """
        for mine, other in zip(self.slots, later.slots, strict=True):
            if not isinstance(mine, Slot) or not isinstance(other, Slot) or not mine.reducer.mergeable:
                raise TypeError(f"{self.text!r} has a part that cannot be merged.")
            mine.reducer.merge(other.reducer)
        self.events += later.events
        self.partial = self.partial or later.partial
        self.failure = self.failure or later.failure

    def _value(self) -> Output:
        flags = PARTIAL if self.partial else 0
        if self.failure is None:
            try:
                return flags, self.finish()
            except Exception as error:
                self.failure = format_error(error, self.text)
        return flags | ERROR, self.failure

    def _sliding(self, now: float) -> Sequence[Output]:
        output = () if self.throttle and not self._due(now) else (self._value(),)
        if self.failure is not None:
            self._reset()
        return output

    def _reset(self) -> None:
        self.events, self.partial, self.failure = 0, False, None
        for slot in self.slots:
            slot.reset()


def needs_group(pipeline: Pipeline) -> bool:
    """Whether the end of the host's group matters to this query."""
    return isinstance(pipeline.window, Group) and (isinstance(pipeline, Reducing) or _restarts(pipeline))


def _restarts(pipeline: Pipeline) -> bool:
    return isinstance(pipeline, Mapped) and pipeline.restarts
