"""What a stream knows of the run that it comes from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from looptap.streams.stream import Stream


def run_of(stream: Stream) -> Any:
    """The run of a live or stored stream, or of the stream that it is derived from; None if nobody knows.

    >>> run_of(Stream("loss")) is None
    True
    """
    seen: Any = stream
    for _ in range(100):  # of streams derived from derived ones
        run = getattr(seen, "run", None)
        seen = getattr(seen, "source", None)
        if run is not None or seen is None:
            return run
    return None


def label_of(run: Any) -> str:
    """What a legend calls a run: its name, and its id where there is no name."""
    return str(getattr(run, "name", "") or getattr(run, "id", ""))


def legends(streams: Sequence[Stream]) -> dict[int, str]:
    """The legend of each stream by its ``id()``: of streams of several runs the run and what differs.

    Nothing for streams of one run, whose own names will do.
    """
    runs: dict[int, Any] = {id(run): run for stream in streams if (run := run_of(stream)) is not None}
    if len(runs) < 2:
        return {}
    names = _told_apart(list(runs.values()))
    several = len({stream.name for stream in streams}) > 1
    found = {}
    for stream in streams:
        run = run_of(stream)
        if run is not None:
            found[id(stream)] = f"{names[id(run)]} {stream.name}" if several else names[id(run)]
    return found


def _told_apart(runs: Sequence[Any]) -> dict[int, str]:
    """The name of each run, with what of its id is its own where several have one name."""
    names = {id(run): label_of(run) for run in runs}
    for run in runs:
        if sum(name == names[id(run)] for name in names.values()) > 1:
            own = str(getattr(run, "id", "")).removeprefix(label_of(run)).strip("-_ ")
            names[id(run)] = f"{label_of(run)} {own}".strip()
    return names
