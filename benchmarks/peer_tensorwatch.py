"""TensorWatch 0.9.1 doing what bench_tensorwatch.py asks; prints JSON.

It runs in an environment of its own. `import tensorwatch` loads its charts, image tools and model drawings first, which
fail on current versions of what they use. The watcher, its streams and its ZeroMQ layer are loaded here without them:
the package object is made by hand, its modules are TensorWatch's own, unchanged. Both processes use the documented
calls.
"""

from __future__ import annotations

import importlib.util
import json
import random
import statistics
import subprocess
import sys
import time
import types

spec = importlib.util.find_spec("tensorwatch")
package = types.ModuleType("tensorwatch")
package.__path__ = list(spec.submodule_search_locations)
sys.modules["tensorwatch"] = package

from tensorwatch.stream import Stream  # noqa: E402 - once its package stands
from tensorwatch.watcher import Watcher  # noqa: E402 - once its package stands
from tensorwatch.watcher_client import WatcherClient  # noqa: E402 - once its package stands

PORT = 7  # added to TensorWatch's own port numbers


class Counting(Stream):
    """The end of a stream in the reader: the number of values, and their delays."""

    def __init__(self) -> None:
        super().__init__()
        self.count, self.last, self.delays, self.values = 0, 0.0, [], []

    def write(self, val, from_stream=None) -> None:
        now = time.monotonic()
        self.count, self.last = self.count + 1, now
        if isinstance(val.value, float):
            self.delays.append(now - val.value)
        self.values.append(repr(val.value))


def reader() -> None:
    """Create the streams named on standard input; count their values on request."""
    client, ends, keep = WatcherClient(port=PORT), {}, []
    for line in sys.stdin:
        request = json.loads(line)
        if "expression" in request:
            name, event = request["name"], request["event"]
            stream = client.create_stream(name=name, event_name=event, expr=request["expression"], throttle=None)
            ends[name] = Counting()
            ends[name].subscribe(stream)
            keep.append(stream)
            print(json.dumps("created"), flush=True)
        else:
            end = ends[request["name"]]
            answer = {"count": end.count, "last": end.last, "delays": end.delays, "values": end.values[-3:]}
            print(json.dumps(answer), flush=True)


def wait_for(happened, seconds: float = 20.0):
    """Wait until ``happened`` returns something true, at most ``seconds``; return it."""
    deadline = time.monotonic() + seconds
    while not (result := happened()) and time.monotonic() < deadline:
        time.sleep(0.02)
    return result


class Pair:
    """A watcher in this process and a reader in another."""

    def __init__(self) -> None:
        self.watcher = Watcher(port=PORT)
        command = [sys.executable, __file__, "reader"]
        self.reader = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, **request):
        self.reader.stdin.write(json.dumps(request) + "\n")
        self.reader.stdin.flush()
        return json.loads(self.reader.stdout.readline())

    def create(self, name: str, event: str, expression: str) -> None:
        """Create a stream; wait for a first value: it is not ready before."""
        self.ask(name=name, event=event, expression=expression)
        assert wait_for(lambda: name in self.watcher._stream_infos.get(event, {}))
        if not expression.startswith("reduce"):
            probe = dict(step=0, loss=0.0, at=0.0)
            assert wait_for(lambda: self.watcher.observe(event, **probe) or self.count(name))

    def count(self, name: str) -> int:
        return self.ask(name=name)["count"]

    def settle(self, name: str) -> dict:
        """Return the reader's answer once its count is stable for a tenth of a second."""
        answer = self.ask(name=name)
        while True:
            time.sleep(0.1)
            before, answer = answer, self.ask(name=name)
            if before["count"] == answer["count"]:
                return answer


def throughput(pair: Pair, events: int = 4_000, rounds: int = 5) -> dict:
    """Measure events in a row, one stream: the loop's cost, and the arrival rate."""
    pair.create("pairs", "batch", "lambda d: (d.step, d.loss)")
    costs, rates, arrived = [], [], 0
    for _ in range(rounds):
        before = pair.settle("pairs")["count"]
        start, own = time.monotonic(), time.thread_time()
        for step in range(events):
            pair.watcher.observe("batch", step=step, loss=0.5)
        costs.append(((time.monotonic() - start) / events, (time.thread_time() - own) / events))
        answer = pair.settle("pairs")
        arrived += answer["count"] - before
        rates.append((answer["count"] - before) / (answer["last"] - start))
    wall, own = (statistics.median(column) for column in zip(*costs, strict=True))
    lost = events * rounds - arrived
    return {"wall": wall, "thread": own, "rate": statistics.median(rates), "lost": lost}


def latency(pair: Pair, events: int = 1_000, pause: float = 0.005) -> dict:
    """Measure the one-way delay at 200 events a second, out of a training loop."""
    from loops import Mlp

    mlp = Mlp()
    pair.create("delay", "tick", "lambda d: d.at")
    skip = len(pair.settle("delay")["delays"])
    due = time.monotonic()
    for _ in range(events):
        due += pause
        while time.monotonic() < due - 0.001:
            mlp.step()
        pair.watcher.observe("tick", at=time.monotonic())
    delays = sorted(pair.settle("delay")["delays"][skip:])
    return {"p50": delays[len(delays) // 2], "p99": delays[int(0.99 * len(delays))], "arrived": len(delays)}


def reduction(pair: Pair) -> dict:
    """Measure a reduction over five events of loss 1.0: 5.0 is expected."""
    pair.create("sum", "sum", "reduce(lambda a, d: a + d.loss, l, 0.0)")
    for step in range(5):
        pair.watcher.observe("sum", step=step, loss=1.0)
    pair.watcher.end_event("sum")
    return {"values": pair.settle("sum")["values"]}


def loop(pair: Pair, rounds: int = 60, steps: int = 40) -> dict:
    """Measure a training step with no event, one stream and five, interleaved."""
    from loops import Mlp

    mlp, shuffler = Mlp(), random.Random(1)
    pair.create("one-0", "one", "lambda d: (d.step, d.loss)")
    for number in range(5):
        pair.create(f"five-{number}", "five", "lambda d: (d.step, d.loss)")

    def block(event: str) -> float:
        start = time.perf_counter()
        for step in range(steps):
            loss = mlp.step()
            if event != "none":
                pair.watcher.observe(event, step=step, loss=loss.item())
        return (time.perf_counter() - start) / steps

    seconds = {"none": [], "one": [], "five": []}
    for number in range(-1, rounds):
        for event in shuffler.sample(list(seconds), 3):
            time.sleep(0.05)
            took = block(event)
            if number >= 0:
                seconds[event].append(took)
    return seconds


def main() -> None:
    if sys.argv[1:] == ["reader"]:
        reader()
        return
    pair = Pair()
    try:
        parts = {part.__name__: part(pair) for part in (throughput, latency, reduction, loop)}
        print(json.dumps(parts), flush=True)
    finally:
        pair.reader.stdin.close()
        pair.reader.wait(10)


if __name__ == "__main__":
    main()
