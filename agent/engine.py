"""Backward passes inside a query: the loop's graph is retained, and no gradient is accumulated in its tensors.

`torch.autograd.grad` frees the graph it goes through, and the loop's own `backward()` would then raise. Every way
into the engine leads through one attribute of torch, where a stand-in takes its place while a guard is open; it
changes calls of guarded threads only.
"""

from __future__ import annotations

import sys
from threading import get_ident
from typing import Any

from looptap.streams.errors import QueryError

NO_BACKWARD = (
    "a query cannot call backward(): it would add to the gradients of the loop and free its graph. "
    "torch.autograd.grad(loss, weight) gives the gradient and leaves both alone."
)
_PASSED_ON = ("roots", "grad_tensors", "keep_graph", "create_graph", "inputs", "allow_unreachable", "accumulate_grad")
"""The arguments of the engine's run_backward, in their order."""

_guarded: list[int] = []
"""Threads that are inside a guard; as often as they are."""


class _StandIn:
    """The engine of autograd, to which it passes on all calls."""

    def __init__(self, engine: Any) -> None:
        self.engine = engine

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)

    def run_backward(self, *args: Any, **kwargs: Any) -> Any:
        if get_ident() not in _guarded:
            return self.engine.run_backward(*args, **kwargs)
        given = {**dict(zip(_PASSED_ON, args, strict=False)), **kwargs}
        if given.get("accumulate_grad"):
            raise QueryError(NO_BACKWARD)
        if len(args) > 2:
            return self.engine.run_backward(*args[:2], True, *args[3:], **kwargs)
        return self.engine.run_backward(*args, **{**kwargs, "keep_graph": True})


_stand_in: _StandIn | None = None


def retain() -> None:
    """Have the graphs of the loop outlive what this thread does until `release`."""
    global _stand_in
    _guarded.append(get_ident())
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "autograd"):
        return
    engine = torch.autograd.Variable._execution_engine
    if type(engine) is not _StandIn:
        if _stand_in is None or _stand_in.engine is not engine:
            _stand_in = _StandIn(engine)
        torch.autograd.Variable._execution_engine = _stand_in


def release() -> None:
    """End what `retain` has begun."""
    thread = get_ident()
    if thread in _guarded:
        _guarded.remove(thread)
    torch = sys.modules.get("torch")
    if not _guarded and torch is not None and hasattr(torch, "autograd"):
        engine = torch.autograd.Variable._execution_engine
        if type(engine) is _StandIn:
            torch.autograd.Variable._execution_engine = engine.engine
