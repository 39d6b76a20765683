"""`FirstTurn`: a callback before all others, so that none keeps a call from ours.

Frameworks call their callbacks one after the other. If one raises, those after it never hear that the weights have been
updated, and a training that continues lacks the event. Which callback comes first is the user's choice, and theirs may
change what ours reads, so ours stays where it is.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from types import FrameType
from typing import Any

Calls = dict[int, tuple[str, tuple[Any, ...], dict[str, Any]]]
"""Method, arguments and keywords of a call, by the id of the frame that makes it.

There are several where a callback evaluates in its own turn.
"""


class FirstTurn:
    """Notes in ``awaited`` which of the methods ``names`` are about to be called.

    ``owner.callbacks`` are the framework's callbacks, ``kinds`` their classes. ``adapter`` removes from ``awaited`` a
    call that it gets; one whose caller has been left is made at the next call or at `stop`.

    >>> class Callback:
    ...     def on_step(self, number):
    ...         pass
    >>> class Failing(Callback):
    ...     def on_step(self, number):
    ...         raise ValueError
    >>> class Adapter(Callback):
    ...     def on_step(self, number):
    ...         awaited.clear()
    ...         print("step", number)
    >>> class Trainer:
    ...     callbacks = [Failing(), Adapter()]
    >>> trainer, awaited = Trainer(), {}
    >>> turn = FirstTurn(trainer.callbacks[1], (Callback,), trainer, ["on_step"], awaited)
    >>> try:
    ...     for callback in trainer.callbacks:
    ...         callback.on_step(1)
    ... except ValueError:
    ...     turn.stop()
    step 1
    >>> len(trainer.callbacks)
    2
    """

    def __init__(self, adapter: Any, kinds: tuple[type, ...], owner: Any, names: Iterable[str], awaited: Calls) -> None:
        self._adapter, self._owner, self._awaited = adapter, owner, awaited
        self._first = type("FirstTurn", kinds, {name: self._noting(name) for name in names})()
        owner.callbacks = [self._first, *owner.callbacks]  # a new list: the framework may be going through this one

    def stop(self) -> None:
        """Leave the callbacks as they were, and make the calls that were prevented."""
        self._owner.callbacks = [one for one in self._owner.callbacks if one is not self._first]
        self._make_prevented(None)

    def _make_prevented(self, frame: FrameType | None) -> None:
        """Make the calls whose callers are not at ``frame`` or around it."""
        running = set()  # a frame's address may be used again, but not while it runs
        while frame is not None and self._awaited:
            running.add(id(frame))
            frame = frame.f_back
        for caller in [one for one in reversed(self._awaited) if one not in running]:
            name, arguments, keywords = self._awaited[caller]
            getattr(self._adapter, name)(*arguments, **keywords)
            self._awaited.pop(caller, None)

    def _noting(self, name: str) -> Callable[..., None]:
        def note(callback: Any, *arguments: Any, **keywords: Any) -> None:
            caller = sys._getframe(1)
            self._make_prevented(caller.f_back)
            self._awaited[id(caller)] = name, arguments, keywords

        return note
