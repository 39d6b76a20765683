"""Read attributes and items; code of the job that this would run is checked.

The order is Python's own: a descriptor of the class that sets, the object, the class, ``__getattr__``. It is looked up
each time, since the job may change its classes.
"""

from __future__ import annotations

import collections
import functools
import sys
import types
from collections.abc import Mapping
from typing import Any

from looptap.streams.harmless.checked_code import checked_call
from looptap.streams.harmless.checked_evaluation import current
from looptap.streams.harmless.plain import (
    ARRAY,
    ATOM,
    MAPPING,
    MODULE,
    SEQUENCE,
    TENSOR,
    attributes_of,
    held_by,
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
    of_python,
    order_of,
    type_of,
)
from looptap.streams.proving.vouching import keyed, made, operand, type_name, unknown, vouch

_READ_AS_THEY_ARE = frozenset(
    (
        tuple,
        list,
        set,
        frozenset,
        collections.deque,
        types.FunctionType,
        types.MethodType,
        types.BuiltinFunctionType,
        functools.partial,
    )
)
_NOWHERE = object()
_BINDING = (
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    types.ClassMethodDescriptorType,
    types.MemberDescriptorType,
    staticmethod,
    type(functools.cache(lambda: None)),
    type(vars(collections.namedtuple("_", "one"))["one"]),
)
"""What a class may hold that reading only binds."""
_COMPUTING = {id(property.__get__): "fget", id(functools.cached_property.__get__): "func"}
"""The functions that such descriptors call, by the identity of what reads them."""


def read(value: Any, name: str) -> Any:
    """Return ``value.name``."""
    kind: Any = type(value)
    what = kind_of_type(kind)
    plainly = is_ordinary(kind) and (kind in _READ_AS_THEY_ARE or is_of_looptap(kind))
    if plainly or what in (ATOM, ARRAY, MAPPING):
        return getattr(value, name)  # what a training system of ours exposes is made to be read
    if name == "__class__":
        return kind
    if kind is types.ModuleType and name in value.__dict__:
        return value.__dict__[name]
    if kind is super:
        return _of_super(value, name)
    if issubclass(kind, type):
        return _of_class(value, name)
    if what == TENSOR:
        unseen = name == "grad" and not value.is_leaf and not value.retains_grad
        return None if unseen else as_object(value, name)  # where torch warns, on the terminal of the job
    computed = of_python(kind, "__getattribute__")
    if computed is not None:
        return _by_job(value, name, computed)
    if issubclass(kind, _tensor_type()) and not module_of(kind).startswith("torch."):
        raise unknown(f"an attribute of {type_name(value)}, which computes all of them,")
    return as_object(value, name)


def _by_job(value: Any, name: str, computed: Any) -> Any:
    """Return an attribute of an object that computes all of them."""
    try:
        return checked_call(computed, value, name)
    except AttributeError:
        fallback = of_python(type(value), "__getattr__")
        if fallback is None:
            raise
        return checked_call(fallback, value, name)


def _tensor_type() -> Any:
    return getattr(sys.modules.get("torch"), "Tensor", ())


def as_object(value: Any, name: str) -> Any:
    """Return what ``object.__getattribute__`` gives."""
    kind = type(value)
    if name in ("__class__", "__dict__"):
        return kind if name == "__class__" else attributes_of(value)
    if type(name) is not str:
        raise unknown(f"an attribute of {type_name(value)} by a name of the job's own")
    held = of_class(kind, name, _NOWHERE)
    if held is _NOWHERE or of_class(type(held), "__set__") is None:
        own = attributes_of(value)
        if name in own:
            return own[name]
        if held is _NOWHERE:
            return _computed(value, name, own)
    return _bound(held, value, kind, name)


def _bound(held: Any, value: Any, kind: type, name: str) -> Any:
    """Return what ``held``, an attribute of a class, gives for a value of it.

    ``value`` is None for the class itself.
    """
    get = of_class(type(held), "__get__")
    if get is None or _only_binds(held):
        return held if get is None else get(held, value, kind)
    computes = "wrapped" if module_of(type(held)) == "torch.distributions.utils" else _COMPUTING.get(id(get))
    if computes is None and type(get) is types.FunctionType:
        return checked_call(get, held, value, kind)
    if computes is None or not (value is None or type(getattr(held, computes)) is types.FunctionType):
        raise unknown(f"{name_of_type(kind)}.{name}")
    return held if value is None else checked_call(getattr(held, computes), value)  # nothing is written to the object


