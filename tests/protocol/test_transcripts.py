"""Recorded conversations: minor versions are understood, other majors refused."""

from __future__ import annotations

import importlib.util
import json
import math
import random
import threading
import time
from array import array
from pathlib import Path
from typing import Any, get_args

import msgspec
import numpy as np
import pytest

from looptap.client.run import Run
from looptap.protocol import messages as m
from looptap.protocol.codec import decode_from_agent, decode_from_client, encode
from looptap.protocol.errors import MessageError, VersionMismatch
from looptap.protocol.keys import OPERATOR
from looptap.protocol.replies import checked_reply
from looptap.protocol.values.packing import pack
from looptap.protocol.values.unpacking import unpack, unpack_values
from looptap.testing import parts_of

PLACE = Path(__file__).parent / "transcripts"
RECORDED = sorted(path.name for path in PLACE.iterdir() if (path / "conversation.txt").exists())
VERSIONS = [version for version in RECORDED if version.split(".")[0] == str(m.VERSION[0])]
FORMER = [version for version in RECORDED if version not in VERSIONS]
TODAY = ".".join(map(str, m.VERSION))
RUN = m.RunInfo("id", "name", "host", 1, 0.0)


@pytest.fixture(scope="module")
def record():
    """Return the module that records transcripts."""
    found = importlib.util.spec_from_file_location("looptap_transcripts_record", PLACE / "record.py")
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def transcript(version):
    return (PLACE / version / "conversation.txt").read_text().splitlines()


def bare(value):
    """Return the value in a form that can be compared."""
    return value.tolist() if isinstance(value, np.ndarray) else value


def gist(frames):
    """Return the content of an agent's frames, without clock, machine and wording."""
    found = []
    for message in map(decode_from_agent, frames):
        match message:
            case m.Welcome():
                found.append(("welcome", message.run, message.role))
            case m.Done():
                value = unpack(message.value)
                facts = ("mapped", "fields", "run", "events", "name", "values", "exported", "kept", "after")
                reported = value if isinstance(value, list) else [value]
                known = [{n: v[n] for n in facts if n in v} if isinstance(v, dict) else v for v in reported]
                found.append(("done", message.request, known))
            case m.Failed():
                found.append(("failed", message.request, message.kind))
            case m.Values():
                values = [bare(v) for v in unpack_values(message.form, message.values)]
                found.append(("values", message.stream, message.first, message.events, message.flags, values))
            case m.Status() if message.state != "live":
                found.append(("over", message.stream, message.state, message.last))
            case m.Beat():
                found.append(("beat", message.events))
            case m.Goodbye():
                found.append(("goodbye", message.reason))
    return found


def steps(version):
    """Yield the client's and the job's steps, with the agent's frames that followed."""
    found = []
    for line in transcript(version):
        kind, rest = line.split(" ", 1)
        if kind == "<":
            found[-1][2].append(bytes.fromhex(rest))
        else:
            found.append((kind, rest, []))
    return found


def test_there_is_a_transcript_of_the_present_version():
    assert TODAY in VERSIONS


@pytest.mark.parametrize("version", FORMER)
def test_a_client_of_an_older_major_is_refused_with_both_versions(version):
    kind, hello, _ = steps(version)[0]
    answer = heard(bytes.fromhex(hello))
    assert (kind, type(answer)) == (">", m.Refused)
    assert answer.reason == (
        f"the client uses protocol {version} and the agent {TODAY}; install the same version on both sides."
    )


@pytest.mark.parametrize("version", FORMER)
def test_a_client_of_an_older_major_that_continues_anyway_is_never_served(version, record):
    agent, said = record.agent_in_memory(), []

    class Recorder:
        on_frame = staticmethod(said.append)

    parts_of(agent).connection.receivers[b"then"] = Recorder()
    for kind, rest, _ in steps(version):
        if kind == ">":
            parts_of(agent).connection.dispatcher.receive(b"then", OPERATOR, bytes.fromhex(rest))
        elif rest.startswith("emit"):
            record.happens(agent, rest)
    answers = list(map(decode_from_agent, said))
    assert {type(answer) for answer in answers} == {m.Refused}
    assert (parts_of(agent).dispatcher.clients, parts_of(agent).dispatcher.exporter.streams) == ({}, {})


