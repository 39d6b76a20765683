"""Export to CSV, Parquet and TensorBoard, read back; import from TensorBoard."""

from __future__ import annotations

import csv
import io
import json
import math
import struct
import subprocess
import sys
from array import array
from pathlib import Path

import numpy as np
import pytest

import looptap
from looptap.store.exchange import tensorboard_events
from looptap.store.queue import QueuedCommand
from looptap.store.writer import Writer
from looptap.streams.flags import ERROR
from looptap.streams.stream.buffer import Batch

ROWS = [(step, 1 / (step + 1), "train") for step in range(50)]


def batch(first, values, flags=b""):
    count = len(values)
    return Batch(first, array("q", range(first, first + count)), array("d", range(count)), list(values), 1e9, flags)


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    writer = Writer(tmp_path_factory.mktemp("runs") / "digits.looptap", {"id": "digits-1", "name": "digits"})
    loss = writer.stream("loss", query="step, loss, phase", on="batch", fields=("step", "loss", "phase"))
    writer.append(loss, batch(1, ROWS))
    mean = writer.stream("mean", on="epoch")
    writer.append(mean, batch(1, [0.5, math.nan, "broken", 3], bytes((0, 0, ERROR, 0))))
    writer.append(writer.stream("norms"), batch(1, [{"a": 1.5, "b": np.arange(2)}, {"b": None, "c": 2}]))
    writer.append(writer.stream("texts"), batch(1, ["x", None]))
    writer.append(writer.stream("number", fields=("number",)), batch(1, [(1,), (2,)]))
    writer.stream("empty")
    writer.command(QueuedCommand("c", 1.0, 2.0, "batch", 3, "me", "set lr", 0.1, 0.2, "done"))
    assert writer.close(30)
    return writer.path


@pytest.fixture
def run(file):
    with looptap.open(file) as run:
        yield run


def table(path):
    return list(csv.DictReader(io.StringIO(path.read_text())))


def test_csv_has_a_column_for_each_field(run, tmp_path):
    assert run.stream("loss").to_csv(tmp_path / "loss.csv") == 50
    rows = table(tmp_path / "loss.csv")
    assert list(rows[0]) == ["number", "event", "rank", "time", "wall", "step", "loss", "phase"]
    assert [(int(row["step"]), float(row["loss"]), row["phase"]) for row in rows] == ROWS
    assert (rows[1]["number"], rows[1]["event"], rows[1]["time"], rows[1]["wall"]) == ("2", "2", "1.0", "1000000001.0")


def test_csv_leaves_errors_out_and_writes_what_is_no_number_as_json(run, tmp_path):
    assert run.stream("mean").to_csv(tmp_path / "a.csv") == 3
    assert [row["value"] for row in table(tmp_path / "a.csv")] == ["0.5", "nan", "3"]
    run.stream("norms").to_csv(tmp_path / "b.csv")
    rows = [(row["a"], row["b"], row["c"]) for row in table(tmp_path / "b.csv")]
    assert rows == [("1.5", "[0, 1]", ""), ("", "", "2")]
    run.stream("number").to_csv(tmp_path / "c.csv")
    assert [(row["number_"], row["number"]) for row in table(tmp_path / "c.csv")] == [("1", "1"), ("2", "2")]
    assert run.stream("empty").to_csv(tmp_path / "d.csv") == 0
    assert (tmp_path / "d.csv").read_text().strip() == "number,event,rank,time,wall,value"


