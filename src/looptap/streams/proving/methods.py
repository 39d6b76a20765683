"""Call functions and methods that are written in C."""

from __future__ import annotations

import collections
import contextvars
import types
from typing import Any

import numpy as np

from looptap.streams.harmless import known
from looptap.streams.harmless.checked_code import checked_call
from looptap.streams.harmless.checked_evaluation import current
from looptap.streams.harmless.plain import (
    ARRAY,
    ATOM,
    MAPPING,
    MODULE,
    OTHER,
    TENSOR,
    is_a,
    is_module,
    is_of_torch,
    is_ordinary,
    is_plain_model,
    kind_of,
    module_of,
    of_class,
    order_of,
    type_of,
)
from looptap.streams.harmless.refusal import Refusal
from looptap.streams.harmless.watch import PURE, effect, note_storages, operate
from looptap.streams.proving.attributes import as_object, item
from looptap.streams.proving.vouching import (
    CONTAINERS,
    deep,
    iterate,
    judged,
    keyed,
    name_in_sentence,
    operand,
    own,
    pairs,
    type_name,
    unknown,
    vouch,
    vouched,
)
from looptap.streams.proving.writing import set_plainly, slice_part

_UNBOUND = (types.MethodDescriptorType, types.WrapperDescriptorType)


def builtin(f: Any, given: Any, named: Any) -> Any:
    """Return what a function or method of C gives that is not known by identity."""
    name, bound = f.__name__, getattr(f, "__self__", None)
    if name.startswith(("_get_", "_is_")) and module_of(f).startswith("torch._C") and not given and not named:
        return f()
    if type(f) in _UNBOUND and given:
        bound, *given = given
        f = f.__get__(bound)
    if bound is None or is_a(bound, (types.ModuleType, type, np.ufunc)):
        return _function(f, bound, name, given, named)
    return _method(f, bound, name, given, named)


def _function(f: Any, owner: Any, name: str, given: Any, named: Any) -> Any:
    """Call an operator of torch, or a function of one of Python's own classes."""
    if is_a(owner, type) and not is_ordinary(owner):
        raise unknown(name_in_sentence(f))
    of_torch = module_of(f) == "torch" or getattr(owner, "__name__", "").startswith("torch")
    if of_torch and effect(name):
        return operate(f, name, *vouched(given, named))
    if type(owner) is type and owner in (dict, str, bytes, float, int):
        given, named = vouched(given, named)
        return f(*given, **named)
    raise unknown(name_in_sentence(f))


def _method(f: Any, value: Any, name: str, given: Any, named: Any) -> Any:
    kind = kind_of(value)
    if kind == TENSOR:
        return _method_of_tensor(f, value, name, given, named)
    if kind in (OTHER, MODULE):
        return _method_of_object(f, value, name, given, named)
    if name == "__getitem__":
        return item(value, *given)
    if (name[:2] == "__" and name not in known.PROTOCOLS) or (kind == ARRAY and value.dtype.hasobject):
        raise unknown(f".{name}() of {type_name(value)}")
    return _method_of_container(f, value, name, given, named)


def _method_of_object(f: Any, value: Any, name: str, given: Any, named: Any) -> Any:
    if name == "__getattribute__" and len(given) == 1 and not named:
        return as_object(value, *given)
    if name == "__setattr__" and f.__objclass__ is object:
        return set_plainly(value, *given)
    if type(value) is contextvars.ContextVar and (name == "get" or current().in_own_context):
        return f(*given)
    if id(value) in current().own or (name in known.READS and _owner(f, value, name) in known.CONTAINERS_OF_PYTHON):
        return _method_of_container(f, value, name, given, named)
    raise unknown(f".{name}() of {type_name(value)}")


def _owner(f: Any, value: Any, name: str) -> Any:
    """Return the class whose method is bound, also where `super()` has found it."""
    found = (base for base in order_of(type_of(value)) if type(base.__dict__.get(name)) in _UNBOUND)
    return getattr(f, "__objclass__", None) or next(found, None)


