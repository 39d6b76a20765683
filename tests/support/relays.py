"""A relay between a client and an agent that fails in the ways that networks do."""

from __future__ import annotations

import contextlib
import socket
import threading

from looptap.client.transport.connect_errors import GREETING


class Proxy:
    """A TCP relay whose connections can be cut or frozen, and which can be shut."""

    def __init__(self, target):
        host, port = target.removeprefix("tcp://").rsplit(":", 1)
        self._target, self._open = (host, int(port)), []
        self.shut, self._deaf = False, set()
        self.greet_and_hang_up = 0  # how many of the next connections end after the first bytes
        self._server = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"tcp://127.0.0.1:{self._server.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self._deaf.clear()
        self.cut()

    def cut(self):
        for end in self._open:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
        self._open = []

    def swallow(self):
        """Let nothing pass over the present connections, not even that one end closes."""
        self._deaf.update(self._open)

    def _serve(self):
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._server.accept()
                if self.shut or self.greet_and_hang_up:
                    if self.greet_and_hang_up:
                        self.greet_and_hang_up -= 1
                        near.sendall(GREETING)
                    near.close()
                    continue
                far = socket.create_connection(self._target)
                self._open += [near, far]
                for source, sink in ((near, far), (far, near)):
                    threading.Thread(target=self._relay, args=(source, sink), daemon=True).start()

    def _relay(self, source, sink):
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if source not in self._deaf:
                    sink.sendall(data)
            if source not in self._deaf:
                sink.shutdown(socket.SHUT_RDWR)