@pytest.mark.parametrize("version", FORMER)
def test_an_agent_of_an_older_major_is_an_error_with_both_versions(version):
    _, _, answers = steps(version)[0]
    with pytest.raises(VersionMismatch) as caught:
        Run(Answer(answers[0]), timeout=5)
    assert str(caught.value) == (
        f"The agent speaks protocol {version} and this client {TODAY}; install the same looptap version on both sides."
    )


@pytest.mark.promise("S32")
@pytest.mark.parametrize("version", VERSIONS)
def test_this_agent_answers_recorded_clients_as_recorded(version, record):
    agent, said = record.agent_in_memory(), []

    class Recorder:
        on_frame = staticmethod(said.append)

    parts_of(agent).connection.receivers[b"then"] = Recorder()
    for kind, rest, answers in steps(version):
        said.clear()
        if kind == "!":
            record.happens(agent, rest)
        else:
            parts_of(agent).connection.dispatcher.receive(b"then", OPERATOR, bytes.fromhex(rest))
            parts_of(agent).connection.wake()
        expected = gist(answers)
        if rest == "close" and version < "2.2":  # which sends the window that the end of the run cuts off
            expected[expected.index(("over", 5, "ended", 2))] = ("over", 5, "ended", 3)
            expected.append(("values", 5, 3, array("q", [8]).tobytes(), b"\x01", [7]))
        if rest == "close":  # it flags the group of stream 2 that the end of the run cuts off; those agents did not
            (at,) = (at for at, one in enumerate(expected) if one[:3] == ("values", 2, 2))
            expected[at] = (*expected[at][:4], b"\x01", expected[at][5])
        assert sorted(gist(said), key=str) == sorted(expected, key=str), rest
    assert parts_of(agent).dispatcher.statistics.refused_messages == 0


class Player:
    """A link to a recorded agent, which repeats after each step what it sent then."""

    def __init__(self, version):
        self.steps, self.at = steps(version), 0

    def start(self, receiver, timeout):
        self.receiver = receiver

    def send(self, frame):
        message = decode_from_client(frame)
        if isinstance(message, m.Leave):  # the run is over and dropped
            return
        kind, rest, _ = self.steps[self.at]
        assert (kind, type(message)) == (">", type(decode_from_client(bytes.fromhex(rest))))
        self.go_on()

    def happen(self, line):
        assert self.steps[self.at][:2] == ("!", line)
        self.go_on()

    def sent(self, kind):
        deadline = time.monotonic() + 60
        while type(self.last) is not kind:
            assert time.monotonic() < deadline
            time.sleep(0.001)

    @property
    def last(self):
        kind, rest, _ = self.steps[self.at - 1]
        return decode_from_client(bytes.fromhex(rest)) if kind == ">" else None

    def go_on(self):
        self.at += 1
        for answer in self.steps[self.at - 1][2]:
            self.receiver.on_frame(answer)

    def close(self, timeout=1.0):
        pass


@pytest.mark.parametrize("version", VERSIONS)
def test_this_client_reads_recorded_agents_as_recorded(version, record):
    player = Player(version)
    run = Run(player, run=record.RUN)
    made = record.converse(run, player.happen, player.sent, tuple(map(int, version.split("."))))
    assert json.loads(json.dumps(made)) == json.loads((PLACE / version / "outcome.json").read_text())
    assert player.at == len(player.steps)
    assert run.refused_messages == 0
    assert not [t for t in threading.enumerate() if t.name == "looptap-client"]


# ---------------------------------------------------------------- other versions


def heard(frame):
    """Return an agent's reply to the first frame of an unknown client."""
    from looptap.testing import pair

    agent, said = pair()[0], []

    class Recorder:
        on_frame = staticmethod(said.append)

    parts_of(agent).connection.receivers[b"unknown"] = Recorder()
    parts_of(agent).connection.dispatcher.receive(b"unknown", OPERATOR, frame)
    (answer,) = map(decode_from_agent, said)
    return answer


def test_every_request_says_what_its_reply_is():
    assert set(m.REPLIES) == {kind for kind in get_args(m.FromClient) if issubclass(kind, m.Request)}
    assert Any not in m.REPLIES.values()


