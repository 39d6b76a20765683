"""The training thread's cost of an event with a query, for bench_emit_*.py.

In a row: 50,000 events in a loop that does nothing else, while the I/O thread packs and sends and a client in another
process reads; wall time, so that every wait for the interpreter lock is in it. In a loop: the time of each `emit`
after a training step of a millisecond, which has filled the caches with its own; the clock's own cost is subtracted.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from harness import Row, in_units, interleave, promised
from loops import Mlp
from reader import Reader, reader, run

import looptap

IN_A_ROW, STEPS = 50_000, 100
MOST_EMPTY_CALLS = promised(2.0, pure=10.0)
"""What an event in a row with one query may cost, in calls of an empty method."""


class Empty:
    def emit(self, event: str, /, **observables: Any) -> None:
        pass


class Burst:
    """Events in a row until all is delivered; wall and CPU time per event."""

    def __init__(self, agent: looptap.Agent, client: Reader, name: str, values: int, end: bool) -> None:
        self.agent, self.client, self.name, self.values, self.end = agent, client, name, values, end
        self.due, self.cpu = 0, []

    def __call__(self) -> float:
        cpu, start = time.thread_time(), time.perf_counter()
        for step in range(IN_A_ROW):
            self.agent.emit(self.name, step=step, loss=0.5)
        took = time.perf_counter() - start
        self.cpu.append((time.thread_time() - cpu) / IN_A_ROW)
        if self.end:
            self.agent.end_group(self.name)
        self.due += self.values
        self.client.delivered(self.name, self.due)
        return took / IN_A_ROW


def in_a_row(host: Any) -> float:
    start = time.perf_counter()
    for step in range(IN_A_ROW):
        host.emit("empty", step=step, loss=0.5)
    return (time.perf_counter() - start) / IN_A_ROW


def after_steps(
    count: int,
    step: Callable[[], Any],
    call: Callable[[int, Any], object],
    average: Callable[[list[float]], float] = statistics.median,
) -> float:
    """Return the average of single calls after a step, less the cost of the clock."""
    took, clock = [], []
    for number in range(count):
        loss = step()
        start = time.perf_counter()
        call(number, loss)
        end = time.perf_counter()
        took.append(end - start)
        clock.append(time.perf_counter() - end)
    return average(took) - statistics.median(clock)


def in_a_loop(step: Callable[[], Any], host: Any, event: str) -> float:
    """Return the median of single events after a step, less the cost of the clock."""
    return after_steps(STEPS, step, lambda number, loss: host.emit(event, step=number, loss=loss))


def compare(queries: dict[str, tuple[str, bool]], promise: float, rounds: int = 15) -> Iterator[Row]:
    """Yield rows for queries by name: text, and whether it yields only at group ends."""
    empty, mlp = Empty(), Mlp()
    with run() as agent, reader() as client:
        blocks: dict[str, Callable[[], float]] = {
            "empty": lambda: in_a_row(empty),
            "empty, loop": lambda: in_a_loop(mlp.step, empty, "empty"),
        }
        bursts = {}
        for name, (query, reduces) in queries.items():
            client.open(name, query, on=name, buffer=1000)
            client.open(f"{name}, loop", query, on=f"{name}, loop", buffer=1000)
            bursts[name] = blocks[name] = Burst(agent, client, name, 1 if reduces else IN_A_ROW, reduces)
            blocks[f"{name}, loop"] = lambda name=name: in_a_loop(mlp.step, agent, f"{name}, loop")
        seen = interleave(blocks, rounds, settle=0.05)
        for name, (_, reduces) in queries.items():
            agent.end_group(f"{name}, loop")
            client.delivered(f"{name}, loop", 1 if reduces else STEPS * (rounds + 1))
    for name, (query, reduces) in queries.items():
        wall, cpu, ratio = seen.median(name), statistics.median(bursts[name].cpu[1:]), seen.ratio(name, "empty")
        yield Row(
            f"{query}: an event, {IN_A_ROW:,} in a row, wall time, of which {max(0.0, 1 - cpu / wall):.0%} is waiting "
            "for the GIL or a core (baseline: an empty method)",
            in_units(seen.median("empty")),
            in_units(wall),
            "",
            f"≤ {in_units(promise)}",
            wall <= promise,
            figures={"wall": seen.seconds[name], "cpu": bursts[name].cpu[1:]},
        )
        if not reduces:
            yield Row(
                f"{query}: the same, as a ratio to an empty method",
                in_units(seen.median("empty")),
                in_units(wall),
                str(ratio),
                f"≤ {MOST_EMPTY_CALLS:g}",
                ratio.at_most(MOST_EMPTY_CALLS),
            )
        yield Row(
            f"{query}: an event after a training step, loss a tensor, caches cold (baseline: an empty method there)",
            in_units(seen.median("empty, loop")),
            in_units(seen.median(f"{name}, loop")),
            "",
            figures={"wall": seen.seconds[f"{name}, loop"]},
        )


def steps_until(stop: threading.Event, agent: looptap.Agent, mlp: Mlp) -> list[float]:
    """Train and emit until ``stop``; return the seconds of each step."""
    steps: list[float] = []
    while not stop.is_set():
        start = time.perf_counter()
        loss = mlp.step()
        steps.append(time.perf_counter() - start)
        agent.emit("batch", step=len(steps) - 1, loss=loss)
    return steps
