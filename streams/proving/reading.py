"""Read attributes and items."""

from __future__ import annotations

import collections
import types
from typing import Any

from looptap.streams.events import Event, LazyEvent
from looptap.streams.harmless.checked_code import call
from looptap.streams.harmless.checked_evaluation import current
from looptap.streams.harmless.plain import (
    ARRAY,
    ATOM,
    MAPPING,
    MODULE,
    SEQUENCE,
    TENSOR,
    is_a,
    kind_of,
    module_of,
    of_class,
    type_of,
)
from looptap.streams.proving.attributes import reader
from looptap.streams.proving.vouching import keyed, made, operand, type_name, unknown, vouch


def read(value: Any, name: str) -> Any:
    """Return ``value.name``."""
    kind = type_of(value)
    if kind is Event or kind is LazyEvent:
        return getattr(value, name)
    return reader(kind, name)(value)


def item(value: Any, key: Any) -> Any:
    """Return ``value[key]``."""
    kind = kind_of(value)
    if kind in (TENSOR, ARRAY):
        return made(operand(value)[index_of(key)], value, key)
    if kind in (ATOM, SEQUENCE):
        return value[index_of(key)]
    if kind == MAPPING:
        if keyed(key) in value or (id(value) in current().own and type_of(value) is collections.defaultdict):
            return value[key]
        if type_of(value) is collections.Counter:
            return 0
        raise KeyError(key if kind_of(key) == ATOM else type_name(key))
    if of_class(type_of(value), "__looptap_names__"):
        return read(value, key)
    found = of_class(type_of(value), "__getitem__")
    if found is dict.__getitem__:  # of a subclass
        missing = of_class(type_of(value), "__missing__")
        if keyed(key) not in dict.keys(value) and missing is not None:
            return call(missing, value, key)
        return dict.__getitem__(value, key)
    if found is list.__getitem__:
        return list.__getitem__(value, index_of(key))
    if type(found) is types.FunctionType:
        if kind == MODULE and module_of(found).startswith("torch.nn."):
            if type(key) is slice and not module_of(type_of(value)).startswith("torch.nn."):
                raise unknown(f"a slice of {type_name(value)}, which makes another")
            return found(value, index_of(key))
        return call(found, value, key)
    if id(value) in current().own and found is not None and not is_a(value, type):
        return value[index_of(key)]
    raise unknown(f"an item of {type_name(value)}")


def index_of(key: Any) -> Any:
    """Return a key that may be looked up in a tensor, an array or a sequence."""
    kind = kind_of(key)
    return key if kind == ATOM else vouch(key)
