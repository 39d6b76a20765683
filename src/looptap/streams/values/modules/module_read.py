"""What a query reads of the modules of a model: activations, inputs, gradients."""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Mapping
from typing import Any, NoReturn

from looptap.streams.errors import QueryError
from looptap.streams.values.torch_interop import is_tensor

ACTIVATIONS, INPUTS, GRADS_OF = "activations", "inputs", "grads_of"
KINDS = frozenset({ACTIVATIONS, INPUTS, GRADS_OF})
"""The functions of the query language: what modules return, what they get, and the gradients of what they return."""
WILDCARDS = frozenset("*?[")
MAX_PATTERNS_COUNT = 64
"""Patterns that one call may name."""


class ModuleRead:
    """One call of `activations`, `inputs` or `grads_of` in a query.

    ``many`` is True if it gives a dict by name: for a pattern with a wildcard, or several names.
    """

    __slots__ = ("kind", "many", "patterns", "values")

    def __init__(self, kind: str, patterns: tuple[str, ...], many: bool) -> None:
        self.kind, self.patterns, self.many = kind, patterns, many
        self.values: Callable[[ModuleRead], Mapping[str, Any]] | None = None
        """Returns the values of the present event by name; the agent sets it. It raises QueryError."""

    def get(self, function: Callable[[Any], Any] | None = None) -> Any:
        """Return the value at this event, with ``function`` applied to each tensor."""
        if self.values is None:
            raise QueryError(f"{self} is read at an event of the job, and not here.")
        found = {name: _applied(function, value) for name, value in self.values(self).items()}
        return found if self.many else next(iter(found.values()))

    def __str__(self) -> str:
        names = ", ".join(map(repr, self.patterns))
        return f"{self.kind}({f'[{names}]' if len(self.patterns) != 1 else names})"


def _applied(function: Callable[[Any], Any] | None, value: Any) -> Any:
    if function is None or value is None:
        return value
    if isinstance(value, tuple | list):
        return type(value)([_applied(function, one) for one in value])
    if isinstance(value, dict):
        return {name: _applied(function, one) for name, one in value.items()}
    return function(value) if is_tensor(value) else value


def reads_modules(call: ast.Call, bound: Collection[str], names: Mapping[str, Any]) -> bool:
    """Return True for a call of such a function, unless ``names`` of the job hide it."""
    name = call.func.id if isinstance(call.func, ast.Name) else ""
    return name in OUTSIDE and name not in bound and names.get(name) is OUTSIDE[name]


def module_read(call: ast.Call, of_events: bool = True) -> ModuleRead:
    """Return what ``call`` of such a function reads. Raises ValueError.

    >>> read = module_read(ast.parse("activations('encoder.*')", mode="eval").body)
    >>> read.patterns, read.many
    (('encoder.*',), True)
    """
    kind = call.func.id if isinstance(call.func, ast.Name) else ""
    if not of_events:
        raise ValueError(f"{kind} reads modules of the job, and here are values of a stream.")
    given = call.args[0] if call.args else None
    several = isinstance(given, ast.Tuple | ast.List)
    found = [
        one.value
        for one in (given.elts if isinstance(given, ast.Tuple | ast.List) else [given])
        if isinstance(one, ast.Constant)
    ]
    patterns = tuple(one for one in found if isinstance(one, str))
    if isinstance(given, ast.Tuple | ast.List) and len(patterns) != len(given.elts):
        patterns = ()
    if not patterns or len(call.args) > 2 or call.keywords:
        raise ValueError(
            f"{kind} takes the name of a module or a pattern, as text, or a list of these, and a function of a tensor. "
            "'' is the model itself."
        )
    if len(patterns) > MAX_PATTERNS_COUNT:
        raise ValueError(f"{len(patterns)} names are more than the {MAX_PATTERNS_COUNT} that one call may have.")
    return ModuleRead(kind, patterns, several or not WILDCARDS.isdisjoint(patterns[0]))


def _outside(kind: str) -> Callable[..., NoReturn]:
    def read(*given: Any) -> NoReturn:
        raise QueryError(
            f"{kind}(…) is read at each event, for a name that stands in the query's text.",
            hint=f"Write it as an expression, as text: \"{kind}('encoder.layer.3').norm()\".",
        )

    return read


OUTSIDE: dict[str, Callable[..., NoReturn]] = {kind: _outside(kind) for kind in KINDS}
"""What these names are where no event is: functions that say so."""
