"""The settings of a job as flat, plain data: bounded, and without secrets.

What a host hands in is read on its own thread, once. Only containers that are known to be plain are entered: the code
of other objects, such as a `__repr__`, is never run.
"""

from __future__ import annotations

import dataclasses
import enum
import sys
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import PurePath
from typing import Any, NamedTuple

from looptap.protocol.secret_names import HIDDEN, secret, without_secrets

MAX_SETTINGS = 1000
"""Number of settings that are kept."""
MAX_DEPTH = 8
"""Levels of nested settings that are kept apart."""
MAX_TEXT_CHARACTERS = 500
"""Characters of a text, and of a name."""
MAX_LISTED = 32
"""Elements up to which a list is kept as it is."""


class FlatSettings(NamedTuple):
    """Settings by name, and a note on those left out."""

    settings: dict[str, Any]
    note: str = ""


def flat_settings(config: Any) -> FlatSettings:
    """Return ``config`` as flat settings, with dots in nested names. Raises nothing.

    >>> flat_settings({"lr": 0.1, "model": {"width": 64, "act": "relu"}, "api_key": "xyz"}).settings
    {'lr': 0.1, 'model.width': 64, 'model.act': 'relu', 'api_key': '(hidden)'}
    """
    found: dict[str, Any] = {}
    try:
        parts = members(config, whole=True)
        if parts is None:
            return FlatSettings({}, f"its type is {type(config).__name__}, whose settings are not known")
        for name, value in islice(_walk(parts, "", 0), MAX_SETTINGS + 1):
            if len(found) == MAX_SETTINGS:
                return FlatSettings(found, f"more than the first {MAX_SETTINGS:,}")
            found[name] = HIDDEN if secret(name, value) else value
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        return FlatSettings(found, f"those after the first {len(found)}: {type(error).__name__} while they were read")
    return FlatSettings(found)


def members(config: Any, *, whole: bool = False) -> Iterator[tuple[Any, Any]] | None:
    """Return the names and values of a plain container; None for anything else.

    ``whole`` accepts any object or class for its attributes: only the outermost one is taken so.
    """
    kind = type(config)
    if (omegaconf := sys.modules.get("omegaconf")) is not None and omegaconf.OmegaConf.is_config(config):
        plain = _resolved(omegaconf.OmegaConf, config)
        return iter(plain.items()) if isinstance(plain, dict) else None
    if isinstance(config, Mapping):
        return iter(config.items())
    if dataclasses.is_dataclass(kind):
        return ((field.name, getattr(config, field.name, None)) for field in dataclasses.fields(kind))
    if isinstance(config, tuple) and hasattr(kind, "_fields"):
        return zip(kind._fields, config, strict=False)
    if hasattr(kind, "__attrs_attrs__"):
        return ((field.name, getattr(config, field.name, None)) for field in kind.__attrs_attrs__)
    if kind.__name__ in ("Namespace", "SimpleNamespace") or hasattr(kind, "model_fields"):  # argparse, types, pydantic
        return iter(dict(vars(config)).items())
    if whole and (isinstance(config, type) or hasattr(config, "__dict__")):
        return iter(_attributes(config).items())
    return None


def _attributes(config: Any) -> dict[str, Any]:
    """Return the attributes of an object or a class, those of its classes included."""
    kind = config if isinstance(config, type) else type(config)
    found: dict[str, Any] = {}
    for one in reversed(kind.__mro__[:-1]):
        found |= vars(one)
    if config is not kind:
        found |= vars(config)
    hidden = (property, classmethod, staticmethod)
    named = {name: value for name, value in found.items() if not name.startswith("_") and not isinstance(value, hidden)}
    return {name: value for name, value in named.items() if isinstance(value, type) or not callable(value)}


def _resolved(omegaconf: Any, config: Any) -> Any:
    """Return an OmegaConf as plain containers, unresolved if something is missing."""
    try:
        return omegaconf.to_container(config, resolve=True)
    except Exception:
        return omegaconf.to_container(config, resolve=False)


def _walk(parts: Iterable[tuple[Any, Any]], prefix: str, depth: int) -> Iterator[tuple[str, Any]]:
    for key, value in parts:
        name = f"{prefix}{key if isinstance(key, str) else _plain(key)}"[:MAX_TEXT_CHARACTERS]
        inner = members(value) if depth < MAX_DEPTH and not isinstance(value, type) else None
        if inner is None:
            yield name, _safely_plain(value)
        else:
            yield from _walk(inner, f"{name}.", depth + 1)


def _safely_plain(value: Any) -> Any:
    try:
        return _plain(value)
    except Exception:  # of an object that is none of these and raises when it is looked at
        return _type_name(value)


def _plain(value: Any) -> Any:
    """Return a value as plain data; an unknown object by the name of its type."""
    kind = type(value)
    if value is None or kind in (bool, int, float):
        return value if kind is not int or value.bit_length() < 64 else f"an integer of {value.bit_length()} bits"
    if isinstance(value, enum.Enum):
        return str(value._name_)
    if isinstance(value, str):
        return _text(str.__str__(value))
    if isinstance(value, bool | int):
        return int.__int__(value)
    if isinstance(value, float):
        return float.__float__(value)
    if isinstance(value, PurePath):
        return _text(str(value))
    if kind.__module__ == "torch" and kind.__name__ in ("device", "dtype", "layout", "Size"):
        return str(value)
    if kind.__module__ == "numpy" and getattr(value, "shape", None) == ():
        return _plain(value.item())
    if kind in (list, tuple, set, frozenset) and len(value) <= MAX_LISTED:
        return [_plain(part) if not isinstance(part, list | tuple | dict) else _type_name(part) for part in value]
    if isinstance(value, list | tuple | set | frozenset | Mapping):
        return f"{_type_name(value)} of {len(value):,}"
    if hasattr(value, "shape") and hasattr(value, "dtype"):  # an array or a tensor: its numbers are not read
        return f"{kind.__name__} {tuple(value.shape)} {value.dtype}"
    if isinstance(value, type) or hasattr(value, "__qualname__"):
        return f"{value.__module__}.{value.__qualname__}"[:MAX_TEXT_CHARACTERS]
    return _type_name(value)


def _type_name(value: Any) -> str:
    kind = type(value)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    return f"<{name[:MAX_TEXT_CHARACTERS]}>"


def _text(text: str) -> str:
    return shortened(without_secrets(text))


def shortened(text: str) -> str:
    """Return a text, or its beginning and an ellipsis."""
    return text if len(text) <= MAX_TEXT_CHARACTERS else f"{text[:MAX_TEXT_CHARACTERS]}…"
