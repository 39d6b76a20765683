"""What a declared stream without a reader costs the loop.

The baseline is the same query, attached by a client that reads it. "In a row" means 50,000 events in a loop that does
nothing else, in wall time; the client is another process, and all its values are delivered. "After a training step" is
the mean of single calls of `emit` in an MLP loop of a millisecond a step, because the events of a declared stream are
evaluated 256 at a time. `log` is one value of `agent.log` per call, without a reader.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial

from emitting import IN_A_ROW, Burst, Empty, after_steps, in_a_row
from harness import Row, in_units, interleave, main
from loops import Mlp
from reader import reader, run

STEPS, ROUNDS = 512, 11
QUERIES = {
    "step, loss": "arithmetic",
    "mean(e.loss for e in events)": "a reduction",
    "norm(loss), step": "evaluated at the event",
}


def rows() -> Iterator[Row]:
    empty, mean = Empty(), partial(after_steps, STEPS, Mlp().step, average=statistics.fmean)
    with run(budget=math.inf) as agent, reader() as client:
        blocks: dict[str, Callable[[], float]] = {"empty": lambda: in_a_row(empty)}
        for query in QUERIES:
            reduces = "events" in query
            agent.stream(f"kept {query}", query, on=f"kept {query}")
            agent.stream(f"kept loop {query}", query, on=f"kept loop {query}")
            client.open(f"read {query}", query, on=f"read {query}", buffer=1000)
            client.open(f"read loop {query}", query, on=f"read loop {query}", buffer=1000)
            blocks[f"read {query}"] = Burst(agent, client, f"read {query}", 1 if reduces else IN_A_ROW, reduces)
            event = f"kept {query}"
            blocks[event] = _burst(lambda number, event=event: agent.emit(event, step=number, loss=0.5))
            for kind in ("read", "kept"):
                event = f"{kind} loop {query}"
                blocks[event] = lambda event=event: mean(lambda number, loss: agent.emit(event, step=number, loss=loss))
        blocks["log"] = _burst(lambda number: agent.log(loss=0.5))
        blocks["log loop"] = lambda: mean(lambda number, loss: agent.log(logged=loss))
        seen = interleave(blocks, ROUNDS, settle=0.05)
        turns = ROUNDS + 1
        kept = {stream["name"]: stream["values"] for stream in agent.stats()["streams"]}
        assert (kept["loss"], kept["logged"]) == (IN_A_ROW * turns, STEPS * turns), kept
        for query in QUERIES:
            for kind in ("read", "kept"):
                agent.end_group(f"{kind} loop {query}")
            agent.end_group(f"kept {query}")
            values = 1 if "events" in query else STEPS * turns
            client.delivered(f"read loop {query}", values)
            kept = {stream["name"]: stream["values"] for stream in agent.stats()["streams"]}
            assert kept[f"kept loop {query}"] == values, kept
            assert kept[f"kept {query}"] == (1 if "events" in query else IN_A_ROW * turns), kept
    for query, kind in QUERIES.items():
        for loop, where in (("", f"{IN_A_ROW:,} in a row"), ("loop ", "after a training step, loss a tensor")):
            kept, read = f"kept {loop}{query}", f"read {loop}{query}"
            yield Row(
                f"{query} ({kind}), declared, without a reader: an event, {where} (baseline: the query of a client)",
                in_units(seen.median(read)),
                in_units(seen.median(kept)),
                str(seen.ratio(kept, read)),
                figures={"kept": seen.seconds[kept], "read": seen.seconds[read]},
            )
    for block, where in (("log", f"{IN_A_ROW:,} in a row"), ("log loop", "after a training step, loss a tensor")):
        yield Row(
            f"agent.log(loss=loss), without a reader: a call, {where} (baseline: an empty method)",
            in_units(seen.median("empty")),
            in_units(seen.median(block)),
            "",
            figures={"log": seen.seconds[block]},
        )


def _burst(call: Callable[[int], None]) -> Callable[[], float]:
    def block() -> float:
        start = time.perf_counter()
        for number in range(IN_A_ROW):
            call(number)
        return (time.perf_counter() - start) / IN_A_ROW

    return block


if __name__ == "__main__":
    main(rows, __doc__)
