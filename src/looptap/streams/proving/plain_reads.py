"""Check the values of arithmetic: its code is not checked, so they must be plain."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import looptap.streams.proving.calls  # noqa: F401  # binds the call that checks all code of the job
from looptap.streams.events import Event
from looptap.streams.harmless.checked_code import file_of
from looptap.streams.harmless.checked_evaluation import evaluated
from looptap.streams.harmless.plain import is_a, is_plain, name_of_type
from looptap.streams.harmless.refusal import Refusal, as_error
from looptap.streams.harmless.results import to_copy
from looptap.streams.proving.attributes import read

T = TypeVar("T")
_NUMBERS = frozenset(map(id, (float, int, bool, str, type(None))))
"""Types of numbers and text, by identity: the hash of a class may be code of the job."""


def refuse_in_modes(text: str) -> None:
    """Refuse a query inside a mode that would see its tensor operations."""
    proven(lambda: None, text)


def read_plainly(event: Any, names: Iterable[str], text: str, bare: bool = False) -> Any:
    """Return the event with these observables plain. Raises RefusedQuery.

    A ``bare`` query gives them as they are, and needs only what can be copied.
    """
    own = event.__dict__ if is_a(event, Event) else None
    if own is None or all(name in own and id(type(own[name])) in _NUMBERS for name in names):
        return event
    converted = proven(lambda: _converted(event, names, bare), text)
    return event.__looptap_with__(converted) if converted else event


def copyable(value: Any, text: str) -> Any:
    """Return what can be copied in place of a value of the job. Raises RefusedQuery."""
    return value if id(type(value)) in _NUMBERS else proven(lambda: to_copy(value), text)


def proven(do: Callable[[], T], text: str) -> T:
    """Return what checked code returns. Raises RefusedQuery."""
    try:
        return evaluated(do)
    except Refusal as refusal:
        raise as_error(refusal, text, file_of) from None


def _converted(event: Any, names: Iterable[str], bare: bool) -> dict[str, Any]:
    """Return the numbers and arrays of other libraries as plain ones."""
    found: dict[str, Any] = {}
    for name in names:
        try:
            value = read(event, name)
        except AttributeError:
            continue  # the query raises the same
        if id(type(value)) in _NUMBERS:
            continue
        if not is_plain(value):
            found[name] = plain = to_copy(value)
            if not bare and not is_plain(plain):
                kind = name_of_type(type(value))
                raise Refusal(f"{name} is a {kind}, and arithmetic on it is not known to be harmless")
    return found
