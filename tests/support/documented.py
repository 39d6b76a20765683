"""The programs that README and the pages of docs/ show.

A fenced block is run by tests/docs/test_documented.py unless a comment stands right before it in the page's source:
``<!-- not run: needs a GPU -->``. Blocks marked ``text`` are output, not programs.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
RUN = {"python", "sh", "yaml", "sql"}
"""The languages that are run."""
SHOWN = {"text", "{eval-rst}", "{toctree}"}
"""What is no program: output, and directives of the site."""

_BLOCK = re.compile(
    r"(?:^ *<!-- not run: (?P<reason>[^>\n]+) -->\n\n?)?"
    r"^(?P<indent> *)```(?P<language>[^\n]*)\n(?P<text>.*?)^(?P=indent)```$",
    re.DOTALL | re.MULTILINE,
)


class Block(NamedTuple):
    """A fenced block of a page; with a ``reason`` it is not run."""

    page: str
    line: int
    language: str
    text: str
    reason: str

    @property
    def place(self) -> str:
        """The page and the line of the first line of the block."""
        return f"{self.page}:{self.line}"


def blocks(path: Path) -> list[Block]:
    """Return the blocks of a page, in order."""
    source = path.read_text()
    found = []
    for match in _BLOCK.finditer(source):
        line = source.count("\n", 0, match.start("text")) + 1
        indent = len(match["indent"])
        text = "\n".join(row[indent:] for row in match["text"].split("\n"))
        page = str(path.relative_to(ROOT))
        found.append(Block(page, line, match["language"], text, match["reason"] or ""))
    return found


def programs(path: Path) -> list[Block]:
    """Return the blocks of a page that are run."""
    return [block for block in blocks(path) if block.language in RUN and not block.reason]
