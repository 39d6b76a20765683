"""`looptap watch`: queries a live run and shows the values as they come."""

from __future__ import annotations

import math
import re
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from looptap.cli import completion
from looptap.cli.formats import cost, json_of, printable, problems, several, value_text
from looptap.cli.options import (
    Budget,
    Combine,
    Every,
    Follow,
    Of,
    On,
    Ranks,
    RunOrFile,
    Unsafe,
    Wait,
    WindowSize,
    integer,
    only_with,
    query_arguments,
    time_of,
)
from looptap.cli.output import DONE, can_draw, complain, say
from looptap.cli.sources import source, streams_of
from looptap.cli.tail import Display, Tail, TailItem, show_news
from looptap.client.ranks.rank_stream import RankStream
from looptap.client.run import Run
from looptap.client.streams.live import LiveStream
from looptap.streams.stream.stream import Stream
from looptap.streams.text import last_line

if TYPE_CHECKING:
    from looptap.store.run import StoredRun


def watch_command(
    run: RunOrFile,
    queries: Annotated[
        list[str],
        Argument(
            metavar="QUERY",
            help="One query or more, each in quotes.",
            show_default=False,
            autocompletion=completion.query_words,
        ),
    ],
    on: On = None,
    of: Of = None,
    window: WindowSize = None,
    every: Every = 1,
    throttle: Annotated[
        float,
        Option(
            metavar="TIME",
            parser=time_of,
            show_default=False,
            help="Send at most one value in that time, such as 0.5s.",
        ),
    ] = 0.0,
    when: Annotated[
        str | None,
        Option(metavar="COND", help="Hold values back, and send them only around events where COND comes true."),
    ] = None,
    before: Annotated[
        int, Option(metavar="N", parser=integer(0), help="With --when: this many values before that event.")
    ] = 0,
    after: Annotated[
        int, Option(metavar="N", parser=integer(0), help="With --when: this many values after that event.")
    ] = 0,
    ranks: Ranks = None,
    combine: Combine = None,
    budget: Budget = None,
    unsafe: Unsafe = False,
    count: Annotated[
        int | None, Option(metavar="N", parser=integer(1), help="End after N values of each query.", show_default=False)
    ] = None,
    timeout: Annotated[
        float | None,
        Option(
            metavar="TIME",
            parser=time_of,
            show_default=False,
            help="End after that time, such as 5m; it is an error if not all values came by then.",
        ),
    ] = None,
    follow: Follow = False,
    wait: Wait = None,
    as_json: Annotated[bool, Option("--json", help="Print a JSON object on a line for each value.")] = False,
) -> int:
    """Query a run and show the values as they come.

    It ends with the run, or when you press Ctrl-C; the job continues. A query is a Python expression. One over what an
    event carries yields a value at each event; one that reduces `events` yields a value when the window closes, and
    only that value travels.

    \b
      looptap watch digits-cnn "step, loss"
      looptap watch digits-cnn "mean(e.loss for e in events)"
      looptap watch digits-cnn "max(e.loss for e in events)" --window 100
      looptap watch digits-cnn "layer_norms(model, 'grad')" --every 20
      looptap watch digits-cnn "epoch, error" --on epoch --count 1

    The name of a stream that the job declares shows that one, its history first (looptap streams RUN lists them):

    \b
      looptap watch digits-cnn loss
      looptap watch digits-cnn "mean(v.loss for v in values)" --of loss --window 100

    So do the streams and the scalars of a stored run:

    \b
      looptap watch looptap-runs/digits-cnn-20260102-030405-1a2b.looptap "step, loss"

    Which batches led to the NaN? Nothing is sent until the condition comes true:

    \b
      looptap watch diverging "step, loss" --when "isnan(loss)" --before 20

    A job on several ranks, rank by rank, or as one:

    \b
      looptap watch digits-cnn "step, loss" --ranks all
      looptap watch digits-cnn "mean(e.loss for e in events)" --ranks all --combine merge

    On a terminal the newest values are drawn live; elsewhere each value is a line, after the number of its event.
    With --json each line is an object with index (of the query in this command, from 0), query, number, event, time,
    value, error and gap, which is how many values are missing before this one (null: unknown); numbers that are not
    finite are strings such as "NaN".
    With --follow, the first value of a further run has its id as run. The last line of each query says how it ended:

    \b
      looptap watch digits-cnn "step, loss" --json | jq .value.loss

    The exit code is 0 when the run ends or the reader of a pipe leaves, and 1 if a query fails, the run is lost, or
    the time is over without values.
    """
    only_with("--when", bool(when), before=before, after=after)
    how = query_arguments(on, window, every, budget, ranks, combine, of, unsafe)
    how |= {"throttle": throttle, "when": when, "before": before, "after": after}
    seconds = math.inf if timeout is None else timeout
    deadline = time.monotonic() + seconds
    try:
        opened = source(run, follow=follow, wait=wait, queries=queries, seconds=seconds)
    except KeyboardInterrupt:
        if not (follow or wait):
            raise
        return DONE  # the user has stopped waiting
    with opened as job:
        streams = streams_of(job, queries, how, history=False)
        tails = [Tail(stream, count, index) for index, stream in enumerate(streams)]
        with _display(job, tails, as_json, flight=when is not None) as display:
            in_time = _follow(tails, display, deadline - time.monotonic())
        failed = next((stream for stream in streams if stream.state == "failed"), None)
        if failed is not None:
            return complain(_failure(failed, terse=isinstance(display, Lines)))  # they have printed that error
        late = next((tail for tail in tails if tail.lacks), None)
        if in_time or late is None:
            return DONE
        return complain(f"{_came(late)} within {timeout:g} s; {_events(job, late)}.")


