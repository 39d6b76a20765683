"""Objects of a job that run code however they are used, and count each run."""

from __future__ import annotations

import collections
import functools
import random
import types
from typing import NamedTuple

import numpy as np
import torch
from torch import nn

RUNS: list[str] = []
"""What has run of the job's code."""


def ran(name):
    """Count a run."""
    RUNS.append(name)
    return 1


def _counting(name, value):
    def method(self, *given, **named):
        ran(name)
        return value

    return method


_OPERATORS = [
    "add",
    "radd",
    "iadd",
    "sub",
    "rsub",
    "mul",
    "rmul",
    "matmul",
    "rmatmul",
    "truediv",
    "rtruediv",
    "floordiv",
    "rfloordiv",
    "mod",
    "rmod",
    "pow",
    "rpow",
    "lshift",
    "rlshift",
    "rshift",
    "and",
    "rand",
    "or",
    "ror",
    "xor",
    "rxor",
    "neg",
    "pos",
    "invert",
    "abs",
    "lt",
    "le",
    "gt",
    "ge",
]


class Compared:
    """Has everything but `__eq__`, so that it is compared and hashed by identity."""

    items = 3

    @property
    def draws(self):
        return ran("property")

    @functools.cached_property
    def cached(self):
        return ran("cached_property")

    def __getattr__(self, name):
        ran("__getattr__")
        raise AttributeError(name)


for _name in _OPERATORS:
    setattr(Compared, f"__{_name}__", _counting(f"__{_name}__", 1))
for _name, _value in {
    "bool": True,
    "len": 2,
    "contains": True,
    "iter": iter([1]),
    "getitem": 1,
    "call": 1,
    "str": "odd",
    "repr": "odd",
    "format": "odd",
    "int": 1,
    "float": 1.0,
    "index": 1,
    "round": 1,
    "reversed": iter([1]),
    "enter": None,
    "exit": None,
    "array": np.ones(2),
    "dir": ["a"],
    "length_hint": 2,
    "bytes": b"",
    "complex": 1j,
    "setitem": None,
    "delitem": None,
    "copy": None,
    "deepcopy": None,
    "reduce_ex": None,
    "fspath": "x",
    "next": 1,
    "instancecheck": True,
    "trunc": 1,
    "floor": 1,
    "ceil": 1,
    "divmod": (1, 1),
    "sizeof": 3,
}.items():
    setattr(Compared, f"__{_name}__", _counting(f"__{_name}__", _value))


class Hashed:
    """Has its own equality and hash."""

    def __eq__(self, other):
        return bool(ran("__eq__"))

    def __hash__(self):
        return ran("__hash__")


class Posing:
    """Says of itself that it is of another class."""

    @property
    def __class__(self):
        ran("__class__")
        return dict


class Reading:
    """Computes all of its attributes."""

    def __getattribute__(self, name):
        ran("__getattribute__")
        return 3


class Meta(type):
    """A metaclass that does everything itself."""

    def __getattr__(cls, name):
        ran("Meta.__getattr__")
        raise AttributeError(name)


for _name, _value in {
    "call": 1,
    "len": 2,
    "iter": iter([1]),
    "getitem": 1,
    "contains": True,
    "instancecheck": True,
    "repr": "Made",
    "subclasscheck": True,
    "add": 1,
    "eq": True,
    "hash": 3,
    "lt": True,
    "str": "Made",
    "bool": True,
    "format": "Made",
}.items():
    setattr(Meta, f"__{_name}__", _counting(f"Meta.__{_name}__", _value))


class Made(metaclass=Meta):
    """A class of that metaclass."""


class Plain:
    """A class whose class methods and inheritance run code."""

    count = 0

    def __init_subclass__(cls):
        ran("__init_subclass__")

    def __class_getitem__(cls, key):
        return ran("__class_getitem__")

    @property
    def parent(self):
        return ran("property of a base class")


