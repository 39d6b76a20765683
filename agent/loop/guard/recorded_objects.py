"""For each kind of reachable object: what to record, and where to go next."""

from __future__ import annotations

import array
import contextvars
import functools
import io
import random
import sys
import types
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from looptap.agent.loop.guard.bindings import record_class, record_function
from looptap.agent.loop.guard.containers import MAX_ITEMS
from looptap.agent.loop.guard.iterators import (
    is_lock,
    is_queue,
    record_iterator,
    record_lock,
    record_queue,
)
from looptap.agent.loop.guard.leaf_objects import (
    GENERATORS,
    record_bit_generator,
    record_bytes,
    record_context,
    record_file,
    record_generator,
    record_numpy_generator,
    record_picture,
    record_reference,
    record_seeds,
    record_table,
    record_view,
)
from looptap.agent.loop.guard.reachable_walk import Undo, Walk
from looptap.agent.loop.guard.references import MAX_TYPES, is_library, is_own, methods_of, references
from looptap.agent.loop.guard.tensor_state import Change, ObjectPath
from looptap.streams.errors import QueryError
from looptap.streams.values.plain import attributes_of

_TRAVERSED = (
    "torch.optim", "torch.utils.data", "torch.ao", "torch.amp", "torch.cuda.amp", "torch.quasirandom",
    "torch.distributions", "argparse", "types", "weakref", "collections", "configparser", "_thread",
)  # fmt: skip
"""Modules of libraries whose objects are searched."""

PERSISTENT = (
    "this DataLoader keeps its workers (persistent_workers=True), and all its iterators share them: a query "
    "that iterates over it would reset the loop's iterator. Query loader.dataset, or a separate loader."
)

Recorder = Callable[[Walk, Any, ObjectPath], None]

_recorders: dict[type, Recorder] = {}


def recorder_of(kind: type) -> Recorder:
    """Return the function that records objects of this type."""
    recorder = _recorders.get(kind)
    if recorder is None:
        if len(_recorders) > MAX_TYPES:
            _recorders.clear()
        recorder = _recorders[kind] = _choose_recorder(kind)
    return recorder


def _choose_recorder(kind: type) -> Recorder:
    torch = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "nn") and hasattr(torch, "utils"):
        data = sys.modules.get("torch.utils.data")
        if issubclass(kind, torch.Tensor):
            return _tensor
        if issubclass(kind, torch.Generator):
            return record_generator
        if issubclass(kind, torch.jit.ScriptModule):
            return _script
        if issubclass(kind, torch.nn.Module):
            return _module
        if data is not None and issubclass(kind, data.DataLoader):
            return _loader
    numpy = sys.modules.get("numpy.random")  # which is loaded on first use: not here
    if numpy is not None:
        if issubclass(kind, numpy.Generator):
            return record_numpy_generator
        if issubclass(kind, numpy.BitGenerator):
            return record_bit_generator
        if issubclass(kind, numpy.RandomState):
            return record_generator
        if issubclass(kind, numpy.SeedSequence):
            return record_seeds
    for bases, recorder in _BY_BASE:
        if issubclass(kind, bases):
            return recorder
    if kind.__module__.partition(".")[0] == "pandas" and hasattr(kind, "equals"):
        return record_table
    if any(base.__module__.startswith("PIL.") and hasattr(base, "tobytes") for base in kind.__mro__):
        return record_picture
    if is_queue(kind):
        return record_queue
    if is_lock(kind):
        return record_lock
    if hasattr(kind, "__next__"):
        return _iterator
    if issubclass(kind, type):
        return _type
    if issubclass(kind, types.ModuleType):
        return _namespace
    if is_library(kind) and not kind.__module__.startswith(_TRAVERSED):
        return _nothing
    return _instance


def _nothing(walk: Walk, value: Any, path: ObjectPath) -> None:
    """Record only the function that it wraps, as one with a cache does."""
    if (inside := attributes_of(value).get("__wrapped__")) is not None:
        walk.push(inside, path)


def _tensor(walk: Walk, value: Any, path: ObjectPath) -> None:
    with sys.modules["torch"]._C.DisableTorchFunction():
        grad = walk.tensors.add(value, path)
    if grad is not None:
        walk.push(grad, ObjectPath(path, "grad"))
    if value.__dict__:
        _attributes(walk, value, path)


