"""A local HTTP server that hands out files, each after a latency; it stands still while the loop evaluates."""

from __future__ import annotations

import contextlib
import http.client
import multiprocessing
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from multiprocessing.sharedctypes import Synchronized
from socketserver import StreamRequestHandler, ThreadingTCPServer
from typing import Any

from torch import Tensor
from torch.utils.data import Dataset


class Server:
    """What is told to the server, which runs in a process of its own."""

    def __init__(self, port: int, latency: Synchronized[float], paused: Any) -> None:
        self.port, self._latency, self._running = port, latency, paused

    @property
    def latency(self) -> float:
        """Seconds that each answer takes before it is sent; several may be under way at once."""
        return self._latency.value

    @latency.setter
    def latency(self, seconds: float) -> None:
        self._latency.value = max(0.0, seconds)

    def pause(self) -> None:
        """No answer leaves until `resume`."""
        self._running.clear()

    def resume(self) -> None:
        """Answers leave again."""
        self._running.set()


@contextlib.contextmanager
def serving(files: Sequence[bytes], latency: float = 0.0) -> Iterator[Server]:
    """The files as ``/0``, ``/1``, … on a free port of this machine, until the block ends."""
    context = multiprocessing.get_context("spawn")
    shared, running = context.Value("d", latency), context.Event()
    running.set()
    mine, others = context.Pipe()
    process = context.Process(target=_serve, args=(tuple(files), shared, running, others), daemon=True)
    process.start()
    try:
        if not mine.poll(60):
            raise RuntimeError("The file server did not start within a minute.")
        yield Server(mine.recv(), shared, running)
    finally:
        process.terminate()
        process.join()


def _serve(files: tuple[bytes, ...], latency: Synchronized[float], running: Any, told: Connection) -> None:
    class Handler(StreamRequestHandler):
        wbufsize = -1  # head and body leave as one packet
        disable_nagle_algorithm = True

        def handle(self) -> None:
            """GET, and nothing else of HTTP/1.1: http.server takes longer to parse a request than all the rest."""
            while line := self.rfile.readline():
                while self.rfile.readline() not in (b"\r\n", b""):
                    pass
                time.sleep(latency.value)
                running.wait()
                file = files[int(line.split()[1][1:])]
                self.wfile.write(
                    b"HTTP/1.1 200 OK\r\nContent-Type: image/png\r\nContent-Length: %d\r\n\r\n" % len(file)
                )
                self.wfile.write(file)
                self.wfile.flush()

    server = ThreadingTCPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    told.send(server.server_address[1])
    server.serve_forever()


class Fetched(Dataset[tuple[Any, int]]):
    """Item i is file i of the server, decoded, and its class. Each process has one connection, which stays open."""

    def __init__(self, port: int, decode: Callable[[bytes], Any], targets: Sequence[int]) -> None:
        self.port, self.decode, self.targets = port, decode, targets
        self._link: http.client.HTTPConnection | None = None

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        """One request. Raises OSError if the server is gone."""
        if self._link is None:
            self._link = http.client.HTTPConnection("127.0.0.1", self.port)
        self._link.request("GET", f"/{index}")
        return self.decode(self._link.getresponse().read()), self.targets[index]


class Listed(Dataset[Any]):
    """Item i of each column; the first one may have to be decoded."""

    def __init__(self, *columns: Sequence[Any], decode: Callable[[Any], Any] | None = None) -> None:
        self.columns, self.decode = columns, decode

    def __len__(self) -> int:
        return len(self.columns[0])

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        first, *rest = (column[index] for column in self.columns)
        return (first if self.decode is None else self.decode(first)), *rest


class Distorted(Dataset[Any]):
    """A data set that augments what it reads, a batch at a time."""

    def __init__(self, data: Listed, distort: Callable[[Tensor], Tensor]) -> None:
        self.data, self.distort = data, distort

    def __len__(self) -> int:
        return len(self.data)

    def __getitems__(self, indices: list[int]) -> list[tuple[Tensor, Any]]:
        images, targets = self.data.columns
        return list(zip(self.distort(images[indices]), targets[indices], strict=True))
