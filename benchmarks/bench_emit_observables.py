"""`emit` without a query, by the number of observables and the type of event.

The baseline is an empty method of the same signature with the same keyword arguments. The agent listens, keeps the
history of scalars, and has no client. An `epoch` event ends the open group of `batch` events, which is empty here. Left
out: the work of the I/O thread (its samples of the scalars count only as far as they delay the loop), and caches that
are colder than in a loop of one line.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from typing import Any

from harness import Row, in_units, interleave, main, promised
from reader import run

EVENTS, ROUNDS = 10_000, 30
COUNTS = (0, 1, 2, 4, 8)
FEW_OBSERVABLES = 4


class Empty:
    def emit(self, event: str, /, **observables: Any) -> None:
        pass


def spelled_out(count: int) -> Any:
    """Return a loop of calls whose keyword arguments are written out, as in a job."""
    names = ", ".join(f"name{index}={index}.5" for index in range(count))
    text = f"def loop(host, event):\n for _ in range({EVENTS}):\n  host.emit(event, {names})"
    made: dict[str, Any] = {}
    exec(text, made)  # the text is ours
    return made["loop"]


def per_event(host: Any, event: str, count: int) -> float:
    loop, counts = spelled_out(count), getattr(host, "stats", lambda: {"events": {}})
    before = counts()["events"].get(event, 0)
    start = time.perf_counter()
    loop(host, event)
    took = (time.perf_counter() - start) / EVENTS
    assert isinstance(host, Empty) or counts()["events"][event] == before + EVENTS
    return took


def rows() -> Iterator[Row]:
    empty = Empty()
    with run() as agent:
        for event in ("batch", "epoch"):
            blocks = {}
            for count in COUNTS:
                blocks[f"empty {count}"] = partial(per_event, empty, event, count)
                blocks[f"emit {count}"] = partial(per_event, agent, event, count)
            seen = interleave(blocks, ROUNDS)
            for count in COUNTS:
                bound = promised(0.6, pure=1.5 if count >= FEW_OBSERVABLES else 1.6)
                ratio = seen.ratio(f"emit {count}", f"empty {count}")
                yield Row(
                    f"idle emit of {event!r} with {count} observables (baseline: an empty method)",
                    in_units(seen.median(f"empty {count}")),
                    in_units(seen.median(f"emit {count}")),
                    str(ratio),
                    f"≤ {bound}",
                    ratio.at_most(bound),
                    figures={name: seen.seconds[f"{name} {count}"] for name in ("empty", "emit")},
                )


if __name__ == "__main__":
    main(rows, __doc__)
