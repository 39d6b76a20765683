"""A job with one of the two taps, controlled by requests, for bench_tap.py.

As a program: `tap_process.py PURE`, with LOOPTAP_PURE as PURE. Each block of a request gives the seconds of an event.
"""

from __future__ import annotations

import os
import sys

if __name__ == "__main__":
    os.environ["LOOPTAP_PURE"] = sys.argv[1]  # before looptap is imported

import contextlib
import json
from collections.abc import Callable
from typing import Any

import emitting
from bench_emit_after_step import QUERIES
from bench_emit_observables import Empty, per_event
from loops import Mlp
from reader import reader, run

from looptap.streams.native.compiled import which_tap

COUNTS, STREAMS = (0, 1, 4, 8), (1, 5)
EVENTS_IN_A_ROW, STEPS = 20_000, 50
MAPPED = {"row": "step, loss", "number": "loss"}


def warm(host: Any, event: str, count: int) -> float:
    """Return the seconds of an event in a second block: the process is awake then."""
    per_event(host, event, count)
    return per_event(host, event, count)


def main() -> None:
    """Answer with the name of the tap, then each request with a figure."""
    emitting.IN_A_ROW = EVENTS_IN_A_ROW
    empty, mlp = Empty(), Mlp()
    with run() as agent, reader() as client:
        blocks: dict[str, Callable[[], float]] = {"empty, row": lambda: emitting.in_a_row(empty)}
        for count in COUNTS:
            blocks[f"empty {count}"] = lambda count=count: warm(empty, "batch", count)
            for event in ("batch", "epoch"):
                blocks[f"{event} {count}"] = lambda event=event, count=count: warm(agent, event, count)
        for name, query in MAPPED.items():
            client.open(name, query, on=name, buffer=1000)
            blocks[name] = emitting.Burst(agent, client, name, EVENTS_IN_A_ROW, end=False)
        blocks["item"] = lambda: emitting.after_steps(STEPS, mlp.step, lambda number, loss: loss.item())
        for count in STREAMS:
            event = f"of {count}"
            for query in QUERIES[:count]:
                client.open(f"{event}: {query}", query, on=event, buffer=1000)
            blocks[event] = lambda event=event: emitting.after_steps(
                STEPS, mlp.step, lambda number, loss: agent.emit(event, step=number, loss=loss)
            )
        print(json.dumps(which_tap()), flush=True)
        asked = dict.fromkeys(blocks, 0)
        for line in sys.stdin:
            name: Any = json.loads(line)["block"]
            asked[name] += 1
            print(json.dumps(blocks[name]()), flush=True)
        for count in STREAMS:  # each value has arrived
            agent.end_group(f"of {count}")
            for query in QUERIES[:count]:
                client.delivered(f"of {count}: {query}", 1 if "events" in query else STEPS * asked[f"of {count}"])


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError):
        main()
