"""The cost of further clients that open the same stream.

A loop emits at a steady pace, or as fast as it can. One client, or many in a separate process, open the same stream.
The figure is the CPU time of all threads of the job, including those of libzmq that encrypt, minus the time of the loop
without a client. Each value must arrive at each client. The baseline is the first client. Left out: the clients' side.

Encryption cannot be shared, because each connection has its own key. The figure for bare CURVE is the cost of sending
the same frames, of the same size and at the same pace.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

from harness import Block, Measured, Row, ask, helper, in_units, interleave, main
from raw_curve import Wire, wire
from reader import run

import looptap
from looptap.testing import parts_of

FURTHER = 15
LIMITS = looptap.Limits(clients=64, streams=4000, streams_per_client=4000, declared_streams=4000, in_flight_bytes=2**30)
QUERIES = {"a row": "step, loss", "a mean of 10": "mean(e.loss for e in events)"}
PACES: dict[str, tuple[int, float]] = {"1,000 events/s": (1000, 0.001), "as fast as it can": (50_000, 0.0)}
"""Events of a block, and seconds between two."""
SHARE, ROUNDS = 0.1, 7


class Frames:
    """Counts the frames of values that an agent sends to one of its clients."""

    def __init__(self, agent: looptap.Agent) -> None:
        dispatcher = parts_of(agent).dispatcher
        self.sizes: list[int] = []
        self._send, dispatcher.send = dispatcher.send, self._counted

    def _counted(self, peer: bytes, frame: bytes) -> Any:
        self.sizes.append(len(frame))
        return self._send(peer, frame)


class Crowd:
    """The clients of one event type, in a process of their own, each with one stream."""

    def __init__(self, process: Any, clients: int, per_event: int) -> None:
        self._process, self._clients, self._per_event, self._due = process, clients, per_event, 0

    def arrived(self, events: int) -> None:
        """Wait until the values of this many further events are there, with none missing."""
        self._due += events // self._per_event * self._clients
        self._process.stdin.write(f"{self._due}\n")
        self._process.stdin.flush()
        seen = ask(self._process)
        assert (seen["arrived"], seen["missing"]) == (self._due, 0), seen


def block(agent: looptap.Agent, event: str, crowd: Crowd | None, count: int, pause: float) -> Block:
    """Return a block that emits, and returns the job's CPU seconds for an event."""

    def emit() -> float:
        began = time.process_time()
        for step in range(count):
            agent.emit(event, step=step, loss=0.5)
            if pause:
                time.sleep(pause)
        if crowd is not None:
            crowd.arrived(count)
        return (time.process_time() - began) / count

    return emit


def encrypting(link: Wire, sizes: list[int], pause: float) -> Callable[[], float]:
    """Return a block that sends frames over bare CURVE, and returns CPU seconds."""

    def send() -> float:
        began = time.process_time()
        for size in sizes:
            link.send(bytes(size // 4 * 4))
            if pause:
                time.sleep(pause)
        link.finish()
        return time.process_time() - began

    return send


def rows() -> Iterator[Row]:
    with ExitStack() as stack:
        link = stack.enter_context(wire("arrays"))
        agent = stack.enter_context(run(limits=LIMITS, budget=float("inf")))
        frames = Frames(agent)
        for (title, query), (pace, (count, pause)) in itertools.product(QUERIES.items(), PACES.items()):
            with ExitStack() as crowds:
                blocks = {"none": block(agent, f"{title} {pace} none", None, count, pause)}
                per_event = 10 if "mean" in title else 1
                for name, clients in (("one", 1), ("many", 1 + FURTHER)):
                    event = f"{title} {pace} {name}"
                    process = crowds.enter_context(helper("many.py", str(clients), str(clients), query, event, "10"))
                    ask(process)
                    blocks[name] = block(agent, event, Crowd(process, clients, per_event), count, pause)
                seen = interleave(blocks, ROUNDS)
                frames.sizes.clear()
                blocks["one"]()
                sizes = [size for size in frames.sizes if size > 200]
            first = [one - none for one, none in zip(seen.seconds["one"], seen.seconds["none"], strict=True)]
            further = [
                (many - one) / FURTHER for many, one in zip(seen.seconds["many"], seen.seconds["one"], strict=True)
            ]
            costs = Measured({"first": first, "further": further})
            ratio = costs.ratio("further", "first")
            bare = interleave({"bare": encrypting(link, sizes, 0.02 if pause else 0.0)}, ROUNDS).median("bare") / count
            yield Row(
                f"{title}, {pace}: CPU of the job an event, for each further client of the same query (baseline: for "
                f"the first one; bare CURVE takes {in_units(bare)} for the same frames)",
                in_units(costs.median("first")), in_units(costs.median("further")), str(ratio), f"≤ {SHARE}",
                ratio.at_most(SHARE), figures={**seen.seconds, "bare": [bare]},
            )  # fmt: skip


if __name__ == "__main__":
    main(rows, __doc__)