def _follow(tails: Sequence[Tail], display: Display, seconds: float) -> bool:
    """Show what comes until all is over, or Ctrl-C; return False after that time."""
    in_time = True
    with suppress(KeyboardInterrupt):
        in_time = show_news(tails, display, seconds)
    for tail in tails:
        if isinstance(tail.stream, LiveStream):
            tail.stream.close(timeout=0.5)
        display.show(tail, list(tail.look()))  # the partial last window
    return in_time


def _failure(stream: Stream, terse: bool) -> str:
    """Return why a stream failed; if ``terse``, without its first error."""
    reason = stream.reason.partition(", the first: ")[0] if terse else stream.reason
    reason = reason.rstrip(".")
    return f"{stream.title} failed: {reason}{'' if reason.endswith('?') else '.'}"


def _came(tail: Tail) -> str:
    wanted = "No value" if tail.count is None else f"{tail.values:,} of {several(tail.count, 'value')}"
    return f"{wanted} of {tail.stream.name!r} came"


def _events(run: Run | StoredRun, tail: Tail) -> str:
    if not tail.stream.on:
        return "the job has logged nothing more under this name"
    events = run.events()
    if count := events.get(tail.stream.on):
        return f"the run has raised {several(count, 'event')} of type {tail.stream.on!r}"
    seen = ", ".join(repr(name) for name, count in events.items() if count) or "no event at all"
    return f"the run has not raised {tail.stream.on!r} yet, but {seen}"


# ---------------------------------------------------------------- displays


def _display(run: Run | StoredRun, tails: Sequence[Tail], as_json: bool, flight: bool) -> Any:
    """Return where the values are shown; those of a ``flight`` recorder are lines."""
    if as_json:
        return Json(tails)
    if flight or not isinstance(run, Run) or not can_draw():
        return Lines(run, tails)
    from looptap.cli.live_view import LiveView

    return LiveView(run, tails)


_EVERY = re.compile(r"(?<=evaluated at every ).*")


