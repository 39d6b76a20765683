"""Decide which values operators, known functions and loops may use."""

from __future__ import annotations

import ast
import collections
import enum
import functools
import operator
import sys
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from looptap.streams.events import EventSnapshot
from looptap.streams.harmless.checked_code import checked_call
from looptap.streams.harmless.checked_evaluation import current
from looptap.streams.harmless.plain import (
    ARRAY,
    ATOM,
    MAPPING,
    MODULE,
    OF_TEXT,
    OTHER,
    SEQUENCE,
    TENSOR,
    is_a,
    is_of_torch,
    is_ordinary,
    is_plain,
    is_written,
    kind_of,
    kind_of_type,
    module_of,
    name_of_type,
    of_class,
    of_python,
    type_of,
)
from looptap.streams.harmless.refusal import Refusal
from looptap.streams.harmless.results import to_copy
from looptap.streams.harmless.syntax import OPERATORS, ORDERING
from looptap.streams.harmless.watch import note_storages
from looptap.streams.preserving import module_state

FUNCTIONS = (types.FunctionType, types.MethodType, functools.partial)
BUILTINS = (types.BuiltinFunctionType, types.MethodWrapperType, types.MethodDescriptorType, types.WrapperDescriptorType)
_VIEWS = tuple(
    type(getattr(kind(), name)()) for kind in (dict, collections.OrderedDict) for name in ("keys", "values", "items")
)
_CALLED = (*FUNCTIONS, *BUILTINS, operator.itemgetter, operator.attrgetter)
CONTAINERS = (*module_state.CONTAINERS, bytearray)
"""Containers that code may change."""


def name_in_sentence(thing: Any) -> str:
    """Return how to call a function in a sentence."""
    if not is_a(thing, (*FUNCTIONS, *BUILTINS, type)):
        return f"calling {type_name(thing)}"
    if is_a(thing, type):
        return name_of_type(thing)
    name = getattr(thing, "__qualname__", None) or getattr(thing, "__name__", None)
    name = name if type(name) is str else type_name(thing)
    return name if module_of(thing) in ("", "builtins", "__main__") else f"{module_of(thing)}.{name}"


def type_name(value: Any) -> str:
    """Return how to call the type of a value in a sentence."""
    return name_of_type(type(value))


def unknown(what: str) -> Refusal:
    """Return the refusal of something that is not known."""
    return Refusal(f"{what} is not known to be harmless")


def _is_class(value: Any) -> bool:
    return is_a(value, type) and is_ordinary(value)


_OPERATORS = {kind.__name__: f for kind, f in OPERATORS.items()}
_COMPARISONS = frozenset(kind.__name__ for kind in ORDERING)
IN_PLACE = {
    kind.__name__: getattr(operator, f"i{f.__name__.strip('_')}")
    for kind, f in OPERATORS.items()
    if issubclass(kind, ast.operator)
}
_USES = {
    "comparing": (
        "__eq__",
        "__ne__",
        "__lt__",
        "__le__",
        "__gt__",
        "__ge__",
        "__hash__",
        "__contains__",
        "__iter__",
        "__getitem__",
    ),
    "printing": OF_TEXT,
    "the hash of": ("__hash__", "__eq__"),
}
"""The methods that a use of a value may call."""
_SIMPLE = (object, int, float, complex, str, bytes, types.FunctionType, types.BuiltinFunctionType)
"""Types whose operators of C call nothing else."""


def deep(value: Any, use: str = "comparing") -> Any:
    """Return a value, if this use of it and of its items runs no code of the job."""
    kind = type_of(value)
    what = kind_of_type(kind)
    if what == TENSOR and value.__dict__ and not is_plain(value):
        raise unknown("a tensor with methods of the job's own")
    if what == ARRAY and value.dtype.hasobject:
        raise unknown("an array of objects")
    if what in (ATOM, TENSOR, ARRAY) or _is_class(value) or is_plain(value):
        return value
    if kind in (list, tuple, set, frozenset):
        for one in value:
            deep(one, use)
    elif not all(_is_simple(of_class(kind, name)) for name in _USES[use]):
        raise unknown(f"{use} {type_name(value)}")
    return value


