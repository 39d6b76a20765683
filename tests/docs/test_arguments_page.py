"""Each parameter of the public names is described, so that it can be looked up."""

from __future__ import annotations

import dataclasses
import inspect
import re

import msgspec
import pytest

import looptap

MADE_BY_LOOPTAP = {
    "Controls", "Guard", "LiveStream", "Run", "Share", "StoredRun", "StoredStream", "Stream",
}  # fmt: skip
"""Classes that users get from a function of looptap: their constructors are not for users."""
FOR_LOOPTAP_ITSELF = {
    "Controls.report", "Controls.find", "Controls.look", "LiveStream.attached", "LiveStream.await_history",
    "LiveStream.read_declared", "LiveStream.receive", "LiveStream.reattach", "LiveStream.end", "LiveStream.reattached",
    "LiveStream.receive_status", "Outcome.of", "Outcome.of_ranks", "Rule.verdict", "StoredStream.read_facts",
    "Stream.publish",
}  # fmt: skip
"""Methods that the parts of looptap call, and the pages do not mention."""


def public():
    """Yield name, docstring and parameters of each public function and method."""
    for name in looptap.__all__:
        shown = getattr(looptap, name)
        if not inspect.isclass(shown):
            if callable(shown):
                yield name, shown.__doc__, parameters(shown)
            continue
        if is_record(shown) or issubclass(shown, BaseException):
            continue
        if name not in MADE_BY_LOOPTAP:
            yield name, shown.__doc__, parameters(shown.__init__)
        for key in dir(shown):
            method = inspect.getattr_static(shown, key)
            function = method.__func__ if isinstance(method, classmethod | staticmethod) else method
            ours = inspect.isfunction(function) and function.__module__.startswith("looptap.")
            if ours and not key.startswith("_") and f"{owner(shown, key)}.{key}" not in FOR_LOOPTAP_ITSELF:
                yield f"{name}.{key}", function.__doc__, parameters(function)


def owner(shown, key):
    """Return the name of the public class that has a method, where it is inherited."""
    names = [base.__name__ for base in shown.__mro__ if f"{base.__name__}.{key}" in FOR_LOOPTAP_ITSELF]
    return names[0] if names else shown.__name__


def parameters(function):
    """Return what callers may give, without the object itself."""
    names = list(inspect.signature(function).parameters)
    return [name for name in names if name not in ("self", "cls", "run", "unnamed") or names == ["run"]]


def is_record(shown):
    """Return True for plain data, whose fields are documented where they stand."""
    return issubclass(shown, tuple | msgspec.Struct) or (dataclasses.is_dataclass(shown) and shown is not looptap.Rule)


def described(doc):
    """Return the names under ``Args:``."""
    section = re.search(r"^( *)Args:\n((?:\1 +.*\n|\n)+)", f"{inspect.cleandoc(doc or '')}\n", re.MULTILINE)
    return re.findall(r"^    (\w+): \S", section[2], re.MULTILINE) if section else []


CASES = list(public())


@pytest.mark.parametrize(("name", "doc", "given"), CASES, ids=[name for name, *_ in CASES])
def test_each_parameter_is_described_in_the_order_of_the_signature(name, doc, given):
    assert described(doc) == given


def test_the_public_methods_with_arguments_are_many():
    assert len([name for name, _, given in CASES if given]) > 70


RECORDS = [name for name in looptap.__all__ if inspect.isclass(one := getattr(looptap, name)) and is_record(one)]


@pytest.mark.parametrize("name", RECORDS)
def test_each_field_of_a_record_is_described(name):
    shown = getattr(looptap, name)
    fields = getattr(shown, "_fields", None) or getattr(shown, "__struct_fields__", None)
    fields = fields or [field.name for field in dataclasses.fields(shown)]
    source = inspect.getsource(shown)
    undescribed = [
        field for field in fields
        if f"``{field}``" not in source and not re.search(rf'^    {field}: .*\n    """', source, re.MULTILINE)
    ]  # fmt: skip
    assert undescribed == []
