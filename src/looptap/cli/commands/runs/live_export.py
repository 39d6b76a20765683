"""`looptap export --live`: sends the numbers of live runs into another engine."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing, suppress
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, NoReturn

from typer import BadParameter

from looptap.cli.formats import several
from looptap.cli.output import DONE, FAILED, MISTYPED, complain
from looptap.cli.shell_names import in_shell
from looptap.cli.sources import attached
from looptap.cli.tail import POLL_INTERVAL_SECONDS, Tail
from looptap.client.attach import runs
from looptap.client.directory.listing import RunListing
from looptap.client.run import Run
from looptap.client.sinks.opening import SINKS, open_sink
from looptap.streams.errors import LooptapError
from looptap.streams.text import did_you_mean

if TYPE_CHECKING:
    from looptap.client.sinks.sink import Sink

LOOK_INTERVAL_SECONDS = 2.0
"""Seconds between two looks for further runs of a pattern."""
GLOB = frozenset("*?[")
"""What makes a name a pattern."""


def send_live(name: str, query: str, how: dict[str, Any], to: str, place: str | None) -> int:
    """Send a stream of a run, or of all runs of a pattern, until they end or Ctrl-C."""
    if to not in SINKS:
        what = f"--to {to} is of a stored run; --live sends to" if to else "--live needs --to, which is"
        raise BadParameter(f"{what} one of {', '.join(SINKS)}.{did_you_mean(to, SINKS)}")
    try:
        sink = open_sink(to, place)
    except (ValueError, OSError) as error:
        complain(str(error))
        return MISTYPED
    with closing(_Sending(sink, to, query, how)) as sending, suppress(KeyboardInterrupt):
        if not GLOB.isdisjoint(name) and "://" not in name:
            sending.send_all(name)
        sending.add(attached(name, False))
        while sending.runs:
            sending.send()
        return FAILED if sending.failed else DONE
    return DONE


class _Sending:
    """The runs of which a stream is sent, until `close`."""

    def __init__(self, sink: Sink, to: str, query: str, how: dict[str, Any]) -> None:
        self._sink, self._to, self._query, self._how = sink, to, query, how
        self.runs: dict[str, _Followed] = {}
        self.failed = False
        """True if a stream has failed that was sent."""
        self._known: set[str] = set()  # ids, also of runs that have ended
        self._sent = 0

    def add(self, run: Run) -> None:
        """Send the stream of a run from now on. Raises LooptapError if it has none."""
        self._known.add(run.id)
        try:
            self.runs[run.id] = _Followed(run, self._query, self._how)
        except LooptapError:
            run.close()
            raise
        complain(f"{run.id}: {self._query} is sent to {self._to}")

    def send_all(self, pattern: str) -> NoReturn:
        """Send those of all runs that match a pattern, also of those to come."""
        look = 0.0
        while True:
            if time.monotonic() >= look:
                look = time.monotonic() + LOOK_INTERVAL_SECONDS
                found = [one for one in runs() if one.alive and fnmatchcase(one.name, pattern)]
                for listing in [one for one in found if one.id not in self._known]:
                    self._add_if_possible(listing)
            self.send()

    def _add_if_possible(self, listing: RunListing) -> None:
        with suppress(LooptapError):  # it has just ended, or is asked again
            run = listing.attach()
            try:
                self.add(run)
            except LooptapError as error:
                complain(f"{run.id}: {in_shell(error)}")

    def send(self) -> None:
        """Send what is new, and end with the runs that have ended."""
        for id, one in [*self.runs.items()]:
            for origin, step, numbers in one.news():
                self._sink.put(origin, step, numbers)
                self._sent += 1
            if one.over:
                self.failed, outcome = self.failed or one.failed, one.outcome
                self.runs.pop(id).run.close()
                self._sink.end(id)
                complain(f"{id}: {outcome}")  # last: what is said to have ended is complete
        time.sleep(POLL_INTERVAL_SECONDS)

    def close(self) -> None:
        """Leave the runs, and say what was sent."""
        for one in self.runs.values():
            one.run.close()
        self._sink.close()
        if self._sent or self.runs:
            complain(f"{several(self._sent, 'value')} sent to {self._to}")


class _Followed:
    """One run, and the stream of it that is sent."""

    def __init__(self, run: Run, query: str, how: dict[str, Any]) -> None:
        self.run, self._query = run, query
        self._tail = Tail(run.stream(query, **how), None)

    @property
    def over(self) -> bool:
        """True if nothing more will come."""
        return self._tail.over

    @property
    def failed(self) -> bool:
        """True if the query failed, or the run was lost."""
        return self._tail.stream.state == "failed"

    @property
    def outcome(self) -> str:
        """How the stream ended."""
        stream = self._tail.stream
        return f"{stream.state}{': ' if stream.reason else ''}{stream.reason}"

    def news(self) -> Iterator[tuple[Any, int, dict[str, float]]]:
        """Yield the origin, the step and the numbers of each new value."""
        from looptap.client.sinks.sink import Origin, step_and_numbers

        info = self.run.session.info
        for item in self._tail.look():
            record = item.record
            if record.error is None:
                rank = info.rank if record.rank is None else record.rank
                step, numbers = step_and_numbers(record.value, self._query, record.event)
                yield Origin(info.name, info.id, info.host, rank, self._query), step, numbers
