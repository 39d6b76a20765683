"""Growth of costs with streams, queries, clients, observables and ranks.

Writes a section of docs/costs.md. Idle streams are on events that do not occur; their cost is the I/O thread's share
of a core. The cost of streams with values is the job's CPU time for each event, over all threads; each value must
arrive. The promises are for idle streams, with `looptap.Limits` raised above their number. No exponent should be much
above 1.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import torch
from harness import Row, ask, helper, main
from reader import run
from scaling import Growth, longest_hold

import looptap

MANY = looptap.Limits(clients=64, streams=4000, streams_per_client=4000, declared_streams=4000)
CLIENTS, EVENTS = 4, 300

RANKS = """
import os, sys, time, looptap
agents = []
for rank in range(int(os.environ["WORLD_SIZE"])):
    os.environ["RANK"] = str(rank)
    agents.append(looptap.Agent("ranks", budget=float("inf")))
print("there", flush=True)
step = 0
while True:
    time.sleep(0.05)
    step += 1
    for agent in agents:
        agent.emit("batch", step=step, loss=1 / step)
"""
MERGES = """
import json, time, looptap
run = looptap.attach("ranks", timeout=60)
stream = run.stream("mean(e.loss for e in events)", ranks="all", combine="merge", window=5, patience=10.0, timeout=60)
stream.wait(2, timeout=60)
cpu, begin = time.process_time(), stream.arrived
stream.wait(begin + 8, timeout=60)
print(json.dumps((time.process_time() - cpu) / (stream.arrived - begin)))
assert not (stream.dropped or stream.withheld), stream
run.close()
"""


def share(of: float) -> str:
    return f"{100 * of:.2g}%"


def resting(agent: looptap.Agent) -> tuple[float, float]:
    """Return the I/O thread's share of a core and longest hold, without events."""
    shares: list[float] = []
    time.sleep(1.5 * MANY.heartbeat)  # the first heartbeat reports all streams
    hold = longest_hold(io_thread(), after=lambda: shares.append(agent.stats()["io_share"]))
    return statistics.median(shares), hold


def io_thread() -> threading.Thread:
    return next(thread for thread in threading.enumerate() if thread.name == "looptap-io")


def idle(count: int, clients: int = CLIENTS) -> tuple[float, float, float]:
    """Return the seconds to open idle streams, their share of a core, longest hold."""
    with run(limits=MANY) as agent, helper("many.py", str(clients), str(count), "step", "never") as process:
        return (ask(process)["opened"], *resting(agent))


def busy(clients: int, streams: int) -> tuple[float, float]:
    """Return the job's CPU seconds per event with many streams, and longest hold."""
    with run(limits=MANY) as agent, helper("many.py", str(clients), str(streams), "x * 2", "batch") as process:
        ask(process)
        emitted = 0

        def emit() -> None:
            nonlocal emitted
            emitted += 1
            agent.emit("batch", x=0.5)

        emit()
        begin = time.process_time()
        for _ in range(EVENTS):
            emit()
            time.sleep(0.001)
        arrived(process, emitted * streams)
        took = (time.process_time() - begin) / EVENTS
        hold = longest_hold(io_thread(), emit, period=0.005)
        arrived(process, emitted * streams)
        return took, hold


def arrived(process: Any, count: int) -> None:
    """Wait until so many values have arrived, with none missing."""
    process.stdin.write(f"{count}\n")
    process.stdin.flush()
    seen = ask(process)
    assert (seen["arrived"], seen["missing"]) == (count, 0), seen


def event_types(count: int) -> tuple[float, float]:
    """Return the I/O thread's share and longest hold with so many event types."""
    with run(limits=MANY) as agent, helper("many.py", str(CLIENTS), str(CLIENTS), "step", "type0") as process:
        ask(process)
        for number in range(count):
            agent.emit(f"type{number}", step=0)
        return resting(agent)


