"""Scatters in the plane and in space: of arrays (n, 2 or 3), or of pairs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from typing import Any, ClassVar

import numpy as np

from looptap.visualizers.charts.axes import MAX_LEADING_COLUMNS
from looptap.visualizers.charts.base import APPEND, FRAME, POSITION, Mode
from looptap.visualizers.charts.kinds.curves import fading
from looptap.visualizers.charts.kinds.lines import LineChart
from looptap.visualizers.charts.reading import schemas
from looptap.visualizers.charts.reading.pixels import image_pixels
from looptap.visualizers.charts.reading.points import LABELS, Scattered, paired, scattered
from looptap.visualizers.charts.series import Series
from looptap.visualizers.data.colors import COLORS, muted
from looptap.visualizers.data.numbers import Floats, describe, floats, rows_as_array
from looptap.visualizers.drawing.picture import Axis, Mark, Points

MAX_DRAWN_POINTS = 5_000
"""The most points drawn of a stream, evenly chosen."""
MAX_CLASSES = 20
"""The most classes with a name and a colour each."""
MAX_SAMPLES = 500
"""The most points whose samples are shown at the pointer."""
_MAX_SAMPLE_PIXELS = 48  # of a side
_MIN_PROJECTED_POINTS = 4
_TRAIL_FRAMES, _MAX_TEXTS = 3, 1000


class ScatterChart(LineChart):
    """Points in the plane; a third number colours them."""

    kind: ClassVar[str] = "scatter"
    mode: ClassVar[Mode] = FRAME
    width: ClassVar[int] = 2

    def frame(self, series: Series, value: Any) -> Scattered:
        """Return the points as (n, 2) or (n, 3), with their labels."""
        both = paired(value)
        found = scattered(value, series.choice.schema) or Scattered(floats(value) if both is None else both.T)
        points = found.points
        if points.ndim != 2 or points.shape[1] not in (self.width, 3):
            wanted = "(n, 3)" if self.width == 3 else "(n, 2) or (n, 3)"
            raise TypeError(f"expected an array {wanted}, got {describe(value)}")
        if len(found.images) > MAX_SAMPLES:
            series.remark("samples", f"more than {MAX_SAMPLES} points have no pictures")
            found = found._replace(images=())
        return found._replace(images=tuple(map(_thumbnail, found.images)))

    def numbers(self, series: Series, values: Sequence[Any]) -> Floats:
        """Return the parts of the values; texts of a label count their classes."""
        place = series.data["names"].index(self.label(series)) if self.label(series) else None
        if place is None or not any(isinstance(part, str) for part in _parts_of(values[0])):
            return super().numbers(series, values)
        classes: dict[str, int] = series.data.setdefault("classes", {})
        plain = []
        for value in values:
            parts = list(_parts_of(value))
            if len(parts) == len(series.data["names"]) and isinstance(parts[place], str):
                parts[place] = classes.setdefault(parts[place], len(classes)) if len(classes) < _MAX_TEXTS else None
            plain.append(tuple(parts))
        return rows_as_array(plain, len(series.data["names"]))

    def label(self, series: Series) -> str:
        """Return the name of the part that says of which class a point is; or ""."""
        names: list[str] = series.data["names"]
        return next((name for name in names if name == series.by or (not series.by and name.lower() in LABELS)), "")

    def sketch(self, series: Series) -> Iterator[Mark]:
        """Yield the current points, and fainter ones of earlier frames."""
        if "ring" in series.data:
            parts = self._parts(series)
            codes = parts[2] if len(parts) > 2 and self.label(series) else np.empty(0)
            labels = _names_of(codes, list(series.data.get("classes", ())))
            plain = [] if labels else [self._dots(series, parts, series.name, 0.8)]
            yield from self._classes(series, parts[:2], labels) if labels else plain
            return
        shown: list[Scattered] = series.frames.shown[-_TRAIL_FRAMES:]
        for age, found in zip(reversed(range(len(shown))), shown, strict=True):
            if not found.labels:
                dots = self._dots(series, found.points.T, "" if age else series.name, 0.5 * fading(age) if age else 0.8)
                yield dots if age else replace(dots, images=found.images)
            elif not age:
                yield from self._classes(series, found.points.T, found.labels, found.images)

    def _classes(
        self, series: Series, parts: Floats, labels: Sequence[str], images: Sequence[Any] = ()
    ) -> Iterator[Points]:
        """Yield the points of each class in its colour; of too many, all by number."""
        names = sorted(set(labels), key=_in_order)
        if len(names) > MAX_CLASSES:
            series.remarks["classes"] = f"{len(names)} classes, which are colours without names"
            third = np.array([names.index(label) for label in labels], np.float64)
            yield self._dots(series, np.vstack([parts[: self.width], third]), series.name, 0.8)
            return
        every = np.array(labels)
        for place, name in enumerate(names):
            mine = (every == name) & np.isfinite(parts).all(axis=0)
            dots = self._dots(series, parts[:, mine], name, 0.8)
            samples = tuple(images[place] for place in np.flatnonzero(mine).tolist()) if len(images) else ()
            yield replace(
                dots, color=muted(COLORS[place % len(COLORS)], place // len(COLORS)), values=None, images=samples
            )

    def x_part(self, series: Series) -> int | None:
        """Return the first part, unless another counts."""
        names = series.data["names"]
        return (schemas.x_of(names) or 0) if len(names) > 1 else None

    def units(self, series: Series) -> tuple[str, str]:
        """Return positions, or of points that come one by one what x counts."""
        return super().units(series) if series.choice.mode == APPEND else (POSITION, POSITION)

    def _parts(self, series: Series) -> Floats:
        """Return the columns to draw: x, y, and the third for colour or height."""
        columns, names = series.data["ring"].columns, series.data["names"]
        parts = columns[MAX_LEADING_COLUMNS:]
        if self.width == 3:
            return np.asarray(parts[:3])
        axis = self.over(series, columns)
        rest = [i for i in range(len(names)) if i != axis.part]
        chosen = [i for i in rest if names[i] in series.y] or [i for i in rest if names[i] != series.by] or rest
        third = [names.index(series.by)] if series.by in names else chosen[1:2]
        return np.vstack([axis.x, parts[chosen[0]], *(parts[i] for i in third)])

    def _dots(self, series: Series, parts: Floats, name: str, opacity: float) -> Points:
        """Return the mark of columns (2 or 3, n)."""
        parts = parts[:, np.isfinite(parts[:2]).all(axis=0)]
        if parts.shape[1] > MAX_DRAWN_POINTS:
            series.remarks["drawn"] = f"{MAX_DRAWN_POINTS:,} of {parts.shape[1]:,} points are drawn"
            parts = parts[:, np.linspace(0, parts.shape[1] - 1, MAX_DRAWN_POINTS).astype(np.intp)]
        third = np.where(np.isfinite(parts[2]), parts[2], np.nan) if len(parts) > 2 else None
        z, values = (third, None) if self.width == 3 else (None, third)
        return Points(parts[0], parts[1], z, name, series.color, values, opacity, series.side)

    def axes(self) -> tuple[Axis, Axis, Axis | None]:
        """Return the axes, named after the parts where they have names."""
        first = next(iter(self.own), None)
        if first is not None and "ring" in first.data and self.width == 2:
            x, y, _ = super().axes()
            names = [name for name in first.data["names"] if name not in (x.title, self.label(first))]
            return x, replace(y, title=y.title or next(iter(names), "")), None
        labelled = first is not None and any(found.labels for found in first.frames.shown[-1:])
        named = first is not None and len(first.choice.schema) >= self.width and not labelled
        titles = first.choice.schema if first is not None and named else ("x", "y", "z")
        return Axis(titles[0]), Axis(titles[1]), Axis(titles[2]) if self.width == 3 else None


def _thumbnail(image: Any) -> Any:
    found, _ = image_pixels(image)
    step = -(-max(found.shape[:2]) // _MAX_SAMPLE_PIXELS)
    return found[::step, ::step]


def _parts_of(value: Any) -> Sequence[Any]:
    return tuple(value.values()) if isinstance(value, Mapping) else value if isinstance(value, tuple | list) else ()


def _names_of(codes: Floats, texts: Sequence[str]) -> list[str]:
    """Return the class of each point; [] if its numbers are no classes."""
    if not len(codes) or not (np.isfinite(codes) & (codes == np.floor(codes))).all():
        return []
    if texts:
        return [texts[int(code)] for code in codes]
    return [f"{code:.0f}" for code in codes] if len(np.unique(codes)) <= MAX_CLASSES else []


def _in_order(name: str) -> tuple[float, str]:
    return (float(name), "") if name.lstrip("-").isdigit() else (np.inf, name)


class ScatterChart3D(ScatterChart):
    """Points in space."""

    kind: ClassVar[str] = "scatter3d"
    family: ClassVar[str] = "xyz"
    width: ClassVar[int] = 3

    def parts(self, series: Series, value: Any) -> tuple[list[str], str]:
        """Return the names of the three parts. Raises TypeError if there are not three."""
        names, form = super().parts(series, value)
        if len(names) < 3:
            raise TypeError(f"expected (number, number, number), got {describe(value)}")
        return names, form

    def place(self, series: Series, what: str, at: float) -> float | None:
        """Return None: no axis counts events."""
        return None


class TsneChart(ScatterChart):
    """Points of many dimensions in two, by t-SNE in this process."""

    kind: ClassVar[str] = "tsne"
    module: ClassVar[str] = "sklearn.manifold"
    package: ClassVar[str] = "scikit-learn"

    def frame(self, series: Series, value: Any) -> Scattered:
        """Return the points with their labels, projected to two dimensions."""
        if isinstance(value, Mapping):
            first = next(iter(value), None)
            return super().frame(
                series, {name: self._flat(part) if name == first else part for name, part in value.items()}
            )
        if isinstance(value, tuple) and value:
            return super().frame(series, (self._flat(value[0]), *value[1:]))
        return super().frame(series, self._flat(value))

    def _flat(self, points: Any) -> Floats:
        found = np.nan_to_num(floats(points))
        if found.ndim != 2 or len(found) < _MIN_PROJECTED_POINTS:
            raise TypeError(f"expected an array (n, dimensions) of some points, got {describe(points)}")
        try:
            module = import_module(self.module)
        except ImportError:
            raise TypeError(
                f"chart={self.kind!r} needs {self.package}, which is not installed here: pip install {self.package}. "
                "embedding(features) without dimensions= draws the principal components."
            ) from None
        return np.asarray(self.projected(module, found), np.float64)

    def projected(self, module: Any, points: Floats) -> Any:
        """Return the points (n, 2), the same each time."""
        near = min(30.0, (len(points) - 1) / 3)
        return module.TSNE(2, init="pca", random_state=0, perplexity=near).fit_transform(points)


class UmapChart(TsneChart):
    """Points of many dimensions in two, by UMAP in this process."""

    kind: ClassVar[str] = "umap"
    module: ClassVar[str] = "umap"
    package: ClassVar[str] = "umap-learn"

    def projected(self, module: Any, points: Floats) -> Any:
        """Return the points (n, 2), the same each time."""
        near = min(15, len(points) - 1)
        return module.UMAP(n_components=2, n_neighbors=near, init="pca", random_state=0).fit_transform(points)