def _array(walk: Walk, value: Any, path: ObjectPath) -> None:
    base = value if type(value) is np.ndarray else np.ndarray.view(value, np.ndarray)  # not by a mask, nor by methods
    walk.tensors.add_array(base, path, walk.named)
    if base is not value:
        _attributes(walk, value, path)
    if value.dtype == object and value.size <= MAX_ITEMS:
        for place, item in enumerate(value.flat):
            walk.push(item, ObjectPath(path, "[", place))


def _mapping(walk: Walk, value: Any, path: ObjectPath) -> None:
    walk.keep(value, path)
    if len(value) <= MAX_ITEMS:
        for key, item in list(dict.items(value)):
            here = ObjectPath(path, "[", key)
            walk.push(key, here)
            walk.push(item, here)
    if type(value) is not dict:
        _instance(walk, value, path)


def _sequence(walk: Walk, value: Any, path: ObjectPath) -> None:
    if not isinstance(value, tuple | frozenset):
        walk.keep(value, path)
    if len(value) <= MAX_ITEMS:
        for place, item in enumerate(list(value)):
            walk.push(item, ObjectPath(path, "[", place))
    if type(value) not in (list, tuple):
        _instance(walk, value, path)


def _iterator(walk: Walk, value: Any, path: ObjectPath) -> None:
    if not record_iterator(walk, value, path):
        _instance(walk, value, path)


def _module(walk: Walk, value: Any, path: ObjectPath) -> None:
    for item, place in walk.modules.add(value, path):
        walk.push(item, place)
    for name, item in attributes_of(value).get("_buffers", {}).items():
        if item is not None and walk.first(item):
            with sys.modules["torch"]._C.DisableTorchFunction():
                walk.tensors.add(item, ObjectPath(path, name), buffer=True)
    _class_of(walk, value, path)


def _script(walk: Walk, value: Any, path: ObjectPath) -> None:
    """Record a scripted module, whose state lies in C++."""
    for name, item in value.named_parameters():
        walk.push(item, ObjectPath(path, name))
    for name, item in value.named_buffers():
        if walk.first(item):
            walk.tensors.add(item, ObjectPath(path, name), buffer=True)
    flags = [(module, module.training) for module in value.modules()]

    def undo() -> Iterable[Change]:
        for module, training in flags:
            if module.training != training:
                module.training = training
                yield Change(ObjectPath(path, "training"), True)

    walk.undo(path, undo)


def _loader(walk: Walk, value: Any, path: ObjectPath) -> None:
    _instance(walk, value, path)
    if getattr(value, "persistent_workers", False) and getattr(value, "num_workers", 0):
        own = value.__dict__
        walk.stand_ins.append((own, "_iterator", own.get("_iterator")))
        own["_iterator"] = _Refused()


class _Refused:
    """A stand-in for the one iterator of a DataLoader that keeps its workers."""

    def _reset(self, *args: Any, **kwargs: Any) -> None:
        raise QueryError(PERSISTENT)


def _function(walk: Walk, value: Any, path: ObjectPath) -> None:
    if is_library(value):
        return
    walk.keep(value.__dict__, path, True)
    record_function(walk, value, path)
    for name, item in references(value):
        walk.push(item, ObjectPath(None, name))


def record_root(walk: Walk, value: Any, path: ObjectPath) -> None:
    """Record an observable; of a function of the host only its random generators.

    The other effects of such a function are intended.
    """
    is_function = isinstance(value, _FUNCTIONS) or (callable(value) and recorder_of(type(value)) is _nothing)
    if not is_function or (isinstance(value, type) and is_own(value.__module__)):
        walk.push(value, path)
        return
    reached = Walk(())
    reached.push(value, path)
    try:
        while reached.waiting:
            item, place = reached.waiting.popleft()
            recorder_of(type(item))(reached, item, place)
    finally:
        for held, name, thing in reached.stand_ins:
            held[name] = thing
    for item in reached.visited:
        if _is_generator(item):
            walk.push(item, path)


_FUNCTIONS = (types.FunctionType, types.MethodType, types.BuiltinFunctionType, type, functools.partial)


