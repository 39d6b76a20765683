"""The guard around unknown code: restores or reports what it changes in the loop.

Costs about 100 µs on a busy machine, and more where the code reads a model, an optimizer or another object, which is
searched.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping
from itertools import chain
from types import TracebackType
from typing import Any

from looptap.agent.loop.guard import backward_guard
from looptap.agent.loop.guard.backward_guard import Guarded
from looptap.agent.loop.guard.reachable_state import ReachableState
from looptap.agent.loop.guard.references import is_own
from looptap.agent.loop.guard.tensor_state import Change, ObjectPath
from looptap.streams.events import Event, Lazy
from looptap.streams.operators.pipeline import Pipeline
from looptap.streams.operators.trust import Sight
from looptap.streams.preserving.interrupts import complete
from looptap.streams.preserving.process_state import ProcessState
from looptap.streams.preserving.torch_state import TorchStateGuard
from looptap.streams.values.snapshots import snapshot

MAX_NAMED_CHANGES = 3
"""Changes that a sentence names."""
MUTATION_ADVICE = "Query a copy (x.clone()); to change it on purpose, use run.call"
_IMPORTS = frozenset({"__import__", "import_module", "sys"})
"""Words by which a query gets at modules of the job that it has not been shown."""
ENDINGS = {False: "the loop continues with the changed value", True: "it was restored"}


class StateGuard:
    """A context in which a query may do anything; the loop is as before when it ends.

    ``shown`` are the observables that it may read, by name; of these it looks at what ``pipelines`` mention, and at
    ``names``. Raises QueryError, before anything has run, where the query would take from an iterator of the loop.
    """

    __slots__ = (
        "_changes", "_names", "_observables", "_open", "_pipelines", "_process", "_reachable", "_retained", "_shown",
        "_state",
    )  # fmt: skip

    def __init__(self, pipelines: Collection[Pipeline], *shown: Mapping[str, Any], names: Collection[str] = ()) -> None:
        self._pipelines, self._shown, self._names = pipelines, shown, names
        self._changes: list[Change] = []
        self._state = TorchStateGuard()
        self._process: ProcessState | None = None
        self._observables: dict[str, Any] | None = None
        self._reachable: ReachableState | None = None
        self._retained: Guarded | None = None
        self._open = False

    def __enter__(self) -> StateGuard:
        named = frozenset(self._names).union(*(p.mentions for p in self._pipelines))
        every = any(p.hands_over for p in self._pipelines)
        roots = {
            name: value.function if type(value) is Lazy else value
            for observables in reversed(self._shown) for name, value in list(observables.items())
            if every or name in named
        }  # fmt: skip
        for pipeline in self._pipelines:
            if pipeline.function is not None:
                roots[pipeline.text] = pipeline.function
            if not _IMPORTS.isdisjoint(pipeline.mentions):
                own = {name: sys.modules[name] for name in pipeline.mentions if name in sys.modules and is_own(name)}
                roots = {**own, **roots}
        self._state.__enter__()
        self._process = ProcessState(named)
        self._observables = dict(self._shown[0]) if len(self._shown) > 1 else None  # else there is no event
        self._reachable = reachable = ReachableState(named)
        self._retained = Guarded(reachable.owns)
        try:
            self._open = True
            reachable.keep(roots)  # functions of the host are meant to do what they do
            backward_guard.retain(self._retained)
        except BaseException:
            self.restore()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.restore()

    def restore(self) -> None:
        """Restore everything once; call it again after Ctrl-C, to do the rest.

        Ctrl-C does not leave the loop half restored, since each step can be done twice.
        """
        if self._open:
            complete(self._put_back)

    def _put_back(self) -> None:
        try:
            if self._retained is not None:
                backward_guard.release(self._retained)
            self._state.restore()
            if self._process is not None:
                self._changes += [Change(ObjectPath(None, name), True) for name in self._process.put_back()]
            self._put_back_observables()
        finally:
            if self._reachable is not None:
                self._changes += self._reachable.restore()
        self._changes.sort(key=lambda change: change.thing is None)  # of what else goes with them, tensors say most
        self._open = False

    def _put_back_observables(self) -> None:
        """Restore the event, which other queries read, too; computed lazy values stay."""
        if (before := self._observables) is None:
            return
        now = self._shown[0]
        assert isinstance(now, dict)
        for name, value in before.items():
            if now.get(name) is not value or name not in now:
                now[name] = value
                self._changes.append(Change(ObjectPath(None, name), True))
        for name in [name for name in now if name not in before]:
            if not any(type(others.get(name)) is Lazy for others in self._shown[1:]):
                del now[name]
                self._changes.append(Change(ObjectPath(None, name), True))

    def changed(self, number: int) -> str:
        """Describe the changes that the code made to the loop at an event; empty if none."""
        parts = []
        for undone, ending in ENDINGS.items():
            names = list(dict.fromkeys(self._name(change) for change in self._changes if change.undone == undone))
            if names:
                others = (
                    f"{', '.join(names[1:MAX_NAMED_CHANGES])} and more"
                    if names[MAX_NAMED_CHANGES:]
                    else ", ".join(names[1:])
                )
                more = f"and so did {others}, " if others else ""
                first = f"{names[0]} changed in place at event {number:,}"
                parts.append(f"{first}, {more}while this query looked at it: {ending}")
        return f"{'; '.join(parts)}. {MUTATION_ADVICE}" if parts else ""

    def _name(self, change: Change) -> str:
        """Return the best name of what changed: for a parameter its place in the model."""
        torch = sys.modules.get("torch")
        if torch is not None and change.thing is not None and isinstance(change.thing, torch.Tensor):
            for observables in self._shown:
                for name, value in list(observables.items()):
                    if isinstance(value, torch.nn.Module):
                        for place, tensor in chain(value.named_parameters(), value.named_buffers()):
                            if tensor is change.thing:
                                suffix = change.path.step if change.path.step in ("grad", "requires_grad") else ""
                                return f"{name}.{place}" + (f".{suffix}" if suffix else "")
                            if tensor.grad is change.thing and tensor.grad is not None:
                                return f"{name}.{place}.grad"
        return str(change.path)


def copy_of(event: Event, name: str) -> Any:
    """Copy an observable, inside a guard unless it is plain. Raises its errors."""
    if Sight.of_whole((name,)).plain(event):
        return snapshot(getattr(event, name))[0]
    guard = StateGuard((), *event.__looptap_shown__(), names=(name,))
    try:
        with guard:
            return snapshot(getattr(event, name))[0]
    except KeyboardInterrupt:
        guard.restore()
        raise
