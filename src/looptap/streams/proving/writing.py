"""Make things, and change what the evaluation made itself, and nothing else."""

from __future__ import annotations

import collections
import contextlib
import copy
import dataclasses
import enum
import importlib.util
import inspect
import sys
import types
from typing import Any

from looptap.streams.harmless.checked_code import checked_call
from looptap.streams.harmless.checked_evaluation import current
from looptap.streams.harmless.plain import (
    ARRAY,
    ATOM,
    MODULE,
    OTHER,
    SEQUENCE,
    TENSOR,
    attributes_of,
    is_a,
    is_copyable,
    is_module,
    is_of_torch,
    is_ordinary,
    kind_of,
    kind_of_type,
    module_of,
    of_class,
    of_python,
    type_of,
)
from looptap.streams.harmless.refusal import Refusal
from looptap.streams.harmless.watch import may_write, note_storages
from looptap.streams.proving.attributes import index_of
from looptap.streams.proving.vouching import (
    IN_PLACE,
    is_own,
    iterate,
    keyed,
    name_in_sentence,
    operand,
    own,
    shown,
    type_name,
    unknown,
    vouch,
    vouched,
)


def write(value: Any, name: str, new: Any) -> None:
    """Do ``value.name = new`` for what the evaluation made."""
    _refuse_of_job(value, name)
    setter = of_python(type_of(value), "__setattr__")
    if setter is None or is_of_torch(setter):
        set_plainly(value, name, new)
    else:
        checked_call(setter, value, name, new)


def _refuse_of_job(value: Any, name: str) -> None:
    evaluation = current()
    if id(value) not in evaluation.own and id(value) not in evaluation.copies:
        raise Refusal(f".{name} = … would change a {type_name(value)} of the job")


def set_plainly(value: Any, name: str, new: Any) -> None:
    """Do what ``object.__setattr__`` does, with the setter of a property followed."""
    _refuse_of_job(value, name)
    descriptor = of_class(type_of(value), name)
    if type(descriptor) is property and type(descriptor.fset) is types.FunctionType:
        checked_call(descriptor.fset, value, new)
        return
    if of_class(type(descriptor), "__set__") and type(descriptor) is not types.MemberDescriptorType:
        raise unknown(f"setting {name} of {type_name(value)}")
    put = setattr if is_of_torch(of_class(type_of(value), "__setattr__")) else object.__setattr__
    put(value, name, new)


def delete(value: Any, name: str) -> None:
    """Do ``del value.name`` for what the evaluation made."""
    _refuse_of_job(value, name)
    deleter = of_python(type_of(value), "__delattr__")
    if deleter is not None and not is_of_torch(deleter):
        checked_call(deleter, value, name)
    elif of_class(type(of_class(type_of(value), name)), "__delete__"):
        raise unknown(f"deleting {name} of {type_name(value)}")
    else:
        delattr(value, name)


def write_item(value: Any, key: Any, new: Any) -> None:
    """Do ``value[key] = new`` for what the evaluation made."""
    kind = kind_of(value)
    if kind == TENSOR:
        may_write("[…] = …", operand(value))
        value[index_of(key)] = vouch(new)
    elif is_own(value):
        if kind in (ARRAY, ATOM):  # or a bytearray
            value[index_of(key)] = vouch(new)
        else:
            value[keyed(key)] = slice_part(key, new)
    elif id(value) in current().own and (setting := of_python(type_of(value), "__setitem__")) is not None:
        checked_call(setting, value, key, new)
    else:
        raise Refusal(f"[…] = … would change a {type_name(value)} of the job")


def slice_part(key: Any, new: Any) -> Any:
    """Return what becomes an item or, if it may be iterated, a slice."""
    return iterate(new) if type(key) is slice else new


def delete_item(value: Any, key: Any) -> None:
    """Do ``del value[key]`` for what the evaluation made."""
    if not is_own(value):
        raise Refusal(f"del …[…] would change a {type_name(value)} of the job")
    del value[key]


def in_place(how: str, value: Any, other: Any) -> Any:
    """Return ``value`` after ``value += other`` and the like."""
    kind = kind_of(value)
    if kind == TENSOR:
        may_write(f"{how.lower()} in place", operand(value))
        return IN_PLACE[how](value, operand(other))
    if (kind == ATOM and type_of(value) is not bytearray) or type_of(value) is tuple or _is_container(value):
        return IN_PLACE[how](value, operand(other, value))
    raise Refusal(f"{how.lower()} in place would change a {type_name(value)} of the job")


def _is_container(value: Any) -> bool:
    return kind_of(value) not in (OTHER, MODULE) and is_own(value)


def enter(value: Any) -> Any:
    """Return a context that is known to put back what it changes."""
    torch: Any = sys.modules.get("torch")
    harmless: tuple[type, ...] = (contextlib.nullcontext, contextlib.suppress)
    if torch is not None:
        harmless += (torch.no_grad, torch.inference_mode, torch.set_grad_enabled, torch.autocast)
    drops = type_of(value) is contextlib.suppress and BaseException in vars(value)["_exceptions"]  # a refusal, too
    if type_of(value) in harmless and not drops:
        current().keep_modes()
        return value
    raise unknown(f"the context {type_name(value)}")


