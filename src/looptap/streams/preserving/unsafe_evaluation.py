"""Run a query as it is, since an operator has asked for it with ``unsafe``.

The modes that torch keeps for this thread are put back, and the random numbers if no other thread of the job may have
drawn meanwhile. Everything else stays as the query leaves it; what is seen to have changed is reported.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from looptap.streams.preserving.torch_state import TorchStateGuard

MAX_NAMED_CHANGES = 3
"""Changes that a sentence names."""
MAX_TENSORS = 10_000
"""Tensors of the models in sight whose versions are compared."""


class UnsafeEvaluation:
    """One evaluation, of a query that sees ``shown``."""

    def __init__(self, shown: Sequence[Mapping[str, Any]]) -> None:
        self._shown = shown
        self._state: TorchStateGuard | None = None
        self._before: list[tuple[str, Any, int]] = []
        self._changed: list[str] = []

    def begin(self) -> None:
        """Note the state; `end` must follow, even if this raises."""
        self._before = list(_versions(self._shown))
        self._state = TorchStateGuard(randomness=_alone(), process=False)
        self._state.__enter__()

    def end(self) -> None:
        """Put back what belongs to this thread; may be called again after Ctrl-C."""
        if self._state is not None:
            self._state.restore()
        self._changed = [name for name, tensor, version in self._before if tensor._version != version]

    def changed(self, number: int) -> str:
        """Return a sentence on what has changed at an event; empty if nothing was seen."""
        names = self._changed
        if not names:
            return ""
        more = " and more" if len(names) > MAX_NAMED_CHANGES else ""
        shown = ", ".join(names[:MAX_NAMED_CHANGES])
        return f"this unsafe query changed {shown}{more} in place at event {number:,}; the loop continues with that"


def _versions(shown: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, Any, int]]:
    torch: Any = sys.modules.get("torch")
    if torch is None:
        return
    left = MAX_TENSORS
    for observables in shown:
        for name, value in list(observables.items()):
            if isinstance(value, torch.nn.Module):
                for path, tensor in [*value.named_parameters(), *value.named_buffers()][:left]:
                    yield f"{name}.{path}", tensor, tensor._version
                    left -= 1
            elif isinstance(value, torch.Tensor) and not value.is_inference():
                yield name, value, value._version


def _alone() -> bool:
    """Return True if no other thread of the job may draw random numbers."""
    own = threading.current_thread()
    return all(thread is own or thread.name.startswith("looptap-") for thread in threading.enumerate())
