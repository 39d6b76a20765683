"""Read attributes and items; code of the job that this would run is checked.

The order is Python's own: a descriptor of the class that sets, the object, the class, ``__getattr__``. It is looked up
each time, since the job may change its classes.
"""

from __future__ import annotations

import collections
import functools
import sys
import types
from typing import Any

from looptap.streams.harmless import known
from looptap.streams.harmless.checked_code import call
from looptap.streams.harmless.checked_evaluation import current
from looptap.streams.harmless.plain import (
    ARRAY,
    ATOM,
    MAPPING,
    MODULE,
    SEQUENCE,
    TENSOR,
    attributes_of,
    is_a,
    is_of_looptap,
    is_of_torch,
    is_ordinary,
    is_written,
    kind_of,
    kind_of_type,
    module_of,
    name_of_type,
    of_class,
    order_of,
    type_of,
)
from looptap.streams.proving.vouching import keyed, made, operand, type_name, unknown, vouch

_READ_AS_THEY_ARE = frozenset((
    tuple, list, set, frozenset, collections.deque, types.FunctionType, types.MethodType, types.BuiltinFunctionType,
    functools.partial,
))
_NAMES_OF_CLASSES = frozenset({"__name__", "__qualname__", "__module__", "__doc__", "__version__"})
_NOWHERE = object()
_BINDING = (
    types.FunctionType, types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType,
    types.ClassMethodDescriptorType, types.MemberDescriptorType, staticmethod,
    type(functools.cache(lambda: None)), type(vars(collections.namedtuple("_", "one"))["one"]),
)
"""What a class may hold that reading only binds."""


def read(value: Any, name: str) -> Any:
    """Return ``value.name``."""
    kind = type_of(value)
    what = kind_of_type(kind)
    if what in (ATOM, ARRAY, MAPPING) or kind in _READ_AS_THEY_ARE or is_of_looptap(kind):
        return getattr(value, name)  # what a training system of ours exposes is made to be read
    if name == "__class__":
        return kind
    if kind is super:
        return _of_super(value, name)
    if issubclass(kind, types.ModuleType):
        return _of_module(value, name)
    if issubclass(kind, type):
        return _of_class(value, name)
    if what == TENSOR:
        return _of_tensor(value, name)
    computed = of_class(kind, "__getattribute__")
    if type(computed) is types.FunctionType:
        try:
            return call(computed, value, name)
        except AttributeError:
            if type(of_class(kind, "__getattr__")) is not types.FunctionType:
                raise
            return call(of_class(kind, "__getattr__"), value, name)
    if issubclass(kind, _tensor_type()) and not module_of(kind).startswith("torch."):
        raise unknown(f"an attribute of {type_name(value)}, which computes all of them,")
    return as_object(value, name)


def _tensor_type() -> Any:
    return getattr(sys.modules.get("torch"), "Tensor", ())


def as_object(value: Any, name: str) -> Any:
    """Return what ``object.__getattribute__`` gives."""
    kind = type_of(value)
    if name in ("__class__", "__dict__"):
        return kind if name == "__class__" else attributes_of(value)
    if is_a(value, types.ModuleType):
        return _of_module(value, name)
    if type(name) is not str:
        raise unknown(f"an attribute of {type_name(value)} by a name of the job's own")
    held = of_class(kind, name, _NOWHERE)
    if held is _NOWHERE and kind_of_type(kind) != MODULE:
        return _of_instance(value, name)
    return _given(held, value, name)


def _given(held: Any, value: Any, name: str) -> Any:
    """Return what ``held``, which the class has under this name, gives for a value."""
    kind = type_of(value)
    get = of_class(type_of(held), "__get__")
    if get is property.__get__ and type(held.fget) is types.FunctionType:
        return call(held.fget, value)
    if of_class(type_of(held), "__set__") is None and name in (own := attributes_of(value)):
        return own[name]
    if held is _NOWHERE:
        return getattr(value, name)  # a part of a model
    if get is functools.cached_property.__get__:
        return call(held.func, value)  # nothing is written to the object
    if module_of(type_of(held)) == "torch.distributions.utils":  # torch's own of the same kind
        return call(held.wrapped, value)
    of_c = type(held) is types.GetSetDescriptorType and not is_written(held.__objclass__)
    if get is None or of_c or _only_binds(held):
        return held if get is None else get(held, value, kind)
    if type(get) is types.FunctionType:
        return call(get, held, value, kind)
    raise unknown(f"{type_name(value)}.{name}")


def _only_binds(held: Any) -> bool:
    if type(held) is classmethod:  # over a property it would run that
        held = held.__func__
    return is_a(held, _BINDING)


