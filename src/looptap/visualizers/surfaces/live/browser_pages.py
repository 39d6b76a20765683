"""`BrowserPages`: the browser pages of a chart, and if they can take a frame.

Each page acknowledges the frames for which it is asked to, once it has drawn them. A slow page therefore gets fewer and
larger frames, and never falls behind; one that is silent for a while counts as gone until it is heard again. While the
acknowledgements come at once they are requested less often. They cost the kernel more than frames do, and a browser
that has just sent something confirms the next it receives up to 40 ms late, while the server holds frames back.
"""

from __future__ import annotations

from dataclasses import dataclass

MIN_ACKNOWLEDGE_FRAMES, MAX_ACKNOWLEDGE_FRAMES = 2, 32
"""The number of frames between two that are to be acknowledged."""
PROMPT_REPLY_SECONDS = 0.15
"""An acknowledgement within this time counts as immediate."""
ACKNOWLEDGE_INTERVAL_SECONDS = 0.5
"""After this time the next frame is to be acknowledged, whatever their number."""
GONE_AFTER_SECONDS = 3.0
"""After this time a page that owes frames counts as gone."""
_MAX_PAGES = 16  # pages that are remembered


@dataclass
class _Page:
    drawn: int
    heard: float
    hidden: bool = False


class BrowserPages:
    """The pages that show one chart. Not thread-safe: the caller holds a lock."""

    def __init__(self) -> None:
        self._pages: dict[str, _Page] = {}
        self.stride = MIN_ACKNOWLEDGE_FRAMES
        self._asked, self._asked_at = 0, 0.0

    def heard(self, page: str, frame: int, now: float, hidden: bool = False) -> None:
        """Note that ``page`` has drawn ``frame``, or is ready for all frames after it."""
        before = self._pages.pop(page, None)
        if before is None and len(self._pages) >= _MAX_PAGES:
            del self._pages[next(iter(self._pages))]
        self._pages[page] = _Page(max(frame, before.drawn if before else 0), now, hidden)
        if before is not None and before.drawn < self._asked <= frame:
            prompt = now - self._asked_at < PROMPT_REPLY_SECONDS
            self.stride = (
                min(MAX_ACKNOWLEDGE_FRAMES, 2 * self.stride)
                if prompt
                else max(MIN_ACKNOWLEDGE_FRAMES, self.stride // 2)
            )

    def sent(self, frame: int, now: float) -> bool:
        """Note that ``frame`` was sent; return whether a page must acknowledge it."""
        for page in self._pages.values():
            if page.drawn >= frame - 1:
                page.heard = now
        if frame - self._asked < self.stride and now - self._asked_at < ACKNOWLEDGE_INTERVAL_SECONDS:
            return False
        self._asked, self._asked_at = frame, now
        return True

    def left(self, page: str) -> None:
        """Note that ``page`` has stopped showing the chart."""
        self._pages.pop(page, None)

    def there(self, frame: int, now: float, *, deaf: bool = False) -> bool:
        """Return whether a page has drawn ``frame``, or has owed it only briefly."""
        patience = 0.5 if deaf else GONE_AFTER_SECONDS
        self._pages = {n: p for n, p in self._pages.items() if p.drawn >= frame or now - p.heard < patience}
        return bool(self._pages)

    def ready(self, frame: int) -> bool:
        """Return whether no page is more than some frames behind ``frame``, the newest."""
        return all(page.drawn >= self._asked or frame - page.drawn <= 2 * self.stride for page in self._pages.values())

    @property
    def hidden(self) -> bool:
        """True if no page shows the chart: scrolled away or behind another tab."""
        return all(page.hidden for page in self._pages.values())
