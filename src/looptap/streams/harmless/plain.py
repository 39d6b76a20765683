"""Plain values: values of exact known types, whose use runs no code of the job.

Plain are numbers, text, bytes, None, tensors and parameters, arrays without objects, numpy's scalars, and tuples,
lists, dicts, sets and deques of them, as far as a bounded check reaches. Subclasses are not plain.
"""

from __future__ import annotations

import collections
import datetime
import functools
import operator
import sys
import types
import weakref
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from looptap.streams.harmless.refusal import Refusal

ATOM, TENSOR, ARRAY, SEQUENCE, MAPPING, MODULE, OTHER = range(7)
"""Kinds of types."""

MAX_ITEMS = 1_000_000
"""Items of containers that are checked; a container with more does not count as plain."""
MAX_MODULES = 2000
"""Submodules and parameters of a model that are checked."""
MAX_LOOKS_BETWEEN_CHECKS = 64
"""Uses of a model found plain before its submodules are checked again."""
MAX_TYPES = 2000
"""Types whose kind is cached; classes created in a loop must not accumulate."""

_ATOMS: tuple[type, ...] = (
    float, int, bool, str, type(None), bytes, complex, range, slice, type(...), bytearray,
    datetime.datetime, datetime.date, datetime.time, datetime.timedelta, type(NotImplemented),
    *(kind for kind in vars(np).values() if isinstance(kind, type) and issubclass(kind, np.generic)
      and kind not in (np.object_, np.void)),
)
_BASIC: dict[type, int] = {
    **dict.fromkeys(_ATOMS, ATOM), np.ndarray: ARRAY,
    **dict.fromkeys((dict, collections.OrderedDict, collections.Counter, collections.defaultdict), MAPPING),
    **dict.fromkeys((tuple, list, set, frozenset, collections.deque), SEQUENCE),
}
_kinds: dict[type, int] = dict(_BASIC)


order_of = type.__dict__["__mro__"].__get__
held_by = type.__dict__["__dict__"].__get__
_qualname_of = type.__dict__["__qualname__"].__get__
_flags_of = type.__dict__["__flags__"].__get__
"""What a class is, read past the attributes of its metaclass."""


def type_of(value: Any) -> Any:
    """Return the type of a value, to compare, look up and read as one likes.

    Raises `Refusal` if its metaclass is of the job's own, whose code would run then.
    """
    kind = type(value)
    if type(kind) is not type:
        admit(kind)
    return kind


def admit(kind: type) -> None:
    """Raise `Refusal` for a class of a metaclass that runs code of the job."""
    if not is_ordinary(kind):
        raise Refusal(f"{name_of_type(kind)}, whose metaclass is of the job's own, is not known to be harmless")


def name_of_type(kind: type) -> str:
    """Return how to call any class in a sentence."""
    name, module = _qualname_of(kind), module_of(kind)
    name = name if type(name) is str else "object"
    return name if module in ("builtins", "__main__", "") else f"{module}.{name}"


def module_of(thing: Any) -> str:
    """Return the name of the module of a class or function; "" for anything else."""
    if issubclass(type(thing), type):
        found = _module_of(thing)
    else:
        found = thing.__module__ if type(thing) in _OF_PYTHON else None
    return found if type(found) is str else ""


_module_of = type.__dict__["__module__"].__get__
_OF_PYTHON = (types.FunctionType, types.BuiltinFunctionType, np.ufunc)


def kind_of(value: Any) -> int:
    """Classify a value by its exact type."""
    return kind_of_type(type(value))


def types_in(values: Iterable[Any]) -> Iterable[type]:
    """Return the different types of values. Raises `Refusal`, as `type_of` does."""
    kinds = list(map(type, values))
    found = dict(zip(map(id, kinds), kinds, strict=True)).values()  # whose hash may run code
    for kind in found:
        admit(kind)
    return found


def kind_of_type(kind: type) -> int:
    """Classify values of exactly this type."""
    if type(kind) is not type and not is_ordinary(kind):
        return OTHER  # its hash may run code
    found = _kinds.get(kind)
    if found is None:
        if len(_kinds) > MAX_TYPES:
            _kinds.clear()
            _kinds.update(_BASIC)
        found = _kinds[kind] = _classified(kind)
    return found