def operand(value: Any, other: Any = None) -> Any:
    """Return an operand, if operators on its type run no code of the job.

    The items of a container are only touched if ``other`` is no container: by `%`, or as an array.
    """
    kind = kind_of(value)
    if kind == ATOM:
        return value
    touched = kind not in (SEQUENCE, MAPPING) or kind_of(other) not in (SEQUENCE, MAPPING)
    if touched and kind not in (TENSOR, ARRAY) and not (_is_class(value) or is_plain(value)):
        raise unknown(f"an operator on {type_name(value)}")
    return deep(value)


def keyed(value: Any) -> Any:
    """Return a key whose hash runs no code of the job."""
    return deep(value, "the hash of")


def binary(how: str, left: Any, right: Any) -> Any:
    """Return ``left + right`` and the like, and comparisons."""
    if how in _COMPARISONS:
        return made(_OPERATORS[how](deep(left), deep(right)), left, right)
    return made(_OPERATORS[how](operand(left, right), operand(right, left)), left, right)


def unary(how: str, value: Any) -> Any:
    """Return ``-value`` and the like."""
    return made(_OPERATORS[how](operand(value)), value)


def made(result: Any, *given: Any) -> Any:
    """Note what an operator has made of tensors."""
    if kind_of(result) == TENSOR:
        note_storages(result, given)
    return result


def within(value: Any, container: Any) -> Any:
    """Return ``value in container``."""
    kind = type_of(container)
    found = of_python(kind, "__contains__")
    if found is not None:
        return bool(truth(checked_call(found, container, value)))
    if is_a(container, (dict, *_VIEWS[::3])):
        for key in (value, *({id(type(key)): key for key in list(container)}.values())):
            keyed(key)
    elif is_a(container, _VIEWS):
        deep(value), deep(list(container))
    else:
        deep(value), deep(container)
    return value in container


def _is_simple(operator: Any) -> bool:
    return (
        operator is None
        or (is_a(operator, BUILTINS) and getattr(operator, "__objclass__", None) in _SIMPLE)
        or any(operator is enum.Enum.__dict__.get(name) for name in ("__hash__", *OF_TEXT))
    )


def _text_of_tensors() -> list[Any]:
    torch: Any = sys.modules.get("torch")
    return [] if torch is None else [torch.Tensor.__repr__, torch.Tensor.__format__]


_CONVERSIONS: dict[int, Callable[[Any], str]] = {ord("s"): str, ord("r"): repr, ord("a"): ascii}


def shown(value: Any, conversion: int = -1) -> Any:
    """Return what is formatted: the text of an object that makes its own."""
    kind, convert = type_of(value), _CONVERSIONS.get(conversion, str)
    if kind_of_type(kind) in (OTHER, MODULE) and not _is_class(value) and _is_simple(of_class(kind, "__format__")):
        for name in ("__repr__",) if convert in (repr, ascii) else ("__str__", "__repr__"):
            found = of_class(kind, name)
            if type(found) is types.FunctionType and not _is_simple(found):
                text = deep(checked_call(found, value))
                return ascii(text)[1:-1] if convert is ascii else text
            if found is not object.__dict__["__str__"]:
                break
    if kind_of_type(kind) in (TENSOR, SEQUENCE, MAPPING) and not all(map(is_of_torch, _text_of_tensors())):
        raise unknown("printing a tensor in a way of the job's own")
    deep(value, "printing")
    return value if conversion == -1 else convert(value)


def vouch(value: Any) -> Any:
    """Return an argument of a known function: plain, or with each part checked."""
    kind = kind_of(value)
    if kind == ATOM:
        return value
    if kind in (TENSOR, ARRAY):
        return operand(value)
    if is_own(value) and of_class(type_of(value), "__next__"):
        return map(vouch, value)
    if is_a(value, _VIEWS):
        return list(map(vouch, value))
    if is_a(value, _CALLED):
        return judged(value)
    if _is_class(value) or type_of(value) is EventSnapshot or is_plain(value):
        return value
    if type_of(value) in (list, tuple):
        return type_of(value)(map(vouch, value))
    if type_of(value) is dict:
        return {keyed(key): vouch(one) for key, one in value.items()}
    return _converted(value, kind)


