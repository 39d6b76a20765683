"""The history of scalars in the file of a run: written, read, checked."""

from __future__ import annotations

import contextlib
import json
import os
import re
import sqlite3
import subprocess
import sys
import textwrap
import time
from array import array
from pathlib import Path

import pytest
from places import TESTS
from waiting import soon

import looptap
from looptap.agent.scalars.scalar_table import MAX_ROWS
from looptap.cli.sources import streams_of
from looptap.protocol.limits import Limits
from looptap.store.errors import StoreError
from looptap.store.writer import Writer
from looptap.streams.durations import duration
from looptap.testing import parts_of

JOB = """
    import sys, time, looptap
    agent = looptap.Agent("kept", config={"lr": 0.1})
    step = 0
    while not agent.stop_requested:
        agent.emit("batch", step=step, loss=1 / (step + 1), acc=0.5, right=True)
        if step % 10 == 9:
            agent.emit("epoch", epoch=step // 10, loss=-1.0)
        step += 1
        time.sleep(0.002)
    agent.close()
"""


@pytest.fixture
def job(processes, directory, monkeypatch, tmp_path):
    """Start a job whose only file is that of its settings; return process and file."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LOOPTAP_STORE")
    process = subprocess.Popen([sys.executable, "-c", textwrap.dedent(JOB)], cwd=tmp_path)

    def file() -> Path | None:
        return next((tmp_path / "looptap-runs").glob("*.looptap"), None)

    with process:
        try:
            soon(lambda: file() or process.poll() is not None)
            yield process, file()
        finally:
            process.kill()


def test_a_run_that_ended_has_the_scalars_that_it_had_while_it_ran(job, here):
    process, path = job
    with looptap.attach("kept") as run:
        soon(lambda: len(run.scalars) == 8)
        soon(lambda: run.scalars[0].points > 20)
        live = run.stream("step, loss", history=True)
        run.stop()
        live.wait(20)
    assert process.wait(300) == 0
    with looptap.open(path) as stored:
        assert not stored.streams
        found = {(one.name, one.on): one for one in stored.scalars}
        assert {name for name, _ in found} == {"step", "loss", "acc", "right", "epoch", "events_per_second"}
        assert found["loss", "batch"].points > 20
        assert found["loss", "epoch"].value == -1.0
        rows = stored.stream("step, loss")
        assert (rows.state, rows.on, rows.fields) == ("ended", "batch", ("step", "loss"))
        first, last = live.history[:2]
        kept = [tuple(row) for row in live.values[first - 1 : last]]
        assert [tuple(row) for row in rows.values[: len(kept)]] == kept
        assert all(type(row.step) is int and row.loss == 1 / (row.step + 1) for row in rows.values)
        assert [record.event for record in rows.records] == [row.step + 1 for row in rows.values]
        assert all(record.history for record in rows.records)
        assert abs(rows.records[-1].wall - path.stat().st_mtime) < 600
        assert rows.history.last == len(rows)
        pace, newest = f"{rows.history.pace:.2g}", rows.records[-1].event
        assert rows.notes == [f"has {len(rows)} values kept since event 1, {pace} s apart, up to event {newest:,}"]
        assert set(stored.stream("right").values) == {True}
        assert set(stored.history("loss", on="epoch").values) == {-1.0}
        assert stored.stream("loss") is stored.stream("loss")
        assert rows.query("max(v.loss for v in values)").values == [1.0]
        with pytest.raises(StoreError, match=r"no stream 'lose'.*'loss'"):
            stored.stream("lose")
    out = here("open", str(path))[1]
    assert "acc 0.5, right True; " in out
    assert sum("events per second" in line for line in out.splitlines()) == 2
    assert len(json.loads(here("open", str(path), "--json")[1])["scalars"]) == 8
    assert here("export", str(path), "step, loss", "-o", "loss.csv")[0] == 0
    assert Path("loss.csv").read_text().splitlines()[1].startswith("1,1,")
    (row,) = looptap.compare([path])
    assert (row.figure("best", "loss"), row.figure("max", "acc")) == (found["loss", "batch"].value, 0.5)


@pytest.mark.promise("scalars")
def test_a_run_that_was_killed_has_its_scalars_and_the_time_of_the_newest(job, here):
    process, path = job

    def stored():
        with looptap.open(path) as run:
            return run.scalars

    soon(lambda: any(one.points > 5 for one in stored()))
    with looptap.open(path) as run:
        assert run.alive
        loss = run.stream("loss")
        before = len(loss)
        soon(lambda: len(loss) > before)  # it grows while the run does
        events = [record.event for record in loss.records]
        assert events == sorted(set(events))
        process.kill()
        process.wait(300)
        soon(lambda: loss.state == "ended")
    with looptap.open(path) as run:
        assert (run.state, run.ended) == ("ended", None)
        assert run.stream("loss").values[0] == 1.0
        assert run.stream("loss").values[: len(loss)] == loss.values
        newest = max(run.history(one.name, one.on).records[-1].wall for one in run.scalars)
        assert run.until == pytest.approx(newest, abs=1e-3)
        lived = newest - run.started
    os.utime(path, (1e9, 1e9))  # the newest values are in SQLite's log, and the file may have been copied
    (row,) = looptap.compare([path])
    assert row.duration == pytest.approx(lived, abs=1e-3)
    out = here("open", str(path))[1]
    assert "ended: its process was killed, or ended without closing the file" in out
    at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(newest))
    assert f", for {duration(lived)}, until the newest thing stored at {at}" in out
    assert json.loads(here("open", str(path), "--json")[1])["until"] == pytest.approx(newest, abs=1e-3)


def test_a_run_that_was_killed_before_it_kept_a_value_ended_when_its_file_was_written(job):
    process, path = job
    process.kill()
    process.wait(300)
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.execute("DELETE FROM scalars")
    os.utime(path, (2e9, 2e9))
    with looptap.open(path) as run:
        assert (run.streams, run.ended, run.until) == ([], None, 2e9)


@pytest.fixture
def stored(directory, monkeypatch, tmp_path):
    """Return the file of a run that kept no stream."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LOOPTAP_STORE")
    with looptap.Agent("kept", config={"lr": 0.1, "model": {"width": 8}}) as agent:
        sources = parts_of(agent).sources
        for step in range(3):
            agent.emit("batch", step=step, loss=1 / (step + 1))
            agent.emit("epoch", epoch=step, loss=-1.0)
            for name in ("batch", "epoch"):
                sources.open(name).mark()
    (path,) = (tmp_path / "looptap-runs").glob("*.looptap")
    return path


