"""Call methods of tensors, arrays and containers."""

from __future__ import annotations

import collections
import contextvars
import types
from typing import Any

import numpy as np

from looptap.streams.harmless import known
from looptap.streams.harmless.checked_code import call
from looptap.streams.harmless.checked_evaluation import current
from looptap.streams.harmless.plain import (
    ARRAY,
    MAPPING,
    MODULE,
    OTHER,
    SEQUENCE,
    TENSOR,
    is_a,
    kind_of,
    module_of,
    of_class,
    type_of,
)
from looptap.streams.harmless.refusal import Refusal
from looptap.streams.harmless.watch import PURE, effect, note, operate
from looptap.streams.proving.attributes import as_object
from looptap.streams.proving.reading import item, read
from looptap.streams.proving.vouching import (
    CONTAINERS,
    deep,
    iterate,
    judged,
    keyed,
    operand,
    own,
    pairs,
    type_name,
    unknown,
    vouch,
)


def method(value: Any, name: str, /, *given: Any, **named: Any) -> Any:
    """Return ``value.name(…)``."""
    kind = kind_of(value)
    if kind == TENSOR:
        return _tensor_method(value, name, given, named)
    if kind in (OTHER, MODULE):
        if name == "__getattribute__" and is_a(value, types.ModuleType):
            return as_object(value, *given)
        if type_of(value) is contextvars.ContextVar and (name == "get" or current().in_own_context):
            return getattr(value, name)(*given)
        if is_operator_of_builtin(value, name):
            return _container_method(value, name, given, named)
        return call(read(value, name), *given, **named)
    if name == "__getitem__":
        return item(value, *given)
    if kind == SEQUENCE and _is_of_job(type_of(value), name):
        return call(read(value, name), *given, **named)
    if (name[:2] == "__" and name not in _DUNDERS) or (kind == ARRAY and value.dtype.hasobject):
        raise unknown(f".{name}() of {type_name(value)}")
    return _container_method(value, name, given, named)


_DUNDERS = frozenset(
    {"__array__", "__dlpack__", "__dlpack_device__", "__len__", "__contains__", "__iter__", "__reversed__"}
)
_ITERATING = frozenset({"extend", "extendleft"})
_HASHING = frozenset({
    "union", "intersection", "difference", "symmetric_difference", "difference_update", "intersection_update",
    "symmetric_difference_update", "issubset", "issuperset", "isdisjoint", "subtract",
})


def _is_of_job(kind: type, name: str) -> bool:
    """Return True for a method of a named tuple that its class has of its own."""
    held = of_class(kind, name)
    held = held.__func__ if type(held) in (classmethod, staticmethod) else held
    return type(held) is types.FunctionType and module_of(held) != "collections"


def is_operator_of_builtin(value: Any, name: str) -> bool:
    """Return True for a method of an iterator or container that the evaluation made."""
    held = of_class(type_of(value), name)
    return id(value) in current().own and type(held) in (types.MethodDescriptorType, types.WrapperDescriptorType)


_READS = frozenset({"keys", "values", "items", "get", "index", "count", "__len__", "__iter__", "__contains__"})
"""Methods of containers that do the same for each subclass, and call nothing of it."""


def method_of_base(f: Any, value: Any, name: str, given: Any, named: Any) -> Any:
    """Return what a builtin container's method gives for a subclass."""
    of_container = getattr(f, "__objclass__", None) or _owner(value, name, f)
    if of_container not in _BASES or not (name in _READS or id(value) in current().own):
        raise unknown(f".{name}() of {type_name(value)}")
    return _container_method(value, name, given, named, f)


_BASES = (dict, collections.OrderedDict, list, set, object)


def _owner(value: Any, name: str, f: Any) -> Any:
    """Return the class whose method is bound, also where `super()` has found it."""
    for base in type_of(value).__mro__:
        held = base.__dict__.get(name)
        if type(held) in (types.MethodDescriptorType, types.WrapperDescriptorType):
            return base
    return None