class Pair(NamedTuple):
    """A named tuple with code of its own."""

    a: int
    b: int

    @property
    def area(self):
        return ran("property of a named tuple")

    def method(self):
        return ran("method of a named tuple")

    def __str__(self):
        ran("__str__ of a named tuple")
        return "pair"

    def __bool__(self):
        return bool(ran("__bool__ of a named tuple"))

    def __radd__(self, other):
        return ran("__radd__ of a named tuple")


class Point(collections.namedtuple("Point", "a b")):
    """A named tuple that counts how often it is made."""

    def __new__(cls, a, b):
        ran("__new__ of a named tuple")
        return super().__new__(cls, a, b)


class Failure(Exception):
    """An error that runs code when it is shown."""

    def __str__(self):
        ran("__str__ of an error")
        return "failed"


class Listing(list):
    """A list that counts what it is asked."""

    __len__ = _counting("__len__ of a list", 2)
    __getitem__ = _counting("__getitem__ of a list", 2)
    __contains__ = _counting("__contains__ of a list", True)
    __iadd__ = _counting("__iadd__ of a list", 1)


class Mapping(dict):
    """A dict that counts what it is asked."""

    __getitem__ = _counting("__getitem__ of a dict", 2)
    __iter__ = _counting("__iter__ of a dict", iter([]))
    keys = _counting("keys of a dict", [])
    __missing__ = _counting("__missing__", 1)


class Computed:
    """A descriptor of the job."""

    def __get__(self, instance, owner):
        return ran("__get__")

    def __set__(self, instance, value):
        ran("__set__")


