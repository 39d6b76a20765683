"""A training loop on a thread of its own."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

from looptap.agent.agent import Agent
from looptap.testing import parts_of

JOIN_TIMEOUT_SECONDS = 60.0


@contextlib.contextmanager
def training(agent: Agent, pause: float = 0.003, **observables: Any) -> Iterator[None]:
    """Emit batches with a rising ``step``, until the block ends; then end a pause."""
    over = threading.Event()

    def train() -> None:
        step = 0
        while not over.wait(pause):
            agent.emit("batch", **{"step": step, **observables})
            step += 1

    thread = threading.Thread(target=train)
    thread.start()
    try:
        yield
    finally:
        over.set()
        parts_of(agent).dispatcher.commands.job.pause.resume()
        thread.join(JOIN_TIMEOUT_SECONDS)
        assert not thread.is_alive()
