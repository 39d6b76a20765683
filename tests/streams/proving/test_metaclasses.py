"""No question runs code of a metaclass of the job, whatever it asks."""

from __future__ import annotations

from abc import ABCMeta
from collections.abc import Mapping

import numpy as np
import pytest
import torch
from torch import nn

import looptap
from looptap.testing import pair

RUNS: list[str] = []
VALUES = {  # a true __subclasscheck__ would make every object of this process a mapping, for good
    "eq": True, "ne": False, "hash": 3, "lt": True, "gt": True, "instancecheck": True, "subclasscheck": False,
    "call": 1, "bool": True, "len": 2, "iter": iter([1]), "contains": True, "getitem": 1, "or": 1, "ror": 1, "add": 1,
    "repr": "Made", "str": "Made", "format": "Made", "dir": ["a"], "sizeof": 3, "index": 1, "int": 1, "float": 1.0,
    "reduce_ex": None, "getattr": 1, "class_getitem": 1, "array": np.ones(1), "fspath": "x", "next": 1, "abs": 1,
}  # fmt: skip


def noting(name, value):
    def method(cls, *given, **named):
        RUNS.append(name)
        return value

    return method


def reading(cls, name):
    RUNS.append(f"__getattribute__ {name}")
    return type.__getattribute__(cls, name)


def computed(name, value):
    """Return a property of the metaclass, which hides what each class has of its own."""

    def get(cls):
        RUNS.append(f"property {name}")
        return value(cls) if callable(value) else value

    return property(get)


METHODS = {
    **{f"__{name}__": noting(f"__{name}__", value) for name, value in VALUES.items()},
    "__getattribute__": reading,
    "__module__": computed("__module__", "torch"),
    "__name__": computed("__name__", "int"),
    "__mro__": computed("__mro__", lambda cls: (object,)),
    "__dict__": computed("__dict__", {}),
    "__flags__": computed("__flags__", 0),
    "__class__": computed("__class__", lambda cls: type),
}
BASES = {
    "object": ((), lambda kind: kind()),
    "int": ((int,), lambda kind: kind(3)),
    "float": ((float,), lambda kind: kind(3.0)),
    "str": ((str,), lambda kind: kind("a")),
    "list": ((list,), lambda kind: kind([1])),
    "dict": ((dict,), lambda kind: kind(a=1)),
    "tuple": ((tuple,), lambda kind: kind((1, 2))),
    "array": ((np.ndarray,), lambda kind: np.ones(2).view(kind)),
    "tensor": ((torch.Tensor,), lambda kind: torch.ones(2).as_subclass(kind)),
    "module": ((nn.Module,), lambda kind: kind()),
    "error": ((Exception,), lambda kind: kind("a")),
    "mapping": ((Mapping,), lambda kind: kind()),
}


def things(methods, base):
    """Return an object of a class whose metaclass has these methods, and the class."""
    bases, make = BASES[base]
    over = {type(one) for one in bases} - {type} or {type}
    meta = type("Meta", tuple(over), {name: METHODS[name] for name in methods if name != "__call__"})
    empty = {"__getitem__": dict.get, "__iter__": lambda own: iter(()), "__len__": lambda own: 0}
    kind = meta("Made", bases, {"value": 1, "ask": lambda own: 1, **(empty if base == "mapping" else {})})
    thing = make(kind)
    if "__call__" in methods:
        type.__setattr__(meta, "__call__", METHODS["__call__"])
    return thing, kind


