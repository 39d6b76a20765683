"""`CallEvents`: functions of the job whose calls are events: ``on="test()"``.

The I/O thread says what is watched; the thread that calls a function raises its event as the function ends.
"""

from __future__ import annotations

import inspect
import re
import time
from collections.abc import Callable, Iterable
from types import FrameType
from typing import Any

from looptap.agent.loop.calls.call_monitor import CallMonitor, WatchedFunction
from looptap.agent.loop.calls.frame_variables import variable_names, variables_in
from looptap.agent.loop.calls.short_values import short
from looptap.agent.loop.evaluation_plan import DeferredActions
from looptap.agent.loop.event_sources import EventSource
from looptap.streams.errors import QueryError
from looptap.streams.events import FoundObservables

_NAME = re.compile(r"([^\W\d]\w*(?:\.[^\W\d]\w*)*)\(\)")
_ARGUMENTS = "arguments"
_PAUSING = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
MAX_OPEN_CALLS_COUNT = 1000
"""Calls of one function that are under way, of which the arguments are noted as they begin; of others at the end."""
MAX_TEXT_CHARACTERS = 1000
"""Characters of the text of an exception."""


def function_of(event: str) -> str:
    """Return the function whose calls are events of this type; empty without one.

    >>> function_of("Trainer.evaluate()"), function_of("batch")
    ('Trainer.evaluate', '')
    """
    found = _NAME.fullmatch(event)
    return found[1] if found else ""


class CallEvents:
    """The functions that the queries of one agent watch."""

    def __init__(self) -> None:
        self._watched: dict[str, FunctionCalls] = {}

    def check(self, source: EventSource) -> None:
        """Raise QueryError if calls of the function of ``source`` cannot be watched."""
        event = source.origin.name
        if not (name := function_of(event)) or event in self._watched or source.number:
            return
        if reason := CallMonitor.why_not():
            raise QueryError(f"{event!r} asks for an event after each call of the function {name}. {reason}")

    def follow(self, source: EventSource) -> None:
        """Watch the function of ``source`` while something waits for its events.

        Not for a type that the job itself emits under such a name.
        """
        event = source.origin.name
        name = function_of(event)
        known = self._watched.get(event)
        if not name or (known is None and source.number):
            return
        if known is None:
            known = self._watched[event] = FunctionCalls(name, source)
        if source.evaluates:
            CallMonitor.add(known)
        else:
            CallMonitor.remove(known)

    def end(self) -> None:
        """Watch nothing further, since the agent ends. Any thread."""
        for one in [*self._watched.values()]:
            CallMonitor.remove(one)


class FunctionCalls(WatchedFunction):
    """The calls of one function, as events."""

    def __init__(self, name: str, source: EventSource) -> None:
        super().__init__(name)
        self._source = source
        self._open: dict[int, tuple[float, list[tuple[str, Any]]]] = {}

    def begin(self, frame: FrameType) -> None:
        """Note the arguments of a call that begins.

        Not of a generator, which may never end: of that they are read at the end.
        """
        if not frame.f_code.co_flags & _PAUSING and len(self._open) < MAX_OPEN_CALLS_COUNT:
            self._open[id(frame)] = time.perf_counter(), arguments_of(frame)

    def end(self, frame: FrameType, result: Any, error: BaseException | None) -> Callable[[], None] | None:
        """Raise the event of a call that ends; return what commands have left to do."""
        began, given = self._open.pop(id(frame), (None, None))
        source = self._source
        if not source.evaluates:
            CallMonitor.remove(self, wait=False)  # what has waited were commands, which have run
            return None
        if isinstance(error, GeneratorExit):
            return None
        present = {"result": result, "function": full_name(frame)}
        present["seconds"] = None if began is None else time.perf_counter() - began
        present["exception"] = None if error is None else f"{type(error).__name__}: {error}"[:MAX_TEXT_CHARACTERS]

        def find(name: str) -> Any:
            if name == _ARGUMENTS:
                return {name: short(value) for name, value in (arguments_of(frame) if given is None else given)}
            for _, value in variables_in(frame, (name,)):
                return value
            raise KeyError(name)

        def names() -> Iterable[str]:
            return [_ARGUMENTS, *variable_names(frame)]

        found = FoundObservables(present, find, names)
        try:
            source.deliver(found)
        except DeferredActions as after:
            return after.run
        finally:
            found.clear()
        return None

    def forget(self) -> None:
        """Release the arguments of open calls."""
        self._open.clear()


def arguments_of(frame: FrameType) -> list[tuple[str, Any]]:
    """Return the parameters of the function of a frame, with their values.

    >>> import sys
    >>> def add(x, *rest, scale=1):
    ...     return arguments_of(sys._getframe())
    >>> add(2, 3)
    [('x', 2), ('scale', 1), ('rest', (3,))]
    """
    code = frame.f_code
    rest = bool(code.co_flags & inspect.CO_VARARGS) + bool(code.co_flags & inspect.CO_VARKEYWORDS)
    return variables_in(frame, code.co_varnames[: code.co_argcount + code.co_kwonlyargcount + rest])


def full_name(frame: FrameType) -> str:
    """Return the name of the function of a frame, with its classes and its module.

    >>> import sys
    >>> def here():
    ...     return full_name(sys._getframe()).rpartition(".")[2]
    >>> here()
    'here'
    """
    name = frame.f_code.co_qualname.replace(".<locals>", "")
    return f"{frame.f_globals.get('__name__', '')}.{name}"