class Lines:
    """Text output: a line per value to stdout, notes to stderr."""

    def __init__(self, run: Run | StoredRun, tails: Sequence[Tail]) -> None:
        self._run, self._tails = run, tails
        self._notes: set[str] = set()
        self._state = ("live", "")

    def __enter__(self) -> Lines:
        return self

    def show(self, tail: Tail, news: Sequence[TailItem]) -> None:
        """Print new items, and where values are missing."""
        source = f"{tail.stream.name}: " if len(self._tails) > 1 else ""
        for record, missing, run in news:
            if missing != 0:
                lost = "an unknown number of values is" if missing is None else _are(missing)
                say(f"{source}-- {lost} missing here --")
            if run:
                print(f"{source}-- run {printable(run)} --")
            marks = " (partial)" * record.partial + " (fired)" * record.trigger
            text = value_text(record.value) if record.error is None else f"error: {printable(last_line(record.error))}"
            place = f"  {tail.place(record)}".rstrip()
            say(f"{source}{record.event:>7}{place}{marks}  {text}")
        for note in tail.stream.notes:
            self._say(f"{source}{note}")
        if failure := tail.failure():
            separator = "\n" if "\n" in failure.strip() else " "
            self._say(f"{source}the query fails:{separator}{failure.strip()}")

    def turn(self) -> None:
        """Flush the output, and report a lost connection."""
        sys.stdout.flush()
        run = self._run
        if (run.state, run.reason) != self._state:  # a lost connection may turn out to be the end of the run
            self._state = run.state, run.reason
            if run.state == "lost":
                self._notes.discard(run.reason)
                self._say(run.reason)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            for tail in self._tails:
                self._say(f"{tail.stream.name}: {closing_line(tail)}")

    def _say(self, text: str) -> None:
        kind = _EVERY.sub("", text)  # printed once, though the number changes with the machine's load
        if kind not in self._notes:
            self._notes.add(kind)
            print(printable(text, keep="\n\t"), file=sys.stderr, flush=True)


class Json:
    """JSON output: an object per item, and one for the end of each stream."""

    def __init__(self, tails: Sequence[Tail]) -> None:
        self._tails = tails

    def __enter__(self) -> Json:
        return self

    def show(self, tail: Tail, news: Sequence[TailItem]) -> None:
        """Print new items as JSON, with missing values and the start of further runs."""
        for record, missing, run in news:
            about = {**_query(tail), "number": record.number, "event": record.event, "time": record.wall}
            if isinstance(tail.stream, RankStream):
                about |= {"rank": record.rank} if tail.stream.combined is None else {"without": tail.lacking(record)}
            value = {"value": record.value, "error": record.error, "gap": missing}
            marks = {"partial": record.partial, "fired": record.trigger, "run": run}
            print(json_of({**about, **value, **{name: mark for name, mark in marks.items() if mark}}))
        if failure := tail.failure():
            nothing = dict.fromkeys(("number", "event", "time", "value"))
            print(json_of({**_query(tail), **nothing, "error": failure, "gap": 0}))

    def turn(self) -> None:
        """Flush the output."""
        sys.stdout.flush()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        for tail in self._tails if kind is None else ():
            stream = tail.stream
            how = {"state": stream.state, "reason": stream.reason, "values": tail.values, "missing": stream.dropped}
            how |= {"withheld": stream.withheld, "filtered": stream.filtered, "errors": stream.error_count}
            nanoseconds, share = stream.cost
            paid = {"notes": stream.notes, "nanoseconds_per_event": nanoseconds, "share_of_time": share}
            print(json_of({**_query(tail), **how, **paid}), flush=True)


def _query(tail: Tail) -> dict[str, Any]:
    return {"index": tail.index, "query": tail.stream.name}


def closing_line(tail: Tail) -> str:
    """Return the summary of a stream as one line."""
    stream = tail.stream
    wrong = problems(stream.withheld, stream.error_count)
    facts = [several(tail.values, "value"), f"{stream.dropped:,} missing", *wrong]
    paid = f"; {cost(*stream.cost)}" if isinstance(stream, LiveStream) else ""
    return f"{', '.join(facts)}{paid}; {stream.state if stream.state == 'failed' else stream.reason or stream.state}"


def _are(count: int) -> str:
    return "1 value is" if count == 1 else f"{count:,} values are"
