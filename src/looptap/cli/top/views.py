"""The parts of the screen of `looptap top`, as text that is safe for a terminal."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from rich.text import Text

from looptap.cli.formats import cost, printable, problems, several, sized, stated, value_text
from looptap.cli.tail import Rate, numbers_in
from looptap.cli.top.model import Facts, Rank
from looptap.client.control.controls import CHANGES, command_name, line_of_command
from looptap.client.estimates import banded, said
from looptap.client.machine import machine_lines
from looptap.client.streams.live import LiveStream
from looptap.protocol.keys import VIEWER
from looptap.protocol.run_config import RunConfig
from looptap.streams.durations import duration
from looptap.streams.stream.state_and_cost import LIVE
from looptap.visualizers.drawing.backends.blocks import sparkline
from looptap.visualizers.drawing.backends.with_text import drawn_text
from looptap.visualizers.plot import Plot

MIN_CHART_LINES = 11
"""The least lines for a stream to be drawn as a chart."""
_MAX_CURVE_VALUES = 2000  # values of a curve
_STILL_AFTER_SECONDS = 5.0  # without an event or a message, after which a note is shown


def heading(seen: Facts) -> Text:
    """Return the first line of the screen: the run and its state."""
    state = "paused" if seen.paused and seen.state == LIVE else seen.state
    style = {LIVE: "bold green", "paused": "bold yellow", "ended": "bold"}.get(state, "bold red")
    rank = f", rank {seen.rank} of {seen.size}" if seen.size > 1 else ""
    notes = [  # the gravest first
        (seen.reason, printable(seen.reason), "red" if state != "ended" else ""),
        (seen.paused, f"for {duration(seen.paused)}", ""),
        (seen.silence > _STILL_AFTER_SECONDS, f"no sign of life for {duration(seen.silence)}", "red"),
        (seen.inside, f"inside {printable(seen.inside)}", "red"),
        (seen.idle > _STILL_AFTER_SECONDS, f"no event for {duration(seen.idle)}", "yellow"),
    ]
    note = next(((f"  {text}", color) for holds, text, color in notes if holds), "")
    place = f"  pid {seen.pid} on {printable(seen.host)}{rank}"
    return Text.assemble((printable(seen.id), "bold"), "  ", (state, style), note, (place, "dim"))


def vitals(seen: Facts) -> Iterator[Text]:
    """Yield the lines below: event rates, costs, ranks, failed requests."""
    yield _events(seen)
    if seen.progress is not None:
        text = printable("; ".join(said(seen.progress)))
        yield _row("rest", (banded(seen.progress, 20), "green"), f" {text}")
    if seen.role == VIEWER:
        shown = several(len(seen.streams), "exported stream")
        text = f"viewer: {shown}; queries, costs, controls and commands are the operators'"
        yield _row("looptap", text, style="dim")
    else:
        yield _costs(seen)
    if beside := machine_lines(seen.machine):
        yield _row("machine", printable("; ".join(beside)))
    if seen.ranks:
        yield _row("ranks", *(part for one in seen.ranks[:64] for part in _rank(one)), style="dim")
    for problem in seen.problems:
        yield _row("failed", (printable(" ".join(problem.split())), "red"))


def _row(title: str, *parts: str | tuple[str, str], style: str = "") -> Text:
    return Text.assemble((f"{title:<9}", "dim"), *parts, style=style)


def _events(seen: Facts) -> Text:
    none = f"none in the {duration(seen.idle)} since it started"
    line = _row("events", "" if seen.events else none, style="dim")
    for index, event in enumerate(seen.events[:8]):
        rate = "" if event.rate is None else f" ({_rate(event.rate)})"
        line.append(f"{', ' * bool(index)}{printable(event.name)} {event.count:,}").append(rate, "cyan")
        if event.idle > _STILL_AFTER_SECONDS and not event.rate:
            line.append(f", the last {duration(event.idle)} ago", "yellow")
    if len(seen.events) > 8:
        line.append(f" and {len(seen.events) - 8} more types")
    return line


def _rank(one: Rank) -> Sequence[str | tuple[str, str]]:
    state = {True: ("alive", "green"), False: ("gone", "red"), None: ("elsewhere", "dim")}[one.alive]
    return f"{one.rank} ", state, (f" ({printable(one.host)}, pid {one.pid})  ", "dim")


def _costs(seen: Facts) -> Text:
    """Return the line about what looptap costs the loop."""
    budget = "no limit" if seen.budget is None else f"of {_share(seen.budget)} allowed"
    queries = "1 query" if seen.queries == 1 else f"{seen.queries} queries"
    paid = f"{queries} {_share(seen.share)} of the loop's time ({budget}), I/O thread {_share(seen.io_share)}"
    others = f"{several(seen.clients, 'other client')}, {sized(seen.outbox)} waiting"
    wrong = [*stated((f"{several(seen.dropped, 'value')} dropped", seen.dropped)), *problems(seen.withheld)]
    return _row("looptap", f"{paid}; {others}", ("".join(f", {text}" for text in wrong), "red"))


def config_text(config: RunConfig) -> Text:
    """Return the settings of a run, the facts around them, and its diff."""
    text = Text()
    for name, value in [*config.items(), *config.facts().items()]:
        text.append(f"{printable(name)}  ", "dim").append(f"{printable(str(value))}\n")
    return text.append("\n" + printable(config.diff, keep="\n\t"))


def newest_commands(seen: Facts, most: int, width: int = 0) -> Text:
    """Return the newest commands, newest last; ``width`` puts the change first."""
    newest = seen.commands[-most:] if most > 0 else ()
    lines = [
        Text(printable(_brief(one, width) if width else line_of_command(one)), "yellow" if one.get("warning") else "")
        for one in newest
    ]
    return Text("\n").join(lines) if lines else Text("none so far", "dim")


def _brief(record: Mapping[str, Any], width: int) -> str:
    """Return one command in ``width`` columns; its name is cut before its change."""
    get, name = record.get, command_name(str(record.get("what") or ""), str(record.get("name") or ""))
    done, change = get("outcome") == "done", ""
    if get("what") in CHANGES:
        change = f" {_figure(get('old'))} → {_figure(get('new'))}" if done else f" {_figure(get('value'))}"
    left = max(4, width - len(change))
    name = name if len(name) <= left else f"…{name[1 - left :]}"
    where = f"{get('event')} {get('number')}" if get("event") else ""
    facts = [name + change, not done and get("outcome"), get("warning"), where, get("error"), get("client")]
    return "  ".join(str(fact) for fact in facts if fact)


def _figure(value: Any) -> str:
    """Return a value of a control in a few characters.

    >>> _figure(0.1 + 0.2), _figure(True), _figure("cosine")
    ('0.3', 'True', "'cosine'")
    """
    return f"{value:.4g}" if isinstance(value, float) else f"{value!r:.40}"


def rooms_of(count: int, height: int, small: int, gap: int) -> list[int]:
    """Return the lines for each of ``count`` streams: charts first, others ``small``.

    >>> rooms_of(2, 26, 3, 1), rooms_of(3, 26, 3, 1), rooms_of(3, 9, 3, 1)
    ([12, 12], [17, 3, 3], [3, 3, 3])
    """
    charts = min(count, max(0, height - count * (small + gap)) // (MIN_CHART_LINES - small))
    each = (height - (count - charts) * (small + gap)) // charts - gap if charts else small
    return [each] * charts + [small] * (count - charts)


class StreamSummary:
    """A stream on the screen: newest value, rate, and a curve or chart."""

    def __init__(self, stream: LiveStream) -> None:
        self.stream = stream
        self._taken = 0
        self._numbers: deque[float | None] = deque(maxlen=_MAX_CURVE_VALUES)  # None: values are missing there
        self._rate = Rate()
        self._plot: Plot | None = None
        self._chart, self._size = Text(), (0, 0)

    def look(self) -> None:
        """Read the values since the last call."""
        new = self.stream.columns(self._taken)
        if len(new.numbers):
            newest = slice(-_MAX_CURVE_VALUES, None)
            for number, value in zip(new.numbers[newest].tolist(), new.values[newest], strict=True):
                if self._numbers and number != self._taken + 1:
                    self._numbers.append(None)
                self._numbers.extend(numbers_in(value))
                self._taken = number
        self._rate.count(self.stream.arrived)

    def draw(self, width: int, height: int) -> Text:
        """Return name and newest value, and a curve or chart in ``height`` lines."""
        stream = self.stream
        line = Text.assemble((printable(stream.name), "bold cyan"), (f"  on {printable(stream.on)}", "dim"))
        if stream.state != LIVE:
            style = "red" if stream.state == "failed" else "yellow"
            line.append(f"  {stream.state}: {printable(stream.reason)}", style)
        if stream.arrived:
            unit = f" {printable(stream.unit)}" if stream.unit else ""
            line.append(f"  {value_text(stream.latest, 200)}{unit}").append(f"  {_rate(float(self._rate))}", "dim")
        wrong = stated(
            (f"{stream.dropped:,} missing", stream.dropped),
            (f"{stream.withheld:,} withheld", stream.withheld),
            (several(stream.error_count, "error"), stream.error_count),
        )
        line.append("".join(f"  {text}" for text in wrong), "red")
        line.append(f"  {cost(*stream.cost)}", "dim")
        line.truncate(max(1, width), overflow="ellipsis")
        numbers = list(self._numbers)
        if height >= MIN_CHART_LINES:
            return Text.assemble(line, "\n", self._charted(width, height - 1))
        if height > 2 and len(numbers) > 1:
            line.append("\n" + sparkline(numbers, max(1, width)), "green")
            line.append("\n" + self._span(numbers), "dim")
        elif height > 1 and (last := stream.traceback.strip().splitlines()[-1:]):
            line.append("\n" + printable(last[0])[: max(1, width)], "red")
        return line

    def _charted(self, width: int, height: int) -> Text:
        """Return the chart that suits the values; redraw it if something changed."""
        if self._plot is None:
            self._plot = Plot((self.stream,))  # one chart
        (cell,) = self._plot.cells
        if cell.pull() or self._size != (width, height):
            self._size = width, height
            try:
                picture = replace(cell.draw(), title="")  # the title is in the line above
                self._chart = Text.from_ansi(drawn_text(picture, width, height), no_wrap=True)
            except Exception as error:  # one stream's value must not break the screen
                self._chart = Text(printable(f"This cannot be drawn: {type(error).__name__}: {error}"), "red")
        return self._chart

    def _span(self, curve: list[float | None]) -> str:
        numbers = [number for number in curve if number is not None]
        known = [number for number in numbers if math.isfinite(number)]
        odd = f", {len(numbers) - len(known)} not finite" if len(known) < len(numbers) else ""
        return f"the last {len(numbers):,}: {min(known):.4g} to {max(known):.4g}{odd}" if known else odd.strip(", ")


def _rate(rate: float) -> str:
    return f"{rate:,.0f}/s" if rate >= 10 else f"{rate:.2g}/s"


def _share(share: float) -> str:
    return f"{100 * share:.2g}%"
