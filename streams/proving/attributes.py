"""Read attributes without running code of the job, or by running it checked."""

from __future__ import annotations

import collections
import functools
import types
from collections.abc import Callable
from typing import Any

from looptap.streams.harmless import known
from looptap.streams.harmless.checked_code import call
from looptap.streams.harmless.plain import (
    ARRAY,
    ATOM,
    MAPPING,
    MODULE,
    TENSOR,
    attributes_of,
    is_a,
    is_of_looptap,
    is_of_torch,
    is_ordinary,
    kind_of_type,
    module_of,
    name_of_type,
    of_class,
    type_of,
)
from looptap.streams.harmless.refusal import Refusal

Reader = Callable[[Any], Any]
MAX_READERS = 5000
"""Readers that are kept: one for each type and name."""
_NAMES_OF_CLASSES = frozenset({"__name__", "__qualname__", "__module__", "__doc__", "__version__"})
_NOWHERE = object()
_PLAIN_DESCRIPTORS = (
    types.FunctionType, types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType,
    types.ClassMethodDescriptorType, types.MemberDescriptorType, staticmethod,
    type(functools.cache(lambda: None)),
    type(vars(collections.namedtuple("_", "one"))["one"]),
)
_readers: dict[tuple[type, str], Reader] = {}


def reader(kind: type, name: str) -> Reader:
    """Return the function that reads ``name`` of values of this type."""
    key = kind, name
    found = _readers.get(key)
    if found is None:
        if len(_readers) > MAX_READERS:
            _readers.clear()
        found = _readers[key] = _reader(kind, name)
    return found


def _reader(kind: type, name: str) -> Reader:
    direct: Reader = lambda value: getattr(value, name)  # noqa: E731  # one of several forms of a reader
    if of_class(kind, "__looptap_names__"):
        return direct
    if kind is super:
        return lambda value: _of_super(value, name)
    if name == "__class__":
        return type
    if name == "__dict__" and not issubclass(kind, type):
        return attributes_of
    if kind in _CALLABLES:
        return direct
    if issubclass(kind, types.ModuleType):
        return lambda value: _of_module(value, name)
    if issubclass(kind, type):
        return lambda value: _of_class(value, name)
    found = kind_of_type(kind)
    if found == TENSOR:
        return _of_tensor(name)
    if found in (ATOM, ARRAY, MAPPING) or kind in (tuple, list, set, frozenset, collections.deque):
        return direct
    if is_of_looptap(kind):
        return direct  # what a training system of ours exposes is made to be read
    computed = of_class(kind, "__getattribute__")
    if type(computed) is types.FunctionType:
        return lambda value: _computed(value, name, computed)
    if type(of_class(kind, "__torch_function__")) is classmethod and module_of(kind).partition(".")[0] != "torch":
        return _refusing(f"an attribute of {kind.__qualname__}, which computes all of them,")
    return _of_object(kind, name, direct)


def _computed(value: Any, name: str, computed: Any) -> Any:
    """Return what a ``__getattribute__`` of the job gives."""
    try:
        return call(computed, value, name)
    except AttributeError:
        fallback = of_class(type_of(value), "__getattr__")
        if type(fallback) is not types.FunctionType:
            raise
        return call(fallback, value, name)


def as_object(value: Any, name: str) -> Any:
    """Return what ``object.__getattribute__`` gives."""
    kind = type_of(value)
    if name == "__class__":
        return kind
    if name == "__dict__":
        return attributes_of(value)
    if is_a(value, types.ModuleType):
        return _of_module(value, name)
    if type(name) is not str:
        raise Refusal(f"{name!r:.40} of {kind.__qualname__} is not known to be harmless")
    return _of_object(kind, name, lambda own: object.__getattribute__(own, name))(value)


_CALLABLES = (types.FunctionType, types.MethodType, types.BuiltinFunctionType, functools.partial)


def _refusing(what: str) -> Reader:
    def refuse(value: Any) -> Any:
        raise Refusal(f"{what} is not known to be harmless")

    return refuse


def _is_c(kind: type) -> bool:
    return not kind.__flags__ & (1 << 9)  # Py_TPFLAGS_HEAPTYPE: a class statement has made it


def _of_module(value: Any, name: str) -> Any:
    own = types.ModuleType.__getattribute__(value, "__dict__")
    if name in own:
        return own[name]
    if own.get("__name__") == "looptap":
        return getattr(value, name)  # loaded when it is first used
    held = of_class(type_of(value), name, _NOWHERE)
    if held is not _NOWHERE:
        return _of_descriptor(value, held, name)
    fallback = of_class(type_of(value), "__getattr__")
    if fallback is not None:
        return call(fallback, value, name)
    if "__getattr__" in own:
        return call(own["__getattr__"], name)
    raise AttributeError(f"module {own.get('__name__')!r} has no attribute {name!r}", name=name, obj=value)