def shielded(value: Any) -> Any:
    """Return an array of the job such that nothing can write to it."""
    if type_of(value) is not np.ndarray or id(value) in current().own:
        return value
    view = value.view()
    view.flags.writeable = False
    return view


_KEYED = frozenset(
    (
        "get",
        "pop",
        "setdefault",
        "__setitem__",
        "__delitem__",
        "__contains__",
        "move_to_end",
        "add",
        "discard",
        "remove",
    )
)
"""Methods of dicts and sets whose first argument is hashed."""
_HOLDING = frozenset({("append", 0), ("appendleft", 0), ("insert", 1), ("__setitem__", 1)})
"""Methods of sequences, and the argument that becomes an item."""


def _argument(value: Any, name: str, place: int, given: Any) -> Any:
    """Return an argument that a container may iterate, hash, compare, or count with."""
    if name in _ITERATING:
        return iterate(given)
    if name == "update" and is_a(value, dict) and not is_a(value, collections.Counter):
        return pairs(given)
    if name in _HASHING or name == "update":
        return given if kind_of(given) == MAPPING else [keyed(one) for one in iterate(given)]
    if name in known.COMPARES and place == 0:
        return deep(given)
    if is_a(value, (dict, set, frozenset)) and name in _KEYED:
        return given if place else keyed(given)
    return given if (name, place) in _HOLDING else vouch(given)


def _container_method(value: Any, name: str, given: Any, named: Any, bound: Any = None) -> Any:
    kind = kind_of(value)
    if name in known.MUTATORS and id(value) not in current().own and not is_a(value, str | bytes | tuple):
        raise Refusal(f".{name}() would change a {type_name(value)} of the job")
    if name in known.COMPARES and kind in (SEQUENCE, MAPPING):
        deep(value)
    if name in known.NEVER or named.get("out") is not None:
        raise unknown(f".{name}() of {type_name(value)}")
    if kind in (SEQUENCE, MAPPING, OTHER):
        given = tuple(_argument(value, name, place, one) for place, one in enumerate(given))
        named = {k: judged(v) if k == "key" and v is not None else v for k, v in named.items()}
    else:
        given = tuple(shielded(vouch(one)) for one in given)
        named = {k: vouch(v) for k, v in named.items()}
    result = (bound or getattr(shielded(value), name))(*given, **named)
    fresh = name in ("copy", "split", "rsplit", "most_common", "union", "intersection", "difference", "tolist")
    if (
        (fresh and is_a(result, CONTAINERS))
        or (name in ("__iter__", "__reversed__", "elements") and of_class(type(result), "__next__"))
        or (kind == ARRAY and type(result) is np.ndarray and result.base is None and result is not value)
    ):
        own(result)
    return result


def _tensor_method(value: Any, name: str, given: Any, named: Any) -> Any:
    if name in value.__dict__:
        return call(value.__dict__[name], *given, **named)
    if name in known.TENSOR_NEVER:
        raise Refusal(f".{name}() would change a tensor or its graph")
    held = of_class(type_of(value), name)
    if type(held) is types.FunctionType:
        operand(value)
        return call(held, value, *given, **named)
    return method_of_tensor(getattr(value, name), value, given, named)


def method_of_tensor(bound: Any, value: Any, given: Any, named: Any) -> Any:
    """Return what a tensor's method that is written in C gives."""
    name = bound.__name__
    operand(value)
    if name in known.TENSOR_NEVER or named.get("out") is not None:
        raise Refusal(f".{name}() would change a tensor or its graph")
    arguments, words = tuple(map(vouch, given)), {k: vouch(v) for k, v in named.items()}
    if name in known.TENSOR_READS:
        result = bound(*arguments, **words)
        note(result, value, arguments, words)
        return result
    if effect(name) == PURE or (effect(name) and name[:1] != "_"):
        return operate(lambda own, *others, **more: bound(*others, **more), name, (value, *arguments), words)
    raise unknown(f".{name}() of a tensor")