def is_a(value: Any, kinds: Any) -> bool:
    """Return True if the type of ``value`` is one of these, or is derived from it.

    `isinstance` would ask its ``__class__``, which may be a property of the job. ``kinds`` have no abstract classes,
    which ask all of their subclasses.
    """
    return issubclass(type(value), kinds)


def of_class(kind: type, name: str, otherwise: Any = None) -> Any:
    """Return what a class or its bases hold under ``name``.

    It is returned as it is, and the metaclass is not asked.
    """
    usual = type(kind) is type  # so are those of its bases: asking them runs no code, and takes half the time
    for base in kind.__mro__ if usual else order_of(kind):
        held = base.__dict__ if usual else held_by(base)
        if name in held:
            return held[name]
    return otherwise


def of_python(kind: type, name: str) -> Any:
    """Return a method of a class that is written in Python; None for any other."""
    held = of_class(kind, name)
    return held if type(held) is types.FunctionType else None


LIBRARIES = frozenset({
    "abc", "argparse", "builtins", "collections", "datetime", "decimal", "enum", "fractions", "jax", "jaxlib",
    "looptap", "matplotlib", "mlx", "numpy", "pandas", "pathlib", "PIL", "polars", "pyarrow", "tensorflow", "torch",
    "types", "typing", "uuid",
})
"""Packages whose classes are known: they compare, hash and copy themselves without effects."""
_of_libraries: dict[int, Any] = {}  # metaclasses, by identity: the hash of one may run code


def is_ordinary(kind: Any) -> bool:
    """Return True for a class whose metaclass only makes classes and instances."""
    meta = type(kind)
    if meta is type or _of_libraries.get(id(meta)) is meta:
        return True
    others = [one for one in order_of(meta) if is_written(one) and package_of(one) not in LIBRARIES]
    if not others:
        _of_libraries[id(meta)] = meta
    return all(map(_only_makes, others))


def _only_makes(meta: type) -> bool:
    held = held_by(meta)
    return held.keys() <= _OF_METACLASSES and {*map(id, map(type, held.values()))} <= _PARTS_OF_METACLASSES


def is_written(kind: type) -> bool:
    """Return True for a class that a class statement has made, and not C."""
    return bool(_flags_of(kind) & (1 << 9))  # Py_TPFLAGS_HEAPTYPE


def package_of(kind: type) -> str:
    """Return the package that has a class; "" for one that only says so."""
    module = module_of(kind)
    is_known = _is_found(kind) or not is_written(kind)
    return module.partition(".")[0] if is_known and not module.startswith("looptap.examples") else ""


def _is_found(kind: type) -> bool:
    """Return True for a class that stands where it says it does."""
    found: Any = sys.modules.get(module_of(kind))
    name = _qualname_of(kind)
    for step in name.split(".") if type(name) is str else ("",):
        found = getattr(found, "__dict__", {}).get(step)
    return found is kind


_COPYING = (
    "__copy__", "__deepcopy__", "__reduce__", "__reduce_ex__", "__getstate__", "__setstate__", "__slots__", "__del__",
    "__new__",
)


def is_copyable(kind: type) -> bool:
    """Return True for a class whose objects are copied by their attributes."""
    return kind_of_type(kind) == OTHER and is_written(kind) and all(
        of_class(kind, name) is object.__dict__.get(name) for name in _COPYING
    )


def is_module(thing: Any) -> bool:
    """Return True for a torch.nn.Module; torch need not be loaded."""
    module = getattr(getattr(sys.modules.get("torch"), "nn", None), "Module", None)
    return module is not None and issubclass(type(thing), module)


def is_of_torch(f: Any) -> bool:
    """Return True for a function as the file of torch's module defines it."""
    module = sys.modules.get(module_of(f)) if type(f) is types.FunctionType else None
    return (
        module is not None and f.__globals__ is vars(module)
        and f.__module__.partition(".")[0] == "torch" and f.__code__.co_filename == module.__file__
    )


_operators: list[Any] = []  # what torch.Tensor held when all of its operators were torch's own


def has_own_operators(torch: Any) -> bool:
    """Return True if tensors have the operators that torch gives them."""
    held = vars(torch.Tensor)
    if list(held.values()) != _operators:
        if not all(is_of_torch(one) for name, one in held.items() if _is_operator(name, one)):
            return False
        _operators[:] = held.values()
    return True


def _is_operator(name: str, held: Any) -> bool:
    called = name in _CALLED or "torch" in name  # others are only named like operators, such as fastcore's __array_eq__
    return name[:2] == "__" and called and name not in OF_TEXT and type(held) is types.FunctionType


