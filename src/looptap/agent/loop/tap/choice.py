"""The choice between the compiled tap and pure Python, which do the same.

The classes and functions here are the reference of what is compiled; tests/agent/loop/test_tap.py holds them equal.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from looptap.streams.language.copyable import tensor_type
from looptap.streams.native.compiled import tap
from looptap.streams.preserving.job_modes import modes_observe, outside_modes

Function = TypeVar("Function", bound=Callable[..., Any])


class PureSourceState:
    """What the tap reads and writes of an event source.

    Numbers fit in 64 bits. `number += 1` on a slot is exact from any thread: between its three instructions the
    interpreter neither calls nor jumps back, and only there does it hand the GIL to another thread.
    """

    __slots__ = (
        "capturing",
        "clock",
        "group_start",
        "groups_ended",
        "has_work",
        "inner_groups",
        "last_deferred",
        "last_time",
        "lock",
        "number",
        "only_groups",
        "queries",
        "shortcut",
    )

    number: int
    """Of the newest event."""
    group_start: int
    """The number of the last event before the open group."""
    groups_ended: int
    """How many groups of this type have ended."""
    last_time: float
    """Seconds, by the clock of events, of the newest delivered one; 0.0 if the next one has no dt."""
    has_work: bool
    """True if an event has to do more than count."""
    only_groups: bool
    """True if all that it has to do besides is to end the groups of `inner_groups`."""
    inner_groups: tuple[Any, ...]
    """The sources whose open group an event of this type ends."""
    queries: tuple[Any, ...]
    """The attached queries, replaced as a whole."""
    shortcut: Any
    """The plan, if keeping an event's numbers is all that there is to do, but for each `every`-th; else None."""
    last_deferred: int
    """The number of the newest event whose numbers were kept."""
    clock: Callable[[], float]
    """The clock of events, in monotonic seconds."""
    capturing: Callable[[], bool] | None
    """A function that tests for CUDA graph capture; None without CUDA."""
    lock: Any
    """The lock of all types, which `new_lock` has made. What is compiled only looks whether anybody holds it."""


class PurePlanState:
    """What the tap reads and writes of the plan of an event source."""

    __slots__ = ("every", "limit", "names", "passed_to", "rest_number", "rest_time", "rows", "stale")

    names: tuple[str, ...]
    """The observables that are kept, in the order of a row's values."""
    rows: Any
    """The pending events, ``width`` elements each, one after the other: a list, or the compiled `Rows`; None if nothing
    is to be kept.

    Only appended to, an event in one step, and emptied from the front.
    """
    limit: int
    """The length of ``rows`` beyond which an event is announced to the evaluator."""
    every: int
    """Of how many events one is for more than to keep its numbers, by its number; 0 if none is."""
    rest_number: int
    rest_time: float
    """The event until which, and the time until which, none is: no query may be evaluated."""
    passed_to: int
    """The newest event of those that were only kept for that reason."""
    stale: bool
    """True if an event must not be kept for later: a query has turned out to be expensive."""

    def keep(self, names: tuple[str, ...], rows: Any) -> None:
        """Set, once, what rows are made of and where they go."""
        self.names, self.rows = names, rows


if TYPE_CHECKING:
    SourceState = PureSourceState
    PlanState = PurePlanState
else:
    SourceState = PureSourceState if tap is None else tap.SourceState
    PlanState = PurePlanState if tap is None else tap.PlanState


def new_rows(width: int) -> Any:
    """Return an empty list of rows of ``width`` elements."""
    return [] if tap is None else tap.Rows(width)


def new_lock() -> Any:
    """Return a `threading.RLock`."""
    return threading.RLock() if tap is None else tap.Lock()


_known: Any = None
_SCALARS = "float32", "float64", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool"


def know_tensors() -> None:
    """Let the tap read tensors, once torch has been imported."""
    global _known
    tensor = tensor_type()
    if tap is None or tensor is None or tensor is _known:
        return
    _known = tensor
    torch = sys.modules["torch"]
    with contextlib.suppress(Exception):  # a torch without DLPack's exchange interface: `.item()` reads them
        outside_modes(torch, _tell, torch)
    with contextlib.suppress(Exception):  # a torch that has no such module
        tap.know_cuda(vars(torch.cuda))


def _tell(torch: Any) -> None:
    kinds = () if modes_observe(torch) else tuple(getattr(torch, name) for name in _SCALARS)
    scalars = tuple(torch.zeros((), dtype=kind, device="cpu") for kind in kinds)
    tensor, count = torch.Tensor, torch._C._len_torch_function_stack
    tap.know_tensors(tensor, tensor.is_neg, count, tensor.__dlpack_c_exchange_api__, scalars)


_compiled: list[Any] = []


def compiled(emit: Function) -> Function:
    """Return ``emit`` with its shortcut for idle events in C; itself without the tap."""
    if tap is None:
        return emit
    _compiled.append(tap.Emit(emit))
    return _compiled[-1]  # type: ignore[no-any-return] # it stands in for the function


def forget_agents() -> None:
    """Let the shortcut forget the sources of agents, which have changed."""
    for emit in _compiled:
        tap.Emit.forget(emit, None)
