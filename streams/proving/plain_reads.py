"""Check the values of arithmetic: its code is not checked, so they must be plain."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

from looptap.streams.events import Event
from looptap.streams.harmless.checked_code import file_of
from looptap.streams.harmless.checked_evaluation import check_modes, evaluated, in_modes
from looptap.streams.harmless.plain import TENSOR, is_plain, kind_of, of_class
from looptap.streams.harmless.refusal import Refusal, as_error
from looptap.streams.harmless.results import result
from looptap.streams.preserving.torch_state import modes_observe
from looptap.streams.proving.reading import observable

_NUMBERS = frozenset({float, int, bool, str, type(None)})


def refuse_in_modes(event: Any, names: Iterable[str] | None, text: str) -> None:
    """Refuse a query inside a mode of the job's, unless it reads numbers alone."""
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "_C") or not modes_observe(torch):
        return
    own = getattr(event, "__dict__", {})
    if names is None or any(name not in own or type(own[name]) not in _NUMBERS for name in names):
        raise as_error(in_modes(), text, file_of)


def read_plainly(event: Any, names: Iterable[str], text: str) -> Any:
    """Return the event with these observables plain. Raises RefusedQuery."""
    if type(event) is Event:
        own = event.__dict__
        for name in names:
            if name not in own or type(own[name]) not in _NUMBERS:
                break
        else:
            return event
    if of_class(type(event), "__looptap_lazy__") is None:
        return event
    try:
        converted = evaluated(_converted, event, names)
    except Refusal as refusal:
        raise as_error(refusal, text, file_of) from None
    return event.__looptap_with__(converted) if converted else event


def _converted(event: Any, names: Iterable[str]) -> dict[str, Any]:
    """Return the numbers and arrays of other libraries as plain ones."""
    found: dict[str, Any] = {}
    for name in names:
        try:
            value = observable(event, name)
        except AttributeError:
            continue  # the query raises the same
        if type(value) in _NUMBERS:
            continue
        if kind_of(type(value)) == TENSOR:
            check_modes()
        if not is_plain(value):
            found[name] = plain = result(value)
            if not is_plain(plain):
                kind = f"{type(value).__module__}.{type(value).__qualname__}"
                raise Refusal(f"{name} is a {kind}, and arithmetic on it is not known to be harmless")
    return found
