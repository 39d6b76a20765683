"""Make results safe to copy, so that no unchecked code of the job runs."""

from __future__ import annotations

import types
from typing import Any

import numpy as np

from looptap.streams.harmless.checked_code import call
from looptap.streams.harmless.plain import ARRAY, ATOM, MAPPING, MODULE, SEQUENCE, TENSOR, is_plain, kind_of, of_class
from looptap.streams.harmless.refusal import Refusal

_CONVERSIONS = ("__array__", "__index__", "__float__", "__fspath__")
"""Methods by which a copy of an object is made."""
_READING = ("__getattribute__", "__getattr__", "__iter__", "items", "keys", "to_local", "savefig", "__str__")
"""Methods that a copy would call, and that are not followed."""
_KNOWN = frozenset({
    "builtins", "numpy", "torch", "looptap", "collections", "datetime", "decimal", "fractions", "uuid", "pathlib",
    "enum", "types", "argparse", "PIL", "matplotlib", "pandas", "polars", "pyarrow", "jax", "jaxlib", "tensorflow",
    "mlx",
})  # fmt: skip
"""Packages whose objects copy themselves without effects."""


def result(value: Any) -> Any:
    """Return a result that may be copied. Raises `Refusal`."""
    kind = kind_of(type(value))
    if kind in (ATOM, TENSOR, ARRAY, MODULE):
        return value
    if kind in (SEQUENCE, MAPPING):
        if is_plain(value):
            return value
        if type(value) is list or type(value) is tuple:
            return type(value)(map(result, value))
        if type(value) is dict:
            return {key: result(one) for key, one in value.items()}
        return value
    if _package(type(value)) in _KNOWN:
        return value
    for name in _CONVERSIONS:
        found = of_class(type(value), name)
        if type(found) is types.FunctionType and _package(found) not in _KNOWN:
            return result(call(found, value))
    exported = of_class(type(value), "__dlpack__")
    if type(exported) is types.FunctionType and _package(exported) not in _KNOWN:
        return np.from_dlpack(value)  # the protocol hands out a view of memory, and does nothing else
    for name in _READING:
        found = of_class(type(value), name)
        if type(found) is types.FunctionType and _package(found) not in _KNOWN:
            raise Refusal(f"copying a {type(value).__qualname__}, whose {name} is code of the job, is not known to be "
                          "harmless")  # fmt: skip
    return value


def _package(thing: Any) -> str:
    module = thing.__module__
    return module.partition(".")[0] if type(module) is str else ""
