"""Find queries that are arithmetic on a few numbers of an event, and copy these.

In arithmetic, a scalar CPU tensor counts as the Python number in it.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from functools import lru_cache
from typing import Any, TypeAlias

from looptap.streams.aggregations.registry import REDUCERS
from looptap.streams.harmless import known, syntax

_FUNCTIONS = frozenset(REDUCERS) | syntax.FUNCTIONS


def names_of_arithmetic(body: ast.expr, observables: Set[str], language: Set[str]) -> frozenset[str] | None:
    """Return the names that ``body`` reads of an event; None if not arithmetic.

    Of its free names ``observables`` are observables, ``language`` belong to the query language. `x.y` is read as the
    observable y of an event x: queries do not use attributes of numbers.

    >>> tree = ast.parse("step, 2 * e.loss", mode="eval").body
    >>> sorted(names_of_arithmetic(tree, {"step"}, set()))
    ['loss', 'step']
    """
    if not language <= _FUNCTIONS | syntax.MODULES:
        return None
    names, events, loads = set(observables), [], []
    for node in ast.walk(body):
        match node:
            case ast.Attribute(ctx=ast.Store()) | ast.Subscript(ctx=ast.Store()):
                return None  # a loop that assigns: [x for math.pi in (1, 2)]
            case ast.Call():
                if not _is_known(node, observables):
                    return None
                events += _counted(node)
            case ast.Attribute(value=ast.Name(id=module), attr=name) if module in syntax.MODULES - observables:
                found = getattr(sys.modules.get(module), name, None)
                if callable(found) and id(found) not in known.of_identity():
                    return None  # one that writes, such as operator.iadd
            case ast.Attribute(attr=name) | ast.Subscript(slice=ast.Constant(value=str(name))):
                if not isinstance(node.value, ast.Name) or node.value.id in observables | syntax.MODULES:
                    return None
                names.add(name)
                events.append(node.value.id)
            case ast.Name(ctx=ast.Load()):
                loads.append(node.id)
            case ast.Subscript() if _names(node.value, observables):
                return None  # an item of an observable, which may be no plain container
            case _ if not isinstance(node, syntax.FORMS_OF_ARITHMETIC):
                return None
    if not names or any(loads.count(name) != events.count(name) for name in set(events)):
        return None  # an event used as a value: let the error list its names
    return frozenset(names)


def _names(node: ast.expr, observables: Set[str]) -> bool:
    return isinstance(node, ast.Name) and node.id in observables


def _measured(call: ast.Call) -> list[ast.expr]:
    """Return what `len` counts and `isinstance` asks."""
    return call.args[:1] if isinstance(call.func, ast.Name) and call.func.id in ("len", "isinstance") else []


def _counted(call: ast.Call) -> list[str]:
    """Return the event that is only counted in `len([e for e in events if …])`."""
    if isinstance(call.func, ast.Name) and call.func.id == "len" and len(call.args) == 1:
        items = call.args[0]
        if isinstance(items, ast.ListComp | ast.GeneratorExp) and isinstance(items.elt, ast.Name):
            return [items.elt.id]
    return []


def _is_known(call: ast.Call, observables: Set[str]) -> bool:
    """Return True for a known function, but not of a container of the job's."""
    if any(_names(one, observables) for one in _measured(call)):
        return False
    match call.func:
        case ast.Attribute(value=ast.Name(id=module)):
            return module in syntax.MODULES
        case ast.Name(id=name):
            return name in _FUNCTIONS
    return False


IMMUTABLE = frozenset({float, int, bool, str, type(None)})
"""Types that need no copy."""
MAX_TEXT_LENGTH = 128
"""Characters of a text that may wait: thousands of events do, and their bytes are not counted."""
MAX_INTEGER_BITS = 1024
"""Bits of an integer that may wait."""


def copied_numbers(observables: dict[str, Any], names: Iterable[str]) -> dict[str, Any] | None:
    """Return observables by name; None unless all are plain and small.

    That is, numbers, short texts or CPU scalars.

    >>> copied_numbers({"step": 3, "loss": 0.5, "x": [1]}, ["step", "loss"])
    {'step': 3, 'loss': 0.5}
    """
    try:
        return {name: _number_of(observables[name]) for name in names}
    except Exception:  # missing, or a tensor without a value now
        return None


def _number_of(value: Any) -> Any:
    """Return a number, short text or the number in a CPU scalar. Raises TypeError."""
    kind = type(value)
    if type(kind) is type and kind in IMMUTABLE:  # the hash of any other may be code of the job
        if (kind is str and len(value) > MAX_TEXT_LENGTH) or (kind is int and value.bit_length() > MAX_INTEGER_BITS):
            raise TypeError
        return value
    if kind is not tensor_type() or value.ndim or not value.is_cpu:
        raise TypeError
    return value.item()


RowMaker: TypeAlias = Callable[[Mapping[str, Any], int, float, int], tuple[Any, ...]]


def row_maker(names: Sequence[str], example: Mapping[str, Any]) -> RowMaker:
    """Return a function that copies the observables ``names`` behind three numbers.

    It does what `copied_numbers` does, raising an error in place of None, in as few steps as Python has: after a
    training step each of them finds cold caches. The values of ``example`` show which types are likely.

    >>> row_maker(["loss"], {"loss": 0.25})({"step": 3, "loss": 0.5}, 7, 1.5, 0)
    (7, 1.5, 0, 0.5)
    """
    return _row_maker(tuple(names), tuple(map(_usual, map(example.get, names))), tensor_type())


def _usual(value: Any) -> type:
    """Return the type of a value if code for it is written, else float."""
    return next((kind for kind in (int, bool, str, tensor_type()) if type(value) is kind), float)


_LARGE = {int: " or not -(1 << 63) <= {0} < 1 << 63", str: f" or len({{0}}) > {MAX_TEXT_LENGTH}"}
"""Of which values of usual types `_number_of` decides, as code."""


@lru_cache(maxsize=64)
def _row_maker(names: tuple[str, ...], kinds: tuple[type, ...], tensor: Any) -> RowMaker:
    lines = ["def row_of(observables, number, now, began):"]
    for place, (name, kind) in enumerate(zip(names, kinds, strict=True)):
        value, usual = f"v{place}", kind.__name__
        lines.append(f"    {value} = observables[{name!r}]")
        if kind is tensor:
            lines.append(f"    if type({value}) is Tensor and not {value}.ndim and {value}.is_cpu:")
            lines.append(f"        {value} = {value}.item()")
            lines.append(f"    elif type({value}) is not float:")
        else:
            large = _LARGE.get(kind, "").format(value)
            lines.append(f"    if type({value}) is not {usual}{large}:")
        lines.append(f"        {value} = number_of({value})")
    lines.append(f"    return number, now, began{''.join(f', v{place}' for place in range(len(names)))}")
    made: dict[str, Any] = {"Tensor": tensor, "number_of": _number_of}
    exec("\n".join(lines), made)  # of names alone, which are quoted
    return made["row_of"]  # type: ignore[no-any-return]


def tensor_type() -> Any:
    """Return torch.Tensor, or None if torch is not loaded."""
    return getattr(sys.modules.get("torch"), "Tensor", None)
