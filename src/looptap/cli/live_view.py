"""The live view of `looptap watch`: a paragraph per query, redrawn in place."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.text import Text

from looptap.cli.formats import cost, printable, problems, several, stated, value_text
from looptap.cli.tail import Rate, Tail, TailItem, numbers_in
from looptap.client.run import Run
from looptap.client.streams.live import LiveStream
from looptap.streams.text import last_line
from looptap.visualizers.drawing.backends.blocks import sparkline

if TYPE_CHECKING:
    from looptap.store.run import StoredRun

_MAX_CURVE_NUMBERS = 4096  # numbers of the curve
_MIN_FRAME_SECONDS = 0.1  # seconds between two drawings


class LiveView:
    """A paragraph per query: newest values, a curve, losses, errors and cost."""

    def __init__(self, run: Run | StoredRun, tails: Sequence[Tail]) -> None:
        self._run = run
        self._parts = {id(tail): QueryView(tail, lines=max(3, 10 // len(tails))) for tail in tails}
        self._live = Live(self, console=Console(highlight=False), auto_refresh=False)
        self._drawn = 0.0

    def __enter__(self) -> LiveView:
        self._live.start(refresh=True)
        return self

    def __exit__(self, *_: object) -> None:
        self._live.refresh()
        self._live.stop()

    def show(self, tail: Tail, news: Sequence[TailItem]) -> None:
        """Add the new items of one stream."""
        self._parts[id(tail)].add(news)

    def turn(self) -> None:
        """Redraw, at most ten times per second."""
        now = time.monotonic()
        if now - self._drawn >= _MIN_FRAME_SECONDS:
            self._drawn = now
            self._live.refresh()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        parts = list(self._parts.values())
        run = self._run
        events = ", ".join(f"{name} {count:,}" for name, count in run.events().items() if count) or "no event yet"
        wrong = run.state in ("lost", "silent", "failed")
        link = (f"  {run.state}: {printable(run.reason)}", "red") if wrong else ("", "")
        yield Text.assemble((printable(run.id), "bold"), f"  {printable(events)}", link)
        for part in parts:
            yield from part.draw(options.max_width)


class QueryView:
    """The paragraph of one query."""

    def __init__(self, tail: Tail, lines: int) -> None:
        self.tail = tail
        self._newest: deque[Text] = deque(maxlen=lines)
        self._numbers: deque[float | None] = deque(maxlen=_MAX_CURVE_NUMBERS)
        self._failure = ""
        self._rate = Rate()

    def add(self, news: Sequence[TailItem]) -> None:
        """Add new items."""
        for record, missing, run in news:
            if missing != 0:
                self._numbers.append(None)
                self._newest.append(Text(f"  -- {'?' if missing is None else f'{missing:,}'} missing here --", "red"))
            if run:
                self._newest.append(Text(f"  -- run {printable(run)} --", "yellow"))
            if record.error is not None:
                self._newest.append(Text(f"{record.event:>9}  {printable(last_line(record.error))}", "red"))
                continue
            place, marks = f"  {self.tail.place(record)}".rstrip(), " (partial)" * record.partial
            self._newest.append(Text(f"{record.event:>9}{place}{marks}  {value_text(record.value, 1000)}"))
            self._numbers.extend(numbers_in(record.value))
        self._failure = self.tail.failure() or self._failure
        self._rate.count(self.tail.values)

    def draw(self, width: int) -> Iterator[Text]:
        """Yield the lines of the paragraph, which are not wrapped."""
        for text in self._lines(width):
            text.truncate(width, overflow="ellipsis")
            yield text

    def _lines(self, width: int) -> Iterator[Text]:
        stream = self.tail.stream
        yield Text("")
        over = f"  {stream.state}: {printable(stream.reason)}" if stream.state != "live" else ""
        yield Text.assemble((stream.name.replace("\n", " "), "bold cyan"), (f"  on {stream.on}", "dim"), over)
        missing = stated((f"{stream.dropped:,} missing", stream.dropped))
        wrong = [*missing, *problems(stream.withheld, stream.error_count)]
        values = f"  {several(self.tail.values, 'value')}, {float(self._rate):,.0f} per second"
        yield Text.assemble(values, ("".join(f", {text}" for text in wrong), "red"), f"; {cost(*stream.cost)}")
        if stream.state == "live" and isinstance(stream, LiveStream) and stream.awaits_group:
            yield Text("  waits for a group such as an epoch to end; --window 100 ends one in 100 events", "yellow")
        if len(self._numbers) > 1:
            yield Text("  " + sparkline(list(self._numbers), width - 4), "green")
        yield from (text.copy() for text in self._newest)
        for note in stream.notes:
            yield Text(f"  note: {printable(note)}", "yellow")
        for line in self._failure.rstrip().splitlines()[-5:]:
            yield Text(f"  {printable(line)}", "red")