def of_super(owner: type, value: Any) -> Any:
    """Return ``super()`` in a method."""
    return super(owner, value)


def module(name: str, package: str = "") -> Any:
    """Return a loaded module; a relative name is one of ``package``."""
    name = importlib.util.resolve_name(name, package)
    found = sys.modules.get(name)
    if found is None:
        raise Refusal(f"importing {name} would run its code in the job")
    return found


# ---------------------------------------------------------------- instances


def copied_object(value: Any, deep: bool, seen: dict[int, Any]) -> Any:
    """Return what `copy.copy` gives, or `copy.deepcopy`, without code of the job."""
    kind = type_of(value)

    def part(one: Any) -> Any:
        return copied_object(one, deep, seen) if deep else one

    if id(value) in seen:
        return seen[id(value)]
    if kind in (list, set, collections.deque):
        made = own(kind(map(part, value)))
    elif kind in (dict, collections.OrderedDict):
        made = own(kind((keyed(part(key)), part(one)) for key, one in value.items()))
    elif kind is tuple:
        made = tuple(map(part, value))
    elif kind_of_type(kind) in (TENSOR, ARRAY):
        made = copy.deepcopy(operand(value)) if deep else copy.copy(operand(value))
        note_storages(made, value)
    elif kind_of_type(kind) == ATOM or is_a(value, (type, types.FunctionType, enum.Enum)):
        made = value
    elif is_copyable(kind):
        made = seen[id(value)] = own(object.__new__(kind))
        held = {name: part(one) for name, one in attributes_of(value).items()}
        object.__getattribute__(made, "__dict__").update(held)
    else:
        raise unknown(f"copying {type_name(value)}")
    seen[id(value)] = made
    return made


_CALL = type.__dict__["__call__"]
_CALL_OF_ENUM = enum.EnumMeta.__dict__["__call__"]
_NEW = tuple(of_class(kind, "__new__") for kind in (object, dict, collections.OrderedDict, list, set))
"""What makes an empty instance of a class written in Python."""
_BY_JOB = ("__new__", "__init__", "__str__", "__repr__", "__del__", "__setattr__")


def make(f: type, given: Any, named: Any) -> Any:
    """Return an instance of ``f``, made as its classes would make it."""
    if not is_ordinary(f) or of_class(f, "__del__") or of_class(type(f), "__call__") not in (_CALL, _CALL_OF_ENUM):
        raise unknown(name_in_sentence(f))
    if issubclass(f, BaseException) and not any(type(of_class(f, name)) is types.FunctionType for name in _BY_JOB):
        return f(*map(shown, given))
    if _is_named_tuple(f):
        return f(*given, **named)
    if kind_of_type(f) in (ATOM, TENSOR) or _is_enum(f):
        given, named = vouched(given, named)
        return f(*given, **named)
    return _initialized(f, given, named)


def _initialized(f: type, given: Any, named: Any) -> Any:
    """Return an instance whose constructor is followed."""
    new, init = of_class(f, "__new__"), of_class(f, "__init__")
    if new not in _NEW:
        raise unknown(name_in_sentence(f))
    made = own(new(f))
    if is_module(made):
        current().copies[id(made)] = made, made  # its own copy
        checked_call(init, made, *given, **named)
    elif given or named or type(init) is types.FunctionType:
        checked_call(init, made, *given, **named)
    return made


def _is_enum(f: type) -> bool:
    """Return True for a class whose members are looked up by value, and nothing else."""
    return issubclass(f, enum.Enum) and of_class(f, "_missing_") is enum.Enum.__dict__["_missing_"]


def is_of_dataclass(f: types.FunctionType, given: Any) -> bool:
    """Return True for a constructor that `dataclasses` has written."""
    fields = of_class(type(given[0]), "__dataclass_fields__") if given else None
    if f.__code__.co_filename != "<string>" or type(fields) is not dict:
        return False
    names = {*fields, "__post_init__", "__setattr__", "__dataclass_builtins_object__"}
    return names.issuperset((*f.__code__.co_names, *f.__code__.co_varnames[1 : f.__code__.co_argcount]))


def fill(init: types.FunctionType, made: Any, *given: Any, **named: Any) -> None:
    """Do what the constructor of a data class does."""
    bound, kind = inspect.signature(init).bind(made, *given, **named).arguments, type_of(made)
    assign = set_plainly if of_class(kind, "__dataclass_params__").frozen else write
    for name, field in of_class(kind, "__dataclass_fields__").items():
        if name in bound:
            assign(made, name, bound[name])
        elif field.default_factory is not dataclasses.MISSING:
            assign(made, name, checked_call(field.default_factory))
        elif field.default is not dataclasses.MISSING:
            assign(made, name, field.default)
    after = of_class(kind, "__post_init__")
    if after is not None:
        checked_call(after, made)


def _is_named_tuple(f: type) -> bool:
    """Return True for a named tuple, if nothing of the job's runs as one is made."""
    if not (issubclass(f, tuple) and hasattr(f, "_fields") and kind_of_type(f) == SEQUENCE):
        return False
    new, init = of_class(f, "__new__"), of_class(f, "__init__")
    maker = new.__func__ if type(new) is staticmethod else new
    return init is object.__dict__["__init__"] and module_of(maker).startswith("namedtuple_")
