"""Change what the evaluation made itself, and nothing else."""

from __future__ import annotations

import contextlib
import operator
import sys
import types
from collections.abc import Callable
from typing import Any

from looptap.streams.harmless.checked_code import call
from looptap.streams.harmless.checked_evaluation import current
from looptap.streams.harmless.plain import ARRAY, ATOM, TENSOR, kind_of, of_class
from looptap.streams.harmless.refusal import Refusal
from looptap.streams.harmless.watch import watched
from looptap.streams.proving.reading import index_of
from looptap.streams.proving.vouching import keyed, operand, type_name, unknown, vouch


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
    elif id(value) in current().own:
        value[index_of(key) if kind == ARRAY else keyed(key)] = vouch(new) if kind == ARRAY else new
    else:
        raise Refusal(f"[…] = … would change a {type_name(value)} of the job")


def delete_item(value: Any, key: Any) -> None:
    """Do ``del value[key]`` for what the evaluation made."""
    if id(value) not in current().own:
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
    if (kind == ATOM and type(value) is not bytearray) or type(value) is tuple or id(value) in current().own:
        return _IN_PLACE[how](value, other)
    raise Refusal(f"{how.lower()} in place would change a {type_name(value)} of the job")


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
