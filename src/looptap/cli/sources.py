"""Opens the runs that commands read: live, of a viewer's file, or stored.

What reads stored runs, and what chooses curves, is imported where it is needed: most commands do without.
"""

from __future__ import annotations

import itertools
import math
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from looptap.cli.output import complain, remark
from looptap.client.attach import attach, comes, resolve
from looptap.client.directory.select import as_path
from looptap.client.directory.wait_for_run import LOOK_AFAR_SECONDS, POLL_INTERVAL_SECONDS, wait_for_run
from looptap.client.run import Run
from looptap.client.streams.kept_history import kept_history
from looptap.client.transport.tunnel.process import is_remote
from looptap.protocol.errors import NoDirectory, NoSuchRun, RunEnded
from looptap.protocol.keys import VIEWER
from looptap.protocol.replies import StreamInfo
from looptap.store.layout.run_path import SUFFIX
from looptap.streams.errors import LooptapError, QueryError
from looptap.streams.text import last_line
from looptap.streams.waiting import poll_until

if TYPE_CHECKING:
    from looptap.store.run import StoredRun
    from looptap.streams.stream.stream import Stream
    from looptap.visualizers.first_curves import Curve

MAX_DEFAULT_STREAMS = 12
"""The most streams shown if none is named."""
FIRST_VALUE_TIMEOUT_SECONDS = 1.0
"""Seconds to wait for the first value of a query that stays in the job."""
FIRST_NUMBERS_TIMEOUT_SECONDS = 2.0
"""Seconds to wait for the first numbers of a job that declares no stream."""
WAIT_HINT = (
    "If you have just started it, add --wait 1m: under `looptap run` a script can be watched from its first update on."
)
RESTART_HINT = "If you have just started it again, add --wait 1m."
_POLL_INTERVAL_SECONDS = 0.05  # seconds between two checks of a run or stream that has just started


def source(
    name: str,
    *,
    follow: bool = False,
    wait: float | None = 0.0,
    queries: Sequence[str] = (),
    seconds: float = math.inf,
) -> Run | StoredRun:
    """Open the stored run (or TensorBoard events) at ``name``, else attach to it."""
    if name.startswith(("ssh://", "command:")) or not is_stored_path(name):
        return attached(name, follow, queries, seconds, wait)
    from looptap.store.reader import open as open_stored

    return open_stored(name)


def attached(
    name: str, follow: bool, queries: Sequence[str] = (), seconds: float = math.inf, wait: float | None = 0.0
) -> Run:
    """Attach to the live run ``name``; wait for one that has not started yet.

    The wait takes ``wait`` seconds at most; with None, which is an option not given, ``seconds`` with ``follow``, and
    none otherwise: then the error names the option. ``queries`` are the coming ones: where one is a name, a run that
    has just started may be about to declare it.
    """
    patience = wait if wait is not None else seconds if follow else 0.0
    may_wait = comes(name)
    if patience and may_wait:
        return _awaited(name, follow, queries, patience)
    try:
        return attach(name, follow=follow)
    except (NoSuchRun, RunEnded, NoDirectory) as error:
        if wait is not None or not may_wait:
            raise
        hint = RESTART_HINT if isinstance(error, RunEnded) else WAIT_HINT
        raise type(error)(f"{error}\n{hint}") from None


def _awaited(name: str, follow: bool, queries: Sequence[str], patience: float) -> Run:
    """Return the run ``name`` once it is there and its loop has begun."""
    began, pause = time.monotonic(), LOOK_AFAR_SECONDS if is_remote(name) else POLL_INTERVAL_SECONDS
    run = wait_for_run(lambda: resolve(name).attach(follow=follow), patience, remark, follow=follow, pause=pause)
    if time.monotonic() - began >= POLL_INTERVAL_SECONDS:
        names = {query for query in queries if query.isidentifier()}
        poll_until(
            lambda: not run.alive or any(run.events().values()) or names <= {one.name for one in run.streams},
            _POLL_INTERVAL_SECONDS,
        )
    return run


def is_stored_path(name: str) -> bool:
    """Return True if ``name`` is the path of a stored run."""
    path = Path(name).expanduser()
    if path.is_dir():
        return any(path.rglob("*tfevents*"))
    if path.suffix == SUFFIX or not path.is_file():
        return path.suffix == SUFFIX
    from looptap.store.reader import is_stored

    return is_stored(path) or (as_path(name) is not None and path.suffix != ".json")  # a bare name may be a run's


