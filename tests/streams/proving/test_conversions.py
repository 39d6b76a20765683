"""What leaves a job or enters a reducer is converted by code that is checked."""

from __future__ import annotations

import collections
import enum
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pytest
import torch

import looptap
from looptap.testing import pair

RUNS: list[str] = []


def noting(name, value):
    def method(self, *given, **named):
        RUNS.append(name)
        return value

    return method


def kind(name, value, *bases):
    return type(f"Of{name.strip('_').title()}", bases, {name: noting(name, value)})


class Numbers(np.ndarray):
    @property
    def dtype(self):
        RUNS.append("dtype")
        return np.dtype("float64")

    def __array_finalize__(self, other):
        RUNS.append("__array_finalize__")


class Dispatched(torch.Tensor):
    @classmethod
    def __torch_dispatch__(cls, function, types, given=(), named=None):
        RUNS.append("__torch_dispatch__")
        return function(*given, **(named or {}))


class Own(Mapping):
    def __getitem__(self, key):
        RUNS.append("__getitem__")
        return 1

    def __iter__(self):
        return iter(["a"])

    def __len__(self):
        return 1


class Colour(enum.Enum):
    RED = 1

    def __str__(self):
        RUNS.append("__str__")
        return "red"


class Optimizer(torch.optim.SGD):
    @property
    def param_groups(self):
        RUNS.append("param_groups")
        return []

    @param_groups.setter
    def param_groups(self, value):
        pass


@dataclass
class Row:
    a: int = 1

    @property
    def b(self):
        RUNS.append("b")
        return 2


def numbers():
    made = np.ones(2).view(Numbers)
    RUNS.clear()
    return made


THINGS = {
    "an array": kind("__array__", np.ones(2))(),
    "a number": kind("__float__", 1.5)(),
    "an index": kind("__index__", 3)(),
    "a path": kind("__fspath__", "x")(),
    "an exchange": kind("__dlpack__", None)(),
    "a list": kind("__iter__", iter([1]), list)([1]),
    "a dict": kind("items", [("a", 1)], dict)(a=1),
    "another dict": collections.UserDict(kind=kind("__float__", 1.5)()),
    "a mapping": Own(),
    "a float": kind("__float__", 2.0, float)(1.0),
    "a text": kind("__str__", "b", str)("a"),
    "an item": [kind("__float__", 1.5)()],
    "a key": {kind("__float__", 1.5)(): 1},
    "a value": {"a": (1, {"b": kind("__array__", np.ones(1))()})},
    "a tensor that dispatches": torch.ones(2).as_subclass(Dispatched),
    "an optimizer": Optimizer([torch.nn.Parameter(torch.ones(1))], 0.1),
    "a record": Row(kind("__float__", 1.5)()),
}
QUERIES = (
    ("x", {}),
    ("[x, 1]", {}),
    ("x if step else 0", {}),
    ("list(e.x for e in events)", {"window": 1}),
    ("last(e.x for e in events)", {"window": 1}),
    ("max(e.x for e in events)", {"window": 1}),
    ("sum(e.x for e in events)", {"window": 1}),
    ("events['x']", {"window": 1}),
    ("[e.x for e in events]", {"window": 1}),
    ("len([e for e in events if e.x is not None])", {"window": 1}),
    ("sorted(events, key=lambda e: e.step)[0].x", {"window": 1}),
    ("last(e.x for e in recent(3))", {}),
    ("mean(e.x for e in events)", {"window": looptap.sliding(3)}),
    ("latest('epoch').x", {}),
    ("reduce(lambda a, e: e.x, events, 0)", {"window": 1}),
    ("accumulate((e.x for e in events), lambda a, b: b)", {}),
    ("ema((e.x for e in events), 0.5)", {}),
    ("step", {"when": "x is not None", "before": 1}),
    ("x", {"when": "step > 0", "before": 1}),
    ("lazy", {}),
    ("[e.lazy for e in events]", {"window": 1}),
    ("events['lazy']", {"window": 1}),
    ("last(e.late for e in events)", {"window": 1}),
)