def _method(walk: Walk, value: Any, path: ObjectPath) -> None:
    walk.push(value.__self__, path)
    if isinstance(value, types.MethodType):
        walk.push(value.__func__, path)


def _partial(walk: Walk, value: Any, path: ObjectPath) -> None:
    for item in (value.func, value.args, value.keywords):
        walk.push(item, path)


def _instance(walk: Walk, value: Any, path: ObjectPath) -> None:
    _attributes(walk, value, path)
    _class_of(walk, value, path)


def _attributes(walk: Walk, value: Any, path: ObjectPath) -> None:
    """Record an object's attributes, those in slots included."""
    own = attributes_of(value)
    if own:
        walk.keep(own, path, True)
        for name, item in list(own.items()):
            walk.push(item, ObjectPath(path, name))
    elif isinstance(own, dict) and hasattr(value, "__dict__"):
        walk.keep(own, path, True)
    for name, slot in _slots(type(value)):
        try:
            item = slot.__get__(value)
        except AttributeError:
            continue
        walk.push(item, ObjectPath(path, name))
        walk.undo(path, _slot_undo(slot, value, item, ObjectPath(path, name)))


def _slot_undo(slot: Any, value: Any, item: Any, path: ObjectPath) -> Undo:
    def undo() -> Iterable[Change]:
        now = getattr(value, slot.__name__, None)
        if now is item:
            return ()
        slot.__set__(value, item)
        return (Change(path, True),)

    return undo


def _slots(kind: type) -> list[tuple[str, Any]]:
    if kind not in _slots_of:
        if len(_slots_of) > MAX_TYPES:
            _slots_of.clear()
        held = [vars(base).items() for base in kind.__mro__ if not is_library(base) and base.__module__ != "builtins"]
        _slots_of[kind] = [
            (name, slot) for items in held for name, slot in items if isinstance(slot, types.MemberDescriptorType)
        ]
    return _slots_of[kind]


_slots_of: dict[type, list[tuple[str, Any]]] = {}


def _class_of(walk: Walk, value: Any, path: ObjectPath) -> None:
    walk.push(type(value), path)


def _type(walk: Walk, kind: Any, path: ObjectPath) -> None:
    """Visit a class of the job: its attributes, and what its methods refer to."""
    for function in methods_of(kind):
        for name, item in references(function):
            if not isinstance(item, types.FunctionType):
                walk.push(item, ObjectPath(None, name))
    if not is_own(kind.__module__):
        return
    record_class(walk, kind, path, _is_generator)
    for name, item in list(vars(kind).items()):
        if not name.startswith("__") and not isinstance(item, _OF_CLASSES):
            walk.push(item, ObjectPath(path, name))


def _namespace(walk: Walk, module: Any, path: ObjectPath) -> None:
    """Visit a module of the job: its names, and what they stand for."""
    if is_own(module.__name__):
        walk.keep(vars(module), path, True)
        for name, item in list(vars(module).items()):
            if not name.startswith("__") and not isinstance(item, types.ModuleType | types.FunctionType):
                walk.push(item, ObjectPath(path, name))


def _is_generator(value: Any) -> bool:
    return recorder_of(type(value)) in GENERATORS


_OF_CLASSES = (
    types.FunctionType, property, classmethod, staticmethod, types.MemberDescriptorType, types.GetSetDescriptorType,
)  # fmt: skip


_BY_BASE: list[tuple[Any, Recorder]] = [
    (np.ndarray, _array), (dict, _mapping), ((list, tuple, set, frozenset, deque), _sequence),
    (random.Random, record_generator), (io.IOBase, record_file), ((bytearray, array.array), record_bytes),
    (memoryview, record_view), (weakref.ref, record_reference), (contextvars.ContextVar, record_context),
    (functools.partial, _partial), (types.FunctionType, _function),
    ((types.MethodType, types.BuiltinMethodType), _method),
    ((str, bytes, int, float, complex, types.CodeType, types.MappingProxyType), _nothing),
]  # fmt: skip


def is_tensor_kind(kind: type) -> bool:
    """Return True if objects of this type are recorded as tensors."""
    return recorder_of(kind) is _tensor
