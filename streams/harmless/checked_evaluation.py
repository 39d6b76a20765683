"""Evaluate checked code: the objects that it made, and torch's modes around it.

Gradients are off, so that nothing is recorded and no saved-tensor hook of the job is called; autocast keeps no casts
of these weights. Both belong to the thread and are put back, also after Ctrl-C.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from looptap.streams.harmless.plain import has_own_operators
from looptap.streams.harmless.refusal import Refusal
from looptap.streams.preserving.interrupts import complete
from looptap.streams.preserving.job_modes import modes_observe
from looptap.streams.preserving.torch_state import TorchStateGuard

T = TypeVar("T")


class CheckedEvaluation:
    """The state of one evaluation on one thread."""

    __slots__ = ("_before", "_cache", "_gradients", "_modes", "_torch", "copies",
                 "in_own_context", "is_following", "is_unobserved", "on_copies", "own", "watch")  # fmt: skip

    def __init__(self, before: CheckedEvaluation | None) -> None:
        self._before = before
        self._torch: Any = None
        self._modes: TorchStateGuard | None = None
        self._gradients = self._cache = False
        self.own: dict[int, Any] = {}
        """Containers, iterators and arrays that the evaluation made, by identity: it may change them."""
        self.copies: dict[int, Any] = {}
        """The originals of the modules that it runs on copies, by the identity of the copy."""
        self.watch: Any = None
        """The mode that sees each tensor operation, while it is on."""
        self.is_following = False
        """Whether a function of the job is being followed."""
        self.is_unobserved = False
        """Whether no mode of the job's sees tensor operations."""
        self.in_own_context = False
        """Whether context variables have values of the evaluation's own."""
        self.on_copies: list[str] = []
        """The classes of the models that it has run on copies."""

    def begin(self) -> None:
        """Turn gradients off; `end` must follow, even if this raises."""
        torch: Any = sys.modules.get("torch")
        if torch is not None and hasattr(torch, "is_autocast_cache_enabled"):
            self._gradients, self._cache = torch.is_grad_enabled(), torch.is_autocast_cache_enabled()
            self._torch = torch
            if self._gradients:
                torch._C._set_grad_enabled(False)
            if self._cache and torch.is_autocast_enabled("cpu") | torch.is_autocast_enabled("cuda"):
                torch.set_autocast_cache_enabled(False)
        _running.evaluation = self

    def keep_modes(self) -> None:
        """Save torch's modes before more than the gradient mode changes."""
        if self._modes is None:
            self._modes = TorchStateGuard(randomness=False, process=False)
            self._modes.__enter__()

    def end(self) -> None:
        """Put back what belongs to the thread; may be called again after Ctrl-C."""
        _running.evaluation = self._before
        torch = self._torch
        if self._modes is not None:
            self._modes.restore()
        if torch is not None:
            if torch.is_grad_enabled() != self._gradients:
                torch._C._set_grad_enabled(self._gradients)
            if torch.is_autocast_cache_enabled() != self._cache:
                torch.set_autocast_cache_enabled(self._cache)


class _Running(threading.local):
    evaluation: CheckedEvaluation | None = None


_running = _Running()


def current() -> CheckedEvaluation:
    """Return the evaluation of this thread."""
    found = _running.evaluation
    if found is None:
        raise Refusal("it was called after its evaluation")
    return found


def evaluating() -> bool:
    """Return True inside an evaluation on this thread."""
    return _running.evaluation is not None


def evaluated(do: Callable[..., T], *given: Any) -> T:
    """Return what checked code returns. Raises `Refusal`, and what the code raises."""
    one = CheckedEvaluation(_running.evaluation)
    try:
        try:
            one.begin()
            return do(*given)
        finally:
            complete(one.end)
    except KeyboardInterrupt:
        complete(one.end)  # it may have come before that was done
        raise


def check_modes() -> None:
    """Refuse tensor operations that a mode of the job's would see."""
    evaluation = current()
    if evaluation.watch is None and not evaluation.is_unobserved:
        if modes_observe(sys.modules["torch"]):
            raise in_modes()
        if not has_own_operators(sys.modules["torch"]):
            raise Refusal("an operator of torch.Tensor is of the job's own, and is not known to be harmless")
        evaluation.is_unobserved = True  # modes belong to the thread, and it enters no others


def in_modes() -> Refusal:
    """Return the refusal of tensor operations that a mode of the job's would see."""
    return Refusal(
        "the job runs this event inside a dispatch mode, a function mode or a transform of torch, which would see "
        "the query's tensor operations", passing=True,
    )  # fmt: skip