def test_the_shell_watches_a_stored_run_by_the_names_of_its_scalars(stored, here):
    code, out, err = here("watch", stored, "loss")
    assert (code, [line.split() for line in out.splitlines()]) == (0, [["1", "1"], ["2", "0.5"], ["3", "0.333333"]])
    assert "loss: 3 values, 0 missing; the run ended" in err
    assert "has 3 values kept since event 1" in err
    code, out, _ = here("watch", stored, "step, loss", "loss", "--count", "2", "--json")
    assert code == 0
    assert [json.loads(line)["value"] for line in out.splitlines()[:4]] == [
        {"step": 0, "loss": 1.0}, {"step": 1, "loss": 0.5}, 1.0, 0.5,
    ]  # fmt: skip
    assert "-1" in here("watch", stored, "loss", "--on", "epoch")[1]
    for words, says in (
        (["acc"], "no stream 'acc'.*'step', 'loss', .*'epoch'"), (["loss", "--on", "val"], "no stream 'loss' of 'val'"),
        (["loss", "--every", "2"], "is a stored run; its streams are read by their names"),
        (["loss", "--window", "2"], "--window: .*stored run"),
    ):  # fmt: skip
        code, out, err = here("watch", stored, *words)
        assert (code, out) == (1, "")
        assert re.search(says, err)


