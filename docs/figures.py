"""Copies measured figures from the benchmark pages to the texts that quote them.

``make docs`` calls it. quotations.toml lists the quotations: the words of a page around its figures, and the cells of
the tables that they come from.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
MAX_FIGURE_CHARACTERS = 40


class Row(NamedTuple):
    """A row of a table: the headings above it, and its cells by column name."""

    headings: tuple[str, ...]
    cells: dict[str, str]


class Quotation(NamedTuple):
    """Figures that a page quotes, with the words around them."""

    page: Path
    words: str
    cells: list[list[str]]

    def renewed(self, text: str) -> str:
        """Return ``text`` with these figures as last measured. Raises LookupError."""
        parts = [r"\s+".join(map(re.escape, part.split(" "))) for part in self.words.split("{}")]
        pattern = f"(.{{1,{MAX_FIGURE_CHARACTERS}}}?)".join(f"({part})" for part in parts)
        found = [*re.finditer(pattern, text, re.DOTALL)]
        if len(found) != 1:
            raise LookupError(f"{self.page.name} has {self.words!r} {len(found)} times; a quotation needs it once.")
        pieces = [*found[0].groups()]
        for place, measured in enumerate(self.figures()):
            if " ".join(pieces[2 * place + 1].split()) != measured:  # a line may end within it
                pieces[2 * place + 1] = measured
        return text[: found[0].start()] + "".join(pieces) + text[found[0].end() :]

    def figures(self) -> list[str]:
        """Return its figures as last measured. Raises LookupError."""
        return [figure(*cell) for cell in self.cells]


def quotations() -> list[Quotation]:
    """Return the quotations of all pages."""
    listed = tomllib.loads((DOCS / "quotations.toml").read_text())["quotation"]
    return [Quotation(ROOT / one["page"], one["words"], one["cells"]) for one in listed]


def renewed() -> dict[Path, str]:
    """Return the pages that quote figures, as last measured. Raises LookupError."""
    pages: dict[Path, str] = {}
    for one in quotations():
        pages[one.page] = one.renewed(pages.get(one.page) or one.page.read_text())
    return pages


def figure(where: str, row: str, column: str, *how: str) -> str:
    """Return a figure of a cell, the first by default. Raises LookupError.

    Rows of several tables may begin so if they have the same in this column.
    """
    page, _, section = where.partition("#")
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
    for path, new in renewed().items():
        if path.read_text() != new:
            path.write_text(new)
