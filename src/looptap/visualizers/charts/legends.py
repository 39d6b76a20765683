"""The runs of streams, and how legends name them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import PurePath
from typing import Any, NamedTuple

from looptap.streams.counts import counts
from looptap.streams.stream.stream import Stream
from looptap.visualizers.charts.reading.labels import labels_of
from looptap.visualizers.data.colors import DASHES


class Legend(NamedTuple):
    """The name of a stream in the legend, and the dash of its lines."""

    name: str
    dash: str


def run_of(stream: Stream) -> Any:
    """Return the run of a stream or of its source; None if unknown.

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


def label_of_stream(stream: Stream, *, drawn: bool = False) -> str:
    """Return the given name of a stream, or a label read from its query.

    ``drawn`` leaves out what only counts, as the step of `step, loss`.

    >>> label_of_stream(Stream("loss.item()", text="loss.item()")), label_of_stream(Stream("x", text="loss"))
    ('loss', 'x')
    """
    if stream.name and stream.name != stream.text:
        return stream.name
    every = [label.text for label in labels_of(stream.text)]
    some = [text for text in every if not counts(text)] if drawn and len(every) > 1 else []
    return ", ".join(some or every) or stream.name or "value"


def label_of(run: Any) -> str:
    """Return the name of a run in a legend, or its id if it has none."""
    return str(getattr(run, "name", "") or getattr(run, "id", ""))


def legends(groups: Sequence[Sequence[Stream]]) -> dict[int, Legend]:
    """Return the legend of each stream by its ``id()``: run, and what differs.

    Streams of one group share a chart. Returns {} if there is only one run: the streams' own names will do.
    """
    streams = [stream for group in groups for stream in group]
    runs: dict[int, Any] = {id(run): run for stream in streams if (run := run_of(stream)) is not None}
    if len(runs) < 2:
        return {}
    names = _distinct_names(list(runs.values()))
    dashes = {key: DASHES[place % len(DASHES)] for place, key in enumerate(runs)}
    found = {}
    for group in groups:
        several = len({stream.name for stream in group}) > 1
        for stream in group:
            key = id(run_of(stream))
            if key in names:
                found[id(stream)] = Legend(f"{names[key]} {stream.name}" if several else names[key], dashes[key])
    return found


def _distinct_names(runs: Sequence[Any]) -> dict[int, str]:
    """Return the name of each run; runs of the same name get what differs.

    What differs is the commit, folder, host, start or id. What is known of only some of them does not count: a live run
    does not say in which folder it is.
    """
    names = {id(run): label_of(run) for run in runs}
    for facts in (("commit", "directory", "host"), ("started",), ("id",)):
        texts = {id(run): [_fact(run, fact) for fact in facts] for run in runs}
        for name in {name for name in names.values() if list(names.values()).count(name) > 1}:
            alike = [key for key, known in names.items() if known == name]
            differs = [at for at in range(len(facts)) if len({texts[key][at] for key in alike} - {""}) > 1]
            for key in alike:
                names[key] = " ".join([name, *(texts[key][at] for at in differs if texts[key][at])])
    return names


def _fact(run: Any, fact: str) -> str:
    """Return a fact of a run, short enough for a legend; "" if unknown."""
    known = getattr(run, "metadata", None)
    value = known.get(fact) if isinstance(known, dict) else getattr(getattr(run, "info", None), fact, None)
    match fact:
        case "commit":
            return str(value or "")[:7]
        case "directory":
            return PurePath(str(value or "")).name
        case "started":
            known_time = isinstance(value, int | float) and 0 < value < 1e11
            return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(value)) if known_time else ""
        case "id":
            return str(getattr(run, "id", "")).removeprefix(label_of(run)).strip("-_ ")
    return str(value or "")
