"""A client process that tests stop; it reports what each stream received."""

import faulthandler
import json
import sys
import time
from itertools import pairwise
from pathlib import Path

import looptap
from looptap.client.run import Run
from looptap.client.session.session import OPEN
from looptap.client.transport.zmq_client import ZmqTransport
from looptap.protocol.files.connection import read_connection_file

QUICK = looptap.Limits(heartbeat=0.05, heartbeat_timeout=0.2)
QUERIES = {
    "mapped": ("step", {}),
    "large": ("text", {}),
    "every third": ("step", {"every": 3}),
    "low latency": ("step, step * 2", {"latency": "low"}),
    "function": (lambda e: e.step, {"budget": float("inf")}),
    "window": ("len(events)", {"window": 7}),
    "declared": ("declared", {}),
    "logged": ("logged", {}),
}


def story(stream):
    """Return what came of a stream, what is known to be missing, and what is not."""
    records = stream.records
    jumps = sum(b.number - a.number - 1 for a, b in pairwise(records))
    return {
        "state": stream.state, "reason": stream.reason, "arrived": stream.arrived, "newest": stream.newest,
        "missing": sum(gap.missing or 0 for gap in stream.gaps), "dropped": stream.dropped,
        "unknown": [gap.after for gap in stream.gaps if gap.missing is None],
        "begins": stream.begins, "jumps": jumps, "withheld": getattr(stream, "withheld", 0),
        "first": [records[0].number, records[0].event] if records else None,
        "last": [records[-1].number, records[-1].event] if records else None,
    }  # fmt: skip


for line in sys.stdin:
    limits, path = QUICK, Path(line.strip())
    file = read_connection_file(path)
    process = file.process

    def ended(path=path, process=process):
        return "" if path.exists() and process.alive() else "It has ended."

    link = ZmqTransport(file.endpoints, file.server_public.encode(), file.client, limits=limits, ended=ended)
    with Run(link, run=file.run, timeout=300) as run:
        own = {name: asked for name, asked in QUERIES.items() if name not in ("declared", "logged")}
        streams = {
            name: run.stream(query, name=name, timeout=300, history=False, **how) for name, (query, how) in own.items()
        }
        streams |= {name: run.stream(name, timeout=300) for name in ("declared", "logged")}
        print("attached", flush=True)
        deadline = time.monotonic() + 60
        while run.state in OPEN and time.monotonic() < deadline:
            time.sleep(0.002)
        if run.state in OPEN:
            faulthandler.dump_traceback(all_threads=True)
        stories = {name: story(stream) for name, stream in streams.items()}
        print(
            json.dumps({"state": run.state, "reason": run.reason, "losses": run.losses, "streams": stories}), flush=True
        )