@pytest.mark.parametrize("what", THINGS)
def test_nothing_is_converted_by_code_that_is_not_checked(what):
    agent, run = pair("converted")
    x = THINGS[what]
    agent.expose(lazy=looptap.lazy(lambda: RUNS.append("lazy") or 1))
    streams = [run.stream(query, on="batch", **more) for query, more in QUERIES]
    RUNS.clear()
    for step in (1, 2):
        agent.emit("epoch", x=x)
        agent.emit("batch", step=step, x=x, late=looptap.lazy(lambda: RUNS.append("late") or 1))
    agent.close()
    assert RUNS == []
    for stream in streams:
        said = stream.traceback or ""
        assert "Refused" not in said or "not known to be harmless" in said or "would" in said


@pytest.mark.long
@pytest.mark.parametrize(
    "query",
    [
        "'%s' % x", "'%s' % (x,)", "'%s' % [x]", "'%(a)s' % {'a': x}", "'%d' % x", "b'%s' % x", "[1] * x", "(1,) * x",
        "def q(e):\n    return '%s' % (e.x,)", "def q(e):\n    return '%(a)s' % {'a': e.x}",
        "def q(e):\n    return np.ones(2) + [e.x]", "def q(e):\n    return [*itertools.islice([1, 2], e.x)]",
        "def q(e):\n    return [*itertools.islice([1, 2], e.kind())]",
        "def q(e):\n    return [*enumerate([1], e.kind())]",
        "def q(e):\n    return [*itertools.product([1], repeat=e.kind())]", "def q(e):\n    return [1] * e.kind()",
        "def q(e):\n    return '%s' % e.kind()", "def q(e):\n    return collections.deque([1], maxlen=e.kind())",
        "np.ones(2) + x", "np.ones(2) + [x, x]", "torch.ones(2) * x", "torch.ones(2) + (x,)", "1 + x", "x % 2", "-x",
        "[1] + x", "{1} | x", "{1: 2} | x", "[1].__iadd__(x)", "np.float64(1) * [x]",
        "def q(e):\n    a = [1]\n    a += e.x\n    return a", "def q(e):\n    a = 'a%s'\n    a %= e.x\n    return a",
        "def q(e):\n    a = np.ones(2)\n    a += e.x\n    return a",
    ],
)  # fmt: skip
@pytest.mark.parametrize(
    "name", ["__str__", "__repr__", "__index__", "__int__", "__float__", "__iter__", "__array__", "__len__",
             "__getitem__", "keys", "__bytes__", "__format__", "__array_ufunc__", "__array_priority__"]
)  # fmt: skip
def test_operators_use_nothing_of_an_operand_that_has_none(name, query):
    value = property(noting(name, 1)) if name == "__array_priority__" else noting(name, 1)
    x = type("Operand", (), {name: value})()
    agent, run = pair("operands")
    agent.expose(np=np, torch=torch, kind=type(x))
    stream = run.stream(query, on="batch")
    RUNS.clear()
    agent.emit("batch", step=1, x=x)
    agent.close()
    assert RUNS == []
    assert stream.error_count == 1


@pytest.mark.parametrize("query", ["x", "list(e.x for e in events)", "last(e.x for e in events)"])
@pytest.mark.parametrize("what", ["array", "number", "enum", "row", "list", "tensor", "settings"])
def test_harmless_conversions_are_followed(query, what):
    class Plain(list):
        """Adds nothing."""

    class Masked:
        def __init__(self):
            self.values = np.ones(2)

        def __array__(self, dtype=None, copy=None):
            return self.values * 2

    class Number:
        value = 3

        def __float__(self):
            return self.value / 2

    class Sub(torch.Tensor):
        """A tensor with a name."""

    x, wanted = {
        "array": (Masked(), [2, 2]),
        "number": (Number(), 1.5),
        "enum": (Colour.RED, 1),
        "row": (Row(7), {"a": 7}),
        "list": (Plain([1, 2]), [1, 2]),
        "tensor": (torch.ones(2).as_subclass(Sub), [1, 1]),
        "settings": (collections.UserDict(a=Number()), {"a": 1.5}),
    }[what]
    agent, run = pair("converted")
    stream = run.stream(query, on="batch", window=1 if "events" in query else None)
    agent.emit("batch", x=x)
    agent.close()
    assert not stream.error_count, stream.traceback
    found = stream.latest[0] if query.startswith("list") else stream.latest
    assert (found.tolist() if hasattr(found, "tolist") else found) == wanted
