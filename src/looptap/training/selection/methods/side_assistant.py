"""`SideAssistant`: the assistant of AutoAssist in a thread beside the loop."""

from __future__ import annotations

import queue
import threading
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from looptap.streams.errors import ControlError
from looptap.training.sampling.permutation_walk import Accepted, Floats, Ints, PermutationWalk
from looptap.training.selection.features.features import Features
from looptap.training.selection.methods.autoassist import AutoAssist

MAX_BATCHES_AHEAD, MAX_PENDING_LOSSES = 8, 32
"""c, the batches of the BossQueue, and the steps of the AssistantQueue."""
_IDLE_SECONDS = 0.05  # how long an assistant waits for losses before it looks at the BossQueue again


class Made(NamedTuple):
    """A batch that an assistant made."""

    accepted: Accepted
    prediction: Floats
    offered: int
    """How many instances were offered to it for that."""


class AssistantSettings:
    """The settings of an assistant, which must not keep a selection alive."""

    floor, cap, exponent = 0.0, 1.0, 1.0
    elapsed = None
    batch_size, switch = 1, "on"

    def __init__(self, features: Features, learning_rate: float) -> None:
        self.shard, self.seed = np.empty(0, np.int64), [0]
        self.features: Features | None = features
        self.learning_rate = learning_rate


class AssistantQueues:
    """The two queues; neither side waits for the other, except an idle assistant."""

    def __init__(self) -> None:
        self.batches, self.losses = queue.SimpleQueue[Made](), queue.SimpleQueue[tuple[Ints, Floats]]()
        self.closed = False
        """True once the loop does not need the assistant any more."""
        self.error = "its thread ended"
        """Why the assistant ended."""

    def close(self) -> None:
        """Have the thread end within a moment. Does not wait."""
        self.closed = True

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
            return self.losses.get(timeout=_IDLE_SECONDS)
        except queue.Empty:
            return None


class SideAssistant:
    """The loop's end of an assistant, which starts at the first draw. Never waits.

    It is closed with `close`, or when it is collected. A copy starts an assistant of its own; a forked process has
    none.
    """

    _queues: AssistantQueues | None = None
    _settings: AssistantSettings
    _thread: threading.Thread
    _close: Callable[[], object]

    def __init__(self, method: str) -> None:
        if method != AutoAssist.name:
            raise ControlError(f"asynchronous=True is for the method 'autoassist', which learns; not for {method!r}.")
        self.starved = 0
        """Batches that were drawn plainly, since the assistant had none ready."""
        self.dropped = 0
        """Steps whose losses it did not get, since it was behind."""
        self.ended = ""
        """Why it ended; empty if it did not."""

    def __getstate__(self) -> dict[str, Any]:
        """Copy it without what runs."""
        return {name: vars(self)[name] for name in ("starved", "dropped", "ended")}

    @property
    def waiting(self) -> int:
        """The number of batches that are ready."""
        return 0 if self._queues is None else self._queues.batches.qsize()

    def draw(self, method: AutoAssist, shard: Ints, batch_size: int, seed: Any) -> Made | None:
        """Return a batch; None if none is ready: then draw plainly."""
        made, method.beside = None, True
        if not self.ended:
            queues = self._queues or self._start(method, PermutationWalk(shard, seed), batch_size)
            try:
                made = queues.batches.get_nowait()
            except queue.Empty:
                self.ended = "" if self._thread.is_alive() else queues.error
        self.starved += made is None
        return made

    def _start(self, method: AutoAssist, walk: PermutationWalk, batch_size: int) -> AssistantQueues:
        """Start an assistant that learns the weights of ``method``."""
        self._queues = queues = AssistantQueues()
        self._settings = AssistantSettings(method.features, method.settings.learning_rate)
        own = AutoAssist(method.table, self._settings)
        own.phi, own.averages = method.phi, method.averages
        self._thread = threading.Thread(
            target=_run, name="looptap-assistant", daemon=True, args=(queues, own, walk, batch_size)
        )
        self._close = weakref.finalize(self, queues.close)
        try:
            self._thread.start()
        except RuntimeError as error:  # no threads left
            queues.error = f"it could not start: {error}"
        return queues

    def learn(self, indices: Ints, losses: Floats, rate: float) -> None:
        """Pass it the losses of a step."""
        if self._queues is None or self.ended:
            return
        self._settings.learning_rate = rate
        if self._queues.losses.qsize() < MAX_PENDING_LOSSES:
            self._queues.losses.put((indices, losses))
        else:
            self.dropped += 1

    def close(self) -> None:
        """End the assistant; it starts again at the next draw."""
        if self._queues is not None:
            self._close()
        self._queues, self.ended = None, ""


def _run(queues: AssistantQueues, method: AutoAssist, walk: PermutationWalk, batch_size: int) -> None:
    try:
        assist(queues, method, walk, batch_size)
    except Exception as error:  # the loop reads it
        queues.error = f"{type(error).__name__}: {error}"


@np.errstate(all="ignore")  # what is not finite ends it with a reason
def assist(queues: AssistantQueues, method: AutoAssist, walk: PermutationWalk, batch_size: int) -> None:
    """Make batches, else learn, until the queues are closed: Algorithm 2."""
    while not queues.closed:
        if queues.wants_batch:
            before = walk.walked
            found = walk.take(batch_size, method.acceptance)
            queues.put_batch(Made(found, method.predicted(found.indices), walk.walked - before))
        elif (seen := queues.next_losses()) is not None:
            method.observe(*seen, None)
