"""The names that a query may use beside its observables, and which of them are known to leave the loop alone."""

from __future__ import annotations

import ast
import builtins
import collections
import functools
import heapq
import itertools
import math
import operator
import statistics
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from looptap.streams.helpers import HELPERS
from looptap.streams.probing import probe
from looptap.streams.reducers import REDUCERS

_BUILTINS = {name: value for name, value in vars(builtins).items() if not name.startswith("_")}


def ema(xs: Iterable[Any], alpha: float) -> Iterator[Any]:
    """The exponential moving average of ``xs``: ``m = (1 - alpha) m + alpha x``, starting at the first x.

    ``alpha`` in (0, 1].

    >>> list(ema([1.0, 3.0], 0.5))
    [1.0, 2.0]
    """
    mean = None
    for x in xs:
        mean = x if mean is None else mean + alpha * (x - mean)
        yield mean


def names(extra: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Builtins, math, statistics, itertools, functools, np, torch if loaded, reducers, helpers, ``extra``."""
    space: dict[str, Any] = dict(_BUILTINS)
    space.update({"math": math, "statistics": statistics, "itertools": itertools, "functools": functools})
    space.update({"operator": operator, "collections": collections, "heapq": heapq, "np": np, "numpy": np})
    space.update({name: spec.plain for name, spec in REDUCERS.items()})
    space.update({"accumulate": itertools.accumulate, "ema": ema, "probe": probe, **HELPERS, **(extra or {})})
    if "torch" in sys.modules:
        space["torch"] = sys.modules["torch"]
    return space


# ---------------------------------------------------------------- trust

_SAFE_MODULES = {"math", "statistics", "itertools", "functools", "operator", "collections", "heapq"}
_UNSAFE_BUILTINS = {"eval", "exec", "compile", "setattr", "delattr", "open", "input", "breakpoint", "vars",
                    "globals", "locals", "getattr", "exit", "quit", "print", "help", "__import__"}  # fmt: skip
_SAFE_NAMES = (
    (set(_BUILTINS) - _UNSAFE_BUILTINS) | set(REDUCERS) | set(HELPERS) | {"accumulate", "ema", "recent", "latest"}
)
_SAFE_FUNCTIONS = {  # of torch and numpy: no random numbers, no modes, no mutation
    "abs", "isnan", "isinf", "isfinite", "mean", "sum", "min", "max", "std", "var", "median", "norm", "sqrt", "exp",
    "log", "log10", "clip", "clamp", "argmax", "argmin", "sort", "argsort", "topk", "stack", "cat", "concatenate",
    "asarray", "array", "histogram", "histc", "bincount", "percentile", "quantile", "dot", "matmul", "where", "any",
    "all", "count_nonzero", "flatten", "softmax", "sigmoid", "square", "float32", "float64", "int64", "unique",
}  # fmt: skip
_SAFE_METHODS = (_SAFE_FUNCTIONS - {"sort"}) | {  # .sort() works in place
    "item", "long", "int", "bool", "detach", "numpy", "tolist", "size", "dim",
    "numel", "view", "reshape", "astype", "transpose", "t", "permute", "squeeze", "unsqueeze", "ravel", "amax",
    "amin", "eq", "ne", "lt", "le", "gt", "ge", "pow", "parameters", "named_parameters", "modules",
    "named_modules", "children", "named_children", "buffers", "named_buffers", "get", "keys", "values", "items",
    "split", "strip", "lower", "upper", "startswith", "endswith", "join", "format", "replace", "count", "index",
    "most_common", "round", "copy", "get_last_lr", "square", "sum", "mean",
}  # fmt: skip
_CASTS = {"float", "double", "half", "cpu"}  # of a tensor they make another one, of a module they change it in place
_OF_TENSORS = _SAFE_FUNCTIONS | {"detach", "view", "reshape", "permute", "squeeze", "unsqueeze", "flatten"}


def trusted(tree: ast.AST, observables: Iterable[str] = ()) -> bool:
    """Whether ``tree`` calls only functions known not to touch random numbers, modes or anybody's state.

    Around everything else the agent saves and restores the loop's state (SAFETY S19).
    """
    shadowed = set(observables)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr.startswith("__"):
            return False
        if isinstance(node, ast.Name) and node.id in _UNSAFE_BUILTINS - shadowed:
            return False
        if isinstance(node, ast.Call) and not all(_safe(f, shadowed) for f in _functions(node)):
            return False
        if isinstance(node, ast.keyword) and node.arg == "out":  # torch and numpy write to it
            return False
    return True


def _functions(call: ast.Call) -> list[ast.expr]:
    """The function that is called, and the ones handed over to be called."""
    handed = [k.value for k in call.keywords if k.arg in ("key", "func", "function")]
    if isinstance(call.func, ast.Name) and call.func.id in ("map", "filter", "reduce"):
        handed += call.args[:1]
    if isinstance(call.func, ast.Name) and call.func.id in ("accumulate", "group_by"):
        handed += call.args[1:2]
    return [call.func, *(f for f in handed if not isinstance(f, ast.Constant))]


def _safe(called: ast.expr, shadowed: set[str]) -> bool:
    if isinstance(called, ast.Name):
        return called.id in _SAFE_NAMES and called.id not in shadowed
    if isinstance(called, ast.Attribute):
        if isinstance(called.value, ast.Name) and called.value.id in _SAFE_MODULES - shadowed:
            return True
        if isinstance(called.value, ast.Name) and called.value.id in {"torch", "np", "numpy"} - shadowed:
            return called.attr in _SAFE_FUNCTIONS
        return called.attr in _SAFE_METHODS or (called.attr in _CASTS and _is_no_module(called.value))
    return isinstance(called, ast.Lambda)


def _is_no_module(node: ast.expr) -> bool:
    """Whether ``node``, as it is written, comes to an array, a tensor or a number."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        called = node.func
        return called.attr in _OF_TENSORS or (called.attr in _CASTS and _is_no_module(called.value))
    return isinstance(node, ast.BinOp | ast.UnaryOp | ast.Compare)


Namespace = dict[str, Any]
Function = Callable[..., Any]
