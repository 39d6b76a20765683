"""One stream merged over 64 ranks on one machine, directly or by a relay.

The client attaches to all of them, or to a relay that merges their results. The 64 agents are in four processes that do
nothing else. Each rank emits 20 events a second, and ten events are reduced to their mean and a quantile: two values a
second for all ranks. The client is a separate process, which runs for ten seconds in each mode; its CPU time does not
include that of the relay, which is given separately. The delay is the time from when the last of the 64 ranks closed
its window until the merged value arrives.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator

import numpy as np
from harness import Row, in_units, main

RANKS, PROCESSES, WINDOW, RATE, SECONDS, ROUNDS = 64, 4, 10, 20, 10.0, 3

JOB = f"""
import os, sys, time, looptap
first = int(sys.argv[1])
agents = []
for rank in range(first, first + {RANKS // PROCESSES}):
    os.environ["RANK"] = str(rank)
    agents.append(looptap.Agent("many-ranks", budget=float("inf")))
begin = float(sys.argv[2])
for step in range(10**9):
    time.sleep(max(0.0, begin + step / {RATE} - time.monotonic()))
    for agent in agents:
        agent.emit("batch", step=step, loss=1.0 / (step + 1))
"""

CLIENT = f"""
import json, resource, sys, threading, time, looptap
from looptap.client.session.value_receiver import ValueReceiver
messages, take_in = 0, ValueReceiver.on_values
def counted(self, message):
    global messages
    messages += 1
    take_in(self, message)
ValueReceiver.on_values = counted
run = looptap.attach("many-ranks", timeout=30)
stream = run.stream("mean(e.loss for e in events), quantile((e.loss for e in events), 0.9)", ranks="all",
                    combine="merge", window={WINDOW}, relay=sys.argv[1] == "relay", patience=10.0, timeout=60)
stream.wait(3, timeout=60)
delays, messages, cpu, begin, seen = [], 0, time.process_time(), time.monotonic(), stream.arrived
stop = begin + {SECONDS}
for value in stream.follow(history=False):
    now, record = time.monotonic(), stream.records[-1]
    if not record.partial:
        delays.append(now - record.time)
    if now > stop:
        break
windows = stream.arrived - seen
assert not (stream.dropped or stream.withheld), stream
report = {{"cpu": (time.process_time() - cpu) / windows, "messages": messages / windows, "delays": delays,
         "threads": threading.active_count(), "absent": len(stream.absent)}}
run.close()
children = resource.getrusage(resource.RUSAGE_CHILDREN)
report["relay"] = children.ru_utime + children.ru_stime
print(json.dumps(report))
"""


def rows() -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as place:
        os.chmod(place, 0o700)
        variables = {"LOOPTAP_DIR": place, "WORLD_SIZE": str(RANKS), "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}
        environment = {**os.environ, **variables}
        begin = str(time.monotonic() + 1.0)
        each = RANKS // PROCESSES
        jobs = [
            subprocess.Popen([sys.executable, "-c", JOB, str(first), begin], env=environment)
            for first in range(0, RANKS, each)
        ]
        try:
            while len(os.listdir(place)) < 2 * RANKS:  # each has a socket and a file
                time.sleep(0.1)
            found: dict[str, list[dict[str, object]]] = {"direct": [], "relay": []}
            for _ in range(ROUNDS):
                for way, seen in found.items():
                    command = [sys.executable, "-c", CLIENT, way]
                    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
                    seen.append(json.loads(done.stdout))
        finally:
            for job in jobs:
                job.kill()
                job.wait()

    def median(way: str, name: str) -> float:
        return float(np.median([each[name] for each in found[way]]))

    def delay(way: str, quantile: float) -> float:
        return float(np.quantile(np.concatenate([each["delays"] for each in found[way]]), quantile))

    ratio = median("relay", "cpu") / median("direct", "cpu")
    threads = f"{median('direct', 'threads'):.0f} threads", f"{median('relay', 'threads'):.0f} threads"
    yield Row(
        f"merged over {RANKS} ranks by a relay: the client's CPU for a window (baseline: it reaches all ranks)",
        f"{in_units(median('direct', 'cpu'))}, {threads[0]}",
        f"{in_units(median('relay', 'cpu'))}, {threads[1]}; the relay in all {median('relay', 'relay'):.1f} s of CPU",
        f"{ratio:.2g}",
        figures={"found": found},
    )
    yield Row(
        f"merged over {RANKS} ranks by a relay: messages of values to the client for a window",
        f"{median('direct', 'messages'):.1f}",
        f"{median('relay', 'messages'):.1f}",
        f"{median('relay', 'messages') / median('direct', 'messages'):.2g}",
    )
    yield Row(
        f"merged over {RANKS} ranks by a relay: delay from the last rank's close, median (p99)",
        f"{in_units(delay('direct', 0.5))} ({in_units(delay('direct', 0.99))})",
        f"{in_units(delay('relay', 0.5))} ({in_units(delay('relay', 0.99))})",
        f"{delay('relay', 0.5) / delay('direct', 0.5):.2g}",
    )


if __name__ == "__main__":
    main(rows, __doc__)
