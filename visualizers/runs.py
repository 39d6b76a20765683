"""What a stream knows of the run that it comes from."""

from __future__ import annotations

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