@pytest.mark.usefixtures("processes")
def test_a_stored_run_that_kept_some_streams_is_drawn_with_the_curves_of_its_scalars(directory, tmp_path):
    with looptap.Agent("both", config={}, store=tmp_path / "both.looptap") as agent:
        agent.stream("rate", "lr", keep=True)
        agent.emit("batch", step=1, loss=0.5, lr=0.1)
    with looptap.open(tmp_path / "both.looptap") as run:
        assert [(one.name, one.values) for one in streams_of(run, [], {})] == [("rate", [0.1]), ("loss", [(1, 0.5)])]


def test_the_shell_lists_scalars_where_a_run_has_no_stream(stored, here):
    code, out, _ = here("open")
    assert code == 0
    assert out.endswith("0 commands; 3 scalars\n")
    assert "no stream" not in out
    assert json.loads(here("open", "--json")[1])[0]["scalars"] == 3
    out = here("open", stored)[1]
    assert "  config    lr=0.1  model.width=8\n" in out
    assert "  command   " in out
    assert "  scalars   batch: step 2, loss 0.333333; " in out
    with looptap.Agent("live") as agent:
        assert "carry no number so far" in here("streams", "live")[1]
        agent.emit("batch", step=1, loss=0.5)
        assert here("streams", "live")[1] == "scalars on batch: step 1, loss 0.5; up to 1 value of each\n"
        assert "scalars  batch: step 1, loss 0.5; " in here("top", "live")[1]


