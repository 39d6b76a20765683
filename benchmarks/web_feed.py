"""Serves a page of `looptap web` with points of its own: `web_feed.py RATE`."""

import asyncio
import sys
import threading
import time
from array import array
from dataclasses import dataclass, field

import numpy as np

from looptap.protocol.run_config import RunConfig
from looptap.streams.stream.buffer import Batch
from looptap.streams.stream.stream import Stream
from looptap.visualizers.surfaces.web.run_shelf import RunShelf, ShelfEntry
from looptap.visualizers.surfaces.web.web_server import WebServer

MAKE_INTERVAL_SECONDS = 0.005


class Fed(Stream):
    """A stream over the wall clock: a page knows the age of what it draws."""

    unit = ""

    def run(self, rate):
        then, number = time.time(), 1
        while True:
            time.sleep(MAKE_INTERVAL_SECONDS)
            now = time.time()
            count = max(1, round((now - then) * rate))
            x = np.linspace(then, now, count + 1)[1:]
            rows = list(zip(x.tolist(), np.random.normal(size=count).tolist(), strict=True))
            events = array("q", range(number, number + count))
            self.publish(Batch(number, events, array("d", bytes(8 * count)), rows))
            then, number = now, number + count


@dataclass
class FedRun:
    """What stands in for a run: one stream."""

    streams: list
    name: str = "fed"
    id: str = "fed"
    state: str = "live"
    reason: str = ""
    started: float | None = None
    ended: float | None = None
    metadata: dict = field(default_factory=dict)
    commands: list = field(default_factory=list)
    scalars: list = field(default_factory=list)
    config: RunConfig = field(default_factory=RunConfig)

    def history(self, text, on=None):
        pass

    def stream(self, name):
        return self.streams[0]

    def close(self):
        pass


def main():
    """Serve until the process is ended."""
    stream = Fed("loss", fields=("clock", "loss"))
    threading.Thread(target=stream.run, args=(float(sys.argv[1]),), daemon=True).start()
    shelf = RunShelf(lambda: [ShelfEntry("fed", "fed", "live", "live", lambda: FedRun([stream]))])
    server = WebServer(shelf)
    server.listen("127.0.0.1", 0)
    asyncio.run(server.run(lambda: print(server.url, flush=True)))


if __name__ == "__main__":
    main()
