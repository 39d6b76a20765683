"""`TABLE`: the chart of a first value, by names, then by type and shape.

docs/charts.md prints it. What is in no other row is a table or a heat map, or else its repr as text.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np

from looptap.visualizers.charts.reading import schemas
from looptap.visualizers.charts.reading.forms import form_of
from looptap.visualizers.charts.reading.image_axes import MAX_CLASS_NUMBER, axes_of, stacked
from looptap.visualizers.charts.reading.labels import made_by
from looptap.visualizers.charts.reading.points import is_few_rows, is_row, paired, scattered
from looptap.visualizers.charts.reading.sheets import sheet_of
from looptap.visualizers.data.numbers import as_array, describe, is_array

MAX_CURVE_NUMBERS = 256
"""The longest one-dimensional array drawn as a line; a longer one is a histogram."""
MAX_CONFUSION_CLASSES = 200
"""The most rows of a square matrix of counts drawn as a confusion matrix."""
MAX_LINES = 8
"""The most numbers of a dict that are lines; more are a heat map of names over time."""
MIN_SCATTER_ROWS = 8
"""A matrix of two or three columns with more rows is a scatter."""
_MIN_PICTURE_PIXELS, _MIN_MASK_PIXELS = 8, 16  # of a side
_MIN_ALIKE_SHARE = 0.5  # of the cells of a mask that are followed by one of the same class
_PARAMETERS = re.compile(r"weight|bias|grad|param")
_SIGNALS = re.compile(r"(?i)\b\w*(wave|waveform|audio|speech|pcm|signal)(?![a-z])")
_COUNTS = frozenset(("int8", "int16", "int32", "int64", "uint16", "uint32", "uint64"))  # bytes are brightness
_AXES = {"n": "number", "h": "height", "w": "width", "c": "channels"}


@dataclass(frozen=True)
class FirstValue:
    """The first value of a stream, and what is known of it."""

    value: Any
    names: tuple[str, ...] = ()
    query: str = ""

    @cached_property
    def form(self) -> str:
        """Its type and that of its parts, see `form_of`."""
        return form_of(self.value)

    @cached_property
    def array(self) -> Any:
        """The array that it is, or one of the shape of its list of numbers or points."""
        if self.form == "a":
            return stacked(self.value)
        return np.empty((len(self.value), self.form.count("n"))[: self.form.count("(") + 1])

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of its array."""
        return tuple(self.array.shape)

    @property
    def drawn(self) -> list[str]:
        """The names of its parts, except steps and epochs."""
        return [name for name in self.names if not schemas.is_step(name)]


class ChartRow(NamedTuple):
    """A row of the table: the values that it is for, and their chart."""

    what: str
    """The values, in the words of docs/charts.md."""
    kind: str
    form: str = ".*"
    """The forms of the values, as a regular expression."""
    fits: Callable[[FirstValue], bool] = lambda first: True
    """What else has to be true of a value."""
    mode: Literal["append", "frame"] | None = None
    """By default the usual one of the kind."""
    how: str = ""
    """More about the chart, for docs/charts.md."""
    guess: str = ""
    """What is guessed, and how to override it: a format with ``shape``, ``axes`` and ``value``."""
    flat: bool = False
    """True if the values are drawn as dicts of their parts."""
    numbered: bool = False
    """True if the parts are named by their places."""

    def guessed(self, first: FirstValue) -> str:
        """Return what is guessed of a value in this row."""
        complex_numbers = isinstance(first.value, complex) or "complex" in str(getattr(first.value, "dtype", ""))
        said = "Complex numbers are drawn by their magnitude. " if complex_numbers else ""
        shape, axes = (first.shape, axes_of(first.array)) if first.form == "a" else ((), "")
        read = ", ".join(_AXES[axis] for axis in axes)
        return (said + self.guess.format(shape=shape, axes=read, value=describe(first.value))).strip()


# ---------------------------------------------------------------- what rows ask of names and parts


def _is_band(first: FirstValue) -> bool:
    return schemas.band_of(first.names) is not None


def _is_labelled_point(first: FirstValue) -> bool:
    return is_row(first.value, first.names)


def _is_points(first: FirstValue) -> bool:
    found = scattered(first.value, first.names)
    return found is not None and found.points.shape[1] == 2


