"""Dates, durations and exact numbers: they cross the wire, and charts draw them."""

from __future__ import annotations

import datetime
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from pathlib import Path
from uuid import UUID

import numpy as np
import pytest
import torch

from looptap.protocol.values.packing import pack
from looptap.protocol.values.unpacking import unpack
from looptap.streams.stream.stream import stream_of
from looptap.streams.values.snapshots import snapshot
from looptap.testing import pair
from looptap.visualizers.drawing.picture import Line, Table, Text
from looptap.visualizers.plot import Plot

START = datetime.datetime(2026, 3, 1, 10, 0, 0)
MINUTE = datetime.timedelta(minutes=1)
HELSINKI = datetime.timezone(datetime.timedelta(hours=2))


class Phase(Enum):
    TRAIN = "train"


def pictured(values, fields=None, name="loss"):
    """Return the kind and the picture of values that crossed the wire."""
    arrived = [unpack(pack(snapshot(value)[0])) for value in values]
    plot = Plot(stream_of(arrived, fields=fields, name=name))
    plot.pull()
    return plot.cells[0].chart.kind, plot.pictures()[0]


SPELLINGS = {
    "datetime": lambda at: at,
    "datetime with a zone": lambda at: at.astimezone(HELSINKI),
    "ISO text": lambda at: at.isoformat(),
    "ISO text with a zone": lambda at: at.astimezone(datetime.UTC).isoformat().replace("+00:00", "Z"),
    "ISO text with a space": lambda at: f"{at:%Y-%m-%d %H:%M:%S}",
    "numpy": lambda at: np.datetime64(at),
    "numpy in nanoseconds": lambda at: np.datetime64(at).astype("M8[ns]"),
    "numpy without dimensions": lambda at: np.array(at, "M8[s]"),
    "seconds of a clock": lambda at: at.timestamp(),
    "milliseconds of a clock": lambda at: at.timestamp() * 1e3,
    "nanoseconds of a clock": lambda at: int(at.timestamp() * 1e9),
}


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("form", ["tuple", "dict"])
def test_a_date_is_x_however_it_is_written(spelling, form):
    rows = [(SPELLINGS[spelling](START + i * MINUTE), 1 / (i + 1)) for i in range(5)]
    values = rows if form == "tuple" else [{"loss": loss, "timestamp": at} for at, loss in rows]
    kind, picture = pictured(values, ("timestamp", "loss") if form == "tuple" else None)
    (line,) = picture.marks
    assert kind == "line"
    assert (picture.x.title, picture.x.time, picture.y.title) == ("timestamp", True, "loss")
    np.testing.assert_allclose(line.x, START.timestamp() + 60.0 * np.arange(5), atol=1e-3)
    assert line.y.tolist() == [loss for _, loss in rows]


def test_days_and_times_of_day_are_x_and_a_date_without_a_name_is_time():
    days = [START.date() + i * datetime.timedelta(days=1) for i in range(4)]
    _, picture = pictured([(day, float(i)) for i, day in enumerate(days)])
    assert (picture.x.title, picture.x.time) == ("time", True)
    assert np.diff(picture.marks[0].x).round().tolist() == [86400.0] * 3
    for spelled in (str, lambda at: at):
        times = [(spelled(datetime.time(1, minute)), float(minute)) for minute in range(4)]
        _, picture = pictured(times, ("clock", "loss"))
        assert picture.x.time
        assert np.diff(picture.marks[0].x).tolist() == [60.0] * 3


def test_a_date_beside_more_numbers_is_x_for_a_line_each_and_after_a_step_it_is_not():
    kind, picture = pictured([(START + i * MINUTE, i * 1.5, i * 2.5) for i in range(4)])
    assert kind == "line"
    assert len(picture.marks) == 2
    kind, picture = pictured([(i, str(START + i * MINUTE), i * 2.5) for i in range(4)], ("step", "when", "loss"))
    assert (kind, picture.x.title, [mark.name for mark in picture.marks]) == ("line", "step", ["loss"])
    kind, picture = pictured([(START + i * MINUTE, i * 2.5, "spike") for i in range(4)], ("when", "loss", "note"))
    assert (kind, picture.x.time, len(picture.marks[0].notes)) == ("annotated", True, 4)


def test_many_numbers_beside_a_date_are_a_map_over_dates():
    values = [{"when": START + i * MINUTE, **{f"layer {n}": n + i for n in range(10)}} for i in range(4)]
    kind, picture = pictured(values)
    assert kind == "layers"
    assert "when" not in picture.marks[0].rows
    assert picture.marks[0].columns[1] == "2026-03-01 10:01:00"


