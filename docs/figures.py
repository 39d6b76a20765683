"""Copies measured figures from the benchmark pages to the texts that quote them.

``make docs`` calls it. A quotation names the page, a row by the beginning of its first cell, and a column; the figure
stands between two comments, which no reader sees:

    <!-- from benchmarks.md: emit with 4 observables, no client attached | looptap -->163 ns<!-- -->

In a table, write ``\\|`` for the bar, which would end the cell.

``selection-benchmarks.md#easy-heavy`` names the heading above the table, where other tables have such a row too. Behind
the column, ``[2]`` takes the second figure of a cell ("1.05 ×; 1.36 ×"), ``[interval]`` what stands in its parentheses,
``[number]`` the first number of a text, and ``[unsigned]`` leaves out the sign, where the text says "fewer".
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.glob("*.md"))]
_QUOTATION = re.compile(
    r"(?P<mark><!-- from (?P<page>[\w-]+\.md)(?:#(?P<section>[\w-]+))?: (?P<row>[^|\\>]+?) \\?\| (?P<column>[^|>]+?)"
    r"(?: \[(?P<how>[\w, ]+)\])? -->)(?P<figure>.*?)(?P<end><!-- -->)",
    re.DOTALL,
)


class Row(NamedTuple):
    """A row of a table: the headings above it, and its cells by column name."""

    headings: tuple[str, ...]
    cells: dict[str, str]


def quotations(text: str) -> list[str]:
    """Return the figures that a page quotes, as they stand in it."""
    return [match["figure"] for match in _QUOTATION.finditer(text)]


def renewed(text: str) -> str:
    """Return a page with its quotations as last measured. Raises LookupError."""
    return _QUOTATION.sub(lambda match: match["mark"] + _found(match) + match["end"], text)


def _found(match: re.Match[str]) -> str:
    how = tuple((match["how"] or "").split(", "))
    return figure(match["page"], match["row"], match["column"], match["section"] or "", how)


def figure(page: str, row: str, column: str, section: str = "", how: tuple[str, ...] = ()) -> str:
    """Return a figure of a cell, the first by default. Raises LookupError.

    Rows of several tables may begin so if they have the same in this column.
    """
    where = f"{page}#{section}" if section else page
    rows = [one for one in _rows((DOCS / page).read_text()) if not section or section in one.headings]
    begin = [one.cells for one in rows if next(iter(one.cells.values())).startswith(row)]
    found = [cells for cells in begin if next(iter(cells.values())) == row] or begin
    values = {cells[column] for cells in found if cells.get(column)}
    if found and not values:
        raise LookupError(f"The row {row!r} of {where} has no {column!r}.")
    if len(values) != 1:
        raise LookupError(f"{len(found)} rows of {where} begin with {row!r}; a quotation needs one.")
    part = values.pop().split("; ")[int(next((one for one in how if one.isdigit()), "1")) - 1]
    value = part.partition(" (")[2].partition(")")[0] if "interval" in how else re.split(r", | \(", part)[0]
    if "number" in how:
        value = re.findall(r"[\d.,]+(?: ?%)?", value)[0]
    return value.lstrip("+−-") if "unsigned" in how else value


def _rows(text: str) -> Iterator[Row]:
    """Yield the rows of all tables."""
    head: list[str] = []
    headings: dict[int, str] = {}
    for line in text.splitlines():
        if line.startswith("#"):
            marks, _, title = line.partition(" ")
            headings = {level: slug for level, slug in headings.items() if level < len(marks)}
            headings[len(marks)] = _slug(title)
        cells = [cell.strip() for cell in line.strip().strip("|").split(" | ")] if line.startswith("|") else []
        if not cells or not head:
            head = cells
        elif set(line) - set("|-: "):
            yield Row(tuple(headings.values()), dict(zip(head, cells, strict=False)))


def _slug(title: str) -> str:
    """Return a heading without what it counts, as in a link.

    >>> _slug("Many kinds of training, kept runs: 384 runs")
    'many-kinds-of-training-kept-runs'
    """
    return "-".join(re.findall(r"\w+", title.partition(":")[0].lower()))


if __name__ == "__main__":
    for path in PAGES:
        text = path.read_text()
        if (new := renewed(text)) != text:
            path.write_text(new)
