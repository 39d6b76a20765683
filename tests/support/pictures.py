"""Pictures of all marks, with the numbers and texts of a hostile job."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from looptap.visualizers.drawing.picture import (
    Axis,
    Band,
    Bars,
    Grid,
    Images,
    Line,
    Picture,
    Pie,
    Points,
    Table,
    Text,
    VerticalLine,
)

HOSTILE = (
    "", "loss", "$", "$$", "$x^2$", "$\\frac{1}{", "\\$ 5 $", "a_b^c", "_private", "<script>alert(1)</script>",
    "<b>bold</b>", "&lt;", "%{x}", "{name}", "[bold red]x[/]", "[/nothing]", "\x1b[31mred\x1b[0m", "\x1b]0;title\x07",
    "\x00\x07\x08", "two\nlines\r\n", "tab\tbed", "\u202egnimoc", "\ud800", "e" + "\u0301" * 50, "字符", "🙂👩‍👩‍👧",
    "x" * 5000, "word " * 500, "\u2028", "\x9b31m", "https://example.com", "nan", "2024-01-01", "1e5", " ",
)  # fmt: skip

ODD = (
    0.0, -0.0, 1.0, -1.0, float("nan"), float("inf"), -float("inf"), 1.7e308, -1.7e308, 5e-324, 1e-300, 1e30, 1e12,
    1.7e9, -62135596801.0, 0.1, 1 + 1e-15, 255.0,
)  # fmt: skip

texts = st.one_of(st.sampled_from(HOSTILE), st.text(max_size=20))
numbers = st.one_of(st.sampled_from(ODD), st.floats(width=64))
colors = st.one_of(st.sampled_from(("", "#1f77b4", "red", "#xyz", "url(evil)")), texts)
sides = st.sampled_from(("left", "right"))
ends_of_x = st.sampled_from(("bottom", "top"))
opacities = st.sampled_from((1.0, 0.3, 0.0))


def columns(count: int) -> st.SearchStrategy[np.ndarray]:
    return st.lists(numbers, min_size=count, max_size=count).map(np.array)


@st.composite
def lines(draw: st.DrawFn) -> Line:
    n = draw(st.integers(0, 6))
    deep, filled = draw(st.booleans()), draw(st.one_of(st.none(), numbers))
    notes = draw(st.lists(st.tuples(st.integers(-1, n + 1), texts), max_size=3))
    return Line(
        draw(columns(n)), draw(columns(n)), draw(columns(n)) if deep else None, draw(texts), draw(colors),
        draw(st.sampled_from(("solid", "dash", "dot", "dashdot"))), draw(opacities), filled, tuple(notes), draw(sides),
        draw(ends_of_x),
    )  # fmt: skip


@st.composite
def bands(draw: st.DrawFn) -> Band:
    n = draw(st.integers(0, 6))
    return Band(*(draw(columns(n)) for _ in range(3)), draw(texts), draw(colors), draw(opacities), draw(sides),
                draw(ends_of_x))  # fmt: skip


@st.composite
def points(draw: st.DrawFn) -> Points:
    n = draw(st.integers(0, 6))
    x, y, z, values = (draw(columns(n)) for _ in range(4))
    deep, colored = draw(st.booleans()), draw(st.booleans())
    z, values = z if deep else None, values if colored else None
    return Points(x, y, z, draw(texts), draw(colors), values, side=draw(sides), across=draw(ends_of_x))


@st.composite
def bars(draw: st.DrawFn) -> Bars:
    n = draw(st.integers(0, 5))
    if draw(st.booleans()):
        return Bars(draw(columns(n)), edges=draw(columns(n + 1)), name=draw(texts), across=draw(ends_of_x))
    labels = draw(st.lists(texts, max_size=6))
    return Bars(draw(columns(n)), tuple(labels), name=draw(texts), color=draw(colors), side=draw(sides))


@st.composite
def grids(draw: st.DrawFn) -> Grid:
    rows, columns_ = draw(st.integers(0, 4)), draw(st.integers(0, 4))
    cells = draw(columns(rows * columns_)).reshape(rows, columns_)
    names = st.lists(texts, max_size=5).map(tuple)
    return Grid(cells, draw(names), draw(names), draw(st.booleans()), draw(texts))


@st.composite
def images(draw: st.DrawFn) -> Images:
    shape = st.tuples(st.integers(0, 5), st.integers(0, 5), st.sampled_from((3, 4)))
    each = st.lists(shape.flatmap(lambda s: hnp.arrays(np.uint8, s, fill=st.just(7))), max_size=4)
    return Images(tuple(draw(each)), tuple(draw(st.lists(texts, max_size=5))), draw(st.integers(0, 3)))


@st.composite
def pies(draw: st.DrawFn) -> Pie:
    n = draw(st.integers(0, 5))
    return Pie(draw(columns(n)), tuple(draw(st.lists(texts, max_size=6))))


rows = st.lists(texts, max_size=4).map(tuple)
tables = st.builds(Table, rows, st.lists(rows, max_size=4).map(tuple))
lines_of_text = st.builds(Text, st.lists(texts, max_size=5).map(tuple))
marks = st.one_of(lines(), bands(), points(), bars(), grids(), images(), pies(), tables, lines_of_text)
ends = st.one_of(st.none(), numbers)
named_places = st.lists(st.tuples(numbers, texts), max_size=3).map(tuple)
axes = st.builds(Axis, texts, ends, ends, st.booleans(), st.booleans(), st.one_of(st.just(()), named_places))

pictures = st.builds(
    Picture,
    st.lists(marks, max_size=4).map(tuple),
    texts,
    axes,
    axes,
    st.one_of(st.none(), axes),
    st.one_of(st.none(), axes),
    st.lists(st.builds(VerticalLine, numbers, texts), max_size=3).map(tuple),
    st.lists(texts, max_size=5).map(tuple),
    texts,
    st.one_of(st.none(), st.tuples(st.integers(0, 5), st.integers(0, 9))),
    top=st.one_of(st.none(), axes),
)
"""Any picture: several marks of any sort, any axes, rules, badges."""