def _of_instance(value: Any, name: str) -> Any:
    """Return an attribute that the class lacks: of the object, or computed."""
    own = attributes_of(value)
    if name in own:
        return own[name]
    fallback = of_class(type_of(value), "__getattr__")
    if fallback is None:
        raise AttributeError(f"{type_of(value).__name__!r} object has no attribute {name!r}", name=name)
    if is_of_torch(fallback) and fallback.__qualname__ == "Module.__getattr__":
        return fallback(value, name)
    if fallback is dict.__getitem__:
        return item(value, name)
    if type(fallback) is types.FunctionType:
        return call(fallback, value, name)
    raise unknown(f"{type_name(value)}.{name}")


def _of_module(value: Any, name: str) -> Any:
    own = types.ModuleType.__getattribute__(value, "__dict__")
    if name in own:
        return own[name]
    if name == "__dict__":
        return own
    if own.get("__name__") == "looptap":
        return getattr(value, name)  # loaded when it is first used
    held = of_class(type_of(value), name, _NOWHERE)
    if held is not _NOWHERE:
        return _given(held, value, name)
    fallback = of_class(type_of(value), "__getattr__")
    if fallback is not None:
        return call(fallback, value, name)
    if "__getattr__" in own:
        return call(own["__getattr__"], name)
    raise AttributeError(f"module {own.get('__name__')!r} has no attribute {name!r}", name=name)


def _of_class(value: Any, name: str) -> Any:
    if not is_ordinary(value):
        raise unknown(f"an attribute of {name_of_type(value)}, whose metaclass is of the job's own,")
    held = of_class(value, name)
    get = of_class(type_of(held), "__get__")
    if name in _NAMES_OF_CLASSES or get is None or _only_binds(held):
        return getattr(value, name)
    if type(get) is types.FunctionType:
        return call(get, held, None, value)
    raise unknown(f"{name_of_type(value)}.{name}")


def _of_super(value: Any, name: str) -> Any:
    """Return what `super()` reads, whose properties are followed."""
    order = order_of(value.__self_class__)
    for base in order[order.index(value.__thisclass__) + 1 :]:
        held = base.__dict__.get(name, _NOWHERE)
        if type(held) is property and type(held.fget) is types.FunctionType:
            return call(held.fget, value.__self__)
        if held is not _NOWHERE and not _only_binds(held) and of_class(type_of(held), "__get__") is not None:
            raise unknown(f"super().{name}")
        if held is not _NOWHERE:
            return getattr(value, name)
    raise AttributeError(f"'super' object has no attribute {name!r}", name=name)


def _of_tensor(value: Any, name: str) -> Any:
    if name in value.__dict__:
        return value.__dict__[name]
    if name == "grad" and not value.is_leaf and not value.retains_grad:
        return None  # where torch warns, on the terminal of the job
    held = of_class(type_of(value), name, _NOWHERE)
    if name in known.TENSOR_ATTRIBUTES or is_a(held, _BINDING):
        return getattr(value, name)
    if held is _NOWHERE:
        raise AttributeError(f"'Tensor' object has no attribute {name!r}", name=name)
    raise unknown(f".{name} of a tensor")


def item(value: Any, key: Any) -> Any:
    """Return ``value[key]``."""
    what, kind = kind_of(value), type_of(value)
    if what in (TENSOR, ARRAY):
        return made(operand(value)[index_of(key)], value, key)
    if what in (ATOM, SEQUENCE):
        return value[index_of(key)]
    if what == MAPPING:
        if keyed(key) in value or (id(value) in current().own and kind is collections.defaultdict):
            return value[key]
        if kind is collections.Counter:
            return 0
        raise KeyError(key if kind_of(key) == ATOM else type_name(key))
    if of_class(kind, "__looptap_names__"):
        return read(value, key)
    found = of_class(kind, "__getitem__")
    if found is dict.__getitem__:  # of a subclass
        missing = of_class(kind, "__missing__")
        if keyed(key) not in dict.keys(value) and missing is not None:
            return call(missing, value, key)
        return found(value, key)
    if found is list.__getitem__:
        return found(value, index_of(key))
    if type(found) is types.FunctionType:
        if what == MODULE and module_of(found).startswith("torch.nn."):
            if type(key) is slice and not module_of(kind).startswith("torch.nn."):
                raise unknown(f"a slice of {type_name(value)}, which makes another")
            return found(value, index_of(key))
        return call(found, value, key)
    if id(value) in current().own and found is not None and not is_a(value, type):
        return value[index_of(key)]
    raise unknown(f"an item of {type_name(value)}")


def index_of(key: Any) -> Any:
    """Return a key that may be looked up in a tensor, an array or a sequence."""
    return key if kind_of(key) == ATOM else vouch(key)