def _is_points_in_space(first: FirstValue) -> bool:
    return scattered(first.value, first.names) is not None


def _tells(first: FirstValue) -> bool:
    return schemas.tells(first.names, first.query) and tuple(map(str.lower, first.names)) != ("x", "y", "z")


def _tells_many(first: FirstValue) -> bool:
    return _tells(first) and _has_many(first)


def _has_many(first: FirstValue) -> bool:
    return len(first.drawn) > MAX_LINES


def _has_images(first: FirstValue) -> bool:
    return sheet_of(first.value, first.names) is not None


def _is_made_alike(first: FirstValue) -> bool:
    return made_by(first.query) == "list" and len(first.value) <= MAX_LINES


def _has_keys(first: FirstValue) -> bool:
    return made_by(first.query) in ("Counter", "group_by") or all(isinstance(name, int) for name in first.value)


def _is_pair(first: FirstValue) -> bool:
    return paired(first.value) is not None and not any(map(_PARAMETERS.search, first.names))


def _is_ordered_pair(first: FirstValue) -> bool:
    steps = np.diff(paired(first.value)[0]) if _is_pair(first) else np.array([1, -1])  # type: ignore[index]
    return bool((steps >= 0).all() or (steps <= 0).all())


def _all_arrays(first: FirstValue) -> bool:
    return all(map(is_array, first.value.values()))


def _all_single(first: FirstValue) -> bool:
    return _all_arrays(first) and all(math.prod(part.shape) == 1 for part in first.value.values())


def _is_named(first: FirstValue) -> bool:
    return len(set(first.names)) == len(first.value)


def _is_named_single(first: FirstValue) -> bool:
    return _is_named(first) and all(math.prod(part.shape) == 1 for part in first.value)


def _has_labels(first: FirstValue) -> bool:
    return len({label for label, _ in first.value}) == len(first.value)


# ---------------------------------------------------------------- what rows ask of arrays


def _is_single(first: FirstValue) -> bool:
    return math.prod(first.shape) == 1 and len(first.shape) < 3


def _is_vector(first: FirstValue) -> bool:
    return len(first.shape) == 1 or (len(first.shape) == 2 and math.prod(first.shape) == max(first.shape))


def _is_curve(first: FirstValue) -> bool:
    if _SIGNALS.search(first.query):
        return _is_vector(first) or is_few_rows(first.array)
    return _is_vector(first) and max(first.shape) <= MAX_CURVE_NUMBERS


def _is_matrix(first: FirstValue) -> bool:
    return len(first.shape) == 2


def _is_gray(first: FirstValue) -> bool:
    """Return whether a matrix is a gray picture of bytes, or a mask of booleans."""
    kind = str(first.array.dtype).removeprefix("torch.")
    if not _is_matrix(first) or min(first.shape) < _MIN_PICTURE_PIXELS:
        return False
    return kind == "bool" or (kind == "uint8" and bool((as_array(first.array) > MAX_CLASS_NUMBER).any()))


def _is_confusion(first: FirstValue) -> bool:
    """Return whether a matrix is square and of counts, without areas of one class."""
    kind, rows = str(first.array.dtype).removeprefix("torch."), first.shape[0]
    if first.shape != (rows, rows) or not 0 < rows <= MAX_CONFUSION_CLASSES or kind not in _COUNTS:
        return False
    array = as_array(first.array)
    there = array[:, :-1] != 0
    alike = there & (array[:, :-1] == array[:, 1:])
    is_mask = rows >= _MIN_MASK_PIXELS and alike.sum() > _MIN_ALIKE_SHARE * there.sum()
    return bool((array >= 0).all()) and not is_mask


def _is_plane(first: FirstValue) -> bool:
    return _is_matrix(first) and first.shape[1] == 2 and first.shape[0] > MIN_SCATTER_ROWS


def _is_space(first: FirstValue) -> bool:
    return _is_matrix(first) and first.shape[1] == 3 and first.shape[0] > MIN_SCATTER_ROWS


def _is_convolution_of_pixels(first: FirstValue) -> bool:
    return len(first.shape) == 4 and first.shape[2:] == (1, 1)


def _is_one_image(first: FirstValue) -> bool:
    return axes_of(first.array)[:1] in ("c", "h")