def observables(count: int) -> float:
    """Return the seconds per event with so many observables, one of them queried."""
    with run() as agent, helper("many.py", "1", "1", "x1", "batch") as process:
        ask(process)
        given = {f"x{number}": 0.5 for number in range(count)}
        agent.emit("batch", **given)
        begin = time.perf_counter()
        for _ in range(5000):
            agent.emit("batch", **given)
        took = (time.perf_counter() - begin) / 5000
        arrived(process, 5001)
    return took


def parameters(layers: int) -> float:
    """Return the seconds per event with the norms of the gradients of so many layers."""
    torch.set_num_threads(1)
    model = torch.nn.Sequential(*(torch.nn.Linear(32, 32) for _ in range(layers)))
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    with run(budget=float("inf")) as agent:
        agent.expose(model=model)
        with helper("many.py", "1", "1", "layer_norms(model, 'grad')", "batch") as process:
            ask(process)
            agent.emit("batch")
            seen = []
            for _ in range(50):
                begin = time.perf_counter()
                agent.emit("batch")
                seen.append(time.perf_counter() - begin)
            arrived(process, 51)
    return statistics.median(seen)


def ranks(count: int) -> float:
    """Return the client's CPU seconds per window merged over so many ranks."""
    with run():
        own = {"WORLD_SIZE": str(count), "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}
        environment = {**os.environ, **own}
        with subprocess.Popen([sys.executable, "-c", RANKS], env=environment, stdout=subprocess.PIPE) as job:
            try:
                assert job.stdout is not None
                job.stdout.readline()
                done = subprocess.run([sys.executable, "-c", MERGES], env=environment, capture_output=True, check=True)
                return float(json.loads(done.stdout))
            finally:
                job.kill()


def growths() -> Iterator[Growth]:
    sizes = (125, 250, 500, 1000)
    found = {size: idle(size) for size in sizes}
    what, holds = "streams of four clients", {size: found[size][2] for size in sizes}
    yield Growth(what, "seconds to open them all", {size: found[size][0] for size in sizes})
    yield Growth(what, "share of a core, idle", {size: found[size][1] for size in sizes}, holds, share)
    for what, sizes, measure in (
        ("streams with a value at each event, of one client", (16, 64, 256), lambda size: busy(1, size)),
        ("clients with one such stream each", (4, 12, 32), lambda size: busy(size, size)),
    ):
        seen = {size: measure(size) for size in sizes}
        times, holds = ({size: seen[size][i] for size in sizes} for i in (0, 1))
        yield Growth(what, "CPU of the job for an event", times, holds)
    types = {size: event_types(size) for size in (10, 100, 900)}
    yield Growth(
        "types of events that have come", "share of a core, idle", {size: types[size][0] for size in types},
        {size: types[size][1] for size in types}, share,
    )  # fmt: skip
    yield Growth("observables", "an event, one of them read", {size: observables(size) for size in (4, 16, 64, 256)})
    yield Growth("layers", "an event with layer_norms", {size: parameters(size) for size in (25, 50, 100, 200)})
    yield Growth("ranks", "CPU of the client for a merged window", {size: ranks(size) for size in (4, 8, 16, 32)})


def rows() -> Iterator[Row]:
    _, alone, _ = idle(64, clients=1)
    yield Row(
        "64 idle streams of a client: the I/O thread's share of a core", "", share(alone), "", "≤ 0.3%", alone <= 0.003
    )
    for growth in growths():
        largest = max(growth.figures)
        figure = growth.figures[largest]
        promise, holds = "", None
        if growth.measured == "share of a core, idle" and growth.what.startswith("streams"):
            promise, holds = "< 1%", figure < 0.01
        elif growth.measured.startswith("seconds to open"):
            promise, holds = "linear: exponent ≤ 1.2", growth.exponent <= 1.2
        yield Row(
            f"{largest:,} {growth.what}: {growth.measured} (exponent over the sizes of docs/costs.md)", "",
            growth.show(figure), f"{growth.exponent:.2f}", promise, holds, growth.as_json(),
        )  # fmt: skip


if __name__ == "__main__":
    main(rows, __doc__)