class Sub(torch.Tensor):
    """A tensor that sees each function."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        ran("__torch_function__")
        return super().__torch_function__(function, types, args, kwargs or {})


class Holder:
    """Holds and does a little of everything."""

    described = Computed()
    shared, common = 0, [1]

    def __init__(self):
        self.it, self.rng, self.dice = iter([1, 2, 3]), np.random.default_rng(1), random.Random(2)
        self.log, self.last, self.__private = [], None, [1]
        count = 0

        def counted():
            nonlocal count
            count += 1
            self.log.append(count)
            return count

        self.counted = counted

    @property
    def by_class(self):
        type(self).shared += 1
        return type(self).shared

    @property
    def by_global(self):
        global _calls
        _calls += 1
        return _calls

    @property
    def by_table(self):
        TABLE["n"] += 1
        return TABLE["n"]

    @property
    def by_base(self):
        return super().parent

    def by_default(self, seen=[]):  # noqa: B006 - that is what it is about
        seen.append(1)
        return len(seen)

    def by_private(self):
        self.__private.append(1)
        return len(self.__private)

    def by_numbers(self):
        NUMBERS[0] += 1
        return NUMBERS[0]

    def by_view(self):
        view = NUMBERS[1:]
        view *= 2
        return view

    def by_tensor(self):
        WEIGHT.data.mul_(2)
        return WEIGHT

    def by_slice(self):
        WEIGHT[0] = 5
        return WEIGHT

    def by_bytes(self):
        letters = LETTERS
        letters += b"z"
        return len(letters)

    def by_delete(self):
        del TABLE["n"]
        return 1

    def by_loop(self):
        for TABLE["n"] in range(3):
            pass
        return TABLE["n"]

    def by_exception(self):
        try:
            self.log.append(1)
        except BaseException:
            return 7
        return 8

    def by_generator(self):
        yield self.log.append(1)

    def by_set(self):
        self.described = 3
        return 1

    def by_submodule(self):
        MODEL.get_submodule("0").flag = True
        return 1

    def give(self):
        return self.it


class Child(Holder, Plain):
    """Reads a property of a base class by `super()`."""

    @property
    def by_base(self):
        return super().parent


_calls = 0
TABLE = {"n": 0}
NUMBERS = np.arange(4.0)
WEIGHT = torch.ones(3)
LETTERS = bytearray(b"abc")
MODEL = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))


class Abstract(nn.Module):
    """A model that does ``what`` at each forward pass."""

    def __init__(self, what):
        super().__init__()
        self.linear, self.norm, self.what = nn.Linear(4, 4), nn.BatchNorm1d(4), what

    def forward(self, x):
        self.what(self, x)
        return self.linear(x)


def things():
    """Return the objects of a job, each time the same."""
    global _calls
    _calls = 0
    TABLE.clear()
    TABLE.update(n=0)
    NUMBERS[:] = np.arange(4.0)
    LETTERS[:] = b"abc"
    with torch.no_grad():
        WEIGHT.fill_(1)
    Holder.shared, Holder.common[:] = 0, [1]
    MODEL.train()
    vars(MODEL[0]).pop("flag", None)
    holder = Holder()
    it, counts = iter([1, 2, 3]), np.arange(4.0)
    return {
        "compared": Compared(),
        "hashed": Hashed(),
        "posing": Posing(),
        "reading": Reading(),
        "made": Made,
        "plain": Plain,
        "pair": Pair(1, 2),
        "point": Point,
        "failure": Failure,
        "listing": Listing([1, 2]),
        "mapping": Mapping(a=1),
        "sub": torch.ones(2).as_subclass(Sub),
        "holder": holder,
        "child": Child(),
        "it": it,
        "its": [it],
        "table": {"it": it, "a": [1], "counts": counts},
        "counts": counts,
        "list_": [3, 1, 2],
        "set_": {1},
        "queue": collections.deque([1, 2]),
        "letters": LETTERS,
        "number": NUMBERS,
        "weight": WEIGHT,
        "model": MODEL,
        "generator": torch.Generator().manual_seed(1),
        "rng": np.random.default_rng(3),
        "legacy": np.random.RandomState(3),
        "dice": random.Random(3),
        "fresh": collections.defaultdict(list),
        "simple": types.SimpleNamespace(x=1),
        "cached": functools.cache(lambda: ran("cached")),
        "draw": np.random.default_rng(9).normal,
        "gen": (ran("generator") for _ in range(3)),
        "optimizer": torch.optim.SGD(MODEL.parameters(), 0.1),
        "counter": collections.Counter(a=1),
    }


def state(own):
    """Return all that could have changed."""
    holder = own["holder"]
    return {
        "runs": list(RUNS),
        "calls": _calls,
        "table of the module": dict(TABLE),
        "numbers": NUMBERS.tolist(),
        "weight": WEIGHT.tolist(),
        "letters": bytes(LETTERS),
        "class": (Holder.shared, list(Holder.common)),
        "module": [
            (name, m.training, sorted(vars(m)), [len(h) for h in (m._forward_hooks, m._parameters)])
            for name, m in MODEL.named_modules()
        ],
        "weights": [
            (t.tolist(), t._version, t.requires_grad, t.grad) for t in MODEL.state_dict(keep_vars=True).values()
        ],
        "it": own["it"].__length_hint__(),
        "its": holder.it.__length_hint__(),
        "log": list(holder.log),
        "attributes": (sorted(vars(holder)), sorted(vars(own["simple"])), own["simple"].x),
        "compared": sorted(vars(own["compared"])),
        "list": list(own["list_"]),
        "set": set(own["set_"]),
        "queue": list(own["queue"]),
        "deep": (list(own["table"]), list(own["table"]["a"])),
        "counts": (own["counts"].tolist(), own["counts"].shape, own["counts"].dtype),
        "fresh": dict(own["fresh"]),
        "private": list(vars(holder)["_Holder__private"]),
        "default": Holder.by_default.__defaults__[0][:],
        "counter": dict(own["counter"]),
        "lr": own["optimizer"].param_groups[0]["lr"],
        "random numbers": (
            own["generator"].get_state().tolist(),
            str(own["rng"].bit_generator.state),
            str(own["legacy"].get_state()),
            own["dice"].getstate(),
            torch.get_rng_state().tolist(),
            random.getstate(),
            str(np.random.get_state()),
            str(holder.rng.bit_generator.state),
            holder.dice.getstate(),
            str(own["draw"].__self__.bit_generator.state),
        ),
        "modes": (
            torch.is_grad_enabled(),
            torch.is_inference_mode_enabled(),
            torch.get_default_dtype(),
            np.geterr(),
            torch.is_autocast_enabled("cpu"),
            torch._C._len_torch_dispatch_stack(),
        ),
    }
