"""Forms of queries over columns give what the queries give event by event."""

from __future__ import annotations

import math
import struct
import warnings
from random import Random
from typing import Any

import pytest

from looptap.streams.columns.arithmetic import number_array
from looptap.streams.events import Event
from looptap.streams.language.compiler import QuerySpec, compile_query
from looptap.streams.operators.pipeline import Mapped
from looptap.streams.operators.reducing import Reducing

LIMITS = [
    math.nan, math.inf, -math.inf, -0.0, 0.0, 5e-324, 1e308, 2.0**53, 0.5, 0, 1, -1, 2**20, 2**53 + 1, 2**62, 2**63 - 1,
    -(2**63), 2**63, 2**100, True, False,
]  # fmt: skip
"""Numbers at which arithmetic changes its ways."""


def numbers(random: Random, size: int = 6) -> list[Any]:
    """Return a column of one type, small or at its limits, or of several."""
    floats = [x for x in LIMITS if type(x) is float]
    ints = [x for x in LIMITS if type(x) is int and -(2**63) <= x < 2**63]
    make = random.choice([
        lambda: random.uniform(-4, 4), lambda: random.choice(floats), lambda: random.randint(-5, 5),
        lambda: random.choice(ints), lambda: random.random() < 0.5, lambda: random.choice(LIMITS),
        lambda: random.choice([0.5, -1.5, 2, 3, None, "a", True]), lambda: random.choice("ab"),
        lambda: random.randint(1, 9), lambda: random.uniform(0.1, 9), lambda: random.randint(-(2**63), 2**63 - 1),
        lambda: struct.unpack("d", random.randbytes(8))[0],
    ])  # fmt: skip
    return [make() for _ in range(size)]


CONSTANTS = ["0", "1", "2", "-1", "10", "0.5", "1e308", "2**62", "9223372036854775807", "True", "None", "'a'"]
LEAVES = ["e.a", "e.b", "e['c']", "math.nan", "math.pi", "math.inf"]
BINARY = ["+", "-", "*", "/", "//", "%", "** 2 +", "** -1 -", "** 0.5 *", "&", "|", "^", "and", "or", "==", "!=", "<",
          "<=", ">", ">="]  # fmt: skip
ONE = ["abs", "round", "float", "int", "bool", "isnan", "isfinite", "max", "math.sqrt", "math.floor", "math.log",
       "math.isfinite", "math.exp"]  # fmt: skip
TWO = ["max", "min", "math.atan2", "math.pow"]


def expression(random: Random, depth: int = 3) -> str:
    """Return the text of an expression over the observables of an event ``e``."""
    if not depth or random.random() < 0.15:
        return random.choice(random.choice([LEAVES[:3], LEAVES[:3], LEAVES, CONSTANTS]))

    def inner() -> str:
        return expression(random, depth - 1)

    form = random.choices(range(7), [8, 2, 2, 1, 1, 2, 2])[0]
    if form == 0:
        return f"({inner()} {random.choice(BINARY)} {inner()})"
    if form == 1:
        return f"({random.choice(['-', '+', 'not '])}{inner()})"
    if form == 2:
        return f"({inner()} if {inner()} else {inner()})"
    if form == 3:
        return f"({inner()} {random.choice(BINARY[14:])} {inner()} {random.choice(BINARY[14:])} {inner()})"
    if form == 4:
        return f"({inner()} {random.choice(['is None', 'is not None', 'in (1, 2.5, None)', 'not in (0, True)'])})"
    if form == 5:
        return f"{random.choice(ONE)}({inner()})"
    return f"{random.choice(TWO)}({inner()}, {inner()})"


class Columns:
    """Events by columns, as `ColumnForm.evaluate` takes them."""

    def __init__(self, **columns: list[Any]) -> None:
        self.columns = {name: number_array(values) for name, values in columns.items()}

    def column(self, name: str) -> Any:
        return self.columns[name]

    def __len__(self) -> int:
        return len(self.columns["a"])


def exact(value: Any) -> Any:
    """Return a value as text that tells types, signs of zero and NaN apart."""
    return (type(value), [exact(item) for item in value]) if isinstance(value, tuple | list) else repr(value)


def one_by_one(pipeline: Mapped, given: dict[str, list[Any]]) -> tuple[list[Any], list[int]] | None:
    """Return the values and the places of their events; None for an error."""
    values, places = [], []
    for place, row in enumerate(zip(*given.values(), strict=True)):
        try:
            outputs = pipeline.push(Event(dict(zip(given, row, strict=True))))
        except Exception:
            return None
        values += [value for _, value in outputs]
        places += [place] * len(outputs)
    return values, places


def in_columns(pipeline: Mapped, given: dict[str, list[Any]]) -> tuple[list[Any], list[int]] | None:
    """Return the same by columns, None for "one by one"."""
    form = pipeline.column_form()
    found = None if form is None else form.evaluate(Columns(**given))
    if found is None:
        return None
    kept = range(len(given["a"])) if found.kept is None else found.kept.nonzero()[0].tolist()
    return list(found.values()), list(kept)


def compiled(query: str) -> Mapped:
    pipeline = compile_query(QuerySpec(query))
    assert isinstance(pipeline, Mapped)
    return pipeline