_CALLED = frozenset(dir(np.ndarray)).union(
    ("__getattr__", "__missing__", "__length_hint__", "__fspath__", "__buffer__"),
    *(dir(kind) for kind in (type, int, float, complex, str, bytes, list, dict, set, types.GeneratorType)),
)
"""Names by which Python or numpy call methods."""

OF_TEXT = ("__str__", "__repr__", "__format__")
"""Methods that make text, which jobs replace for tensors."""


@functools.lru_cache(maxsize=MAX_TYPES)
def is_of_looptap(kind: type) -> bool:
    """Return True for exactly a class of looptap's own, whatever it says of itself."""
    base = kind.__bases__[0] if kind.__bases__ else object
    return package_of(kind) == "looptap" or (  # a row's type is made with its names, and holds what gives its items
        package_of(base) == "looptap" and module_of(kind) == module_of(base) and all(
            type(one) in (str, tuple, types.NoneType)
            or (type(one) is property and type(one.fget) is operator.itemgetter)
            for one in held_by(kind).values()
        )
    )


_OF_METACLASSES = frozenset({
    "__new__", "__init__", "__call__", "__setattr__", "__prepare__", "__module__", "__qualname__", "__doc__",
    "__annotations__", "__firstlineno__", "__static_attributes__", "__annotations_cache__", "__annotate_func__",
})
_PARTS_OF_METACLASSES = frozenset(map(id, (
    types.FunctionType, classmethod, staticmethod, str, types.NoneType, dict, int, tuple,
)))
"""Types of what a metaclass holds that is no descriptor of the job's."""


def _own_operators(kind: type) -> bool:
    """Return True for a named tuple whose operators the job has written."""
    return any(
        name[:2] == "__" and name != "__new__" and type(held) is types.FunctionType
        and module_of(held).partition("_")[0] not in ("collections", "namedtuple")
        for base in kind.__mro__[:-2] for name, held in base.__dict__.items()
    )


def _classified(kind: type) -> int:
    if issubclass(kind, tuple) and _same(kind, tuple, _OF_TUPLES):
        return OTHER if _own_operators(kind) else SEQUENCE  # named tuples, and what torch returns for max(dim)
    if module_of(kind).startswith("numpy.ma"):
        return {"MaskedArray": ARRAY, "MaskedConstant": ATOM}.get(kind.__name__, OTHER)
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "nn"):  # absent while another thread imports torch
        return OTHER
    if kind is torch.Tensor or kind is torch.nn.Parameter:
        return TENSOR
    if kind in (torch.Size, torch.dtype, torch.device, torch.layout, torch.memory_format):
        return ATOM
    if issubclass(kind, torch.nn.Module) and _same(kind, torch.nn.Module, _OF_MODULES):
        return MODULE
    return OTHER


_OF_TUPLES = (
    "__iter__", "__getitem__", "__len__", "__add__", "__mul__", "__eq__", "__lt__", "__contains__", "__hash__",
    "__getattribute__",
)
_OF_MODULES = (
    "__getattribute__", "__getattr__", "_named_members", "parameters", "named_parameters", "buffers", "named_buffers",
    "modules", "named_modules", "_parameters", "_buffers", "_modules",
)


def _same(kind: type, base: type, names: Iterable[str]) -> bool:
    """Return True if a class holds nothing else under these names than its base."""
    return all(of_class(kind, name) is of_class(base, name) for name in names)


def is_plain(value: Any) -> bool:
    """Return True if ``value`` and all that it contains is plain."""
    kind = kind_of(value)
    if kind == ATOM:
        return True
    if kind == TENSOR:
        return not value.__dict__ or _harmless(value)
    if kind == ARRAY:
        return not value.dtype.hasobject
    if kind in (SEQUENCE, MAPPING):
        return _all_plain(value)
    return False


def _harmless(tensor: Any) -> bool:
    """Return True if attributes set on a tensor hide none of its methods."""
    return all(not hasattr(type(tensor), name) for name in list(tensor.__dict__))