def test_a_text_that_is_no_date_where_dates_were_is_left_out_and_said():
    _, picture = pictured([(str(START), 1.0), ("later", 2.0), (str(START + MINUTE), 3.0)], ("when", "loss"))
    assert picture.marks[0].y.tolist() == [1.0, 3.0]
    assert any("1 value skipped: expected (number, number), got (str, number)" in badge for badge in picture.badges)


@pytest.mark.parametrize("label", ["cat", "3", "2026", "epoch 2026-03-01", "2026-13-45", "1:10"])
def test_other_texts_stay_labels(label):
    assert pictured([(label, 1.0)])[0] == "bars"


def test_dates_without_numbers_are_words():
    kind, picture = pictured([START + i * MINUTE for i in range(3)])
    assert kind == "text"
    assert isinstance(picture.marks[0], Text)
    assert picture.marks[0].lines[0] == "2026-03-01 10:00:00"
    assert not picture.guess
    kind, picture = pictured([(i, START) for i in range(3)], ("step", "when"))
    assert kind == "table"
    assert isinstance(picture.marks[0], Table)
    assert picture.marks[0].rows[0][-1] == "2026-03-01 10:00:00"


NUMBERS = [
    (Decimal("0.5"), 0.5), (Fraction(1, 2), 0.5), (datetime.timedelta(milliseconds=500), 0.5),
    (np.timedelta64(500, "ms"), 0.5), (np.array(0.5), 0.5), (np.float16(0.5), 0.5), (np.bool_(True), 1.0), (True, 1.0),
    (torch.tensor(True), 1.0), (3 + 4j, 5.0), (Decimal("Infinity"), np.nan), (torch.tensor(2.0).half(), 2.0),
]  # fmt: skip


@pytest.mark.parametrize(("value", "drawn"), NUMBERS, ids=[repr(value) for value, _ in NUMBERS])
@pytest.mark.parametrize("wrap", [lambda v: v, lambda v: (1, v), lambda v: {"step": 1, "loss": v}])
def test_a_number_is_a_number_of_whatever_type(value, drawn, wrap):
    kind, picture = pictured([wrap(value), wrap(0.25)], ("step", "loss") if isinstance(wrap(value), tuple) else None)
    line = next(mark for mark in picture.marks if isinstance(mark, Line))
    assert kind == "line"
    np.testing.assert_array_equal(line.y, [drawn, 0.25])


@pytest.mark.parametrize(
    ("value", "arrived"),
    [
        (START, START), (START.date(), START.date()), (START.time(), START.time()), (MINUTE, MINUTE),
        (np.datetime64("NaT"), None), (np.timedelta64(3, "h"), datetime.timedelta(hours=3)),
        (Decimal("sNaN"), "nan"), (Decimal("1e999"), float("inf")), (-Fraction(10**400), float("-inf")),
        (Path("runs/a.pt"), "runs/a.pt"), (UUID(int=1), str(UUID(int=1))), (np.dtype("f4"), "float32"),
        (torch.float32, "torch.float32"), (torch.strided, "torch.strided"), (torch.device("cpu"), "cpu"),
        (Phase.TRAIN, "train"), (np.str_("a"), "a"),
    ],
)  # fmt: skip
def test_these_values_leave_a_job(value, arrived):
    found = unpack(pack(snapshot({"of": [value]})[0]))["of"][0]
    assert (str(found) if found != found else found) == arrived


def test_a_date_of_pandas_is_one_and_what_is_no_time_is_none():
    pandas = pytest.importorskip("pandas")
    assert snapshot(pandas.Timestamp(START))[0] == START
    assert type(snapshot(pandas.Timestamp(START))[0]) is datetime.datetime
    assert snapshot(pandas.Timedelta(minutes=1))[0] == MINUTE
    assert snapshot(pandas.NaT)[0] is None


def test_a_zone_of_the_job_does_not_leave_it():
    class Zone(datetime.tzinfo):
        def utcoffset(self, when):
            return datetime.timedelta(hours=2)

        def dst(self, when):
            return None

    assert snapshot(START.replace(tzinfo=Zone()))[0].tzinfo == HELSINKI
    assert snapshot(START.time().replace(tzinfo=Zone()))[0].tzinfo == HELSINKI


def test_the_dates_of_a_job_are_x():
    agent, run = pair("dates")
    try:
        stream = run.stream("when, loss", on="batch")
        for i in range(4):
            agent.emit("batch", when=START + i * MINUTE, loss=Decimal(i) / 2)
        plot = Plot(stream)
        plot.pull()
        (line,) = plot.pictures()[0].marks
        assert not stream.error_count, stream.traceback
        assert plot.pictures()[0].x.time
        assert line.y.tolist() == [0.0, 0.5, 1.0, 1.5]
        assert run.stream("mean(e.loss for e in events)", on="batch").error_count == 0
    finally:
        run.close()
        agent.close()
