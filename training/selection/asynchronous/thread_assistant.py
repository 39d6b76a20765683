"""`ThreadAssistant`: an assistant in a thread of the training process."""

from __future__ import annotations

import queue
import threading
from typing import Any

import numpy as np

from looptap.training.sampling.permutation_walk import Floats, Ints, PermutationWalk
from looptap.training.selection.asynchronous.assistant_loop import (
    IDLE_SECONDS,
    MAX_BATCHES_AHEAD,
    MAX_PENDING_LOSSES,
    AssistantSettings,
    Made,
    assist,
)
from looptap.training.selection.methods.autoassist import AutoAssist


class ThreadQueues:
    """The two queues; neither side waits for the other, except an idle assistant."""

    def __init__(self) -> None:
        self.batches, self.losses = queue.SimpleQueue[Made](), queue.SimpleQueue[tuple[Ints, Floats]]()
        self.closed = False
        self.error = ""

    @property
    def wants_batch(self) -> bool:
        """True if the BossQueue is shorter than c."""
        return self.batches.qsize() < MAX_BATCHES_AHEAD

    def put_batch(self, made: Made) -> None:
        """Append to the BossQueue."""
        self.batches.put(made)

    def next_losses(self) -> tuple[Ints, Floats] | None:
        """Take from the AssistantQueue; None if there was nothing for a moment."""
        try:
            return self.losses.get(timeout=IDLE_SECONDS)
        except queue.Empty:
            return None


class ThreadAssistant:
    """An assistant in a daemon thread, which learns the weights of ``method``."""

    def __init__(self, method: AutoAssist, shard: Ints, batch_size: int, seed: Any) -> None:
        self._queues, self._rate = ThreadQueues(), np.zeros(1, np.float32)
        own = AutoAssist(method.table, AssistantSettings(method.features, self._rate))
        own.phi, own.averages = method.phi, method.averages
        self._thread = threading.Thread(
            target=_run, name="looptap-assistant", daemon=True,
            args=(self._queues, own, PermutationWalk(shard, seed), batch_size),
        )  # fmt: skip
        self._thread.start()

    @property
    def ended(self) -> str:
        """The reason why it ended; empty while it works."""
        return "" if self._thread.is_alive() else self._queues.error or "its thread ended"

    @property
    def waiting(self) -> int:
        """The number of batches in the BossQueue."""
        return self._queues.batches.qsize()

    def take(self) -> Made | None:
        """Take a batch; None if there is none. Does not wait."""
        try:
            return self._queues.batches.get_nowait()
        except queue.Empty:
            return None

    def put(self, indices: Ints, losses: Floats, rate: float) -> bool:
        """Append to the AssistantQueue; return False if it is full. Does not wait."""
        self._rate[0] = rate
        if self._queues.losses.qsize() >= MAX_PENDING_LOSSES:
            return False
        self._queues.losses.put((indices, losses))
        return True

    def close(self) -> None:
        """End the thread within a moment. Does not wait."""
        self._queues.closed = True


def _run(queues: ThreadQueues, method: AutoAssist, walk: PermutationWalk, batch_size: int) -> None:
    try:
        assist(queues, method, walk, batch_size)
    except Exception as error:  # the loop reads it
        queues.error = f"{type(error).__name__}: {error}"