def replies():
    """Yield the requests of the newest transcript, each with its packed reply."""
    asked = {}
    for kind, rest, answers in steps(TODAY):
        if kind == ">" and isinstance(request := decode_from_client(bytes.fromhex(rest)), m.Request):
            asked[request.request] = type(request)
        for answer in map(decode_from_agent, answers):
            if isinstance(answer, m.Done):
                yield asked[answer.request], bytes(answer.value)


def changed(raw, dice):
    """Return a packed reply with up to three bytes, or one field, changed."""
    if dice.random() < 0.5:
        data = bytearray(raw)
        for _ in range(dice.randint(1, 3)):
            data[dice.randrange(len(data))] = dice.randrange(256)
        return bytes(data)
    value = unpack(raw)
    place = value[0] if isinstance(value, list) and value else value
    if isinstance(place, dict):
        place[dice.choice(list(place))] = dice.choice(
            [None, -1, 2**70, math.nan, "", "x", b"\xff", [], {}, (1, 2), [{}]]
        )
    return pack(value)


def test_a_mutated_reply_is_one_of_its_type_or_an_error():
    dice, refused, kinds = random.Random(5), 0, list(replies())
    assert {kind for kind, _ in kinds} >= {
        m.Attach,
        m.DeclareStream,
        m.GetStats,
        m.GetStreams,
        m.Call,
        m.Command,
        m.Detach,
    }
    for _ in range(4000):
        kind, raw = dice.choice(kinds)
        try:
            checked_reply(m.REPLIES[kind], unpack(changed(raw, dice)))
        except MessageError:
            refused += 1
    assert 1000 < refused < 3900


def test_a_hello_of_a_newer_minor_with_unknown_fields_is_accepted():
    hello = {
        "t": "hello",
        "version": [m.VERSION[0], 99],
        "client": "tomorrow",
        "colours": {"sky": [1, 2]},
        "streams": [4],
    }
    assert isinstance(heard(msgspec.msgpack.encode(hello)), m.Welcome)


@pytest.mark.parametrize("more", [{"client": "tomorrow"}, {"client": {"name": "tomorrow"}}, {"t": "bonjour"}])
def test_a_hello_of_another_major_gets_a_sentence_with_both_versions(more):
    answer = heard(msgspec.msgpack.encode({"t": "hello", "version": [9, 3]} | more))
    assert isinstance(answer, m.Refused)
    assert answer.reason == (
        f"the client uses protocol 9.3 and the agent {TODAY}; install the same version on both sides."
    )


class Answer:
    """A link to an agent that answers a hello with these bytes."""

    def __init__(self, reply):
        self.reply, self.sent = reply, []

    def start(self, receiver, timeout):
        self.receiver = receiver

    def send(self, frame):
        self.sent.append(decode_from_client(frame))
        if isinstance(self.sent[-1], m.Hello):
            self.receiver.on_frame(self.reply)

    def close(self, timeout=1.0):
        pass


def test_a_welcome_of_a_newer_minor_with_unknown_fields_is_understood():
    welcome = msgspec.msgpack.decode(encode(m.Welcome((m.VERSION[0], 99), RUN, OPERATOR, {"batch": 3})))
    welcome["run"]["gpu"], welcome["mood"] = "H9000", ["good"]
    run = Run(Answer(msgspec.msgpack.encode(welcome)))
    assert (run.name, run.events()) == ("name", {"batch": 3})


@pytest.mark.parametrize(
    "reply",
    [
        encode(m.Welcome((9, 3), RUN, OPERATOR)),
        encode(m.Refused("no.", (9, 3))),
        msgspec.msgpack.encode({"t": "welcome", "version": [9, 3], "run": "another shape"}),
        msgspec.msgpack.encode({"t": "bonjour", "version": [9, 3]}),
    ],
)
def test_an_agent_of_another_major_is_an_error_with_both_versions(reply):
    with pytest.raises(VersionMismatch) as caught:
        Run(Answer(reply), timeout=5)
    assert str(caught.value) == (
        f"The agent speaks protocol 9.3 and this client {TODAY}; install the same looptap version on both sides."
    )
