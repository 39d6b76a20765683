"""Make results and items safe to copy, so that no unchecked code of the job runs."""

from __future__ import annotations

import collections
import enum
import sys
import types
from collections.abc import Callable, KeysView, Mapping, ValuesView
from typing import Any

import numpy as np

from looptap.streams.harmless.checked_code import checked_call
from looptap.streams.harmless.plain import (
    ARRAY,
    ATOM,
    LIBRARIES,
    MAPPING,
    MODULE,
    SEQUENCE,
    TENSOR,
    attributes_of,
    is_a,
    is_plain,
    is_plain_model,
    kind_of,
    of_class,
    of_python,
    order_of,
    package_of,
    type_of,
)
from looptap.streams.harmless.refusal import Refusal

_CONVERSIONS = ("__array__", "__index__", "__float__", "__fspath__")
"""Methods that give an array, a number or a path; they are followed."""
_READ = (
    *_CONVERSIONS,
    "__getattribute__",
    "__getattr__",
    "__class__",
    "__iter__",
    "__len__",
    "__eq__",
    "__ne__",
    "__gt__",
    "__str__",
    "__repr__",
    "__torch_dispatch__",
    "to_local",
    "wait",
    "dtype",
    "shape",
    "ndim",
    "size",
    "nbytes",
    "is_cpu",
    "savefig",
    "save",
    "dpi",
    "get_size_inches",
    "utcoffset",
    "year",
    "month",
    "day",
    "hour",
    "minute",
    "second",
    "microsecond",
    "days",
    "seconds",
    "microseconds",
    "param_groups",
    "get_last_lr",
    "last_epoch",
)
"""What a copy reads of an object: none of it may be code of the job."""
_EXACT: tuple[tuple[type, Callable[[Any], Any]], ...] = (
    (int, int.__int__),
    (float, float.__float__),
    (complex, complex.__complex__),
    (str, str.__str__),
    (bytes, bytes.__bytes__),
)
"""Numbers and texts, and what makes one of a subclass."""
MAX_BYTES = 2**30
"""The size of an object that is not even converted."""
_MAPPED = (dict, types.MappingProxyType)
_LISTED: tuple[type, ...] = (list, set, frozenset, collections.deque, type({}.keys()), type({}.values()))
MAX_DEPTH = 64
"""Containers in each other; a copy goes no deeper."""


def to_copy(value: Any, depth: int = 0) -> Any:
    """Return a value that may be copied; an object with a panel is its ``repr``.

    Raises `Refusal`.
    """
    kind = kind_of(value)
    if kind in (ATOM, ARRAY) or depth > MAX_DEPTH or is_plain(value):
        return value
    if kind == MODULE and is_plain_model(value):
        return value
    if kind in (SEQUENCE, MAPPING):
        return _contained(value, depth)
    if kind in (TENSOR, MODULE):
        raise _refusal(value, "methods")
    return _of_object(value, depth)


def _contained(value: Any, depth: int) -> Any:
    """Return a container whose items may be copied."""
    kind = type_of(value)
    if is_a(value, dict):
        return {to_copy(key, depth + 1): to_copy(one, depth + 1) for key, one in value.items()}
    items = [to_copy(one, depth + 1) for one in value]
    if issubclass(kind, tuple):
        return tuple.__new__(kind, items)
    return set(items) if kind in (set, frozenset) else items


def _of_object(value: Any, depth: int) -> Any:
    kind = type_of(value)
    order, is_known = order_of(kind), package_of(kind) in LIBRARIES
    text = of_python(kind, "__repr__")
    if text is not None and of_class(kind, "__looptap_panel__") is not None and not is_known:
        return to_copy(checked_call(text, value))
    if is_a(value, _MAPPED) or Mapping in order:
        return {to_copy(key, depth + 1): to_copy(one, depth + 1) for key, one in checked_call(_pairs_of, value)}
    if is_a(value, _LISTED) or not {KeysView, ValuesView}.isdisjoint(order):
        return [to_copy(one, depth + 1) for one in checked_call(_items_of, value)]
    if is_a(value, types.SimpleNamespace) or kind.__qualname__ == "Namespace":
        return {name: to_copy(one, depth + 1) for name, one in attributes_of(value).items()}
    if is_known:
        return value
    return _of_class_of_job(value, kind, order, depth)


def _of_class_of_job(value: Any, kind: Any, order: Any, depth: int) -> Any:
    """Return what stands for an object of the job, of which nothing is run unchecked."""
    if is_a(value, enum.Enum):
        return to_copy(attributes_of(value).get("_value_"), depth + 1)
    if is_a(value, np.ndarray):
        return np.ndarray.view(value, np.ndarray)
    if type(of_class(kind, "__torch_dispatch__")) is classmethod:
        raise _refusal(value, "__torch_dispatch__")
    torch: Any = sys.modules.get("torch")
    if torch is not None and is_a(value, torch.Tensor):
        with torch._C.DisableTorchFunctionSubclass():
            return torch._C.TensorBase.as_subclass(value, torch.Tensor)
    size = attributes_of(value).get("nbytes", of_class(kind, "nbytes"))
    if type(size) is int and size > MAX_BYTES:
        raise Refusal(f"a {kind.__qualname__} of {size:,} bytes is over any max_bytes=: reduce it in the query")
    converted = next((found for name in _CONVERSIONS if (found := of_python(kind, name)) is not None), None)
    if converted is not None:
        return to_copy(checked_call(converted, value), depth + 1)
    if of_python(kind, "__dlpack__") is not None:
        return np.from_dlpack(_Exchanged(value))
    fields = of_class(kind, "__dataclass_fields__")
    if type(fields) is dict:
        return {name: to_copy(one, depth + 1) for name, one in checked_call(_fields_of, value, list(fields))}
    return _number_or_text(value, order)


def _number_or_text(value: Any, order: Any) -> Any:
    own = [base.__dict__ for base in order if package_of(base) not in LIBRARIES]
    for name in _READ:
        if any(name in held and _runs(held[name]) for held in own):
            raise _refusal(value, name)
    return next((exact(value) for base, exact in _EXACT if is_a(value, base)), value)


class _Exchanged:
    """An array whose methods of exchange are followed."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def __dlpack__(self, **named: Any) -> Any:
        return checked_call(of_class(type_of(self._value), "__dlpack__"), self._value, **named)

    def __dlpack_device__(self) -> Any:
        return checked_call(of_class(type_of(self._value), "__dlpack_device__"), self._value)


def _pairs_of(mapping: Any) -> Any:
    return [(key, one) for key, one in mapping.items()]  # followed, as all code of the job's


def _items_of(container: Any) -> Any:
    return [one for one in container]  # followed, as all code of the job's


def _fields_of(value: Any, names: list[str]) -> Any:
    return [(name, getattr(value, name)) for name in names]  # followed, as all code of the job's


_OF_C = (
    types.MemberDescriptorType,
    types.GetSetDescriptorType,
    types.WrapperDescriptorType,
    types.MethodDescriptorType,
    types.ClassMethodDescriptorType,
    types.BuiltinFunctionType,
)


def _runs(held: Any) -> bool:
    """Return True for what may run Python as an attribute is read or called."""
    if type(held) in _OF_C:
        return False
    return callable(held) or of_class(type(held), "__get__") is not None


def _refusal(value: Any, name: str) -> Refusal:
    return Refusal(
        f"copying a {type_of(value).__qualname__}, whose {name} is code of the job, is not known to be harmless"
    )
