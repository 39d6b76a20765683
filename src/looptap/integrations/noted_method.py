"""`NotedMethod`: a method of one object whose calls an adapter hears of.

Frameworks hand their callbacks less than their methods know, such as the loss of a step. The method is replaced on the
object, not in its class, and put back when the adapter's training ends.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

Note = Callable[[Any, tuple[Any, ...], dict[str, Any]], object]
"""Gets what a call returned, its arguments and its keywords; must not raise."""


class NotedMethod:
    """The method ``name`` of ``owner``; ``note`` hears of each call, until `stop`.

    A call that raises is not noted. One whose place another has taken only passes calls on once it has stopped; the
    next one leaves it out.

    >>> class Trainer:
    ...     def step(self, batch):
    ...         return 2 * batch
    >>> trainer, heard = Trainer(), []
    >>> noted = NotedMethod(trainer, "step", lambda result, *_: heard.append(result))
    >>> trainer.step(1), heard
    (2, [2])
    >>> noted.stop()
    >>> trainer.step(1), heard, vars(trainer)
    (2, [2], {})
    """

    def __init__(self, owner: Any, name: str, note: Note) -> None:
        self._owner, self._name = weakref.ref(owner), name
        self.on_object = name in vars(owner)
        """True if the method was set on the object before."""
        below: Any = getattr(owner, name)
        while isinstance(below, NotedMethod) and below.note is None:
            below, self.on_object = below.call, below.on_object
        self.call: Callable[..., Any] = below
        self.note: Note | None = note
        _set(owner, name, self)

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """Call the method, and let ``note`` hear of it."""
        result = self.call(*arguments, **keywords)
        if self.note is not None:
            self.note(result, arguments, keywords)
        return result

    def stop(self) -> None:
        """Hear of no further call, and leave the object as it was."""
        self.note, owner = None, self._owner()
        if owner is None or vars(owner).get(self._name) is not self:
            return
        if self.on_object:
            _set(owner, self._name, self.call)
        else:
            object.__delattr__(owner, self._name)


def _set(owner: Any, name: str, value: Any) -> None:
    object.__setattr__(owner, name, value)  # keras' and torch's own would track it
