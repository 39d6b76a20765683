"""`sheet_of`: the pictures in a value with their captions, several side by side."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from looptap.visualizers.charts.reading.forms import is_numeric_array, is_picture, named_parts
from looptap.visualizers.charts.reading.image_axes import CHANNEL_COUNTS, axes_of, channels_last, stacked
from looptap.visualizers.charts.reading.points import LABELS
from looptap.visualizers.data.numbers import as_array, floats, is_array, is_number
from looptap.visualizers.data.words import shown_text

PREDICTIONS = ("prediction", "predicted", "pred", "preds", "output", "outputs", "guess", "argmax", "logits", "scores")
"""Names of what a model made of a sample: in captions they come right after the label."""
_MAX_CAPTION_CHARACTERS, _MAX_PART_CHARACTERS, _MAX_CLASSES = 200, 24, 1000

Row: TypeAlias = list[tuple[str, Any]]
"""A sample: its parts with their names, "" for a part without one."""


class Shot(NamedTuple):
    """The pictures of one sample, side by side, and what stands below them."""

    pictures: tuple[Any, ...]
    caption: str


class Sheet(NamedTuple):
    """Samples with as many pictures each; how many channels were averaged away."""

    shots: list[Shot]
    averaged: int = 0


def is_image(value: Any) -> bool:
    """Return whether a value is one picture: an array, PIL, or matplotlib."""
    return axes_of(value) in ("hw", "chw", "hwc") or is_picture(value)


def sheet_of(value: Any, names: Sequence[str] = (), many: bool = True) -> Sheet | None:
    """Return the pictures in a value, or None: an array, rows, a dict, or a batch.

    ``names`` are those of a tuple's parts. ``many``: an array of three axes is a batch of gray pictures.
    """
    if is_array(value):
        return _of_array(value, many)
    rows = list(map(_row, value)) if isinstance(value, list) else _rows(value, names)
    places = [{place for place, (_, part) in enumerate(row) if is_image(part)} for row in rows]
    images = sorted(set.intersection(*places)) if places else []
    return Sheet([_shot(row, images) for row in rows]) if images else None


def _of_array(value: Any, many: bool) -> Sheet | None:
    value = stacked(value)
    axes = axes_of(value, many)
    if not axes:
        return None
    array = channels_last(value, axes)
    shots = [Shot((one,), "") for one in (array if axes[0] == "n" else [array])]
    return Sheet(shots, tuple(value.shape)[1] if axes == "nchw" and array.ndim == 3 else 0)


def _row(value: Any) -> Row:
    """Return the parts of (image, caption), of a dict, or the value alone."""
    if _captioned(value):
        return [("", part) for part in value]
    return named_parts(value) or [("", value)]


def _captioned(value: Any) -> bool:
    """Return whether a value is (image, caption)."""
    return (
        isinstance(value, tuple) and len(value) == 2 and isinstance(value[1], str | int | float) and is_image(value[0])
    )


def _rows(value: Any, names: Sequence[str]) -> list[Row]:
    """Return the samples in a picture, a dict, or a tuple; [] if it has none."""
    if is_picture(value) or _captioned(value):
        return [_row(value)]
    parts = named_parts(value, names)
    if isinstance(value, Mapping):
        if all(map(_captioned, value.values())) or _look_alike(value.values()):
            return [[("", name), *_row(part)] for name, part in parts]
        if all(map(is_array, value.values())) and LABELS.isdisjoint(map(str, value)):
            return []  # arrays by layer
    if rows := _samples(parts):
        return rows
    if all(is_image(part) for _, part in parts):
        return [[("", name), ("", part)] for name, part in parts]
    return [parts] if all(is_image(part) or _brief(part) is not None for _, part in parts) else []


def _look_alike(parts: Iterable[Any]) -> bool:
    """Return whether all parts are pictures, arrays of one shape in colours."""
    shapes = {() if is_picture(part) else tuple(part.shape) if is_image(part) else None for part in parts}
    return not any(shape is None or len(shape) == 2 for shape in shapes) and len(shapes - {()}) < 2


def _samples(parts: Row) -> list[Row]:
    """Return a row for each sample of a batch, such as pictures and labels; or []."""
    batches = [part for _, part in parts if axes_of(part).startswith("n")]
    columns = [_column(part) for _, part in parts]
    lengths = {-1 if column is None else len(column) for column in columns}
    labelled = len(batches) < len(parts) or (len(parts) > 1 and all(map(_in_channels, batches)))
    if not batches or not labelled or len(lengths) > 1 or -1 in lengths:
        return []
    names = [name for name, _ in parts]
    return [list(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def _column(part: Any) -> Any:
    """Return what a part of a batch has for each sample; None if it has nothing."""
    if isinstance(part, list):
        return part if all(isinstance(one, str) or is_number(one) for one in part) else None
    axes = axes_of(part)
    if axes.startswith("n"):
        return channels_last(part, axes)
    return as_array(part).tolist() if is_numeric_array(part) and len(part.shape) == 1 else None


def _in_channels(batch: Any) -> bool:
    """Return whether a batch has pictures of channels that can be drawn."""
    axes = axes_of(batch)
    return "c" in axes and batch.shape[axes.index("c")] in CHANNEL_COUNTS


def _shot(row: Row, images: Sequence[int]) -> Shot:
    """Return the pictures of a row, which are at the places ``images``, and the rest.

    The label and the prediction come first.
    """
    rest = [part for place, part in enumerate(row) if place not in images]
    words = [_words(name, part) for name, part in sorted(rest, key=_rank)]
    if len(images) > 1:
        words.append(" | ".join(filter(None, (row[place][0] for place in images))))
    caption = ", ".join(filter(None, words))
    return Shot(tuple(row[place][1] for place in images), caption[:_MAX_CAPTION_CHARACTERS])


def _rank(part: tuple[str, Any]) -> int:
    return 0 if part[0] in LABELS else 1 if part[0] in PREDICTIONS else 2


def _words(name: str, part: Any) -> str:
    """Return a part as it stands in a caption; without a name it is the caption."""
    if not name and isinstance(part, str):
        return part
    return f"{name} {_brief(part) or shown_text(part, _MAX_PART_CHARACTERS)}".strip()


def _brief(value: Any) -> str | None:
    """Return a value in few characters, of scores the largest class; or None."""
    if isinstance(value, float):
        return f"{value:.3g}"
    if value is None or isinstance(value, str) or is_number(value):
        return shown_text(value, _MAX_PART_CHARACTERS)
    if is_numeric_array(value) and len(value.shape) == 1 and 1 < value.shape[0] <= _MAX_CLASSES:
        return f"{int(floats(value).argmax())}"
    return None