def _argument(value: Any, name: str, place: int, given: Any) -> Any:
    """Return an argument that a container may iterate, hash, compare, or count with."""
    if name in known.ITERATING:
        return iterate(given)
    if name == "update" and is_a(value, dict) and not is_a(value, collections.Counter):
        return pairs(given)
    if name in known.HASHING:
        return given if kind_of(given) == MAPPING else [keyed(one) for one in iterate(given)]
    if name in known.COMPARES and place == 0:
        return deep(given)
    if is_a(value, (dict, set, frozenset)) and name in known.KEYED:
        return given if place else keyed(given)
    return given if (name, place) in known.HOLDING else vouch(given)


def _method_of_container(f: Any, value: Any, name: str, given: Any, named: Any) -> Any:
    kind = kind_of(value)
    if name in known.MUTATORS and id(value) not in current().own and not is_a(value, str | bytes | tuple):
        raise Refusal(f".{name}() would change a {type_name(value)} of the job")
    if name in known.NEVER or named.get("out") is not None:
        raise unknown(f".{name}() of {type_name(value)}")
    if kind in (ARRAY, ATOM):
        f = f if shielded(value) is value else getattr(shielded(value), name)
        given, named = vouched(given, named)
        result = f(*map(shielded, given), **named)
    else:
        if name in known.COMPARES and kind != OTHER:
            deep(value)
        if name == "__setitem__" and len(given) == 2:
            given = [given[0], slice_part(*given)]
        given = [_argument(value, name, place, one) for place, one in enumerate(given)]
        result = f(*given, **{k: judged(v) if k == "key" and v is not None else v for k, v in named.items()})
    return own(result) if _is_fresh(result, value, name) else result


def _is_fresh(result: Any, value: Any, name: str) -> bool:
    """Return True for a container, an iterator or an array that a method has made."""
    if name in known.MAKING and (is_a(result, CONTAINERS) or of_class(type(result), "__next__")):
        return True
    made = kind_of(value) == ARRAY and type(result) is np.ndarray
    return made and result.base is None and result is not value


def shielded(value: Any) -> Any:
    """Return an array of the job such that nothing can write to it."""
    if type(value) is not np.ndarray or id(value) in current().own:
        return value
    view = value.view()
    view.flags.writeable = False
    return view


def _method_of_tensor(f: Any, value: Any, name: str, given: Any, named: Any) -> Any:
    refuse_change(value, name)
    if named.get("out") is not None:
        raise Refusal(f".{name}() would change a tensor or its graph")
    given, named = vouched(given, named)
    if name in known.TENSOR_READS:
        result = f(*given, **named)
        note_storages(result, value, given, named)
        return result
    if effect(name) == PURE or (effect(name) and name[:1] != "_"):
        return operate(lambda own, *others, **more: f(*others, **more), name, (value, *given), named)
    raise unknown(f".{name}() of a tensor")


def refuse_change(tensor: Any, name: str) -> None:
    """Raise `Refusal` for a method that changes what no operator of torch shows."""
    operand(tensor)
    if name in known.TENSOR_NEVER:
        raise Refusal(f".{name}() would change a tensor or its graph")


def bound_method(function: Any, value: Any, given: Any, named: Any) -> Any:
    """Return what a method gives that is written in Python."""
    if type(function) is types.FunctionType and kind_of(value) == TENSOR:
        refuse_change(value, function.__name__)
    if module_of(function).startswith("numpy.") and kind_of(value) == ARRAY:  # of masked arrays
        return _method(types.MethodType(function, value), value, function.__name__, given, named)
    walks = type(function) is types.FunctionType and function.__name__ in known.MODULE_METHODS and is_of_torch(function)
    if walks and is_module(value) and is_plain_model(value, lists=True):
        found = function(value, *map(_bare, given), **{k: _bare(v) for k, v in named.items()})
        return own(found) if of_class(type(found), "__next__") else found
    return checked_call(function, value, *given, **named)


def _bare(value: Any) -> Any:
    if kind_of(value) != ATOM:
        raise unknown(f"walking over a model with {type_name(value)}")
    return value
