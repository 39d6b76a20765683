"""A client of looptap in another process, controlled by requests on its stdin."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from typing import Any

from harness import ask, helper

import looptap

PATIENCE = 60.0


class Reader:
    """The loop's end: one attached client, whose streams have names."""

    def __init__(self, process: Any) -> None:
        self._process = process

    def open(self, name: str, query: str, **options: Any) -> dict[str, float]:
        """Attach ``query``; return the seconds that took."""
        return self._ask(do="open", name=name, query=query, **options)

    def when(self, name: str, count: int) -> dict[str, Any]:
        """Wait until ``count`` values have arrived; return when, and what is missing."""
        return self._ask(do="when", name=name, count=count)

    def delivered(self, name: str, count: int) -> float:
        """Wait until exactly ``count`` values have arrived; return when."""
        answer = self.when(name, count)
        assert (answer["arrived"], answer["missing"], answer["withheld"]) == (count, 0, 0), (name, count, answer)
        return float(answer["at"])

    def seen(self, name: str) -> dict[str, Any]:
        """Return what has arrived so far: count, newest values, measured delays."""
        return self._ask(do="seen", name=name)

    def set(self, name: str, value: float) -> float:
        """Set a control; return the seconds until its outcome."""
        return float(self._ask(do="set", name=name, value=value))

    def close(self, name: str) -> None:
        self._ask(do="close", name=name)

    def _ask(self, **request: Any) -> Any:
        return ask(self._process, **request)


@contextlib.contextmanager
def run(listen: str | None = None, **options: Any) -> Iterator[looptap.Agent]:
    """Open an agent in a directory of its own."""
    with tempfile.TemporaryDirectory() as folder:
        before = os.environ.get("LOOPTAP_DIR")
        os.environ["LOOPTAP_DIR"] = folder
        try:
            with looptap.Agent("bench", listen=listen, **options) as agent:
                yield agent
        finally:
            os.environ.pop("LOOPTAP_DIR")
            if before is not None:
                os.environ["LOOPTAP_DIR"] = before


@contextlib.contextmanager
def reader() -> Iterator[Reader]:
    """Open a reader of the run of this process."""
    with helper("reader.py") as process:
        assert ask(process) == "attached"
        yield Reader(process)


# ---------------------------------------------------------------- in the reader's process


def main() -> None:
    streams: dict[str, looptap.LiveStream] = {}
    delays: dict[str, list[float]] = {}
    with looptap.attach() as attached:
        print(json.dumps("attached"), flush=True)
        for line in sys.stdin:
            request = json.loads(line)
            print(json.dumps(_answer(attached, streams, delays, **request)), flush=True)


def _answer(
    attached: looptap.Run, streams: dict[str, Any], late: dict[str, list[float]], *, do: str, name: str, **how: Any
) -> Any:
    if do == "open":
        timed, first, query = how.pop("delays", False), how.pop("first", False), how.pop("query")
        came = threading.Event()
        start = time.monotonic()
        stream = streams[name] = attached.stream(query, **how)
        took = time.monotonic() - start
        if timed:  # values are the host's clock at the event: both processes read the same one
            late[name] = times = []
            stream.on_value(lambda sent: times.append(time.monotonic() - sent))
        if first:
            stream.on_value(lambda value: came.set(), replay=True)
            assert came.wait(PATIENCE)
        return {"attached": took, "first": time.monotonic() - start}
    if do == "set":
        start = time.monotonic()
        attached.set(name, how["value"])
        return time.monotonic() - start
    stream = streams[name]
    if do == "when":
        deadline = time.monotonic() + PATIENCE
        while stream.arrived < how["count"] and time.monotonic() < deadline:
            time.sleep(0.0005)
        at = time.monotonic()
        return {"at": at, "arrived": stream.arrived, "missing": stream.dropped, "withheld": stream.withheld}
    if do == "seen":
        numbers = [record.number for record in stream.records[-3:]]
        return {
            "arrived": stream.arrived, "missing": stream.dropped, "gaps": len(stream.gaps), "numbers": numbers,
            "delays": late.get(name, []), "latest": repr(stream.latest), "notes": stream.notes,
            "errors": stream.error_count, "traceback": stream.traceback, "cost": stream.cost.nanoseconds,
        }  # fmt: skip
    streams.pop(name).close()
    late.pop(name, None)
    return {}


if __name__ == "__main__":
    main()
