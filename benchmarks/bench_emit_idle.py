"""`emit` without a query, compared with a call of an empty Python method.

Both get the same keyword arguments. The agent listens, and its I/O thread runs. There are three variants: without a
client, with a client in another process that has a stream on another event type, and with a disabled agent.

With and without the history of scalars: the two agents run in turns, half a second each, so that the figure includes
the samples (10 a second). It is CPU time of the loop's thread.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from harness import Row, in_units, interleave, main, promised
from reader import reader, run

import looptap

EVENTS = 20_000
HISTORY_BLOCK_SECONDS = 0.5


class Empty:
    def emit(self, event: str, /, **observables: Any) -> None:
        pass


def per_event(host: Any, event: str = "batch") -> float:
    start = time.perf_counter()
    for step in range(EVENTS):
        host.emit(event, step=step, loss=0.5, x=None, y=None)
    return (time.perf_counter() - start) / EVENTS


def with_agent(**options: Any) -> float:
    """Return the CPU seconds of an event, over half a second of an agent of its own."""
    with run(**options) as agent:
        per_event(agent)
        start, before, blocks = time.perf_counter(), time.thread_time(), 0
        while time.perf_counter() < start + HISTORY_BLOCK_SECONDS:
            per_event(agent)
            blocks += 1
        return (time.thread_time() - before) / (blocks * EVENTS)


def rows() -> Iterator[Row]:
    empty, inert = Empty(), looptap.Agent("inert", enabled=False)
    with run() as agent:
        blocks = {
            "empty": lambda: per_event(empty),
            "alone": lambda: per_event(agent),
            "inert": lambda: per_event(inert),
        }
        alone = interleave(blocks, rounds=40)
        with reader() as client:
            client.open("other", "step", on="other")
            agent.emit("other", step=1)
            client.when("other", 1)
            blocks = {"empty": lambda: per_event(empty), "attached": lambda: per_event(agent)}
            attached = interleave(blocks, rounds=40)
    for name, seen, what in (
        ("alone", alone, "no client attached"),
        ("attached", attached, "a client attached, with no query on this event"),
        ("inert", alone, "the agent not enabled"),
    ):
        ratio = seen.ratio(name, "empty")
        bound = promised(0.6, pure=1.5) if name != "inert" else None
        yield Row(
            f"emit with 4 observables, {what} (baseline: an empty method)",
            in_units(seen.median("empty")),
            in_units(seen.median(name)),
            str(ratio),
            f"≤ {bound:g}" if bound else "",
            ratio.at_most(bound) if bound else None,
            figures=dict(seen.seconds),
        )

    kept = interleave({"kept": with_agent, "off": lambda: with_agent(history=False)}, rounds=20)
    ratio = kept.ratio("kept", "off")
    yield Row(
        "emit with 4 observables, the history of scalars kept (baseline: history=False)",
        in_units(kept.median("off")),
        in_units(kept.median("kept")),
        str(ratio),
        "1 within its interval, or less",
        ratio.low <= 1.0,
        figures=dict(kept.seconds),
    )


if __name__ == "__main__":
    main(rows, __doc__)