def _is_several_images(first: FirstValue) -> bool:
    return axes_of(first.array)[:1] == "n"


def _is_sequence_of_texts(first: FirstValue) -> bool:
    return len(first.value.shape) in (1, 2)


TABLE = (
    ChartRow(
        "names lo, mid, hi; q10, q50, q90; `quantile(xs, [0.1, 0.5, 0.9])`",
        "band",
        fits=_is_band,
        how="an area around a line",
    ),
    ChartRow(
        "(x, y, label) by name",
        "scatter",
        r"[({].*",
        _is_labelled_point,
        "append",
        "a colour and a name for each class",
    ),
    ChartRow(
        "rows or columns with x, y and perhaps a label by name; (points, labels)",
        "scatter",
        r"[\[({].*",
        _is_points,
        how="a colour and a name for each class",
    ),
    ChartRow("the same with three dimensions", "scatter3d", r"[\[({].*", _is_points_in_space),
    ChartRow(
        "more than 8 numbers with names",
        "layers",
        r"\([n-]+\)",
        _tells_many,
        how="a heat map of names over time, logarithmic if values span more than 3 decades",
    ),
    ChartRow(
        "numbers with names: `loss, accuracy`",
        "line",
        r"\([n-]{2,}\)",
        _tells,
        how="one for each, over the first if it is a counter (step, global_step, epoch, batch_idx, it, iteration, "
        "tokens_seen, samples, time, …, or integers that count up), else over the event number",
    ),
    ChartRow("a list of PIL images or figures", "images", r"\[p\]"),
    ChartRow(
        "a dict or list of (image, caption); rows with images, such as the result of `batch_topk`; a batch of "
        "images and its labels, or two batches: `x, recon`",
        "images",
        r"[\[({].*",
        _has_images,
        guess="Arrays in the values are drawn as images; chart='table' lists them.",
    ),
    ChartRow(
        "up to 8 numbers made alike: `[g['lr'] for g in optimizer.param_groups]`, `scheduler.get_last_lr()`",
        "line",
        r"\(n+\)|\[n\]",
        _is_made_alike,
        how="one for each",
        numbered=True,
    ),
    ChartRow(
        "two 1-D arrays of the same length, the first in order: `fpr, tpr`",
        "curve",
        r"\(.*\)",
        _is_ordered_pair,
        how="the second over the first",
        guess="The second array is drawn over the first; chart='ridgeline' draws both as distributions.",
    ),
    ChartRow(
        "two other 1-D arrays of the same length: `pred, target`",
        "scatter",
        r"\(.*\)",
        _is_pair,
        "frame",
        guess="The second array is drawn over the first; chart='ridgeline' draws both as distributions.",
    ),
    ChartRow(
        "numbers by class (with integer keys), the result of `Counter` or `group_by`",
        "bars",
        r"\{[n-]+\}",
        _has_keys,
        "frame",
    ),
    ChartRow(
        "a number of any type (also Decimal, Fraction, a duration in seconds), True or False, an array or tensor "
        "without dimensions",
        "line",
        "n",
        how="over the event number",
    ),
    ChartRow("text", "text", "[sd]"),
    ChartRow("PIL, matplotlib", "image", "p"),
    ChartRow("(number, number, text)", "annotated", r"\([n-]{2}s\)"),
    ChartRow("(number, number, number, text)", "annotated3d", r"\([n-]{3}s\)"),
    ChartRow(
        "(number, number, number) without names, or named x, y, z",
        "line3d",
        r"\([n-]{3}\)",
        guess="Three numbers are drawn as a point in 3D; chart='line' draws a line for each part.",
    ),
    ChartRow("(number, number) without names", "line", r"\([n-]{2}\)", how="the second over the first"),
    ChartRow("a tuple of more numbers without names", "line", r"\([n-]+\)", how="one for each"),
    ChartRow("(text, number)", "bars", r"\(s[n-]\)", mode="append", how="the newest number of each label"),
    ChartRow("(counts, edges), as of `histogram`", "histogram", "h"),
    ChartRow("a tuple of arrays of one element with names", "bars", r"\(a+\)", _is_named_single, "frame", flat=True),
    ChartRow(
        "a tuple of arrays with names, such as gradients",
        "ridgeline",
        r"\(a+\)",
        _is_named,
        how="a ridge for each",
        flat=True,
    ),
    ChartRow("a tuple of numbers and texts", "table", r"\([ns-]+\)", mode="append", how="one row for each value"),
    ChartRow("any other tuple with names", "table", r"\(.+\)", _is_named, "append", "one row for each value"),
    ChartRow(
        "a dict of more than 8 numbers, such as the result of `layer_norms`",
        "layers",
        r"\{[n-]+\}",
        _has_many,
        how="a heat map of names over time, logarithmic if values span more than 3 decades",
    ),
    ChartRow("a dict of numbers", "line", r"\{[n-]+\}", how="one for each, over `step` if one of them has that name"),
    ChartRow("a dict of arrays of one element", "bars", r"\{(a|an)\}", _all_single, "frame"),
    ChartRow(
        "a dict of arrays, also nested",
        "ridgeline",
        r"\{(a|an)\}",
        _all_arrays,
        how="a ridge for each layer, with mean and deviation; a heat map for more than 24 layers",
    ),
    ChartRow(
        "a dict of (counts, edges), such as the result of `layer_histograms`", "ridgeline", r"\{h\}", how="the same"
    ),
    ChartRow("a dict of tuples of one number", "bars", r"\{\(n\)\}", mode="frame"),
    ChartRow("a list of (text, number), each text once", "bars", r"\[\(sn\)\]", _has_labels, "frame"),
    ChartRow("an array or tensor of one element", "line", "a", _is_single, "append"),
    ChartRow(
        "1-D array of up to 256 elements, also as a single row or column; a sound (`waveform`, `audio`, `signal` "
        "in the query) of any length",
        "curve",
        r"a|\[n\]",
        _is_curve,
        how="older ones lighter",
    ),
    ChartRow("1-D array, longer", "histogram", r"a|\[n\]", _is_vector),
    ChartRow(
        "matrix of booleans, or of bytes with values of 128 or more",
        "image",
        "a",
        _is_gray,
        guess="A matrix of bytes or booleans is drawn as an image; chart='heatmap' draws its numbers.",
    ),
    ChartRow(
        "square matrix of counts, up to 200 × 200, not uint8, without regions of one class as in a segmentation",
        "confusion",
        "a",
        _is_confusion,
        guess="A square matrix of counts is drawn as a confusion matrix; chart='heatmap' or 'image' draws it as such.",
    ),
    ChartRow(
        "matrix (n, 2), or list of pairs, n > 8",
        "scatter",
        r"a|\[\(nn\)\]",
        _is_plane,
        guess="Each row is drawn as a point; chart='heatmap' draws the matrix.",
    ),
    ChartRow(
        "matrix (n, 3), or list of triples, n > 8",
        "scatter3d",
        r"a|\[\(nnn\)\]",
        _is_space,
        guess="Each row is drawn as a point; chart='heatmap' draws the matrix.",
    ),
    ChartRow("any other matrix", "heatmap", "a", _is_matrix),
    ChartRow(
        "weights of a convolution of single pixels",
        "heatmap",
        "a",
        _is_convolution_of_pixels,
        guess="{shape} is drawn as a matrix of {shape[0]} × {shape[1]}.",
    ),
    ChartRow(
        "channels × height × width of a tensor (1, 3, 4), height × width × channels of an array",
        "image",
        "a",
        _is_one_image,
        guess="{shape} is taken for an image ({axes}); chart='histogram' draws how its numbers are distributed.",
    ),
    ChartRow(
        "n × height × width; n × channels × height × width of a tensor, such as filters; n × time × channels "
        "× height × width",
        "images",
        "a",
        _is_several_images,
        guess="{shape} is taken for {shape[0]} images ({axes}); chart='histogram' draws how its numbers are "
        "distributed.",
    ),
    ChartRow(
        "an array of more dimensions",
        "histogram",
        "a",
        guess="An array of shape {shape} is drawn as the histogram of its numbers.",
    ),
    ChartRow("an array of texts or objects with one or two dimensions", "table", "x", _is_sequence_of_texts),
    ChartRow("a mixed dict, list or tuple", "table", r"[\[{].*|\(.+\)"),
    ChartRow(
        "anything else", "text", how="its repr", guess="{value}: there is no chart for this type, so its repr is shown."
    ),
)
"""The charts of values; the first row that fits is the one."""