def _of_class(value: Any, name: str) -> Any:
    if not is_ordinary(value):
        said = f"an attribute of {name_of_type(value)}, whose metaclass is of the job's own,"
        raise Refusal(f"{said} is not known to be harmless")
    if name in _NAMES_OF_CLASSES:
        return getattr(value, name)
    held = of_class(value, name, _NOWHERE)
    if _is_plain_descriptor(held) or held is _NOWHERE:
        return getattr(value, name)
    getter = of_class(type_of(held), "__get__")
    if type(getter) is types.FunctionType:
        return call(getter, held, None, value)
    raise Refusal(f"{value.__qualname__}.{name} is not known to be harmless")


def _of_tensor(name: str) -> Reader:
    def of_tensor(value: Any) -> Any:
        if name in value.__dict__:
            return value.__dict__[name]
        if name == "grad" and not value.is_leaf and not value.retains_grad:
            return None  # where torch warns, on the terminal of the job
        if name in known.TENSOR_ATTRIBUTES or callable(getattr(type_of(value), name, None)):
            return getattr(value, name)
        if not hasattr(type_of(value), name):
            raise AttributeError(f"'{type_of(value).__name__}' object has no attribute {name!r}", name=name, obj=value)
        raise Refusal(f".{name} of a tensor is not known to be harmless")

    return of_tensor


def _of_object(kind: type, name: str, direct: Reader) -> Reader:
    held = of_class(kind, name, _NOWHERE)
    if type(held) is types.MemberDescriptorType:
        return direct
    getter = of_class(type_of(held), "__get__")
    if getter is property.__get__:
        return _of_property(held, f"{kind.__qualname__}.{name}")
    if getter is functools.cached_property.__get__:
        return lambda value: _cached(value, name, held.func)
    if module_of(type_of(held)) == "torch.distributions.utils":  # torch's own of the same kind
        return lambda value: _cached(value, name, held.wrapped)
    if type(held) is types.GetSetDescriptorType and _is_c(held.__objclass__):
        return direct
    if held is _NOWHERE:
        return _absent(kind, name, direct)
    if _is_plain_descriptor(held):
        return direct
    return lambda value: _in_instance(value, name, held)


def _is_plain_descriptor(held: Any) -> bool:
    if type(held) is classmethod:  # over a property it would run that
        held = held.__func__
    return is_a(held, _PLAIN_DESCRIPTORS) or of_class(type_of(held), "__get__") is None


def _of_super(value: Any, name: str) -> Any:
    """Return what `super()` reads, whose properties are followed."""
    order = value.__self_class__.__mro__
    for base in order[order.index(value.__thisclass__) + 1 :]:
        if name in base.__dict__:
            held = base.__dict__[name]
            if type(held) is property and type(held.fget) is types.FunctionType:
                return call(held.fget, value.__self__)
            if _is_plain_descriptor(held):
                return getattr(value, name)
            raise Refusal(f"super().{name} is not known to be harmless")
    raise AttributeError(f"'super' object has no attribute {name!r}", name=name)


def _of_property(held: property, shown: str) -> Reader:
    get = held.fget
    if type(get) is not types.FunctionType:
        return _refusing(shown)
    return lambda value: call(get, value)


def _cached(value: Any, name: str, compute: Callable[..., Any]) -> Any:
    """Return a cached value, or what it would be: nothing is written to the object."""
    own = attributes_of(value)
    return own[name] if name in own else call(compute, value)


def _in_instance(value: Any, name: str, held: Any) -> Any:
    own = attributes_of(value)
    if name in own and of_class(type_of(held), "__set__") is None:
        return own[name]
    return _of_descriptor(value, held, name)


def _of_descriptor(value: Any, held: Any, name: str) -> Any:
    """Return what a descriptor of the job's gives, by its source."""
    getter = of_class(type_of(held), "__get__")
    if getter is None:
        return held
    if type(getter) is types.FunctionType:
        return call(getter, held, value, type_of(value))
    raise Refusal(f"{type_of(value).__qualname__}.{name} is not known to be harmless")


def _absent(kind: type, name: str, direct: Reader) -> Reader:
    """Return the reader of a name that the class lacks: of the object, or computed."""
    fallback = of_class(kind, "__getattr__")
    if kind_of_type(kind) == MODULE or fallback is None or _is_torch_module(fallback):
        return direct

    def read(value: Any) -> Any:
        own = attributes_of(value)
        if name in own:
            return own[name]
        if fallback is dict.__getitem__:
            return call(item_of_dict, value, name)
        if type(fallback) is types.FunctionType:
            return call(fallback, value, name)
        raise Refusal(f"{kind.__qualname__}.{name} is not known to be harmless")

    return read


def item_of_dict(value: Any, name: str) -> Any:
    """Return an item of a dict whose attributes are its items."""
    return value[name]


def _is_torch_module(fallback: Any) -> bool:
    return is_of_torch(fallback) and fallback.__qualname__ == "Module.__getattr__"
