"""`choose`, a pure function: the chart for a value, as a `Choice`."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from looptap.streams.counts import count_of, counts
from looptap.visualizers.charts.base import APPEND, FRAME, Mode
from looptap.visualizers.charts.reading import schemas
from looptap.visualizers.charts.reading.dates import dated, moment
from looptap.visualizers.charts.reading.flat import dataclass_fields, flattened, named_arrays
from looptap.visualizers.charts.reading.labels import made_by
from looptap.visualizers.charts.reading.points import is_few_rows, is_row, paired, scattered
from looptap.visualizers.charts.reading.sheets import axes_of, is_picture, sheet_of, stacked
from looptap.visualizers.charts.registry import KINDS, kind_named
from looptap.visualizers.data.numbers import as_array, describe, has_numbers, is_array, is_number

MAX_CURVE_NUMBERS = 256
"""The longest one-dimensional array drawn as a line; a longer one is a histogram."""
MAX_CONFUSION_CLASSES = 200
"""The most rows of a square matrix of counts drawn as a confusion matrix."""
MAX_LINES = 8
"""The most numbers of a dict that are lines; more are a heat map of names over time."""
_MIN_SCATTER_ROWS = 8  # a matrix of two or three columns with more rows is a scatter
_MIN_PICTURE_PIXELS, _MIN_MASK_PIXELS = 8, 16  # of a side
_MAX_CLASS_NUMBER = 127  # bytes up to it are classes
_MIN_ALIKE_SHARE = 0.5  # of the cells of a mask that are followed by one of the same class
_BY_NAME = frozenset(("Counter", "group_by"))  # functions whose keys are data
_PARAMETERS = re.compile(r"weight|bias|grad|param")
_SIGNALS = re.compile(r"(?i)\b\w*(wave|waveform|audio|speech|pcm|signal)(?![a-z])")
_OVER_DATES = frozenset(("line", "annotated", "band", "layers"))  # kinds whose x may be a date
_AXES = {"n": "number", "h": "height", "w": "width", "c": "channels"}


@dataclass(frozen=True)
class Choice:
    """The chart for a stream: its kind, its family, and the parts of a value.

    ``family`` is one of xy, xyz, hist, mat, img, pie and text: charts of a family share axes. ``schema`` names the
    parts of a value, as in ``("step", "loss")``. ``guess`` says what was guessed where the shape is ambiguous, and how
    to override it.
    """

    kind: str
    family: str
    mode: Mode
    schema: tuple[str, ...] = field(default=())
    guess: str = ""
    others: tuple[str, ...] = ()
    """Other kinds in which the same values can be seen, one click away."""
    flat: bool = False
    """True if the values are drawn as dicts of the numbers in them."""
    part: int | None = None
    """The part of the values that is drawn, where the others only count, as in `step, image`."""
    clock: int | None = None
    """The part of the values that is a date; it is x where no first part counts."""


def choose(value: Any, fields: Sequence[str] = (), on: str = "", query: str = "", *, chart: str = "") -> Choice:
    """Return the chart for a stream whose first value that is not None is ``value``.

    The user's ``chart`` comes first, then the object's own ``__looptap_chart__`` (a kind, a `Choice`, or a method
    that returns one), then a user's own kind that fits, then names that the query declares (``fields``, the keys of a
    dict, the quantiles of ``query``), then the shape of the value. ``on`` is the type of the events. Raises ValueError
    for an unknown ``chart``, and nothing for any value.

    >>> choose((1, 0.5)).kind, choose((1, 2, 3)).kind, choose((1, 0.5, "spike")).kind
    ('line', 'line3d', 'annotated')
    >>> choose((7, 0.1, 0.2), fields=("epoch", "val_loss", "val_acc")).kind
    'line'
    >>> choose((7, 0.1, 0.2, 0.3), fields=("step", "lo", "mid", "hi")).kind
    'band'
    >>> choose(("2026-01-01T10:00", 0.5)).kind, choose(("cat", 0.5)).kind
    ('line', 'bars')
    """
    found = None if chart in ("table", "text") else dated(value, schemas.names_of(value, fields, query))
    if found is None:
        return _choose(value, fields, on, query, chart)
    choice = _choose(found.value, fields, on, query, chart)
    if choice.kind == "line3d" and not chart:
        choice = _choice("line", schema=choice.schema)
    numbers = len(value) - 1 - any(count_of(name) in ("step", "epoch") for name in choice.schema)
    if choice.kind in _OVER_DATES and not choice.flat and numbers > 0:
        return replace(choice, clock=found.place)
    if found.place == 0 and isinstance(value, tuple) and len(value) == 2 and _is_large(value[1]):
        return replace(choose(value[1], on=on, chart=chart), part=1)
    return _choose(value, fields, on, query, chart)


def _choose(value: Any, fields: Sequence[str], on: str, query: str, chart: str) -> Choice:
    """Return the chart for a value, whose dates are numbers or are not for x."""
    own_fields = dataclass_fields(value)
    if own_fields is not None and chart not in ("", "text"):
        return replace(choose(own_fields, on=on, chart=chart), flat=True)
    names = schemas.names_of(value, fields, query)
    if (plain := flattened(value, names)) is not None and chart not in ("table", "text"):
        return replace(choose(plain, on=on, chart=chart), flat=True, schema=tuple(plain))
    if _counted(value, names) and chart not in ("table", "text"):
        return replace(choose(value[1], on=on, chart=chart), part=1)
    if chart:
        return _asked(kind_named(chart), value, fields, query)
    own = _own(value, fields, query)
    if own is not None:
        return own
    for kind, entry in KINDS.items():
        if entry.fits is not None and _true(entry.fits, value):
            return _choice(kind, schema=names)
    if schemas.band_of(names) is not None:
        return _choice("band", schema=names)
    by_name = _of_points(value, names) or _of_names(value, names, query) or _of_images(value, names)
    by_name = by_name or _of_lists(value, names, query) or _of_pair(value, names)
    found = by_name or _by_shape(value, names, query)
    if own_fields is not None and found.kind == "text":
        return replace(choose(own_fields, on=on), flat=True)
    if found.kind == "table" and (arrays := named_arrays(value, names)) is not None:
        return replace(_of_dict(arrays), flat=True, schema=tuple(arrays))
    return found if found.schema else replace(found, schema=names)


def _of_names(value: Any, names: tuple[str, ...], query: str) -> Choice | None:
    """Return the chart for a tuple of numbers whose names say what they are."""
    if not isinstance(value, tuple) or len(value) < 2 or not all(part is None or is_number(part) for part in value):
        return None
    if not schemas.tells(names, query) or tuple(name.lower() for name in names) == ("x", "y", "z"):
        return None
    return _lines(names)


def _counted(value: Any, names: Sequence[str]) -> bool:
    """Return whether a value is (number that counts, something of several numbers)."""
    if not isinstance(value, tuple) or len(value) != 2 or not names or not counts(names[0]):
        return False
    return is_number(value[0]) and _is_large(value[1])


def _is_large(value: Any) -> bool:
    """Return whether a value has a chart of its own beside a number that counts."""
    return is_picture(value) or isinstance(value, list | Mapping) or (is_array(value) and len(value.shape) > 0)


def _of_points(value: Any, names: tuple[str, ...]) -> Choice | None:
    """Return a scatter for rows with x, y and label, and for points with labels."""
    if is_row(value, names):
        return _choice("scatter", APPEND, names)
    if isinstance(value, list | tuple | Mapping) and (found := scattered(value, names)) is not None:
        return _choice("scatter" if found.points.shape[1] == 2 else "scatter3d", schema=names)
    return None


def _of_images(value: Any, names: tuple[str, ...]) -> Choice | None:
    """Return pictures for rows, dicts, lists and batches of them."""
    if not isinstance(value, list | tuple | Mapping) or not value or sheet_of(value, names) is None:
        return None
    sure = isinstance(value, list) and all(map(is_picture, value))
    guess = "" if sure else "Arrays in the values are drawn as images; chart='table' lists them."
    return _choice("images", schema=names, guess=guess)


def _of_lists(value: Any, names: tuple[str, ...], query: str) -> Choice | None:
    """Return lines for a few numbers that are made alike, bars for counts by name."""
    made = made_by(query)
    if (
        made == "list"
        and isinstance(value, tuple | list)
        and 0 < len(value) <= MAX_LINES
        and all(map(is_number, value))
    ):
        return _choice("line", APPEND, tuple(f"[{place}]" for place in range(len(value))))
    if made in _BY_NAME and isinstance(value, Mapping) and value and all(map(is_number, value.values())):
        return _choice("bars", FRAME, names)
    return None


def _of_pair(value: Any, names: tuple[str, ...]) -> Choice | None:
    """Return a curve for one array over another, as fpr, tpr; or points.

    Arrays of parameters are distributions.
    """
    both = paired(value)
    if both is None or any(_PARAMETERS.search(name) for name in names):
        return None
    steps = np.diff(both[0])
    sort = "curve" if (steps >= 0).all() or (steps <= 0).all() else "scatter"
    return _choice(
        sort, FRAME, names, "The second array is drawn over the first; chart='ridgeline' draws both as distributions."
    )


def _lines(names: Sequence[str]) -> Choice:
    """Return lines for numbers with names, a heat map of names over time for many."""
    drawn = [name for name in names if count_of(name) not in ("step", "epoch")]
    if len(drawn) > MAX_LINES:
        return replace(_choice("layers", schema=names), others=("line", "flow"))
    return replace(_choice("line", schema=names), others=("layers", "flow") if len(drawn) > 2 else ())


def _choice(kind: str, mode: Mode | None = None, schema: Sequence[str] = (), guess: str = "") -> Choice:
    family, modes, *_ = KINDS[kind]
    return Choice(kind, family, mode or modes[0], tuple(schema), guess)


def _asked(kind: str, value: Any, fields: Sequence[str], query: str) -> Choice:
    """Return the kind that the user requested, for this value."""
    if kind == "line" and not is_point(value) and not isinstance(value, Mapping):
        kind = "curve"
    modes = KINDS[kind][1]
    point = is_point(value) and not (kind == "bars" and not _labelled(value)) and kind != "pie"
    point = point or (kind == "pie" and (_labelled(value) or is_number(value)))
    wanted = APPEND if point else FRAME
    return _choice(kind, wanted if wanted in modes else modes[0], schemas.names_of(value, fields, query))


def _own(value: Any, fields: Sequence[str], query: str) -> Choice | None:
    """Return the object's own choice; ignore a kind that does not exist."""
    try:
        hook = getattr(value, "__looptap_chart__", None)
        asked = hook() if callable(hook) else hook
        if isinstance(asked, str):
            return _asked(kind_named(asked), value, fields, query)
    except Exception:
        return None
    return asked if isinstance(asked, Choice) and asked.kind in KINDS else None


