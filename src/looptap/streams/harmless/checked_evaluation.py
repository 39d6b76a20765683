"""Evaluate checked code: the objects that it made, and torch's modes around it.

Gradients are off, so that nothing is recorded and no saved-tensor hook of the job is called; autocast keeps no casts
of these weights. Both belong to the thread and are put back, also after Ctrl-C. A mode that traces would see the
evaluation's tensor operations: then nothing is evaluated. Modes of the job's own are set aside at events.
"""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

from looptap.streams.harmless.plain import has_own_operators
from looptap.streams.harmless.refusal import Refusal
from looptap.streams.preserving.interrupts import run_between
from looptap.streams.preserving.job_modes import modes_observe
from looptap.streams.preserving.torch_state import TorchStateGuard

T = TypeVar("T")


class CheckedEvaluation:
    """The state of one evaluation on one thread."""

    __slots__ = (
        "_before",
        "_cache",
        "_gradients",
        "_modes",
        "_torch",
        "copies",
        "in_own_context",
        "is_watching",
        "on_copies",
        "own",
        "storages",
    )

    def __init__(self) -> None:
        self._before = _running.evaluation
        self._torch: Any = None
        self._modes: TorchStateGuard | None = None
        self._gradients = self._cache = False
        self.own: dict[int, Any] = {}
        """Containers, iterators and arrays that the evaluation made, by identity: it may change them."""
        self.storages: dict[int, int] = {}
        """The storages that it made, by their addresses: it may write to them.

        The values are references that keep the address from being another's, but not its memory. They are numbers,
        which no finalizer frees: a Ctrl-C in one is lost.
        """
        self.copies: dict[int, Any] = {}
        """The originals of the modules that it runs on copies, by the identity of the copy."""
        self.is_watching = False
        """Whether each tensor operation is being seen."""
        self.in_own_context = False
        """Whether context variables have values of the evaluation's own."""
        self.on_copies: list[str] = []
        """The classes of the models that it has run on copies."""

    def begin(self) -> None:
        """Turn gradients off; `end` must follow, even if this raises."""
        torch: Any = sys.modules.get("torch")
        if torch is not None and hasattr(torch, "is_autocast_cache_enabled"):
            refuse_if_observed(torch)
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
            storages, self.storages = self.storages, {}
            deque(map(torch.UntypedStorage._free_weak_ref, storages.values()), 0)


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
    one = CheckedEvaluation()
    return run_between(one.begin, one.end, do, *given)


def refuse_if_observed(torch: Any) -> None:
    """Raise `Refusal` where others would see tensor operations of this thread."""
    if modes_observe(torch):
        raise Refusal(
            "the job runs this event inside a dispatch mode, a function mode or a transform of torch, which would see "
            "the query's tensor operations",
            passing=True,
        )
    if not has_own_operators(torch):
        raise Refusal("an operator of torch.Tensor is of the job's own, and is not known to be harmless")