def test_parquet_has_the_same_columns_with_their_types(run, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed: pip install pyarrow")
    assert run.stream("loss").to_parquet(tmp_path / "loss.parquet") == 50
    read = parquet.read_table(tmp_path / "loss.parquet").to_pydict()
    assert list(zip(read["step"], read["loss"], read["phase"], strict=True)) == ROWS
    assert read["number"] == list(range(1, 51))
    for name, values in (("mean", [0.5, 3.0]), ("texts", ["x", None]), ("empty", [])):
        run.stream(name).to_parquet(tmp_path / "x.parquet")
        column = parquet.read_table(tmp_path / "x.parquet").to_pydict()["value"]
        assert [value for value in column if value == value] == values
    run.stream("norms").to_parquet(tmp_path / "x.parquet")
    assert parquet.read_table(tmp_path / "x.parquet").to_pydict()["b"] == ["[0, 1]", None]


def test_without_pyarrow_the_error_says_what_to_install(run, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(looptap.StoreError, match="pip install 'looptap"):
        run.stream("loss").to_parquet(tmp_path / "loss.parquet")


# ---------------------------------------------------------------- TensorBoard

READER = """
import json, sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
events = EventAccumulator(sys.argv[1]); events.Reload()
tags = events.Tags()["scalars"]
print(json.dumps({tag: [(e.step, e.wall_time, str(e.value)) for e in events.Scalars(tag)] for tag in tags}))
"""


@pytest.mark.usefixtures("processes")
def test_tensorboards_own_reader_reads_what_is_exported(run, tmp_path):
    pytest.importorskip("tensorboard", reason="tensorboard is not installed: pip install tensorboard")
    assert run.stream("loss").to_tensorboard(tmp_path / "logs") == 100
    assert run.stream("mean").to_tensorboard(tmp_path / "logs") == 3
    assert run.stream("norms").to_tensorboard(tmp_path / "logs") == 2
    done = subprocess.run([sys.executable, "-c", READER, str(tmp_path / "logs")], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert set(seen) == {"loss/step", "loss/loss", "mean", "norms/a", "norms/c"}
    assert [step for step, _, _ in seen["loss/loss"]] == list(range(1, 51))
    assert [float(v) for _, _, v in seen["loss/loss"]] == pytest.approx([loss for _, loss, _ in ROWS])
    assert [wall for _, wall, _ in seen["loss/loss"]] == [1e9 + n for n in range(50)]
    assert [v for _, _, v in seen["mean"]] == ["0.5", "nan", "3.0"]


def test_values_without_numbers_are_no_curve(run, tmp_path):
    with pytest.raises(looptap.StoreError, match="no number"):
        run.stream("texts").to_tensorboard(tmp_path / "logs")


WRITTEN = """
import sys
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.summary.writer.event_file_writer import EventFileWriter
for folder, tag in ((sys.argv[1], "loss"), (sys.argv[1] + "/val", "error")):
    writer = EventFileWriter(folder)
    for step in range(3):
        one = Summary.Value(tag=tag, simple_value=step / 2)
        two = Summary.Value(tag="t", tensor=TensorProto(dtype=1, float_val=[step + 0.5]))
        text = Summary.Value(tag="text", tensor=TensorProto(dtype=7, string_val=[b"hello"]))
        writer.add_event(Event(step=step - 1, wall_time=1e9 + step, summary=Summary(value=[one, two, text])))
    writer.close()
"""


@pytest.mark.usefixtures("processes")
def test_a_directory_that_tensorboard_wrote_opens_as_a_stored_run(tmp_path):
    pytest.importorskip("tensorboard", reason="tensorboard is not installed: pip install tensorboard")
    logs = tmp_path / "logs"
    done = subprocess.run([sys.executable, "-c", WRITTEN, str(logs)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    with looptap.open(logs) as run:
        assert (run.name, run.state, run.started) == ("logs", "ended", 1e9)
        assert {stream.name for stream in run.streams} == {"loss", "t", "val/error", "val/t"}
        assert run.stream("loss").values == [0.0, 0.5, 1.0]
        assert run.stream("val/t").values == [0.5, 1.5, 2.5]
        assert [(r.event, r.wall) for r in run.stream("loss").records] == [(-1, 1e9), (0, 1e9 + 1), (1, 1e9 + 2)]
        assert run.stream("loss").query("max(v for v in values)").values == [1.0]


@pytest.fixture
def events():
    file = io.BytesIO()
    points = [tensorboard_events.ScalarPoint("loss", step, 1e9, step / 2) for step in range(5)]
    tensorboard_events.write_points(file, 1e9, points)
    return file.getvalue(), points


def test_a_written_file_reads_back_and_a_truncated_one_up_to_the_cut(events):
    data, points = events
    assert list(tensorboard_events.read_points(io.BytesIO(data))) == points
    for size in range(len(data)):
        read = list(tensorboard_events.read_points(io.BytesIO(data[:size])))
        assert read == points[: len(read)]


def test_every_changed_byte_of_an_event_file_is_noticed(events, tmp_path):
    data, _ = events
    for place in range(len(data)):
        hurt = bytearray(data)
        hurt[place] ^= 0x55
        with pytest.raises(tensorboard_events.Damaged):
            list(tensorboard_events.read_points(io.BytesIO(bytes(hurt))))
    (tmp_path / "events.out.tfevents.1").write_bytes(bytes([data[0] ^ 1]) + data[1:])
    with pytest.raises(looptap.StoreError, match="damaged"):
        looptap.open(tmp_path)


def of_time(wall, step):
    """Return a record of a loss at a time."""
    value = tensorboard_events.bytes_field(1, b"loss") + b"\x15" + struct.pack("<f", 1.0)
    summary = tensorboard_events.bytes_field(5, tensorboard_events.bytes_field(1, value))
    return tensorboard_events.framed(tensorboard_events.double_field(1, wall) + bytes((0x10, step)) + summary)


@pytest.mark.promise("files")
def test_of_a_damaged_event_file_is_read_what_tensorboard_shows(events, tmp_path):
    accumulators = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    data, _ = events
    flipped = bytearray(data)
    flipped[2 * len(data) // 3] ^= 1
    damaged = {
        "zeros": data + bytes(500), "flipped": bytes(flipped), "text": data + b"and some text that a job appended",
        "time": data + of_time(math.nan, 7),
    }  # fmt: skip
    for name, content in damaged.items():
        folder = tmp_path / name
        folder.mkdir()
        (folder / "events.out.tfevents.1").write_bytes(content)
        shown = accumulators.EventAccumulator(str(folder / "events.out.tfevents.1")).Reload().Scalars("loss")
        with looptap.open(folder) as run:
            records = run.stream("loss").records
            assert [(record.event, record.value) for record in records] == [(one.step, one.value) for one in shown]
            assert ("damaged after" in run.reason) is (name != "time")


@pytest.mark.parametrize("odd", [math.nan, math.inf, -math.inf, 1e300, -1e300, -5.0, 0.0, 1.7e12])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_time_that_no_clock_shows_is_left_out_and_the_value_kept(odd, place, tmp_path):
    times = [1.7e9, 1.7e9 + 1, 1.7e9 + 2]
    times[place] = odd
    (tmp_path / "events.out.tfevents.1").write_bytes(b"".join(of_time(wall, step) for step, wall in enumerate(times)))
    instead = times[max(0, place - 1)] if place else times[1]
    expected = [wall if wall != odd and not math.isnan(wall) else instead for wall in times]
    with looptap.open(tmp_path) as run:
        records = run.stream("loss").records
        assert [(record.event, record.value, record.wall, record.time) for record in records] == [
            (step, 1.0, wall, wall) for step, wall in enumerate(expected)
        ]
        assert (run.started, run.ended, run.state) == (expected[0], expected[2], "ended")
        assert run.reason.endswith(f"; times that no clock shows were left out (1 in all, the first {odd:g})")
        assert looptap.compare([run])[0].duration == expected[2] - expected[0]


def test_a_folder_without_any_time_has_neither_start_nor_duration(tmp_path):
    (tmp_path / "events.out.tfevents.1").write_bytes(b"".join(of_time(math.inf, step) for step in range(3)))
    with looptap.open(tmp_path) as run:
        assert (len(run.stream("loss").values), run.started, run.state) == (3, None, "ended")
        assert "(3 in all, the first inf)" in run.reason
        assert looptap.compare([run])[0].duration is None


def test_one_damaged_file_takes_no_other_along_and_a_resumed_run_has_a_note(events, tmp_path):
    data, points = events
    (tmp_path / "events.out.tfevents.1").write_bytes(data)
    (tmp_path / "events.out.tfevents.2").write_bytes(b"no event file")
    (tmp_path / "events.out.tfevents.3").write_bytes(data)
    with looptap.open(tmp_path) as run:
        assert len(run.stream("loss").values) == 2 * len(points)
        assert "tfevents.2 is damaged after 0 points" in run.reason
        assert "'loss' goes back from 4 to 0, as after a resume" in run.reason


# ---------------------------------------------------------------- the command line


@pytest.fixture
def here(tmp_path, monkeypatch, here):
    monkeypatch.chdir(tmp_path)
    return here


def test_open_shows_streams_facts_and_commands(file, here):
    code, out, _ = here("open", file)
    assert code == 0
    assert "digits  ended" in out
    assert "loss = step, loss, phase on batch: 50 values, the last step=49  loss=0.02  phase='train'" in out
    assert "mean on epoch: 3 values, the last 3, 1 error" in out
    assert "set lr from 0.1 to 0.2, by me at batch 3: done" in out


def test_open_as_json_has_all_of_it(file, here):
    shown = json.loads(here("open", file, "--json")[1])
    assert [stream["values"] for stream in shown["streams"]] == [50, 3, 2, 2, 2, 0]
    assert shown["streams"][0]["latest"] == {"step": 49, "loss": 0.02, "phase": "train"}
    assert shown["commands"][0]["what"] == "set lr"
    assert shown["id"] == "digits-1"


def test_export_writes_a_file_called_after_the_stream_and_never_over_another(file, here):
    code, out, _ = here("export", file, "loss")
    assert (code, out) == (0, "50 values written to digits-loss.csv\n")
    assert len(table(Path("digits-loss.csv"))) == 50
    code, _, err = here("export", file, "loss")
    assert (code, "exists already" in err) == (1, True)
    assert here("export", file, "loss", "--output", "digits-loss.csv")[0] == 0
    assert here("export", file, "mean", "--to", "tensorboard", "-o", "logs")[1] == "3 points written to logs\n"
    assert looptap.open("logs").stream("mean").values[0] == 0.5


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["open", "absent"], 1, "absent cannot be opened: No such file or directory, and no stored run has this name"),
        (["export", "FILE", "nothing"], 1, "There is no stream 'nothing'"),
        (["export", "FILE", "loss", "--to", "xlsx"], 2, "csv, parquet, tensorboard"),
    ],
)
def test_a_mistake_is_answered_by_one_sentence(file, here, arguments, code, says):
    found, out, err = here(*(file if argument == "FILE" else argument for argument in arguments))
    assert (found, out) == (code, "")
    assert says in err
    assert len(err.splitlines()) == 1
