"""Live streams on their way into the engines of others: the real packages."""

from __future__ import annotations

import gc
import logging
import os
import subprocess
import sys
import threading
import urllib.error
import urllib.request

import pytest
from torch.utils.tensorboard import SummaryWriter
from waiting import soon

import looptap
from looptap.client.sinks.sending import Sending
from looptap.client.sinks.shared_sink import SharedSink
from looptap.store.exchange.tensorboard_events import read_points
from looptap.testing import pair


def points(folder):
    """Return tag, step and value of all points in the event files of a folder."""
    found = []
    for file in sorted(folder.glob("events*")):
        with file.open("rb") as opened:
            found += [(one.tag, one.step, one.value) for one in read_points(opened)]
    return found


def fetched(port):
    """Return the values that Prometheus would fetch, by the label field."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as reply:
        lines = reply.read().decode().splitlines()
    values = [line for line in lines if line.startswith("looptap_value{")]
    return {line.partition('field="')[2].partition('"')[0]: float(line.rpartition(" ")[2]) for line in values}


def test_a_stream_is_written_for_tensorboard_until_it_ends(tmp_path):
    agent, run = pair("logged")
    agent.emit("batch", step=10, loss=4.0)
    rows, bare = run.stream("step, loss", on="batch"), run.stream("loss / 2", on="batch")
    sending, other = rows.to_tensorboard(tmp_path), bare.to_tensorboard(tmp_path)
    for step in (11, 12):
        agent.emit("batch", step=step, loss=step / 4)
    assert sending.active
    agent.close()
    assert sending.wait(30)
    assert other.wait(30)
    assert (sending.sent, sending.lost, sending.failed) == (2, 0, 0)
    (folder,) = tmp_path.iterdir()
    assert folder.name == run.id
    assert len([*folder.iterdir()]) == 1  # both streams write one file
    assert sorted(points(folder)) == [
        ("loss", 11, 2.75), ("loss", 12, 3.0), ("loss / 2", 2, 1.375), ("loss / 2", 3, 1.5)
    ]  # fmt: skip
    assert repr(sending) == "<Sending of 'step, loss' to tensorboard: ended, 2 sent>"


def test_a_writer_of_the_users_stays_open(tmp_path):
    writer = SummaryWriter(tmp_path)
    agent, run = pair("mine")
    sending = run.stream("step, loss", on="batch").to_tensorboard(writer)
    agent.emit("batch", step=5, loss=0.5)
    assert sending.stop(30)
    writer.add_scalar("own", 1.0, 6)
    writer.close()
    assert points(tmp_path) == [("loss", 5, 0.5), ("own", 6, 1.0)]


def test_streams_at_one_address_are_served_together_until_each_is_stopped():
    agent, run = pair("served")
    loss, rate = run.stream("loss", on="batch"), run.stream("rate", on="batch")
    sendings = [loss.to_prometheus(0), rate.to_prometheus(0)]
    port = sendings[0].sink.port
    agent.emit("batch", loss=0.5, rate=0.1)
    soon(lambda: fetched(port) == {"loss": 0.5, "rate": 0.1})
    assert sendings[0].stop(30)
    agent.emit("batch", loss=0.25, rate=0.2)
    soon(lambda: fetched(port)["rate"] == 0.2)
    assert fetched(port)["loss"] == 0.5
    assert len(loss) == 2  # the stream itself continues
    assert sendings[1].stop(30)
    with pytest.raises(urllib.error.URLError):
        fetched(port)


def test_what_cannot_be_opened_is_said_at_once(monkeypatch):
    agent, run = pair("refused")
    stream = run.stream("loss", on="batch")
    first = stream.to_prometheus(0)
    with pytest.raises(OSError, match="in use"):
        stream.to_prometheus(first.sink.port)
    monkeypatch.setitem(sys.modules, "trackio", None)
    with pytest.raises(ValueError, match="pip install trackio"):
        stream.to_trackio("a")
    assert first.stop(30)
    assert agent.name == "refused"


class Slow:
    """A place for numbers that takes none before it may."""

    def __init__(self):
        self.may, self.entered, self.got = threading.Event(), threading.Event(), []

    def put(self, origin, step, numbers):
        self.entered.set()
        assert self.may.wait(300)
        self.got.append((step, numbers))

    def end(self, id):
        self.got.append(id)

    def close(self):
        self.got.append("closed")


def test_a_slow_sink_holds_nothing_up_and_what_it_misses_is_counted():
    agent, run = pair("fast")
    stream, slow = run.stream("loss", on="batch", buffer=10), Slow()
    sending = Sending(stream, SharedSink(slow, ("slow", None)), "slow")
    agent.emit("batch", loss=0.0)
    assert slow.entered.wait(30)
    for step in range(1, 1000):
        agent.emit("batch", loss=float(step))
    assert stream.arrived == 1000  # while the sink still has the first
    assert not sending.stop(0)
    slow.may.set()
    assert sending.wait(30)
    assert sending.lost > 900
    assert sending.sent + sending.lost == 1000
    assert slow.got[-3:] == [(1000, {"loss": 999.0}), run.id, "closed"]


def test_a_sink_that_fails_gets_the_next_value_all_the_same(caplog):
    class Failing(Slow):
        def put(self, origin, step, numbers):
            if step % 2:
                raise OSError("the disk is full")
            self.got.append(step)

    agent, run = pair("failing")
    stream, sink = run.stream("loss", on="batch"), Failing()
    sending = Sending(stream, SharedSink(sink, ("failing", None)), "failing")
    with caplog.at_level(logging.WARNING):
        for _ in range(10):
            agent.emit("batch", loss=1.0)
        assert sending.stop(30)
    assert (sending.sent, sending.failed, sink.got[:5]) == (5, 5, [2, 4, 6, 8, 10])
    assert str(sending.error) == "the disk is full"
    assert len([one for one in caplog.records if "the disk is full" in one.getMessage()]) == 1


LEFT = """
import sys, looptap
agent = looptap.Agent("left")
looptap.attach("left").stream("step, loss", on="batch").to_tensorboard(sys.argv[1])
stream = looptap.attach("left").stream("step", on="batch")
for step in range(50):
    agent.emit("batch", step=step, loss=step / 2)
stream.wait(50)
agent.close()
"""


@pytest.mark.usefixtures("processes")
@pytest.mark.promise("sinks")
def test_a_stream_that_only_its_sink_holds_lives_and_the_end_of_the_program_loses_nothing(tmp_path):
    (tmp_path / "runs").mkdir(mode=0o700)
    environment = {**os.environ, "LOOPTAP_DIR": str(tmp_path / "runs")}
    done = subprocess.run(
        [sys.executable, "-c", LEFT, str(tmp_path / "logs")], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    (folder,) = (tmp_path / "logs").iterdir()
    assert points(folder) == [("loss", step, step / 2) for step in range(50)]


def test_nothing_is_left_of_it(tmp_path):
    agent, run = pair("short")
    stream = run.stream("loss", on="batch")
    sending = stream.to_tensorboard(tmp_path)
    agent.emit("batch", loss=1.0)
    assert sending.stop(30)
    threads = {thread.name for thread in threading.enumerate()}
    assert "looptap-sink" not in threads
    del sending
    gc.collect()
    again = stream.to_tensorboard(tmp_path)  # begins with what the stream keeps
    assert again.stop(30)
    assert again.sent == 1
    assert isinstance(stream, looptap.LiveStream)
