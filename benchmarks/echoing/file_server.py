"""A local HTTP server that sends files, each after a latency."""

from __future__ import annotations

import contextlib
import multiprocessing
import time
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection
from multiprocessing.sharedctypes import Synchronized
from socketserver import StreamRequestHandler, ThreadingTCPServer


class Server:
    """Settings of the server, which runs in a process of its own."""

    def __init__(self, port: int, latency: Synchronized[float]) -> None:
        self.port, self._latency = port, latency

    @property
    def latency(self) -> float:
        """Seconds before each answer is sent; several may be under way at once."""
        return self._latency.value

    @latency.setter
    def latency(self, seconds: float) -> None:
        self._latency.value = max(0.0, seconds)


@contextlib.contextmanager
def serving(files: Sequence[bytes], latency: float = 0.0) -> Iterator[Server]:
    """Serve the files as ``/0``, ``/1``, … on a free local port until the block ends."""
    context = multiprocessing.get_context("spawn")
    shared = context.Value("d", latency)
    mine, others = context.Pipe()
    process = context.Process(target=_serve, args=(tuple(files), shared, others), daemon=True)
    process.start()
    try:
        if not mine.poll(60):
            raise RuntimeError("The file server did not start within a minute.")
        yield Server(mine.recv(), shared)
    finally:
        process.terminate()
        process.join()


def _serve(files: tuple[bytes, ...], latency: Synchronized[float], connection: Connection) -> None:
    class Handler(StreamRequestHandler):
        wbufsize = -1  # head and body leave as one packet
        disable_nagle_algorithm = True

        def handle(self) -> None:
            """Serve GET only: http.server's parser takes longer than all the rest."""
            while line := self.rfile.readline():
                while self.rfile.readline() not in (b"\r\n", b""):
                    pass
                time.sleep(latency.value)
                file = files[int(line.split()[1][1:])]
                self.wfile.write(
                    b"HTTP/1.1 200 OK\r\nContent-Type: image/png\r\nContent-Length: %d\r\n\r\n" % len(file)
                )
                self.wfile.write(file)
                self.wfile.flush()

    server = ThreadingTCPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    connection.send(server.server_address[1])
    server.serve_forever()
