"""The cost of five streams to a loop of about a millisecond a step.

Figures are wall time, including the I/O thread and switches of the GIL. There are three loops: an MLP (batch 64), a
loop that briefly releases the GIL sixty times a step, and a loop of pure Python. Each runs without any event, with an
agent without queries, and with five streams (a row, a reduction, a norm every tenth event, a sliding mean, a flight
recorder), in shuffled interleaved blocks. The reader is a separate process. The floor is the minimum that Python needs
to keep two numbers of each event: a call, a lock, a clock, `.item()`, an append. After a training step none of its code
and data is in a cache, so each line of Python takes ten times as long as when events come in a row.

The norm has no budget: a wait for the GIL amid it would count as its cost, and its values would be withheld.

The CPU time is that of the whole process, all threads, in the same blocks. Left out: the reader's process, which has
the other core, and a loop of several threads.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from harness import Block, Measured, Row, in_units, interleave, main, promised
from loops import Mlp, PurePython, TinyOps
from reader import Reader, reader, run

import looptap

STEPS, ROUNDS, WARM_UP = 60, 60, 3
EVENTS = STEPS * (ROUNDS + WARM_UP)
STREAMS: dict[str, dict[str, Any]] = {
    "row": {"query": "step, loss"},
    "mean": {"query": "mean(e.loss for e in events)", "window": 100},
    "norm": {"query": "norm(weight)", "every": 10, "budget": math.inf},
    "recent": {"query": "loss > 3 * mean(e.loss for e in recent(50))"},
    "recorder": {"query": "step, loss", "when": "isnan(loss)", "before": 20},
}
VALUES = {"row": EVENTS, "mean": EVENTS // 100, "norm": EVENTS // 10, "recent": EVENTS, "recorder": 0}
"""The number of values expected to arrive."""


class Floor:
    """A stand-in for an agent that keeps two numbers of each event."""

    def __init__(self) -> None:
        self.lock, self.number, self.kept = threading.RLock(), 0, []

    def emit(self, event: str, /, **observables: Any) -> None:
        with self.lock:
            self.number += 1
            now, loss = time.monotonic(), observables["loss"]
            number = loss if type(loss) is float else loss.item()
            self.kept.append((self.number, now, observables["step"], number))
            if len(self.kept) > 100:
                self.kept.clear()


def weight_of(loop: Any) -> Any:
    return loop.model[0].bias if isinstance(loop, Mlp) else loop.weight


def block(loop: Any, agent: looptap.Agent | Floor | None, event: str, cpu: list[float]) -> Block:
    """Return a block of steps, which appends the CPU seconds of a step to ``cpu``."""
    weight = weight_of(loop)

    def steps() -> float:
        start, began_on = time.perf_counter(), time.process_time()
        for number in range(STEPS):
            loss = loop.step()
            if agent is not None:
                agent.emit(event, step=number, loss=loss, weight=weight)
        cpu.append((time.process_time() - began_on) / STEPS)
        return (time.perf_counter() - start) / STEPS

    return steps


def measured(
    make: Callable[[], Any], agent: looptap.Agent, client: Reader, event: str
) -> tuple[Measured, Measured]:
    """Return the wall and the CPU seconds of a step, by block."""
    for name, how in STREAMS.items():
        client.open(f"{event} {name}", on=event, **how)
    loop = make()
    cpu: dict[str, list[float]] = {name: [] for name in ("plain", "idle", "floor", "five")}
    blocks = {
        "plain": block(loop, None, event, cpu["plain"]),
        "idle": block(loop, agent, f"{event} idle", cpu["idle"]),
        "floor": block(loop, Floor(), event, cpu["floor"]),
        "five": block(loop, agent, event, cpu["five"]),
    }
    seen = interleave(blocks, ROUNDS, warm_up=WARM_UP)
    for name, count in VALUES.items():
        client.delivered(f"{event} {name}", count)
    return seen, Measured({name: seconds[WARM_UP:] for name, seconds in cpu.items()})


def rows() -> Iterator[Row]:
    loops = (("MLP, batch 64", Mlp), ("sixty tiny operations a step", TinyOps), ("Python alone", PurePython))
    with run() as agent, reader() as client:
        for title, make in loops:
            seen, cpu = measured(make, agent, client, make.__name__)
            for name, what in (("idle", "an agent without queries"), ("floor", "the floor"), ("five", "five streams")):
                ratio = seen.ratio(name, "plain")
                bound = promised(1.01, pure=1.02) if make is Mlp and name == "five" else None
                yield Row(
                    f"{title}: a step with {what} (baseline: no event)",
                    in_units(seen.median("plain")),
                    in_units(seen.median(name)),
                    ratio.slower(),
                    f"≤ {bound - 1:.0%} slower" if bound else "",
                    ratio.at_most(bound) if bound else None,
                    figures=dict(seen.seconds),
                )
            ratio, most = cpu.ratio("five", "plain"), promised(1.01, pure=1.02)
            yield Row(
                f"{title}: CPU of the process a step with five streams (baseline: no event)",
                in_units(cpu.median("plain")),
                in_units(cpu.median("five")),
                ratio.slower(),
                f"≤ {most - 1:.0%} more" if make is Mlp else "",
                ratio.at_most(most) if make is Mlp else None,
                figures=dict(cpu.seconds),
            )


if __name__ == "__main__":
    main(rows, __doc__)