def _true(fits: Callable[[Any], bool], value: Any) -> bool:
    try:
        return bool(fits(value))
    except Exception:  # of a user's own: it was not written for such a value
        return False


def is_point(value: Any) -> bool:
    """Return whether a value is one point: a number, a text, or a tuple of them."""
    if isinstance(value, tuple):
        return bool(value) and all(part is None or isinstance(part, str) or is_number(part) for part in value)
    return isinstance(value, str) or is_number(value)


def _labelled(value: Any) -> bool:
    return isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], str) and is_number(value[1])


# ---------------------------------------------------------------- by the shape of the value


def _by_shape(value: Any, names: tuple[str, ...] = (), query: str = "") -> Choice:
    if is_number(value):
        guess = "Complex numbers are drawn by their magnitude." if isinstance(value, complex) else ""
        return _choice("line", guess=guess)
    if isinstance(value, str) or moment(value) is not None:
        return _choice("text")
    if is_picture(value):
        return _choice("image")
    if is_array(value):
        return _of_array(value, query)
    if isinstance(value, Mapping):
        return _of_dict(value)
    if isinstance(value, tuple):
        found = _of_tuple(value)
        return _choice("table", APPEND) if found.kind == "table" and (names or is_point(value)) else found
    if isinstance(value, list):
        return _of_list(value)
    return _choice("text", guess=f"{describe(value)}: there is no chart for this type, so its repr is shown.")


