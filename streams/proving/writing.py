"""Make things, and change what the evaluation made itself, and nothing else."""

from __future__ import annotations

import collections
import contextlib
import operator
import sys
import types
from collections.abc import Callable
from functools import partial
from typing import Any

from looptap.streams.harmless.checked_code import call
from looptap.streams.harmless.checked_evaluation import current
from looptap.streams.harmless.plain import ARRAY, ATOM, MODULE, OTHER, SEQUENCE, TENSOR, is_ordinary, kind_of, of_class
from looptap.streams.harmless.refusal import Refusal
from looptap.streams.harmless.watch import watched
from looptap.streams.proving.copies import forward
from looptap.streams.proving.reading import index_of
from looptap.streams.proving.vouching import deep, is_own, keyed, name_of, operand, own, type_name, unknown, vouch


def write(value: Any, name: str, new: Any) -> None:
    """Do ``value.name = new`` for what the evaluation made."""
    evaluation = current()
    if id(value) not in evaluation.own and id(value) not in evaluation.copies:
        raise Refusal(f".{name} = … would change a {type_name(value)} of the job")
    descriptor, setter = of_class(type(value), name), of_class(type(value), "__setattr__")
    if type(setter) is types.FunctionType and not (setter.__module__ or "").startswith("torch."):
        raise unknown(f"setting {name} of {type_name(value)}")
    if type(descriptor) is property and type(descriptor.fset) is types.FunctionType:
        call(descriptor.fset, value, new)
        return
    if of_class(type(descriptor), "__set__") and type(descriptor) is not types.MemberDescriptorType:
        raise unknown(f"setting {name} of {type_name(value)}")
    setattr(value, name, new)


def write_item(value: Any, key: Any, new: Any) -> None:
    """Do ``value[key] = new`` for what the evaluation made."""
    kind = kind_of(type(value))
    if kind == TENSOR:
        watched(operator.setitem, operand(value), index_of(key), vouch(new))
    elif is_own(value):
        value[index_of(key) if kind == ARRAY else keyed(key)] = vouch(new) if kind == ARRAY else new
    elif id(value) in current().own and type(setting := of_class(type(value), "__setitem__")) is types.FunctionType:
        call(setting, value, key, new)
    else:
        raise Refusal(f"[…] = … would change a {type_name(value)} of the job")


def delete_item(value: Any, key: Any) -> None:
    """Do ``del value[key]`` for what the evaluation made."""
    if not is_own(value):
        raise Refusal(f"del …[…] would change a {type_name(value)} of the job")
    del value[key]


_IN_PLACE: dict[str, Callable[[Any, Any], Any]] = {
    "Add": operator.iadd, "Sub": operator.isub, "Mult": operator.imul, "Div": operator.itruediv, "Mod": operator.imod,
    "FloorDiv": operator.ifloordiv, "Pow": operator.ipow, "MatMult": operator.imatmul, "BitOr": operator.ior,
    "BitAnd": operator.iand, "BitXor": operator.ixor, "LShift": operator.ilshift, "RShift": operator.irshift,
}  # fmt: skip


def in_place(how: str, value: Any, other: Any) -> Any:
    """Return ``value`` after ``value += other`` and the like."""
    kind = kind_of(type(value))
    if kind == TENSOR:
        return watched(_IN_PLACE[how], operand(value), other)
    if (kind == ATOM and type(value) is not bytearray) or type(value) is tuple or _is_container(value):
        return _IN_PLACE[how](value, other)
    raise Refusal(f"{how.lower()} in place would change a {type_name(value)} of the job")


def _is_container(value: Any) -> bool:
    return kind_of(type(value)) not in (OTHER, MODULE) and is_own(value)


def enter(value: Any) -> Any:
    """Return a context that is known to put back what it changes."""
    torch: Any = sys.modules.get("torch")
    harmless: tuple[type, ...] = (contextlib.nullcontext, contextlib.suppress)
    if torch is not None:
        harmless += (torch.no_grad, torch.inference_mode, torch.set_grad_enabled, torch.autocast)
    if type(value) in harmless:
        current().keep_modes()
        return value
    raise unknown(f"the context {type_name(value)}")


def of_super(owner: type, value: Any) -> Any:
    """Return ``super()`` in a method."""
    return super(owner, value)


def module(name: str) -> Any:
    """Return a loaded module."""
    found = sys.modules.get(name)
    if found is None:
        raise Refusal(f"importing {name} would run its code in the job")
    return found


# ---------------------------------------------------------------- instances

_CALL = type.__dict__["__call__"]
_NEW = tuple(of_class(kind, "__new__") for kind in (object, dict, collections.OrderedDict, list, set))
"""What makes an empty instance of a class written in Python."""
_BY_JOB = ("__new__", "__init__", "__str__", "__repr__", "__del__", "__setattr__")


def make(f: type, given: Any, named: Any) -> Any:
    """Return an instance of ``f``, made as its classes would make it."""
    if not is_ordinary(f) or of_class(f, "__del__") or of_class(type(f), "__call__") is not _CALL:
        raise unknown(name_of(f))
    if issubclass(f, BaseException) and not any(type(of_class(f, name)) is types.FunctionType for name in _BY_JOB):
        return f(*map(deep, given))
    if issubclass(f, tuple) and hasattr(f, "_fields") and kind_of(f) == SEQUENCE and _is_named_tuple(f):
        return f(*given, **named)
    if kind_of(f) == ATOM:
        return f(*map(vouch, given), **{k: vouch(v) for k, v in named.items()})
    if _is_module_of_torch(f):
        return _module(f, given, named)
    new, setting, init = (of_class(f, name) for name in ("__new__", "__setattr__", "__init__"))
    if new in _NEW and setting is object.__dict__["__setattr__"] and not _is_torch(f):
        made = own(new(f))
        if given or named or type(init) is types.FunctionType:
            call(init, made, *given, **named)
        return made
    raise unknown(name_of(f))


def _is_named_tuple(f: type) -> bool:
    """Return True if nothing of the job's runs as one is made."""
    new, init = of_class(f, "__new__"), of_class(f, "__init__")
    maker = new.__func__ if type(new) is staticmethod else new
    return init is object.__dict__["__init__"] and (getattr(maker, "__module__", None) or "").startswith("namedtuple_")


def _is_torch(f: type) -> bool:
    return f.__module__.partition(".")[0] == "torch"


def _is_module_of_torch(f: type) -> bool:
    torch: Any = sys.modules.get("torch")
    return torch is not None and issubclass(f, torch.nn.Module) and f.__module__.startswith("torch.nn.modules.")


def _module(f: type, given: Any, named: Any) -> Any:
    """Return a module of torch's own, such as a loss, which may run like a copy."""
    of_all = vars(sys.modules["torch.nn.modules.module"])
    if any(of_all.get(f"_global_{part}_registration_hooks") for part in ("parameter", "buffer", "module")):
        raise unknown("making a module under a hook of the job")
    made = watched(f, *map(vouch, given), **{k: vouch(v) for k, v in named.items()})
    for module in made.modules():
        current().copies[id(module)] = (module, module)
        module._compiled_call_impl = partial(forward, module)
    return made
