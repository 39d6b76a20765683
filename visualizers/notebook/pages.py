"""`Pages`: the browser pages that show a chart, and whether they can take another frame.

Each page acknowledges a frame once it has drawn it. A page that is slow therefore gets fewer and larger frames, and
never falls behind; one that says nothing for a while is gone, until it is heard again.
"""

from __future__ import annotations

from dataclasses import dataclass

IN_FLIGHT = 5
"""Frames that a page may owe: some travel, one is drawn, and not each one is acknowledged."""
GONE = 3.0
"""Seconds after which a page that owes frames counts as gone."""
_MOST = 16  # pages that are remembered


@dataclass
class _Page:
    drawn: int
    heard: float
    hidden: bool = False


class Pages:
    """Who looks at one chart. Not thread-safe: the chart's lock is held around it."""

    def __init__(self) -> None:
        self._pages: dict[str, _Page] = {}

    def heard(self, page: str, frame: int, now: float, hidden: bool = False) -> None:
        """``page`` has drawn ``frame``, or is there and ready for all frames after it."""
        before = self._pages.pop(page, None)
        if before is None and len(self._pages) >= _MOST:
            del self._pages[next(iter(self._pages))]
        self._pages[page] = _Page(max(frame, before.drawn if before else 0), now, hidden)

    def sent(self, frame: int, now: float) -> None:
        """``frame`` was sent: whoever owed nothing owes it from now on."""
        for page in self._pages.values():
            if page.drawn >= frame - 1:
                page.heard = now

    def left(self, page: str) -> None:
        """``page`` shows the chart no more."""
        self._pages.pop(page, None)

    def there(self, frame: int, now: float, *, deaf: bool = False) -> bool:
        """Whether any page has drawn ``frame``, or owes it for a short time only; ``deaf``: none could tell by now."""
        patience = 0.5 if deaf else GONE
        self._pages = {n: p for n, p in self._pages.items() if p.drawn >= frame or now - p.heard < patience}
        return bool(self._pages)

    def ready(self, frame: int) -> bool:
        """Whether all pages have drawn up to some frames before ``frame``, the newest one."""
        return all(frame - page.drawn < IN_FLIGHT for page in self._pages.values())

    @property
    def hidden(self) -> bool:
        """Whether nobody sees the chart: it is scrolled away or behind another tab, on every page."""
        return all(page.hidden for page in self._pages.values())
