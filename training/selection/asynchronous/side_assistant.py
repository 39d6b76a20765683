"""`SideAssistant`: the loop's end of an assistant in a thread or a process."""

from __future__ import annotations

import os
import weakref
from typing import Any, TypeAlias

from looptap.streams.errors import ControlError
from looptap.training.sampling.permutation_walk import Floats, Ints
from looptap.training.selection.asynchronous.assistant_loop import Made
from looptap.training.selection.asynchronous.process_assistant import ProcessAssistant
from looptap.training.selection.asynchronous.thread_assistant import ThreadAssistant
from looptap.training.selection.features.features import ComputedFeatures, Features
from looptap.training.selection.methods.autoassist import AutoAssist

Running: TypeAlias = ThreadAssistant | ProcessAssistant
MODES: dict[str, type[ThreadAssistant] | type[ProcessAssistant]] = {
    "thread": ThreadAssistant,
    "process": ProcessAssistant,
}


class SideAssistant:
    """The loop's end of an assistant, which starts at the first draw. Never waits.

    It is closed with `close`, or when it is collected; a forked process leaves it alone.
    """

    def __init__(self, mode: Any, method: str, features: Features | None) -> None:
        if mode not in MODES:
            raise ControlError(f"asynchronous={mode!r:.60} must be None, 'thread' or 'process'.")
        if method != AutoAssist.name:
            raise ControlError(
                f"asynchronous={mode!r} is for the method 'autoassist', which learns; not for {method!r}."
            )
        function = features.function if isinstance(features, ComputedFeatures) else None
        if mode == "process" and function is not None and _only_here(function):
            raise ControlError(
                f"features={function!r:.80} cannot be called in another process: pass a function of a module that can "
                "be imported, or an array; or asynchronous='thread'."
            )
        self.mode = mode
        self.starved = 0
        """Batches that were drawn plainly, since the assistant had none ready."""
        self.dropped = 0
        """Steps whose losses it did not get, since it was behind."""
        self.ended = ""
        """Why it ended; empty if it did not."""
        self._running: Running | None = None
        self._owner = os.getpid()

    def __getstate__(self) -> dict[str, Any]:
        """Copy it without what runs: a copy starts an assistant of its own."""
        return {name: value for name, value in vars(self).items() if name != "_finalizer"} | {"_running": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _owner=os.getpid())

    @property
    def waiting(self) -> int:
        """The number of batches that are ready."""
        return 0 if self._running is None else self._running.waiting

    @property
    def pid(self) -> int | None:
        """The id of its process, if it has one."""
        return getattr(self._running, "pid", None)

    def draw(self, method: AutoAssist, shard: Ints, batch_size: int, seed: Any) -> Made | None:
        """Return a batch; None if none is ready: then draw plainly."""
        made, method.beside = None, True
        if not self.ended and os.getpid() == self._owner:
            running = self._running or self._started(method, shard, batch_size, seed)
            made = None if running is None else running.take()
            if made is None and running is not None and (why := running.ended):
                self._finalizer()
                self.ended = why
        self.starved += made is None
        return made

    def _started(self, method: AutoAssist, shard: Ints, batch_size: int, seed: Any) -> Running | None:
        try:
            self._running = running = MODES[self.mode](method, shard, batch_size, seed)
        except Exception as error:  # no memory, no processes left
            self.ended = f"it could not start: {error}"
            return None
        self._finalizer = weakref.finalize(self, _close, running, self._owner)
        return running

    def learn(self, indices: Ints, losses: Floats, rate: float) -> None:
        """Pass it the losses of a step."""
        if self._running is not None and not self.ended and not self._running.put(indices, losses, rate):
            self.dropped += 1

    def close(self) -> None:
        """End the assistant; it starts again at the next draw."""
        if self._running is not None:
            self._finalizer()
        self._running, self.ended = None, ""


def _close(running: Running, owner: int) -> None:
    if os.getpid() == owner:
        running.close()


def _only_here(function: Any) -> bool:
    name, module = getattr(function, "__qualname__", "<"), getattr(function, "__module__", "__main__")
    return "<" in name or module == "__main__"
