"""Read a stream as it grows, with ``for`` or ``async for``, from any position."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Any, Protocol

from looptap.streams.errors import StreamEnded, StreamTimeout
from looptap.streams.stream.feed import Feed
from looptap.streams.stream.state_and_cost import FAILED

if TYPE_CHECKING:
    import asyncio

MAX_VALUES_PER_READ = 1024
"""Values that a reader takes at a time."""


class Followed(Protocol):
    """A stream as its reader sees it."""

    feed: Feed

    @property
    def title(self) -> str:
        """The name of the stream in messages."""

    def outlook(self) -> str:
        """Return why values do not arrive, if that is known."""


class Follow:
    """The values of a stream from a position on: those here, then those to come.

    Iteration ends when the stream ends, raises StreamEnded after the last value if it failed, and StreamTimeout if
    ``timeout`` seconds pass without a value.
    """

    def __init__(self, stream: Followed, position: int, timeout: float | None) -> None:
        self._stream, self._position, self._timeout = stream, position, timeout

    def __iter__(self) -> Iterator[Any]:
        feed, position = self._stream.feed, self._position
        while True:
            values, position, over = feed.take(position, MAX_VALUES_PER_READ)
            yield from values
            if over:
                self._end()
                return
            if not values and not feed.await_item(position, self._timeout):
                raise self._timed_out()

    async def __aiter__(self) -> AsyncIterator[Any]:
        import asyncio  # takes 50 ms to load, and a program with a running loop has it

        feed, position = self._stream.feed, self._position
        loop = asyncio.get_running_loop()
        while True:
            values, position, over = feed.take(position, MAX_VALUES_PER_READ)
            for value in values:
                yield value
            if over:
                self._end()
                return
            if values:
                await asyncio.sleep(0)  # a fast stream must not starve the loop
            else:
                await self._changed(loop, position)

    async def _changed(self, loop: asyncio.AbstractEventLoop, position: int) -> None:
        import asyncio

        changed: asyncio.Future[None] = loop.create_future()

        def wake() -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed, and the waiting task with it
                loop.call_soon_threadsafe(_resolve, changed)

        if not self._stream.feed.wake_at_item(position, wake):
            return
        try:
            async with asyncio.timeout(self._timeout):
                await changed
        except TimeoutError:
            raise self._timed_out() from None
        finally:
            self._stream.feed.forget_wake(wake)

    def _end(self) -> None:
        if self._stream.feed.state == FAILED:
            raise StreamEnded(f"{self._stream.title} failed: {self._stream.feed.reason}")

    def _timed_out(self) -> StreamTimeout:
        outlook = self._stream.outlook()
        text = f"{self._stream.title} yielded no value for {self._timeout:g} s."
        return StreamTimeout(f"{text} {outlook}" if outlook else text)


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