def _of_tuple(value: tuple[Any, ...]) -> Choice:
    form = "".join("n" if part is None or is_number(part) else "s" if isinstance(part, str) else "?" for part in value)
    if form in ("nns", "nnns"):
        return _choice("annotated" if form == "nns" else "annotated3d")
    if form == "nnn":
        return _choice(
            "line3d", guess="Three numbers are drawn as a point in 3D; chart='line' draws a line for each part."
        )
    if form and set(form) == {"n"}:
        return _choice("line")
    if form == "sn":
        return _choice("bars", APPEND)
    if is_histogram(value):
        return _choice("histogram")
    return _choice("table") if value else _choice("text")


def is_histogram(value: Any) -> bool:
    """Return whether a value is (counts, edges), with one edge more than counts."""
    if not isinstance(value, tuple) or len(value) != 2 or not all(isinstance(v, list) or is_array(v) for v in value):
        return False
    shapes: list[Any] = [
        (len(part),) if isinstance(part, list) and all(map(is_number, part)) else getattr(part, "shape", ())
        for part in value
    ]
    return all(len(shape) == 1 for shape in shapes) and int(shapes[1][0]) == int(shapes[0][0]) + 1 > 1


def _of_list(value: list[Any]) -> Choice:
    if value and all(map(is_number, value)):
        return _of_array(np.empty(max(2, len(value))))  # a list of one number may get more
    if value and all(map(_labelled, value)) and len({label for label, _ in value}) == len(value):
        return _choice("bars", FRAME)
    if value and all(isinstance(v, tuple) and len(v) in (2, 3) and all(map(is_number, v)) for v in value):
        found = _of_array(np.empty((len(value), len(value[0])))) if len({len(v) for v in value}) == 1 else None
        return found if found is not None and found.kind.startswith("scatter") else _choice("table")
    return _choice("table")