def _converted(value: Any, kind: int) -> Any:
    """Return what a known function gets for an object of the job."""
    if name_of_type(type_of(value)) == "torch._C.Generator":
        if id(value) not in current().own:
            raise Refusal("a generator of the job would be advanced")
        return value
    if callable(value) and kind == MODULE:
        return proxy(value)
    converts = kind == OTHER and of_class(type_of(value), "__looptap_panel__") is None  # whose copy is only its text
    converted = to_copy(value) if converts else value
    if converted is not value:
        return vouch(converted)
    raise unknown(f"computing with {type_name(value)}")


def vouched(given: Iterable[Any], named: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of a known function."""
    return tuple(map(vouch, given)), {name: vouch(one) for name, one in named.items()}


def own(value: Any) -> Any:
    """Note what the evaluation made itself."""
    current().own[id(value)] = value
    return value


_OF_CONTAINERS = ("__iter__", "__next__", "__setitem__", "__delitem__", "__iadd__")


def is_own(value: Any) -> bool:
    """Return True for what the evaluation made, if its operators are Python's own."""
    if id(value) not in current().own:
        return False
    kind = type_of(value)
    written = kind_of_type(kind) in (OTHER, MODULE) and is_written(kind)
    return not written or all(type(of_class(kind, name)) is not types.FunctionType for name in _OF_CONTAINERS)


def keys(value: Any) -> Any:
    """Return what a set may be made of."""
    return [keyed(one) for one in iterate(value)]


def truth(value: Any) -> Any:
    """Return a value whose truth runs no code of the job."""
    kind = kind_of(value)
    if kind == TENSOR:
        return operand(value)
    if kind in (OTHER, MODULE) and not _is_class(value):
        for name in ("__bool__", "__len__"):
            found = of_class(type(value), name)
            if type(found) is types.FunctionType:
                return deep(checked_call(found, value))
            if found is not None and is_written(type(value)):  # over one of C
                raise unknown(f"the truth of {type_name(value)}")
        if is_a(value, type):
            raise unknown(f"the truth of {type_name(value)}")
    return value


def length(value: Any) -> Any:
    """Return ``len(value)``."""
    kind = kind_of(value)
    if kind in (OTHER, MODULE):
        found = of_class(type(value), "__len__")
        if type(found) is types.FunctionType:
            return checked_call(found, value)
        if is_a(value, type) or (found is None and kind == MODULE):
            raise unknown(f"the length of {type_name(value)}")
    return len(value)


def iterate(value: Any) -> Any:
    """Return what a loop may run over."""
    kind = kind_of(value)
    if kind == TENSOR:
        return operand(value)
    if kind in (ATOM, ARRAY, SEQUENCE, MAPPING) or is_own(value) or is_a(value, _VIEWS):
        return value
    found = of_class(type(value), "__iter__")
    if type(found) is types.FunctionType:
        if kind == MODULE and module_of(found).startswith("torch.nn."):
            return found(value)
        made = checked_call(found, value)
        if made is value:
            raise unknown(f"a loop over {type_name(value)}")
        return iterate(made)
    if type(found) is types.WrapperDescriptorType and is_a(value, (list, tuple, dict, set, collections.deque)):
        return own(found(value))  # of a subclass, whose length is not asked
    if of_class(type(value), "__next__"):
        raise Refusal(f"{type_name(value)} is an iterator of the job, which the query would advance")
    raise unknown(f"a loop over {type_name(value)}")


def each(value: Any) -> Iterator[Any]:
    """Return what a loop may run over whose items are taken apart."""
    return map(iterate, iterate(value))


def mapping(value: Any) -> Any:
    """Return a value for ``**``."""
    if kind_of(value) == MAPPING:
        return value
    raise unknown(f"** of {type_name(value)}")


def pairs(value: Any) -> Any:
    """Return what a dict may be made of."""
    if kind_of(value) == MAPPING:
        return value
    return [(keyed(key), one) for key, one in each(value)]


def proxy(f: Any) -> Any:
    """Return a function that a known function may call."""
    return functools.partial(checked_call, f)


def judged(f: Any) -> Any:
    """Return a function whose results a known function may compare or test."""
    return lambda *given, **named: deep(checked_call(f, *given, **named))


def slice_of(*parts: Any) -> slice:
    """Return a slice between plain values."""
    return slice(*map(vouch, parts))
