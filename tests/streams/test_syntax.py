"""Readers of expressions take the forms that they name, as Python does."""

from __future__ import annotations

import ast
import math
from random import Random

import pytest

from looptap.client.run_expressions import UNKNOWN, Expression
from looptap.streams.errors import QueryError
from looptap.streams.harmless.syntax import OPERATORS
from looptap.streams.language.compiler import QuerySpec, compile_query
from looptap.visualizers.surfaces.web.expressions import ReadableStream, reader_query

FORMS = {
    ast.BoolOp: "a and b", ast.NamedExpr: "(c := a)", ast.BinOp: "a + b", ast.UnaryOp: "-a", ast.Lambda: "lambda: a",
    ast.IfExp: "a if b else 1", ast.Dict: "{a: b}", ast.Set: "{a, b}", ast.ListComp: "[x for x in a]",
    ast.SetComp: "{x for x in a}", ast.DictComp: "{x: x for x in a}", ast.GeneratorExp: "sum(x for x in a)",
    ast.Await: "await a", ast.Yield: "(yield a)", ast.YieldFrom: "(yield from a)", ast.Compare: "a < b",
    ast.Call: "abs(a)", ast.FormattedValue: "f'{a:5}'", ast.JoinedStr: "f'{a}'", ast.Constant: "a + 1",
    ast.Attribute: "a.real", ast.Subscript: "a['x']", ast.Starred: "[*a]", ast.Name: "a", ast.List: "[a]",
    ast.Tuple: "(a, b)", ast.Slice: "a[0:1]",
}  # fmt: skip
PAGES = {ast.BinOp, ast.UnaryOp, ast.Compare, ast.Call, ast.Constant, ast.Name}
COLUMNS = PAGES | {ast.BoolOp, ast.IfExp, ast.Tuple}
RUNS = COLUMNS | {ast.List}
NAMES = {"a": 2.5, "b": -3.0}


class Facts:
    def value(self, name):
        return NAMES.get(name, UNKNOWN)

    def figure(self, function, line):
        return UNKNOWN


def of_run(text):
    return Expression(text, list(NAMES), []).of(Facts())


def of_page(text):
    query = reader_query(text, [ReadableStream("a", ("a", "b"))]).query
    with_values = compile_query(QuerySpec(query, source="values", known=frozenset(NAMES)))
    ((_, row),) = with_values.push(Row(**NAMES))
    return row[-1]


class Row:
    _fields = tuple(NAMES)

    def __init__(self, **fields):
        self.__dict__.update(fields)


def in_columns(text):
    if compile_query(QuerySpec(text, known=frozenset(NAMES))).form is None:
        raise QueryError("it has no columns.")


def test_every_form_of_python_has_an_example_here():
    templates = {"TemplateStr", "Interpolation"}  # of Python 3.14, like f-strings
    assert {kind for kind in ast.expr.__subclasses__() if kind.__name__ not in templates} == set(FORMS)


@pytest.mark.parametrize(("admitted", "read"), [(RUNS, of_run), (PAGES, of_page), (COLUMNS, in_columns)])
@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.__name__)
def test_a_reader_takes_the_forms_that_it_names_and_no_other(form, admitted, read):
    if form in admitted:
        read(FORMS[form])
    else:
        with pytest.raises(QueryError):
            read(FORMS[form])


@pytest.mark.parametrize(("read", "refused"), [
    (of_run, {ast.MatMult, ast.LShift, ast.RShift, ast.BitOr, ast.BitAnd, ast.BitXor, ast.Invert}),
    (of_page, {ast.MatMult, ast.LShift, ast.RShift, ast.BitOr, ast.BitAnd, ast.BitXor, ast.Invert, ast.Not, ast.Is,
               ast.IsNot, ast.In, ast.NotIn}),
    (in_columns, {ast.MatMult, ast.LShift, ast.RShift, ast.Invert, ast.Is, ast.IsNot}),
])  # fmt: skip
@pytest.mark.parametrize("op", OPERATORS, ids=lambda op: op.__name__)
def test_a_reader_takes_the_operators_that_it_names_and_no_other(op, read, refused):
    name = ast.Name("a", ast.Load())
    node = {ast.operator: ast.BinOp(name, op(), name), ast.unaryop: ast.UnaryOp(op(), name),
            ast.cmpop: ast.Compare(name, [op()], [name])}[op.__base__]  # fmt: skip
    if op in refused:
        with pytest.raises(QueryError):
            read(ast.unparse(node))
    else:
        read(ast.unparse(node))


@pytest.mark.parametrize("target", ["math.pi", "e.a", "e['a']", "e.a.b", "e.a[0]", "collections.abc"])
def test_a_loop_that_assigns_to_anything_but_a_name_is_refused(target):
    for query in ("lambda e: [e.a for {} in (1, 2)]", "(e.a for e in events for {} in (1, 2))",
                  "sum(e.a for e in events for {} in (1, 2))", "max([1 for {} in (1, 2)]) + sum(e.a for e in events)"):
        with pytest.raises(QueryError):
            compile_query(QuerySpec(query.format(target)))


SIGNS = ("+", "-", "*", "/", "//", "%", "**", "<", "<=", ">", ">=", "==", "!=")


def arithmetic(random, depth):
    if not depth or random.random() < 0.2:
        return random.choice(["a", "b", "0.5", "2.0", "3.0"])
    left, right = arithmetic(random, depth - 1), arithmetic(random, depth - 1)
    return random.choice([
        f"({left} {random.choice(SIGNS)} {right})", f"(-{left})", f"abs({left})",
        f"max({left}, {right})", f"sqrt({left})", f"({left} < {right} <= {left})", f"log({left})",
    ])  # fmt: skip


@pytest.mark.parametrize("read", [of_run, of_page])
def test_random_arithmetic_gives_what_python_gives(read):
    random, same = Random(5), 0
    for _ in range(300):
        text = arithmetic(random, 3)
        try:
            expected = eval(text, {"abs": abs, "max": max, "sqrt": math.sqrt, "log": math.log, **NAMES})
        except (ArithmeticError, ValueError, TypeError):
            continue
        if "a" in text.replace("abs", "").replace("max", "") and not isinstance(expected, complex):
            found = read(text)
            assert found is UNKNOWN or found == expected or found != found, text
            same += found is not UNKNOWN
    assert same > 60