def compared(pipeline: Mapped, given: dict[str, list[Any]]) -> bool:
    """Check that both ways agree where there are columns; return True if there are."""
    expected, found = one_by_one(pipeline, given), in_columns(pipeline, given)
    if found is None:
        return False
    assert expected is not None, f"{pipeline.text} raises an error at one of {given}, not in columns"
    assert exact(list(found)) == exact(list(expected)), (pipeline.text, given)
    return True


FORMS = (
    "lambda e: {}", "lambda e: {}", "lambda e: ({}, {})", "({} for e in events if {})", "map(lambda e: {}, events)",
    "(x for x in ({} for e in events) if x)", "({} for e in filter(lambda e: {}, events) if e.b)",
    "(x for x in ({} for e in events if {}) if x != 1)",
)  # fmt: skip


@pytest.mark.parametrize("seed", range(4))
def test_random_queries_give_in_columns_what_they_give_event_by_event(seed):
    warnings.simplefilter("ignore", SyntaxWarning)  # of `1 is None`
    random = Random(seed)
    tried = 0
    for _ in range(100):
        pipeline = compiled(random.choice(FORMS).format(expression(random), expression(random)))
        for _ in range(10):
            tried += compared(pipeline, {name: numbers(random) for name in "abc"})
    assert tried > 200  # the others raise an error at some event, or have texts in arithmetic


PLAIN = {"a": [0.5, 1.5, -2.0, 4.0], "b": [1, 2, 3, 4], "c": [True, False, True, True]}


@pytest.mark.parametrize("query", [
    "a * 2 if b % 10 == 3 else 0.0", "a / b, b + 1", "(e.a - 1 for e in events if e.b % 2 == 0 and e.a > 0)",
    "a < b < 4", "b if a > 0 else None", "not c, -a, abs(a)", "math.sqrt(abs(a)), round(a)", "max(a, 0.25), a ** 2",
    "lambda e: e.a + e.b", "map(lambda e: e.a * e.b, events)", "(x * 2 for x in (e.a for e in events if e.c) if x < 1)",
    "a / b if b != 2 else a", "c or a", "c and b", "b in (1, 3)", "1 / (b - 2) if b > 2 else 0.0", "2**62 * b",
    "'high' if a > 1 else 'low'",
])  # fmt: skip
def test_plain_arithmetic_is_done_in_columns(query):
    assert compared(compiled(query), PLAIN)


@pytest.mark.parametrize(("query", "numbers"), [
    ("b + 1", [2**63 - 1, 0]), ("b * b", [2**40, 3]), ("-b", [-(2**63), 1]), ("abs(b)", [-(2**63), 1]),
    ("b / 3", [2**60 + 1, 7]), ("b - 2", [-(2**63), 7]), ("b < 9007199254740993.0", [2**53 + 1, 2**53]),
    ("b == 9007199254740992.0", [2**53 + 1, 2**53]), ("b // 7, b % 7", [-(2**63), 2**63 - 1]), ("b ** 2", [2**40, 3]),
])  # fmt: skip
def test_integers_beyond_64_bits_and_beyond_floats_are_those_of_python(query, numbers):
    assert compared(compiled(query), {"a": [0.0, 0.0], "b": numbers, "c": [True, True]})


@pytest.mark.parametrize(
    "query", ["a / b", "b // b", "b % b", "1 / b", "b ** -1", "math.sqrt(a)", "math.log(b)", "a < None", "max(a)"]
)
def test_what_raises_at_one_event_is_left_to_the_events(query):
    assert not compared(compiled(query), {"a": [0.0, -1.0], "b": [1, 0], "c": [True, True]})


@pytest.mark.parametrize("query", [
    "mean(e.a for e in events)", "max(e.a for e in events) - sum(e.b for e in events)", "len(events)",
    "len([e for e in events if e.a < 1])", "group_by(((e.b, e.a) for e in events), mean)",
    "sorted(e.a for e in events)", "quantile((e.a for e in events if e.b > 1), 0.5)",
    "stdev(e.a * 2 for e in events), last(e.b for e in events)",
    "sum(e.a for e in events) / len(events)", "Counter(e.b for e in events)",
])  # fmt: skip
def test_plain_reductions_take_columns(query):
    pipeline = compile_query(QuerySpec(query))
    assert isinstance(pipeline, Reducing)
    assert pipeline.in_columns(Columns(**PLAIN)) is not None


@pytest.mark.parametrize(("query", "numbers"), [
    ("set(e.a for e in events)", [math.nan, 1.0]), ("group_by(((e.a, e.b) for e in events), mean)", [math.nan, 1.0]),
    ("sum(e.a for e in events)", ["a", "b"]), ("mean(1 / e.a for e in events)", [1.0, 0.0]),
    ("max((e.a for e in events), key=abs)", [1.0, 2.0]), ("reduce(lambda x, y: x, (e.a for e in events))", [1.0, 2.0]),
    ("sum(e.a for e in recent(3))", [1.0, 2.0]), ("[e.a for e in events][-1]", [1.0, 2.0]),
])  # fmt: skip
def test_reductions_whose_result_may_depend_on_objects_take_events(query, numbers):
    pipeline = compile_query(QuerySpec(query))
    assert isinstance(pipeline, Mapped) or pipeline.in_columns(Columns(a=numbers, b=[1, 2])) is None
