"""`choose`, a pure function: the chart for a value, as a `Choice`.

The user comes first, then the value's own hint and a user's own kind. `READINGS` say what of a value is drawn, `TABLE`
how; docs/charts.md prints both.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from looptap.streams.counts import counts
from looptap.visualizers.charts.base import APPEND, FRAME, Mode
from looptap.visualizers.charts.reading import schemas
from looptap.visualizers.charts.reading.dates import dated, moment
from looptap.visualizers.charts.reading.flat import dataclass_fields, flattened
from looptap.visualizers.charts.reading.forms import POINT, is_picture
from looptap.visualizers.charts.reading.table import TABLE, FirstValue
from looptap.visualizers.charts.registry import KINDS, kind_named
from looptap.visualizers.data.numbers import is_array, is_number

_OVER_DATES = frozenset(("line", "annotated", "band", "layers"))  # kinds whose x may be a date
_OTHERS = {"line": ("layers", "flow"), "layers": ("line", "flow")}  # kinds one click away, for several names
_ASKED_POINTS = {"bars": r"\(sn\)", "pie": r"\(sn\)|n"}  # the form of one point of a kind, if it is not `POINT`


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


class Reading(NamedTuple):
    """What is drawn of a value in its place."""

    what: str
    """The values, in the words of docs/charts.md."""
    drawn: str
    read: Callable[[FirstValue], Any]
    """Returns what is drawn of a value, or None."""
    unless: frozenset[str] = frozenset()
    """Charts for which the value is drawn as it is."""
    part: int | None = None


def _beside_count(first: FirstValue) -> Any:
    """Return what stands beside a number that counts, or a date, in a pair; or None."""
    if not isinstance(first.value, tuple) or len(first.value) != 2:
        return None
    count, large = first.value
    counted = bool(first.names) and counts(first.names[0]) and is_number(count)
    if not (counted or moment(count) is not None):
        return None
    sized = is_array(large) and len(large.shape) > 0
    return large if sized or isinstance(large, list | Mapping) or is_picture(large) else None


_TEXT, _WORDS = frozenset(("text",)), frozenset(("table", "text"))
READINGS = (
    Reading("a dataclass", "its fields", lambda first: dataclass_fields(first.value), _TEXT),
    Reading(
        "numbers or arrays in dicts inside of dicts or tuples",
        "the numbers by name, as `train.loss`",
        lambda first: flattened(first.value, first.names),
        _WORDS,
    ),
    Reading(
        "(step, picture): a counter or a date, and an array, picture, list or dict",
        "the second part",
        _beside_count,
        _WORDS,
        part=1,
    ),
)
"""What is drawn of values that have others in them; the first that applies."""


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
    first = FirstValue(value, schemas.names_of(value, fields, query), query)
    return (None if chart else _own(first)) or _over_dates(first, chart) or _drawn(first, chart)


def _own(first: FirstValue) -> Choice | None:
    """Return what the value, or a user's own kind, asks for; ignore what fails."""
    try:
        hook = getattr(first.value, "__looptap_chart__", None)
        asked = hook() if callable(hook) else hook
        if isinstance(asked, str):
            return _asked(kind_named(asked), first)
    except Exception:
        return None
    if isinstance(asked, Choice) and asked.kind in KINDS:
        return asked
    own = (kind for kind, entry in KINDS.items() if entry.fits is not None and _true(entry.fits, first.value))
    return next((_of_kind(kind, first) for kind in own), None)


def _true(fits: Callable[[Any], bool], value: Any) -> bool:
    try:
        return bool(fits(value))
    except Exception:  # of a user's own: it was not written for such a value
        return False


def _over_dates(first: FirstValue, chart: str) -> Choice | None:
    """Return a chart over the dates in a value; None if it has none, or no numbers."""
    found = None if chart in _WORDS else dated(first.value, first.names)
    if found is None:
        return None
    choice = _drawn(FirstValue(found.value, first.names, first.query), chart)
    if choice.kind == "line3d" and not chart:
        choice = replace(choice, kind="line", family="xy", guess="")
    numbers = len(first.value) - 1 - any(map(schemas.is_step, choice.schema))
    over = choice.kind in _OVER_DATES and not choice.flat and numbers > 0
    return replace(choice, clock=found.place) if over else None


def _drawn(first: FirstValue, chart: str) -> Choice:
    """Return the chart that is asked for, or that the first fitting row has."""
    for reading in READINGS:
        inner = None if chart in reading.unless else reading.read(first)
        if inner is not None:
            choice = choose(inner, chart=chart)
            if reading.part is not None:
                return replace(choice, part=reading.part)
            return replace(choice, flat=True, schema=choice.schema or tuple(inner))
    if chart:
        return _asked(kind_named(chart), first)
    row = next(row for row in TABLE if re.fullmatch(row.form, first.form) and row.fits(first))
    choice = _of_kind(row.kind, first, row.mode)
    others = _OTHERS.get(row.kind, ()) if len(first.drawn) > 2 else ()
    schema = tuple(f"[{place}]" for place in range(len(first.value))) if row.numbered else choice.schema
    return replace(choice, schema=schema, guess=row.guessed(first), others=others, flat=row.flat)


def _asked(kind: str, first: FirstValue) -> Choice:
    """Return the kind that the user requested, for this value."""
    if kind == "line" and not re.fullmatch(POINT + r"|\{.*", first.form):
        kind = "curve"
    point = re.fullmatch(_ASKED_POINTS.get(kind, POINT), first.form)
    wanted = APPEND if point else FRAME
    return _of_kind(kind, first, wanted if wanted in KINDS[kind].modes else None)


def _of_kind(kind: str, first: FirstValue, mode: Mode | None = None) -> Choice:
    entry = KINDS[kind]
    return Choice(kind, entry.family, mode or entry.modes[0], first.names)
