"""`RankCheckpoint`: saves the state of each rank, also when another rank dies."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

from looptap.training.noted import Noted
from looptap.training.prioritized.distributed.rank_parts import SavedPart, save_part
from looptap.training.prioritized.distributed.rank_presence import LostRank, RankPresence
from looptap.training.selection.selection_arguments import rank_and_world

_LOOK_SECONDS = 0.05
_MAX_WAIT_SECONDS = 10.0  # from the error of a collective until the kernel has ended the process that caused it
_COMMUNICATION_WORDS = ("gloo", "nccl", "processgroup", "process group", "connection reset", "connection closed")


class RankLost(RuntimeError):
    """Another rank has died, or does not answer: the job ends, the state is saved."""

    def __init__(self, text: str, ranks: tuple[int, ...]) -> None:
        super().__init__(text)
        self.ranks = ranks
        """The ranks that died first; empty if no process has ended."""


class RankCheckpoint(Noted):
    """Ends a job on several ranks with a usable checkpoint if one of them dies.

    ``state()`` returns what this rank has to keep: the model, the optimizer, the ``state_dict()`` of what chooses its
    examples, as tensors and plain data, without a collective. ``folder`` is one that all ranks see. Call `stepped`
    after each step: it saves every ``every`` steps.

    >>> import tempfile
    >>> from looptap.training.prioritized.distributed.rank_parts import load_parts
    >>> folder = tempfile.mkdtemp()
    >>> with RankCheckpoint(folder, lambda: {"loss": 0.5}, every=10) as checkpoint:
    ...     for _ in range(25):
    ...         checkpoint.stepped()
    >>> [(part.rank, part.world, part.step, part.state) for part in load_parts(folder)]
    [(0, 1, 20, {'loss': 0.5})]

    If a collective fails inside the ``with`` block because another rank's process has ended, the others save their
    states, of the last step that was done, and raise `RankLost`, which names it. Under torchrun the launcher sends
    SIGTERM to them at the same time; inside the block, and after `RankLost`, it is noted, and the step that runs is
    finished, or fails. A SIGTERM of another cause saves as well, and then does what it did before. Other exceptions
    pass unchanged.

    On CUDA with nccl, a rank that waits on the device sees no error until nccl's watchdog ends the process: only what
    `stepped` and `save` have written remains then.
    """

    def __init__(
        self, folder: str | Path, state: Callable[[], Any], *, every: int | None = None, step: int = 0,
        rank: int | None = None, world: int | None = None,
    ) -> None:  # fmt: skip
        if not callable(state):
            raise TypeError(f"state={state!r:.60} must be a function without arguments: the state is asked for later.")
        if every is not None and every < 1:
            raise ValueError(f"every={every} must be at least 1 step, or None.")
        self.rank, self.world = rank_and_world(rank, world)
        self.folder, self.every = Path(folder), every
        self.step = step
        """The steps that were done."""
        self._state, self._terminated = state, False
        self._presence: RankPresence | None = None
        self._before: Any = None

    def __enter__(self) -> RankCheckpoint:
        import torch

        self.folder.mkdir(parents=True, exist_ok=True)
        self._presence = RankPresence(self.folder, self.rank, self.world)
        if self.world > 1 and torch.distributed.is_initialized():
            torch.distributed.barrier()  # from here on a missing lock is a rank that ended
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGTERM, self._note_termination)
        return self

    def stepped(self) -> None:
        """Count a step, and save if it is time to. Raises RankLost after a SIGTERM."""
        self.step += 1
        if self._terminated:
            self._terminate()
        elif self.every is not None and self.step % self.every == 0:
            self.save()

    def save(self) -> Path | None:
        """Save the state of this rank; return the file. Does not raise: see `note`."""
        try:
            return save_part(self.folder, SavedPart(self.rank, self.world, self.step, self._state()))
        except Exception as error:  # a full disk must not end the job; the file before it is still there
            self._say(f"The state after step {self.step} of rank {self.rank} was not saved: {error!r:.300}")
            return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._presence is None:
            return
        if error is not None and (isinstance(error, RankLost) or _is_of_communication(error)):
            # The handler stays: the launcher's SIGTERM must not cut off the save, nor the traceback.
            loss = error if isinstance(error, RankLost) else self._loss(self._first_lost())
            self._presence.leave("" if loss.ranks else "RankLost: a rank does not answer", loss.ranks)
            if loss is not error:
                raise loss from error
            return
        self._put_handler_back()
        if error is None:
            self._presence.end()
        else:
            self._presence.leave(f"{type(error).__name__}: {error!s:.200}")

    def _note_termination(self, number: int, frame: Any) -> None:
        self._terminated = True

    def _put_handler_back(self) -> None:
        if self._before is not None:
            signal.signal(signal.SIGTERM, self._before)
            self._before = None

    def _terminate(self) -> None:
        """End as a SIGTERM asked to: with the name of a rank that has died, if one has."""
        if lost := self._first_lost():
            raise self._loss(lost)
        self.save()
        self._put_handler_back()
        self._terminated = False
        signal.raise_signal(signal.SIGTERM)

    def _first_lost(self) -> list[LostRank]:
        """Wait shortly until it is known which ranks died first."""
        deadline = time.monotonic() + _MAX_WAIT_SECONDS
        while self._presence is not None:
            missing = self._presence.missing()
            named = {rank for one in missing for rank in one.lost}
            if first := [one for one in missing if not one.lost or one.rank in named]:
                return first
            if time.monotonic() > deadline or self.world == 1:
                break
            time.sleep(_LOOK_SECONDS)
        return []

    def _loss(self, lost: list[LostRank]) -> RankLost:
        """Save, and return the exception that says what has happened."""
        saved = self.save()
        what = [
            f"Rank {one.rank} of {self.world} ({one.process}) "
            + (f"ended with {one.why}" if one.why else "was killed or crashed")
            for one in lost
        ] or ["A rank does not answer, and the processes of all ranks live: one hangs, or is slower than the timeout"]
        kept = f"The state of rank {self.rank} is in {saved}" if saved else f"Rank {self.rank} has saved nothing new"
        return RankLost(
            f"{', '.join(what)} during step {self.step + 1}. {kept}, after {self.step} steps. "
            f"load_parts({str(self.folder)!r}) returns what each rank saved last, to continue on any number of ranks.",
            tuple(one.rank for one in lost),
        )


def _is_of_communication(error: BaseException) -> bool:
    """Return True for an error of torch.distributed, which has classes for some only."""
    import torch

    if isinstance(error, getattr(torch.distributed, "DistError", ())):
        return True
    text = str(error).lower()
    return isinstance(error, RuntimeError) and any(word in text for word in _COMMUNICATION_WORDS)