ASKED = """
x; x.value; x.ask(); x(); x == 1; 1 == x; x == x; x != 1; x < 1; x + 1; 1 + x; -x; x is None; not x; x or 1; abs(x)
x if x else 0; x in [1]; 1 in x; x in {1: 2}; x in (x, 1); 1 in [x]; x[0]; x['a']; x[0:1]; len(x); list(x); bool(x)
isinstance(x, int); isinstance(x, (int, dict)); isinstance(1, made); isinstance(x, made); issubclass(made, int)
isinstance(x, collections.abc.Mapping); isinstance(1, collections.abc.Mapping); issubclass(int, made)
f'{x}'; f'{x!r}'; str(x); repr(x); format(x); [x]; (x,); {x}; {x: 1}; {'a': x}; {1: [x]}; [v for v in x]; hash(x)
type(x); type(x) == int; type(x) is int; type(x) in (int, float); {type(x): 1}; type(x).__name__; type(x).value
type(x)(); made; made.value; made(); made == 1; made in [1]; made | None; made[0]; len(made); list(made); bool(made)
f'{made}'; str(made); [made]; {made: 1}; made.__name__; made.__mro__; made.mro(); 1 in made; not made; made < 1
sum([x]); max([x, x]); min(x, 1); sorted([x, x]); any([x]); sum(items); items[0]; x in items; items; table; table['a']
{**table}; table.get(x); list(table); (x, *items); np.array([x]); np.mean(x); np.add(x, 1); torch.tensor(x); norm(x)
torch.sum(x); torch.add(x, 1); getattr(x, 'value'); hasattr(x, 'value'); vars(x); dict(a=x); set(items); tuple(items)
[*items].index(x); [x].count(x); [1].append(x); items.index(1); {1: x}.get(1); dict(table, b=x); zip(items, items)
list(map(type, items)); list(map(str, items)); list(filter(None, items)); next(iter(items)); (lambda v: v)(x)
[type(v) for v in items]; collections.Counter(items); 'a' + x; '%s' % x; '{}'.format(x); ','.join(items); print(x)
x if step else 0; step + x; (step, x); round(x); float(x); int(x); x * 2; callable(x); id(x) > 0; made is made
probe(x, 1); x.weight; grad_norm(x); lr(x); summary(x); shape(x)
"""
QUESTIONS = [one.strip() for line in ASKED.splitlines() for one in line.split("; ") if one.strip()]
REDUCED = """
list(e.x for e in events); last(e.x for e in events); max(e.x for e in events); sum(e.x for e in events)
mean(e.x for e in events); events['x']; [e.x for e in events]; len([e for e in events if e.x])
len([e for e in events if e.x is not None]); sorted(events, key=lambda e: e.x); sorted(e.x for e in events)
collections.Counter(e.x for e in events); {e.x for e in events}; {e.x: 1 for e in events}; any(e.x for e in events)
reduce(lambda a, e: e.x, events, 0); min(e.x if e.step else 0 for e in events); histogram(e.x for e in events)
median(e.x for e in events); nlargest(2, (e.x for e in events)); nlargest(2, events, key=lambda e: e.x)
mean(e.step for e in events if e.x); first((e.x, e.step) for e in events); quantile((e.x for e in events), 0.5)
list(e.made for e in events); max(e.made for e in events); [type(e.x) for e in events]; [e.items for e in events]
"""
LOOKING_BACK = """
last(e.x for e in recent(3)); mean(e.x for e in recent(3)); latest('epoch').x; latest('epoch').made
accumulate((e.x for e in events), lambda a, b: b); ema((e.x for e in events), 0.5); max(e.x for e in recent(2))
"""
FORMS = [
    *((query, {}) for query in QUESTIONS),
    *((one.strip(), {"window": 1}) for line in REDUCED.splitlines() for one in line.split("; ") if one.strip()),
    *((one.strip(), {}) for line in LOOKING_BACK.splitlines() for one in line.split("; ") if one.strip()),
    ("mean(e.x for e in events)", {"window": looptap.sliding(2)}),
    ("step", {"when": "x", "before": 1}),
    ("step", {"when": "x is not None", "before": 1}),
    ("x", {"when": "step > 0", "before": 1}),
    ("x", {"every": 2}),
    ("lazy", {}),
    ("lazy == 1", {}),
]
PER_JOB = 40


def ran(thing, kind, forms):
    """Return what has run of a job's code as it was asked, and the streams."""
    agent, run = pair("metaclasses")
    agent.expose(made=kind, exposed=thing, lazy=looptap.lazy(lambda: thing))
    RUNS.clear()
    streams = []
    for query, more in forms:
        try:
            streams.append(run.stream(query, on="batch", **more))
        except looptap.LooptapError:  # at once
            continue
    items, table = [thing], {"a": thing}
    for step in (1, 2):
        agent.emit("epoch", x=thing, made=kind)
        agent.emit("batch", step=step, x=thing, made=kind, items=items, table=table)
    found = RUNS[:]
    agent.close()
    return found, streams


@pytest.mark.filterwarnings("ignore")  # what numpy and torch say about odd questions is not ours
@pytest.mark.parametrize("base", BASES)
def test_no_question_runs_code_of_a_metaclass(base):
    thing, kind = things([*METHODS], base)
    bad, attached = {}, 0
    for start in range(0, len(FORMS), PER_JOB):
        found, streams = ran(thing, kind, FORMS[start : start + PER_JOB])
        attached += len(streams)
        if found:
            bad[start] = {
                query: runs for query, more in FORMS[start : start + PER_JOB]
                if (runs := ran(thing, kind, [(query, more)])[0])
            }
    assert bad == {}
    assert attached > len(FORMS) * 0.8


@pytest.mark.filterwarnings("ignore")  # as above
@pytest.mark.long
@pytest.mark.parametrize("method", METHODS)
def test_no_question_runs_a_method_of_a_metaclass_that_has_no_other(method):
    thing, kind = things([method], "object")
    some = FORMS[sorted(METHODS).index(method) % 4 :: 4]
    for start in range(0, len(some), PER_JOB):
        assert ran(thing, kind, some[start : start + PER_JOB])[0] == []


def test_classes_of_an_abstract_kind_that_the_job_has_derived_are_not_asked():
    class Asking(ABCMeta):
        def __subclasscheck__(cls, other):
            RUNS.append("__subclasscheck__")
            return False

    class Job(Mapping, metaclass=Asking):
        """A mapping of the job, which each question about mappings would ask."""

    class Fresh(dict):
        """A class that no cache knows."""

    forms = [("isinstance(x, collections.abc.Mapping)", {}), ("x", {}), ("list(e.x for e in events)", {"window": 1})]
    assert ran(Fresh(a=1), Fresh, forms)[0] == []
    assert Job.__name__ == "Job"