def _of_dict(value: Mapping[Any, Any]) -> Choice:
    parts = list(value.values())
    if parts and all(part is None or is_number(part) for part in parts):
        if all(isinstance(name, int) for name in value):  # classes: not the names of fields
            return _choice("bars", FRAME)
        return _lines(tuple(map(str, value)))
    if parts and all(is_array(part) and has_numbers(part) for part in parts):
        if all(_size(part) == 1 for part in parts):
            return _choice("bars", FRAME)
        return _choice("ridgeline")
    if parts and all(is_histogram(part) for part in parts):
        return _choice("ridgeline")
    if parts and all(isinstance(part, tuple) and len(part) == 1 and is_number(part[0]) for part in parts):
        return _choice("bars", FRAME)
    return _choice("table")


def _size(value: Any) -> int:
    return int(np.prod(tuple(value.shape), dtype=np.int64))


def _of_array(value: Any, query: str = "") -> Choice:
    value = stacked(value)
    shape = tuple(value.shape)
    if not has_numbers(value):
        return _choice("table" if value.ndim in (1, 2) and value.dtype.kind in "SUOM" else "text")
    guess = "Complex numbers are drawn by their magnitude." if "complex" in str(value.dtype) else ""
    length = math.prod(shape)
    if length == 1 and len(shape) in (1, 2):
        return _choice("line", APPEND, guess=guess)
    sound = _SIGNALS.search(query) is not None
    if len(shape) == 1 or (len(shape) == 2 and length == max(shape)):
        return _choice("curve" if length <= MAX_CURVE_NUMBERS or sound else "histogram", guess=guess)
    if len(shape) == 2:
        if is_few_rows(value) and sound:
            return _choice("curve", guess=guess)
        if min(shape) >= _MIN_PICTURE_PIXELS and _is_gray(value):
            return _choice("image", guess="A matrix of bytes or booleans is drawn as an image; "
                           "chart='heatmap' draws its numbers.")  # fmt: skip
        if _counts(value) and not _is_mask(value):
            return _choice("confusion", guess="A square matrix of counts is drawn as a confusion matrix; "
                           "chart='heatmap' or 'image' draws it as such.")  # fmt: skip
        if shape[1] in (2, 3) and shape[0] > _MIN_SCATTER_ROWS:
            return _choice("scatter" if shape[1] == 2 else "scatter3d", guess=guess or
                           "Each row is drawn as a point; chart='heatmap' draws the matrix.")  # fmt: skip
        return _choice("heatmap", guess=guess)
    if len(shape) == 4 and shape[2:] == (1, 1):
        return _choice("heatmap", guess=f"{shape} is drawn as a matrix of {shape[0]} × {shape[1]}.")
    if axes := axes_of(value):
        read = ", ".join(_AXES[axis] for axis in axes)
        one = "an image" if axes[0] != "n" else f"{shape[0]} images"
        return _choice("images" if axes[0] == "n" else "image", guess=f"{shape} is taken for {one} ({read}); "
                       "chart='histogram' draws how its numbers are distributed.")  # fmt: skip
    return _choice("histogram", guess=f"An array of {len(shape)} dimensions is drawn as the histogram of its numbers.")


def _is_gray(value: Any) -> bool:
    """Return whether a matrix is a gray picture of bytes, or a mask of bool."""
    kind = str(value.dtype).removeprefix("torch.")
    return kind == "bool" or (kind == "uint8" and bool((as_array(value) > _MAX_CLASS_NUMBER).any()))


def _is_mask(value: Any) -> bool:
    """Return whether a matrix of classes has areas of one class, as a segmentation."""
    array = as_array(value)
    there = array[:, :-1] != 0
    alike = there & (array[:, :-1] == array[:, 1:])
    return len(array) >= _MIN_MASK_PIXELS and bool(alike.sum() > _MIN_ALIKE_SHARE * there.sum())


def _counts(value: Any) -> bool:
    """Return whether a matrix is small, square, and of integers that are counts."""
    rows, columns = value.shape
    kind = str(value.dtype).removeprefix("torch.")
    if (
        rows != columns
        or not 0 < rows <= MAX_CONFUSION_CLASSES
        or "int" not in kind
        or kind == "uint8"
        or kind.startswith("q")
    ):
        return False
    return bool((as_array(value) >= 0).all())