def streams_of(
    run: Run | StoredRun, queries: Sequence[str], how: dict[str, Any], *, history: bool = True
) -> list[Stream]:
    """Return the streams of ``queries``, or else those declared or kept by the run.

    Without ``history``, the stream of a number begins with its next value; a declared stream has its history always.
    Raises QueryError if there is none, and for ``how`` of a stored run, whose streams can only be named.
    """
    if not isinstance(run, Run):
        return _stored_streams(run, queries, how)
    if queries:
        names = {one.name for one in run.streams}
        return [
            run.stream(query, **how, history=(history or query in names) and from_start(run, query, how))
            for query in queries
        ]
    from looptap.store.queue import COMMANDS

    declared = [one for one in run.streams if one.name != COMMANDS][:MAX_DEFAULT_STREAMS]
    found: list[Stream] = [run.stream(one.name, **how) for one in declared]
    for curve in curves_of(run, declared):
        found.append(run.stream(curve.query, **{**how, "on": curve.on}, name=curve.name, history=True))
    if not found:
        raise QueryError(
            f"The run {run.id} declares no stream, and its events carry no number so far. Say what to show, as in: "
            f"looptap plot {run.name} 'step, loss'"
        )
    return found


def from_start(run: Run, query: str, how: Mapping[str, Any]) -> bool | None:
    """Return ``history`` for `Run.stream`: True where the names have one."""
    return None if any(map(how.get, ("of", "when", "combine"))) else kept_history(run, query)


def _stored_streams(run: StoredRun, queries: Sequence[str], how: dict[str, Any]) -> list[Stream]:
    """Return the streams of a stored run by name, or else those to open with."""
    given = [name for name, value in how.items() if value and name != "on" and (name, value) != ("every", 1)]
    if given:
        raise QueryError(f"--{given[0]}: {run.path} is a stored run; its streams are read by their names only.")
    if queries:
        return [_stored_stream(run, name, how.get("on")) for name in queries]
    from looptap.visualizers.first_curves import Curve, first_curves

    found: list[Stream] = [*run.streams[:MAX_DEFAULT_STREAMS]]
    declared = [Curve(one.text, one.on, one.name) for one in found]
    for curve in first_curves(run.scalars, declared):
        if (line := run.history(curve.query, curve.on)) is not None:
            line.name = curve.name
            found.append(line)
    if not found:
        raise QueryError(f"{run.path} has no stream. {run.lacks or 'This run kept none.'}")
    return found


def compared_streams(runs: Sequence[StoredRun], names: Sequence[str], how: dict[str, Any]) -> list[list[Stream]]:
    """Return the streams of stored runs, those of all runs with one name together.

    A run that lacks one of ``names`` is left out there, and reported. Raises StoreError or QueryError if all do.
    """
    groups: dict[tuple[str, str], list[tuple[StoredRun, Stream]]] = defaultdict(list)
    failed: LooptapError | None = None
    for run, name in itertools.product(runs, names or [""]):
        try:
            for stream in _stored_streams(run, [name] * bool(name), how):
                groups[(name, "") if name else (stream.name, stream.on)].append((run, stream))
        except LooptapError as error:
            failed = error
    if failed is not None and not groups:
        raise failed
    for (name, _), found in groups.items():
        there = [run for run, _ in found]
        if without := [run.path.name for run in runs if run not in there]:
            remark(f"no {name!r:.80} in {', '.join(without)}")
    return [[stream for _, stream in found] for found in groups.values()]


def _stored_stream(run: StoredRun, name: str, on: str | None) -> Stream:
    """Return a stored stream by name, of a type of events if ``on`` says so."""
    if on is None:
        return run.stream(name)
    kept = (one for one in reversed(run.streams) if name in (one.name, one.text) and one.on == on)
    found = next(kept, None) or run.history(name, on)
    if found is None:
        raise QueryError(f"There is no stream {name!r:.80} of {on!r:.80} events in {run.path}.")
    return found


def curves_of(run: Run, declared: Sequence[StreamInfo]) -> list[Curve]:
    """Return the curves to open with, besides ``declared``; none for a viewer.

    Waits two seconds for the first numbers of a job that has just started and declares nothing.
    """
    if run.role == VIEWER:
        return []
    from looptap.visualizers.first_curves import first_curves

    poll_until(lambda: declared or run.scalars, _POLL_INTERVAL_SECONDS, FIRST_NUMBERS_TIMEOUT_SECONDS)
    return first_curves(run.scalars, declared)


def warn_if_it_fails(stream: Stream) -> None:
    """Warn if a query that stays in the job fails at its first event."""
    poll_until(lambda: stream.arrived or stream.traceback, _POLL_INTERVAL_SECONDS, FIRST_VALUE_TIMEOUT_SECONDS)
    if stream.traceback and not stream.arrived:
        complain(f"{stream.name!r} fails so far: {last_line(stream.traceback)}")
