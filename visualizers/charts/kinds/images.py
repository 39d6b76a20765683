"""Images: one, or many side by side with their captions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

from looptap.visualizers.charts.base import FRAME, Mode
from looptap.visualizers.charts.chart import Chart
from looptap.visualizers.charts.pixels import Pixels, pictures
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
        found = pictures(value, many=self.many, most=MAX_IMAGES, names=series.choice.schema)
        if found.total > MAX_IMAGES:
            series.remarks["images"] = f"the first {MAX_IMAGES} of {found.total:,} images are shown"
        series.remarks.pop("scaled", None)
        if found.remark:
            series.remarks["scaled"] = found.remark
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


class ImagesChart(ImageChart):
    """Images side by side: (n, height, width[, channels]) or (image, caption) pairs."""

    kind: ClassVar[str] = "images"
    many: ClassVar[bool] = True
