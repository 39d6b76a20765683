"""Guards the loop's graph and gradients against backward passes in a query.

`torch.autograd.grad` frees the graph it goes through, and the loop's own `backward()` would then raise. Every way
into the engine leads through one attribute of torch, where a stand-in takes its place while a guard is open; it
changes calls of guarded threads only. A backward pass through what the query itself has made may run; one that
reaches the loop's graph or tensors is refused.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from threading import get_ident
from typing import Any

from looptap.streams.errors import QueryError

NO_BACKWARD = (
    "a query cannot call backward(): it would add to the gradients of the loop and free its graph. "
    "torch.autograd.grad(loss, weight) gives the gradient and leaves both alone."
)
_PASSED_ON = ("roots", "grad_tensors", "keep_graph", "create_graph", "inputs", "allow_unreachable", "accumulate_grad")
"""The arguments of the engine's run_backward, in their order."""

Owns = Callable[[Any], bool]
_guarded: list[Guarded] = []
"""The guards that are open."""


class Guarded:
    """A guarded thread: which tensors are the loop's, and the query's first node."""

    def __init__(self, owns: Owns) -> None:
        self.thread, self.owns, self.first_node = get_ident(), owns, 0
        self.gradients: list[tuple[Any, Any]] = []

    def admit(self, roots: Iterable[Any]) -> None:
        """Refuse a backward pass that reaches the loop's tensors; guard all gradients."""
        waiting = [getattr(root, "node", None) or root.grad_fn or root for root in roots]
        seen = set(map(id, waiting))
        while waiting:
            node = waiting.pop()
            leaf = node if hasattr(node, "is_leaf") else getattr(node, "variable", None)
            if leaf is not None:
                if self.owns(leaf) or leaf._backward_hooks or leaf._post_accumulate_grad_hooks:
                    raise QueryError(NO_BACKWARD)
                self.gradients.append((leaf, leaf.grad))
                leaf.grad = None
                continue
            if node._sequence_nr() < self.first_node:
                raise QueryError(NO_BACKWARD)
            for after, _ in node.next_functions:
                if after is not None and id(after) not in seen:
                    seen.add(id(after))
                    waiting.append(after)


class _StandIn:
    """A proxy for the engine of autograd, which passes all calls on."""

    def __init__(self, engine: Any) -> None:
        self.engine = engine

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)

    def run_backward(self, *args: Any, **kwargs: Any) -> Any:
        thread = get_ident()
        guarded = next((one for one in reversed(_guarded) if one.thread == thread), None)
        if guarded is None:
            return self.engine.run_backward(*args, **kwargs)
        given = {**dict(zip(_PASSED_ON, args, strict=False)), **kwargs}
        if given.get("accumulate_grad"):
            guarded.admit(given["roots"])
        if len(args) > 2:
            return self.engine.run_backward(*args[:2], True, *args[3:], **kwargs)
        return self.engine.run_backward(*args, **{**kwargs, "keep_graph": True})


_stand_in: _StandIn | None = None


def retain(guarded: Guarded) -> None:
    """Retain the loop's graphs in backward passes of this thread until `release`."""
    global _stand_in
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "autograd"):
        return
    guarded.first_node = torch._C._autograd._get_sequence_nr()
    _guarded.append(guarded)
    engine = torch.autograd.Variable._execution_engine
    if type(engine) is not _StandIn:
        if _stand_in is None or _stand_in.engine is not engine:
            _stand_in = _StandIn(engine)
        torch.autograd.Variable._execution_engine = _stand_in


def release(guarded: Guarded) -> None:
    """Undo `retain`; a second call does nothing."""
    for leaf, gradient in reversed(guarded.gradients):
        leaf.grad = gradient
    if guarded in _guarded:
        _guarded.remove(guarded)
    torch = sys.modules.get("torch")
    if not _guarded and torch is not None and hasattr(torch, "autograd"):
        engine = torch.autograd.Variable._execution_engine
        if type(engine) is _StandIn:
            torch.autograd.Variable._execution_engine = engine.engine
