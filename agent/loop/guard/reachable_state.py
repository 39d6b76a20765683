"""The state that a query can reach, noted before it runs and restored after.

From the observables that the query reads a bounded walk goes through containers, instances, modules, functions and
what these refer to, nearest things first. Attributes, items, hooks, positions of files and states of generators are
restored; other changes are reported by name. Iterators that the query names are refused.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from looptap.agent.loop.guard.containers import as_before, places, refill
from looptap.agent.loop.guard.reachable_walk import Walk
from looptap.agent.loop.guard.recorded_objects import is_tensor_kind, record_root, recorder_of
from looptap.agent.loop.guard.tensor_state import Change, ObjectPath
from looptap.streams.errors import QueryError


class ReachableState:
    """The loop's objects, as they were before a query that mentions ``named`` words."""

    def __init__(self, named: Collection[str]) -> None:
        self._walk = Walk(named)
        self._hooks = _hook_count()
        self._found: set[int] = set()  # of the hooks that the query has put somewhere

    def keep(self, roots: Mapping[str, Any]) -> None:
        """Record the state of ``roots`` and of everything reachable from them.

        Raises QueryError if the query names an iterator of the loop.
        """
        walk = self._walk
        if "swap_tensors" in walk.named:
            raise QueryError("swap_tensors exchanges tensors under the graph of the loop, which a query may not.")
        try:
            for name, value in roots.items():
                record_root(walk, value, ObjectPath(None, name))
            while walk.waiting:
                value, path = walk.waiting.popleft()
                recorder_of(type(value))(walk, value, path)
            walk.tensors.keep(walk.named)
        except BaseException:
            self._remove_stand_ins()
            raise

    def owns(self, thing: Any) -> bool:
        """Return True if the loop had ``thing`` before."""
        return self._walk.seen(thing)

    def restore(self) -> list[Change]:
        """Restore everything; return what had changed, buffers excepted."""
        torch = sys.modules.get("torch")
        if torch is None or not hasattr(torch, "no_grad"):
            return list(self._changes())
        with torch._C.DisableTorchFunction(), torch.no_grad():  # modes and subclasses of the loop have no part in this
            return list(self._changes())

    def _remove_stand_ins(self) -> None:
        for held, name, thing in self._walk.stand_ins:
            held[name] = thing

    def _changes(self) -> Iterator[Change]:
        self._remove_stand_ins()
        for path, container, before, attributes in self._walk.containers:
            if not as_before(container, before):
                self._found.update(key for key in container if type(key) is int)
                changed = list(places(path, container, before, attributes))
                undone = refill(container, before)
                yield from (Change(place, undone) for place in changed)
        yield from self._walk.modules.restore()
        if self._hooks != _hook_count():
            yield from self._unhook()
        for path, how in self._walk.undos:
            try:
                yield from how()
            except Exception:  # an object of the job's that behaves like no other
                yield Change(path, False)
        yield from self._walk.tensors.restore()

    def _unhook(self) -> Iterator[Change]:
        """Remove hooks that were added to tensors, or for all modules at once."""
        modules = vars(sys.modules["torch"].nn.modules.module)
        held: list[Any] = [hooks for name, hooks in modules.items() if name.startswith("_global_")]
        for thing in self._walk.visited:
            if is_tensor_kind(type(thing)):
                held += [getattr(thing, name, None) for name in ("_backward_hooks", "_post_accumulate_grad_hooks")]
        held += self._walk.modules.hooks()
        for hooks in held:
            for key in list(hooks if isinstance(hooks, dict) else ()):
                if isinstance(key, int) and key >= self._hooks:
                    del hooks[key]
                    self._found.add(key)
                    yield Change(ObjectPath(None, "a hook"), True)
        registers = any(name.startswith("register_") for name in self._walk.named)
        if registers and not self._found.issuperset(range(self._hooks, _hook_count())):
            yield Change(ObjectPath(None, "a hook of the graph"), False)


def _hook_count() -> int:
    """Return how many hooks have been registered so far."""
    hooks = sys.modules.get("torch.utils.hooks")
    return 0 if hooks is None else int(hooks.RemovableHandle.next_id)