def _all_plain(container: Any) -> bool:
    waiting, left = [container], MAX_ITEMS
    while waiting:
        held = waiting.pop()
        left -= len(held)
        if left < 0:
            return False
        if is_a(held, dict):
            if not {ATOM, TENSOR}.issuperset(map(kind_of_type, types_in(held))):
                return False
            held = held.values()
        if {ATOM}.issuperset(map(kind_of_type, types_in(held))):
            continue
        for value in held:
            kind = kind_of(value)
            if kind in (SEQUENCE, MAPPING):
                waiting.append(value)
            elif kind != ATOM and not is_plain(value):
                return False
    return True


# ---------------------------------------------------------------- models and optimizers

_models: dict[int, tuple[weakref.ref[Any], int, bool]] = {}


def is_plain_model(model: Any, *, lists: bool = False) -> bool:
    """Return True if all submodules hold their parameters plainly, as torch's do.

    ``lists`` asks whether they also list them as torch does: ``parameters()`` and the like run no code of the job.
    """
    known = _models.get(id(model))
    if known is None or known[0]() is not model or known[1] <= 0:
        if (listing := _plain_modules(model)) is None:
            _models.pop(id(model), None)
            return False
        if len(_models) > 100:
            _models.clear()
        known = weakref.ref(model), MAX_LOOKS_BETWEEN_CHECKS + 1, listing
    _models[id(model)] = (known[0], known[1] - 1, known[2])
    return not lists or (known[2] and _torch_lists())


def _torch_lists() -> bool:
    """Return True unless the job has replaced what torch's modules list with."""
    held = map(vars(sys.modules["torch"].nn.Module).get, _METHODS)
    return all(type(one) is not types.FunctionType or is_of_torch(one) for one in held)


def _plain_modules(model: Any) -> bool | None:
    """Return True if all modules list plainly what they hold; None if they hold more."""
    waiting, seen, kinds, lists = [model], {id(model)}, set[type](), True
    while waiting:
        module = waiting.pop()
        kind = type_of(module)
        parts = _held_plainly(module, kind)
        if parts is None or not all(map(_is_plain_parameter, (*parts[0].values(), *parts[1].values()))):
            return None
        kinds.add(kind)
        lists = lists and _METHODS.isdisjoint(vars(module))
        children = [m for m in parts[2].values() if m is not None and id(m) not in seen]
        seen.update(map(id, children))
        waiting.extend(children)
        if len(seen) > MAX_MODULES:
            return None
    return lists and all(_same(kind, sys.modules["torch"].nn.Module, _METHODS) for kind in kinds)


def _held_plainly(module: Any, kind: type) -> list[Any] | None:
    """Return parameters, buffers and modules of a module; None if it computes them."""
    base = sys.modules["torch"].nn.Module
    if not issubclass(kind, base) or of_class(kind, "__getattribute__") is not object.__getattribute__:
        return None
    parts = [vars(module).get(name) for name in _HELD if of_class(kind, name) is None]
    plain = len(parts) == len(_HELD) and set(map(type, parts)) <= {dict, collections.OrderedDict}
    return parts if plain else None


def _is_plain_parameter(tensor: Any) -> bool:
    if tensor is None:
        return True
    if not (is_sharded(tensor) or (kind_of(tensor) == TENSOR and is_plain(tensor))):
        return False
    return not tensor.is_leaf or kind_of(tensor.grad) in (ATOM, TENSOR) or is_sharded(tensor.grad)


def sharded_type() -> Any:
    """Return the class of sharded tensors, `DTensor`; None before it is loaded."""
    return getattr(sys.modules.get("torch.distributed.tensor"), "DTensor", None)


def is_sharded(value: Any) -> bool:
    """Return True for exactly a `DTensor` whose local shard is a plain tensor."""
    return type_of(value) is sharded_type() and kind_of(value._local_tensor) == TENSOR


_HELD = ("_parameters", "_buffers", "_modules")
_METHODS = frozenset(_OF_MODULES) - {*_HELD, "__getattr__", "__getattribute__"}


def is_plain_optimizer(optimizer: Any) -> bool:
    """Return True if the optimizer holds plain groups with plain learning rates."""
    groups = attributes_of(optimizer).get("param_groups")
    return (
        of_class(type_of(optimizer), "param_groups") is None and type(groups) is list
        and all(type(group) is dict and is_plain(group.get("lr")) for group in groups)
    )


def attributes_of(value: Any) -> Mapping[str, Any]:
    """Return the instance dictionary, without asking the class for it."""
    held = of_class(type(value), "__dict__")
    return held.__get__(value) if type(held) in (types.GetSetDescriptorType, types.MemberDescriptorType) else {}
