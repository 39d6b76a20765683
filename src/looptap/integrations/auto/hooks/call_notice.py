"""Notes calls of methods and settings of attributes, without being in the way.

Methods in two ways, since torch.compile and tracebacks ask for different ones.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

from looptap.integrations.harmless import harmlessly


class CallNotice:
    """A method of a class, of whose look-ups ``note`` is called with the object.

    A descriptor is asked for the method right before the call, and is off the stack again when the method runs: a
    traceback of the job has no frame more. For methods that no compiled code calls.
    """

    __slots__ = ("method", "note")

    def __init__(self, method: Any, note: Callable[[Any], object]) -> None:
        self.method, self.note = method, note

    def __get__(self, thing: Any, owner: type | None = None) -> Any:
        if thing is None:
            return self.method
        harmlessly(self.note, thing)
        return self.method.__get__(thing, owner)


class ValueNotice:
    """An attribute of the objects of a class, of whose settings ``note`` is called.

    It stays in the dicts of the objects. ``note`` gets the object, after its value was set.
    """

    __slots__ = ("name", "note")

    def __init__(self, name: str, note: Callable[[Any], object]) -> None:
        self.name, self.note = name, note

    def __get__(self, thing: Any, owner: type | None = None) -> Any:
        if thing is None:
            return self
        try:
            return thing.__dict__[self.name]
        except KeyError:
            raise AttributeError(self.name) from None

    def __set__(self, thing: Any, value: Any) -> None:
        thing.__dict__[self.name] = value
        harmlessly(self.note, thing)


class ReadNotice(ValueNotice):
    """An attribute of which each reading is noted instead, where it is set."""

    __slots__ = ()

    def __get__(self, thing: Any, owner: type | None = None) -> Any:
        found = super().__get__(thing, owner)
        if thing is not None:
            harmlessly(self.note, thing)
        return found

    def __set__(self, thing: Any, value: Any) -> None:
        thing.__dict__[self.name] = value


def notice_lookups(owner: type, name: str, note: Callable[[Any], object]) -> None:
    """Call ``note`` with the object at each look-up of a method of ``owner``."""
    method = vars(owner).get(name)
    if method is not None and not isinstance(method, CallNotice):
        setattr(owner, name, CallNotice(method, note))


def notice_settings(owner: type, name: str, note: Callable[[Any], object]) -> None:
    """Call ``note`` with the object after each setting of an attribute."""
    if name not in vars(owner):
        setattr(owner, name, ValueNotice(name, note))


def notice_readings(owner: type, name: str, note: Callable[[Any], object]) -> None:
    """Call ``note`` with the object at each reading of an attribute that is set."""
    if name not in vars(owner):
        setattr(owner, name, ReadNotice(name, note))


def notice_calls(owner: type, name: str, note: Callable[[Any], object]) -> None:
    """Call ``note`` with the object before each call of a method of ``owner``.

    torch.compile takes the method for what it was: the question whether it compiles has the answer yes, at which only
    the method itself is left. So a function that compiles as one graph still does.
    """
    compiling = sys.modules["torch"].compiler.is_compiling

    def make(method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def noticed(self: Any, *arguments: Any, **keywords: Any) -> Any:
            if not compiling():
                harmlessly(note, self)
            return method(self, *arguments, **keywords)

        return noticed

    _replace(owner, name, note, make)


def notice_words(owner: type, name: str, note: Callable[[Any, Any], object]) -> None:
    """Call ``note`` with the object and the first argument before each call."""

    def make(method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def noticed(self: Any, *arguments: Any, **keywords: Any) -> Any:
            harmlessly(note, self, arguments[0] if arguments else None)
            return method(self, *arguments, **keywords)

        return noticed

    _replace(owner, name, note, make)


def notice_returns(owner: type, name: str, note: Callable[[Any], object]) -> None:
    """Call ``note`` with the object after each call that returns."""

    def make(method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def noticed(self: Any, *arguments: Any, **keywords: Any) -> Any:
            result = method(self, *arguments, **keywords)
            harmlessly(note, self)
            return result

        return noticed

    _replace(owner, name, note, make)


def _replace(owner: type, name: str, note: Any, make: Callable[[Callable[..., Any]], Any]) -> None:
    method = vars(owner).get(name)
    if method is not None and not hasattr(method, "_looptap_note"):
        noticed = make(method)
        noticed._looptap_note = note  # the mark that it is placed
        setattr(owner, name, noticed)
