"""`looptap export --live`: sends the numbers of live runs into another engine."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import Any

from typer import BadParameter

from looptap.cli.formats import several
from looptap.cli.output import DONE, FAILED, MISTYPED, complain
from looptap.cli.shell_names import in_shell
from looptap.cli.sources import attached
from looptap.cli.tail import POLL_INTERVAL_SECONDS, Tail
from looptap.client.attach import runs
from looptap.client.run import Run
from looptap.client.sinks.opening import SINKS, open_sink
from looptap.streams.errors import LooptapError
from looptap.streams.text import did_you_mean

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
    sent, code, followed, ended = 0, DONE, dict[str, _Followed](), set[str]()
    look, pattern = 0.0, not GLOB.isdisjoint(name) and "://" not in name
    try:
        while True:
            if time.monotonic() >= look:
                look = time.monotonic() + LOOK_INTERVAL_SECONDS
                for run in _further(name, pattern, {*followed, *ended}):
                    try:
                        followed[run.id] = _Followed(run, query, how)
                    except LooptapError as error:
                        run.close()
                        if not pattern:
                            raise
                        ended.add(run.id)
                        complain(f"{run.id}: {in_shell(error)}")
                    else:
                        complain(f"{run.id}: {query} is sent to {to}")
            for id, one in [*followed.items()]:
                for origin, step, numbers in one.news():
                    sink.put(origin, step, numbers)
                    sent += 1
                if one.over:
                    code = FAILED if one.failed and not pattern else code
                    outcome = one.outcome
                    followed.pop(id).run.close()
                    ended.add(id)
                    sink.end(id)
                    complain(f"{id}: {outcome}")  # last: what is said to have ended is complete
            if not (pattern or followed):
                return code
            time.sleep(POLL_INTERVAL_SECONDS)
    except KeyboardInterrupt:
        return DONE
    finally:
        for one in followed.values():
            one.run.close()
        sink.close()
        if sent or followed:
            complain(f"{several(sent, 'value')} sent to {to}")


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
        from looptap.client.sinks.sink import Origin, numbers_of

        info = self.run.session.info
        for item in self._tail.look():
            record = item.record
            if record.error is None:
                rank = info.rank if record.rank is None else record.rank
                step, numbers = numbers_of(record.value, self._query, record.event)
                yield Origin(info.name, info.id, info.host, rank, self._query), step, numbers


def _further(name: str, pattern: bool, known: set[str]) -> Iterator[Run]:
    """Yield runs that are not followed yet."""
    if not pattern:
        if not known:
            yield attached(name, False)
        return
    for listing in runs():
        if listing.alive and listing.id not in known and fnmatchcase(listing.name, name):
            with contextlib.suppress(LooptapError):
                yield listing.attach()