def _only_binds(held: Any) -> bool:
    if type(held) is classmethod:  # over a property it would run that
        held = held.__func__
    if type(held) is types.GetSetDescriptorType:
        return not is_written(held.__objclass__)
    return is_a(held, _BINDING)


def _computed(value: Any, name: str, own: Mapping[str, Any]) -> Any:
    """Return an attribute that neither the class nor the object has."""
    fallback, is_module = of_class(type(value), "__getattr__"), is_a(value, types.ModuleType)
    if fallback is None and is_module:
        if value is sys.modules.get("looptap"):
            return getattr(value, name)  # loaded when it is first used
        if "__getattr__" in own:
            return checked_call(own["__getattr__"], name)
    if fallback is None:
        simple = name_of_type(type(value)).rpartition(".")[2]
        subject = f"module {own.get('__name__')!r}" if is_module else f"{simple!r} object"
        raise AttributeError(f"{subject} has no attribute {name!r}", name=name)
    if is_of_torch(fallback) and fallback.__qualname__ == "Module.__getattr__" and is_ordinary(type(value)):
        return fallback(value, name)
    if fallback is dict.__getitem__:
        return item(value, name)
    if type(fallback) is types.FunctionType:
        return checked_call(fallback, value, name)
    raise unknown(f"{type_name(value)}.{name}")


def _of_class(value: Any, name: str) -> Any:
    if not is_ordinary(value):
        raise unknown(f"an attribute of {name_of_type(value)}, whose metaclass is of the job's own,")
    held, of_meta = of_class(value, name), of_class(type(value), name)
    if of_class(type(held), "__get__") is None or of_class(type(of_meta), "__set__") is not None:
        return getattr(value, name)
    return _bound(held, None, value, name)


def _of_super(value: Any, name: str) -> Any:
    """Return what `super()` reads, whose properties are followed."""
    kind, own = value.__self_class__, value.__self__
    order = order_of(kind)
    for base in order[[one is value.__thisclass__ for one in order].index(True) + 1 :]:
        if name in held_by(base):
            return _bound(held_by(base)[name], None if own is kind else own, kind, name)
    raise AttributeError(f"'super' object has no attribute {name!r}", name=name)


def item(value: Any, key: Any) -> Any:
    """Return ``value[key]``."""
    what, kind = kind_of(value), type_of(value)
    if what in (TENSOR, ARRAY):
        return made(operand(value)[index_of(key)], value, key)
    found = of_class(kind, "__getitem__")
    if what in (ATOM, SEQUENCE):
        return value[index_of(key)]
    if found is list.__getitem__:
        return found(value, index_of(key))
    if found is dict.__getitem__:
        return _of_dict(value, key, kind)
    if of_class(kind, "__looptap_names__"):
        return read(value, key)
    if what == MODULE and module_of(found).startswith("torch.nn."):
        if type(key) is slice and not module_of(kind).startswith("torch.nn."):
            raise unknown(f"a slice of {type_name(value)}, which makes another")
        return found(value, index_of(key))
    if type(found) is types.FunctionType:
        return checked_call(found, value, key)
    if id(value) in current().own and found is not None and not is_a(value, type):
        return value[index_of(key)]
    raise unknown(f"an item of {type_name(value)}")


def _of_dict(value: Any, key: Any, kind: Any) -> Any:
    """Return an item of a dict, or of a class that looks items up as a dict does."""
    fills = kind is collections.defaultdict
    if keyed(key) in dict.keys(value) or (fills and id(value) in current().own):
        return dict.__getitem__(value, key)
    missing = of_class(kind, "__missing__")
    if missing is not None and not fills:
        return checked_call(missing, value, key)
    raise KeyError(key if kind_of(key) == ATOM else type_name(key))


def index_of(key: Any) -> Any:
    """Return a key that may be looked up in a tensor, an array or a sequence."""
    return key if kind_of(key) == ATOM else vouch(key)
