"""`looptap bridge RUN`: joins its stdin and stdout to the socket of a run."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable

from looptap.client.attach import resolve
from looptap.client.transport.connect_errors import dialled
from looptap.client.transport.tunnel.framing import LINE_BUFFER_BYTES, Heading, copy_inward, copy_outward, write_heading
from looptap.client.transport.tunnel.process import is_remote
from looptap.protocol.errors import LinkError, NoSuchRun, NotLooptap, RunEnded


def bridge(name: str | None, rank: int | None) -> int:
    """Write a heading to stdout, then carry one connection; return the exit code."""
    if os.isatty(1):
        raise NotLooptap(
            "looptap bridge talks to a program, not to a person, and first sends keys. A client starts it "
            "automatically: looptap.attach('ssh://{socket.gethostname()}/{name or ''}')"
        )
    # Streams of our own: two threads are in the middle of reading and writing them when the process exits.
    source = open(0, "rb", buffering=LINE_BUFFER_BYTES, closefd=False)  # noqa: SIM115 - not ours to close
    sink = open(1, "wb", buffering=LINE_BUFFER_BYTES, closefd=False)  # noqa: SIM115 - not ours to close
    try:
        if is_remote(name):
            raise NoSuchRun(f"{name!r}: a bridge leads to a run of the machine it is started on. Name the run alone.")
        listed = resolve(name, rank=rank)
        file = listed.usable()
        peer = _first(file.endpoints, listed.unreachable)
    except LinkError as error:
        write_heading(sink, Heading(error=type(error).__name__, text=str(error)))
        return 1
    write_heading(sink, Heading(str(listed.path), file))
    over = threading.Event()
    for work in (lambda: copy_outward(peer, sink), lambda: copy_inward(source, peer)):
        threading.Thread(target=_then, args=(work, over), daemon=True).start()
    over.wait()
    return 0


def _first(endpoints: tuple[str, ...], unreachable: Callable[[LinkError], LinkError]) -> socket.socket:
    for endpoint in endpoints:
        try:
            peer = dialled(endpoint)
        except (OSError, ValueError):
            continue
        peer.settimeout(None)
        return peer
    raise unreachable(RunEnded(f"Nothing listens at {', '.join(endpoints)}: the run has ended."))


def _then(work: Callable[[], None], over: threading.Event) -> None:
    work()
    over.set()