def test_a_file_called_like_a_live_run_does_not_hide_it(directory, here, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    Path("train").write_text("text")
    with looptap.Agent("train") as agent:
        agent.emit("batch", loss=0.5)
        assert here("plot", "train", "loss", "--save", "loss.svg", "--after", "0")[0] == 0
    assert "is not a run that looptap has stored" in here("plot", "./train")[2]


def test_names_beyond_the_bound_are_counted_and_a_run_without_a_file_gets_none(directory, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LOOPTAP_STORE")
    for config in (None, {}):
        with looptap.Agent("many", config=config, limits=Limits(scalars=3)) as agent, looptap.attach("many") as run:
            agent.emit("batch", **{f"n{n}": n for n in range(10)}, **{"\ud800": 1.0})
            left_out = soon(lambda run=run: run.scalars.left_out)
        assert (tmp_path / "looptap-runs").exists() == (config is not None)
    with looptap.open(next((tmp_path / "looptap-runs").glob("*"))) as stored:
        assert len(stored.scalars) == 3
        assert stored.scalars.left_out == left_out > 0
    with looptap.Agent("none", config={}, history=False) as agent:
        agent.emit("batch", loss=1.0)
    with looptap.open(next((tmp_path / "looptap-runs").glob("none*"))) as stored:
        assert stored.scalars == []


def test_a_file_of_an_older_version_opens_without_scalars():
    with looptap.open(TESTS / "store" / "versions" / "version-1.looptap") as run:
        assert run.scalars == []
        assert run.history("loss") is None
        assert len(run.stream("loss")) == 21
        with pytest.raises(StoreError, match="no stream 'acc'"):
            run.stream("acc")


# ---------------------------------------------------------------- files that are not to be trusted

GOOD = {
    "event": "batch", "last": 2, "clock": 0.0, "names": '[["loss","loss","float",false],["step","step","int",false]]',
    "numbers": array("q", [1, 2]).tobytes(), "times": array("d", [0.0, 1.0]).tobytes(),
    "columns": array("d", [0.5, 0.25, 0, 1]).tobytes() + b"\1\1\1\1",
}  # fmt: skip


def file_with(path, **changes):
    """Return a stored run with one row of scalars."""
    writer = Writer(path, {"id": "odd-1"})
    writer.create()
    assert writer.close(60)
    row = GOOD | changes
    with sqlite3.connect(path) as connection:
        connection.execute("INSERT INTO scalars VALUES (?, ?, ?, ?, ?, ?, ?)", tuple(row.values()))
    connection.close()
    return path


def test_a_good_row_is_read(tmp_path):
    with looptap.open(file_with(tmp_path / "good.looptap")) as run:
        assert run.stream("step, loss").values == [(0, 0.5), (1, 0.25)]


@pytest.mark.usefixtures("processes")
def test_integers_beyond_the_exact_floats_are_stored_as_they_are(directory, tmp_path):
    big = [2**53 + 1, 1 - 2**60, 7, 2**63 - 1, 2**64 - 1, 2**63 + 1024]
    with looptap.Agent("big", store=tmp_path, config={}) as agent:
        for n in big:
            agent.emit("batch", n=n, loss=0.5)
    (path,) = tmp_path.glob("*.looptap")
    with looptap.open(path) as run:
        found = run.stream("n").values
        assert (found, {*map(type, found)}) == (big, {int})
        assert run.stream("loss, n").values == [(0.5, n) for n in big]


NAN = float("nan")


@pytest.mark.parametrize(
    "changes",
    [
        {"columns": GOOD["columns"][:-1]}, {"columns": b""}, {"columns": "text"}, {"columns": 7},
        {"numbers": b""}, {"numbers": GOOD["numbers"] + b"1"}, {"numbers": array("q", [-1, 2]).tobytes()},
        {"numbers": array("q", [1, (1 << 62) + 1]).tobytes()}, {"numbers": bytes(100_000)},
        {"numbers": array("q", [2, 2]).tobytes()}, {"last": 3},
        {"times": b""}, {"times": array("d", [NAN, 1.0]).tobytes()}, {"times": array("d", [-1e308, 1e308]).tobytes()},
        {"clock": "now"}, {"clock": 9e999}, {"event": b"\xff"}, {"last": "many"},
        {"names": "["}, {"names": "[]"}, {"names": "{}"}, {"names": '[["loss"]]'}, {"names": "[" * 100_000},
        {"names": '[["loss","loss","float",false],["loss","loss","float",false]]'},
        {"names": '[["loss","loss","complex",false],["step","step","int",false]]'},
        {"names": '[["loss","loss","float",false,[1]],["step","step","int",false]]'},
        {"names": '[["loss","loss","float",false],["step","step","int",false,[0,1025]]]'},
        {"columns": array("d", [0.5, 0.25, 0, NAN]).tobytes() + b"\1\1\1\1"},
        {"columns": array("d", [0.5, 0.25, 0, 9e999]).tobytes() + b"\1\1\1\1"},
    ],
    ids=lambda changes: next(f"{name}-{value!r:.30}" for name, value in changes.items()),
)  # fmt: skip
def test_a_hostile_row_is_refused_with_a_sentence(changes, tmp_path):
    with looptap.open(file_with(tmp_path / "odd.looptap", **changes)) as run:
        for read in (lambda: run.scalars, lambda: run.stream("step, loss")):
            with pytest.raises(StoreError, match=r"damaged|cannot be read"):
                read()


@pytest.mark.parametrize("kind", ["VIEW", "TABLE"])
def test_a_view_or_a_table_without_columns_in_place_of_the_scalars_is_refused(kind, tmp_path):
    path = file_with(tmp_path / "view.looptap")
    columns = ", ".join(f"1 AS {name}" for name in (GOOD if kind == "VIEW" else ["event"]))
    with sqlite3.connect(path) as connection:
        connection.executescript(f"DROP TABLE scalars; CREATE {kind} scalars AS SELECT {columns}")
    connection.close()
    with pytest.raises(StoreError, match="in place of the table scalars" if kind == "VIEW" else "lacks the column"):
        looptap.open(path)


def test_a_full_table_is_written_and_read_back(tmp_path):
    names = [f"n{n}" for n in range(100)]
    row = {
        "last": MAX_ROWS, "names": json.dumps([[name, name, "float", False] for name in names]),
        "numbers": array("q", range(1, MAX_ROWS + 1)).tobytes(), "times": array("d", range(MAX_ROWS)).tobytes(),
        "columns": array("d", [0.5]).tobytes() * (100 * MAX_ROWS) + b"\1" * (100 * MAX_ROWS),
    }  # fmt: skip
    with looptap.open(file_with(tmp_path / "full.looptap", **row)) as run:
        assert [one.points for one in run.scalars] == [MAX_ROWS] * 100
        assert len(run.stream("n99").values) == MAX_ROWS
