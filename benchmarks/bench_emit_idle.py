"""`emit` without a query, against a call of an empty Python method.

Both get the same keyword arguments. The agent listens: its I/O thread is alive. Once without a client, once with a
client in another process that has a stream on another type of event. An agent that is not enabled is the third.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from harness import Row, in_units, interleave, main
from reader import reader, run

import looptap

EVENTS = 20_000


class Empty:
    def emit(self, event: str, /, **observables: Any) -> None:
        pass


def per_event(host: Any, event: str = "batch") -> float:
    start = time.perf_counter()
    for step in range(EVENTS):
        host.emit(event, step=step, loss=0.5, x=None, y=None)
    return (time.perf_counter() - start) / EVENTS


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
        promised = name != "inert"
        yield Row(
            f"emit with 4 observables, {what} (baseline: an empty method)",
            in_units(seen.median("empty")),
            in_units(seen.median(name)),
            str(ratio),
            "≤ 1.5" if promised else "",
            ratio.value <= 1.5 if promised else None,
            figures=dict(seen.seconds),
        )


if __name__ == "__main__":
    main(rows, __doc__)
