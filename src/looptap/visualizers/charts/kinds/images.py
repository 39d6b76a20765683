"""Images: one, or many side by side with their captions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from looptap.visualizers.charts.base import FRAME, Mode
from looptap.visualizers.charts.chart import Chart
from looptap.visualizers.charts.reading.labels import ranked_by
from looptap.visualizers.charts.reading.pixels import Pixels, pictures
from looptap.visualizers.charts.series import Series
from looptap.visualizers.drawing.picture import Axis, Mark
from looptap.visualizers.drawing.picture import Images as ImagesMark

MAX_IMAGES = 64
"""Images of a value that are shown."""


class ImageChart(Chart):
    """An image: an array, a tensor, PIL, matplotlib, or as received from a job."""

    kind: ClassVar[str] = "image"
    family: ClassVar[str] = "img"
    mode: ClassVar[Mode] = FRAME
    many: ClassVar[bool] = False

    def frame(self, series: Series, value: Any) -> list[tuple[Pixels, str]]:
        """Return the pixels of each image with its caption."""
        if by := ranked_by(series.stream.text):
            value = _with_name(value, by)
        found = pictures(value, many=self.many, most=MAX_IMAGES, names=series.choice.schema)
        if found.total > MAX_IMAGES:
            series.remarks["images"] = f"the first {MAX_IMAGES} of {found.total:,} images are shown"
        for about, remark in (("scaled", found.remark), ("nan", found.missing)):
            series.remark(about, remark)
        return found.images

    def sketch(self, series: Series) -> Iterator[Mark]:
        """Yield the images that are shown."""
        several = len(self.series) > 1
        for shown in series.frames.shown[-1:]:
            captions = tuple(f"{series.name} {caption}".strip() if several else caption for _, caption in shown)
            yield ImagesMark(tuple(pixels for pixels, _ in shown), captions if any(captions) else ())

    def axes(self) -> tuple[Axis, Axis, Axis | None]:
        """Return axes without titles."""
        return Axis(), Axis(), None


def _with_name(value: Any, by: str) -> Any:
    """Return rows in which what they are ranked by has its own name."""
    if not isinstance(value, list):
        return value
    found = []
    for row in value:
        ranked = isinstance(row, Mapping) and by not in row
        found.append({by if name == "by" else name: part for name, part in row.items()} if ranked else row)
    return found


class ImagesChart(ImageChart):
    """Images side by side: (n, height, width[, channels]) or (image, caption) pairs."""

    kind: ClassVar[str] = "images"
    many: ClassVar[bool] = True
