"""`Series`: a stream on a chart: its position, misfits and missing values."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import compress
from typing import Any

import numpy as np

from looptap.streams.columns.value_columns import ValueColumns
from looptap.streams.stream.state_and_cost import FAILED
from looptap.streams.stream.stream import Stream
from looptap.streams.stream.tables import Columns
from looptap.streams.text import cut
from looptap.visualizers.charts.base import FRAME, ChartKind
from looptap.visualizers.charts.choice import Choice
from looptap.visualizers.charts.frame_history import FrameHistory
from looptap.visualizers.charts.legends import label_of_stream
from looptap.visualizers.charts.reading import schemas
from looptap.visualizers.charts.reading.dates import dated
from looptap.visualizers.charts.reading.flat import dataclass_fields, flattened, named_arrays
from looptap.visualizers.data.sample_buffer import MAX_KEPT_POINTS
from looptap.visualizers.drawing.picture import Across, Side

_MAX_NOTES = 2
_COLOURS = frozenset(("scaled", "log"))  # remarks on how numbers became colours, which warn of nothing
_MAX_LABEL_CHARACTERS = 40  # of a query, in a badge


@dataclass(eq=False)
class Series:
    """One stream on a chart, and how far it has been read.

    ``data`` belongs to the chart: whatever it keeps of the values of this stream. ``layer`` is the chart of the kind
    that the stream needs: the chart it is on, unless that is of another kind.
    """

    stream: Stream
    choice: Choice
    color: str
    layer: ChartKind = field(repr=False)
    side: Side = "left"
    placed: bool = False
    """True if the caller said which axis it has."""
    taken: int = 0
    """The number of the newest value read."""
    skipped: int = 0
    complaint: str = ""
    """Why the first of the skipped values did not fit."""
    data: dict[str, Any] = field(default_factory=dict)
    frames: FrameHistory = field(default_factory=FrameHistory)
    dash: str = "solid"
    label: str = ""
    y: tuple[str, ...] = ()
    """The fields that are drawn; none: all."""
    by: str = ""
    """The field that colours the points."""
    points: int = MAX_KEPT_POINTS
    noted: tuple[str, ...] = ()
    """Notes of the stream that are older than the chart."""
    sample: Any = None
    """The value by which the chart was chosen."""
    forgotten: int = 0
    """The number of values that the stream dropped before they were read."""
    passed: int = 0
    """The number of values skipped as older than what the chart keeps."""
    remarks: dict[str, str] = field(default_factory=dict)
    """Badges of the chart about this stream, by what they are about."""
    lines: dict[tuple[int, int | None], tuple[str, str, str]] = field(default_factory=dict)
    """Name, colour and dash of each of its lines, by part and rank."""
    across: Across = "bottom"
    """Which x axis it has."""

    @property
    def looks(self) -> list[tuple[str, str]]:
        """Colour and dash of all its lines."""
        return [(color, dash) for _, color, dash in self.lines.values()] or [(self.color, self.dash)]

    @property
    def name(self) -> str:
        """The name of this stream in the legend."""
        return self.label or label_of_stream(self.stream, drawn=True)

    @property
    def named(self) -> bool:
        """True if it has a name of its own, which is not its query."""
        return bool(self.label) or self.stream.name not in ("", self.stream.text)

    @property
    def state(self) -> tuple[Any, ...]:
        """The state on which the badges and the vertical lines depend."""
        stream = self.stream
        losses = (
            stream.dropped,
            len(stream.gaps),
            stream.withheld,
            stream.error_count,
            self.skipped,
            stream.thinned,
            stream.limited,
        )
        return stream.name, stream.state, *losses, len(stream.notes)

    def remark(self, about: str, text: str) -> None:
        """Put a badge on the chart; "" takes the one about the same away."""
        self.remarks[about] = text
        if not text:
            del self.remarks[about]

    def skip(self, count: int, complaint: str) -> None:
        """Leave out ``count`` values that do not fit."""
        self.skipped += count
        self.complaint = self.complaint or complaint

    # ------------------------------------------------------------ taking in

    def take(self) -> bool:
        """Read new values; return whether there were any."""
        newest = self.stream.newest
        if newest <= self.taken:
            return False
        framed = self.choice.mode == FRAME
        after = max(self.taken, newest - (self.frames.keep if framed else self.points))
        self.passed += after - self.taken
        new = self.stream.columns(after, plain=self.layer.plain)
        if not len(new.numbers):
            self.taken = newest
            return True
        self._count_forgotten(after, int(new.numbers[0]))
        self.taken = max(newest, int(new.numbers[-1]))
        with np.errstate(all="ignore"):
            if framed:
                self._take_frames(new)
            else:
                self._append(new)
        return True

    def _count_forgotten(self, after: int, first: int) -> None:
        if not self.stream.forgotten or first <= after + 1:
            return
        missing = sum(gap.missing or 0 for gap in self.stream.gaps if after <= gap.after < first)
        self.forgotten += max(0, min(first - after - 1 - missing, self.stream.forgotten))

    def _take_frames(self, new: Columns) -> None:
        for place in range(max(0, len(new.values) - self.frames.keep), len(new.values)):
            value = new.values[place]
            if value is None:
                continue
            try:
                kept = self.layer.frame(self, self.plain(value))
                self.frames.append(kept, int(new.events[place]), float(new.walls[place]))
            except Exception as error:  # the next value may fit
                self.skip(1, complaint_of(error))

    def _append(self, new: Columns) -> None:
        """Add all values that fit; halve a refused block until misfits stand alone."""
        if not isinstance(new.values, ValueColumns) and type(None) in set(map(type, new.values)):
            there: Any = [value is not None for value in new.values]
            new = Columns._make([*(column[there] for column in new[:-1]), list(compress(new.values, there))])
        if not new.values:
            return
        if self.choice.flat or self.choice.part is not None or self.choice.clock is not None:
            new = new._replace(values=[self.plain(value) for value in new.values])
        self._add(new)

    def plain(self, value: Any) -> Any:
        """Return a value as the chart takes it: of nested numbers one dict."""
        if self.choice.part is not None and isinstance(value, tuple) and len(value) > self.choice.part:
            return value[self.choice.part]
        if self.choice.clock is not None:
            found = dated(value)
            return value if found is None else found.value
        if not self.choice.flat:
            return value
        stream = self.stream
        fields = dataclass_fields(value)
        value = value if fields is None else fields
        names = schemas.names_of(value, stream.fields or (), stream.text)
        flat = flattened(value, names) or named_arrays(value, names)
        return value if flat is None else flat

    def _add(self, new: Columns) -> None:
        try:
            self.layer.append(self, new)
        except Exception as error:
            half = len(new.values) // 2
            if not half:
                self.skip(1, complaint_of(error))
                return
            self._add(part_of(new, slice(None, half)))
            self._add(part_of(new, slice(half, None)))

    @property
    def reading(self) -> str:
        """How the values were read: how numbers became colours, and what was guessed."""
        colours = [f"{text[:1].upper()}{text[1:]}." for what, text in self.remarks.items() if what in _COLOURS]
        return " ".join(filter(None, [*colours, self.choice.guess]))

    # ------------------------------------------------------------ what is missing

    def badges(self, *, alone: bool = False) -> list[str]:
        """Return short sentences about values that do not fit or are missing.

        They begin with the name of the stream, unless that is its query and the stream is ``alone`` on its chart.
        """
        stream = self.stream
        name = self.name if self.named else cut(self.name, _MAX_LABEL_CHARACTERS)
        about = "" if alone and not self.named else f"{name}: "
        lost, unknown = stream.dropped, any(gap.missing is None for gap in stream.gaps)
        last = (stream.traceback.strip().splitlines() or ["no traceback"])[-1]
        failed, errors = stream.state == FAILED, stream.error_count
        remarks = [(True, f"{about}{remark}") for what, remark in self.remarks.items() if what not in _COLOURS]
        later = [note for note in stream.notes if note not in self.noted][:_MAX_NOTES]
        found = [
            (self.skipped, f"{about}{_count(self.skipped)} skipped: {self.complaint}"),
            (failed, f"{name} has failed: {stream.reason}"),
            (
                errors and not (failed and last[-80:] in stream.reason),
                f"{about}the query has failed {_count(errors, 'time')}: {last:.200}",
            ),
            (lost, f"{about}{_count(lost)} missing in {_count(len(stream.gaps), 'gap')}"),
            (unknown and not lost, f"{about}an unknown number of values is missing"),
            (stream.withheld, f"{about}the budget withheld {_count(stream.withheld, 'event')}"),
            (
                self.forgotten,
                f"{about}{_count(self.forgotten)} left the stream's buffer before they were drawn (buffer=)",
            ),
            *remarks,
            (
                stream.thinned and not stream.limits,
                f"{about}evaluated at fewer events for a while, to stay within the budget (budget=)",
            ),
            *((True, f"{about}{note:.200}") for note in later),
        ]
        return [text for holds, text in found if holds]


def complaint_of(error: Exception) -> str:
    """Return the text of a badge about an error."""
    plain = isinstance(error, TypeError | ValueError)
    return f"{error}" if plain else f"{type(error).__name__}: {error}"


def _count(count: int, what: str = "value") -> str:
    return f"{count:,} {what}{'s' * (count != 1)}"


def part_of(columns: Columns, part: slice) -> Columns:
    """Return some of the rows of a table of values."""
    return Columns._make(column[part] for column in columns)
