"""Viewers: they see exported streams only, through a socket open during shares."""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time

import msgspec
import pytest
import zmq
from listening import bound
from relays import Proxy
from waiting import soon

import looptap
from looptap.cli import main
from looptap.protocol import messages as m
from looptap.protocol.codec import decode_from_agent, encode
from looptap.protocol.errors import NotAllowed, RunEnded
from looptap.protocol.files.connection import read_connection_file
from looptap.protocol.roles import ALLOWED
from looptap.protocol.values.unpacking import unpack
from looptap.streams.errors import QueryError
from looptap.streams.stream.attention import PROMPT_SECONDS
from looptap.testing import pair, parts_of


@pytest.fixture
def job(directory, monkeypatch):
    """Yield an agent with an exported and a hidden stream, and its operator."""
    monkeypatch.chdir(directory)
    limits = looptap.Limits(heartbeat=0.1)
    with looptap.Agent("shared", budget=math.inf, limits=limits) as agent, looptap.attach("shared") as run:
        agent.stream("loss", "step, loss", on="batch", unit="nats")
        agent.stream("secret", "secret", on="hidden")
        agent.log(private=1)
        for step in range(5):
            agent.emit("batch", step=step, loss=step / 4)
            agent.emit("hidden", secret=step)
        run.export("loss")
        yield agent, run


@pytest.fixture
def dial():
    """Return a function that opens a bare encrypted socket with the key in a file."""
    context, made = zmq.Context(), []

    def connect(path, hello=True, **options):
        file = read_connection_file(path)
        dealer = context.socket(zmq.DEALER)
        made.append(dealer)
        dealer.linger, dealer.rcvtimeo, dealer.sndtimeo = 0, 20_000, 20_000
        dealer.curve_serverkey = file.server_public.encode()
        dealer.curve_publickey, dealer.curve_secretkey = file.client.public, file.client.secret
        for name, value in options.items():
            setattr(dealer, name, value)
        dealer.connect(file.endpoints[0])
        if hello:
            dealer.send(encode(m.Hello(m.VERSION, "bare")))
            assert decode_from_agent(dealer.recv()).role == "viewer"
        return dealer

    yield connect
    for dealer in made:
        dealer.close()
    context.term()


def answer(dealer, request):
    """Return the reply to a request, skipping other messages."""
    while True:
        message = decode_from_agent(dealer.recv())
        if isinstance(message, m.Done | m.Failed) and message.request == request:
            return message


# ---------------------------------------------------------------- S7: the socket


def test_before_a_share_nothing_more_listens_and_after_the_last_nothing_again(job):
    _, run = job
    before = bound()
    first = run.share()
    (path,) = set(bound()) - set(before)
    assert first.endpoints == (f"ipc://{path}",)
    assert os.stat(path).st_mode & 0o777 == 0o600
    second = run.share()
    assert second.endpoints == first.endpoints
    third = run.share(endpoint="tcp")
    (address,) = set(bound()) - {*before, path}
    assert address.startswith("0100007F:")
    assert [share.id for share in run.shares] == [first.id, second.id, third.id]
    first.revoke()
    third.revoke()
    soon(lambda: set(bound()) - set(before) == {path})
    assert run.revoke() == [second.id]
    soon(lambda: bound() == before)
    assert not os.path.exists(path)
    assert run.shares == []


def test_a_viewers_file_is_private_has_a_key_of_its_own_and_no_secret_of_the_server(job, tmp_path):
    agent, run = job
    shares = [run.share(), run.share(path=tmp_path), run.share(path=tmp_path / "for-ada.json")]
    files = [read_connection_file(share.path) for share in shares]
    assert shares[2].path.name == "for-ada.json"
    assert [share.path.stat().st_mode & 0o777 for share in shares] == [0o600] * 3
    assert len({file.public for file in files}) == 3
    assert {file.role for file in files} == {"viewer"}
    secrets = [socket.server.secret.decode() for socket in parts_of(agent).connection.link.sockets]
    for share, file in zip(shares, files, strict=True):
        assert not any(secret in share.path.read_text() for secret in secrets)
        assert file.secret not in f"{share!r}{run.shares}{run.stats()}{vars(share)}"
    with pytest.raises(looptap.UnsafeFile, match="already something"):
        run.share(path=shares[0].path)
    assert len(run.shares) == 3  # an unused key is revoked


# ---------------------------------------------------------------- S6, S7, S8: what a viewer may do

CODE = m.Code("__import__('os').environ", b"cos\nabort\n(tR.", sys.version_info[:2])
REQUESTS = [
    m.Hello(m.VERSION), m.GetStreams(2), m.Read(3, 3, "loss"), m.Detach(4, 3), m.Got(1 << 60), m.Beat(),
    m.Attach(10, 10, CODE, "batch"), m.Attach(11, 11, m.Code("loss"), "", named=True), m.CloseWindow(12, 3),
    m.Grant(13, 3, 1.0), m.Call(14, "id", CODE, "batch"), m.Command(15, "id2", "stop"), m.GetStats(16),
    m.Agree(25, "id3", 0),
    m.GetStacks(17), m.GetControls(18), m.GetCommands(19), m.GetShares(20), m.GetClock(26), m.GetScalars(27),
    m.GetConfig(28), m.GetModules(29),
    m.DeclareStream(21, 0, "secret", export=True), m.DeclareStream(22, 3, "loss", keep=True), m.CreateShare(23, 60.0),
    m.Revoke(24), m.Leave(),
]  # fmt: skip
METADATA = [{}, *({"metadata": name + b":%s"} for name in (b"X-User-Id", b"X-Role", b"X-user-id"))]


@pytest.mark.parametrize("forged", METADATA, ids=lambda forged: str(forged.get("metadata", b"none")))
def test_every_request_of_a_viewer_is_answered_as_the_table_of_roles_says(job, dial, forged):
    agent, run = job
    assert {type(request) for request in REQUESTS} == set(ALLOWED)
    (operator,) = (client.key.encode() for client in parts_of(agent).dispatcher.clients.values())
    options = {name: value % operator for name, value in forged.items()}
    viewer = dial(run.share(config=True).path, identity=b"operator", **options)
    for request in REQUESTS:
        viewer.send(encode(request))
        number = getattr(request, "request", None)
        if number is None:
            continue
        said = answer(viewer, number)
        if "viewer" in ALLOWED[type(request)]:
            assert isinstance(said, m.Done)
        else:
            assert (said.kind, said.text.startswith("A viewer may not ")) == ("role", True)
    soon(lambda: len(parts_of(agent).dispatcher.clients) == 1)
    agent.emit("batch", step=5, loss=1.0)
    assert not agent.stop_requested
    assert [(s.name, s.exported, s.kept) for s in run.streams] == [
        ("loss", True, False), ("secret", False, False), ("private", False, False)
    ]  # fmt: skip
    assert run.commands == []
    assert parts_of(agent).connection.link.faults == 0


def test_a_viewer_sees_exported_streams_and_learns_of_nothing_else(job):
    agent, run = job
    share = run.share()
    with looptap.attach(share.path) as viewer:
        assert viewer.role == "viewer"
        assert viewer.events() == {"batch": 5}
        assert [(s.name, s.unit) for s in viewer.streams] == [("loss", "nats")]
        loss = viewer.stream("loss")
        agent.emit("batch", step=5, loss=2.0)
        assert loss.wait(6)[-1] == (5, 2.0)
        assert [r.number for r in loss.records] == [1, 2, 3, 4, 5, 6]
        highest = loss.query("max(v.loss for v in values)", window=3)
        agent.emit("batch", step=6, loss=0.0)
        assert highest.wait(2) == [0.5, 2.0]
        assert share.viewers == [viewer.session.client]
        for name in ("secret", "private", "los", "step"):
            with pytest.raises(QueryError, match=r"no exported stream .*; there are: 'loss'\.") as error:
                viewer.stream(name)
            assert ("secret" in str(error.value)) == (name == "secret")
        refused = [
            lambda: viewer.stream("loss", on="batch"), lambda: viewer.stream(lambda e: e.loss), viewer.stats,
            viewer.stacks, lambda: viewer.call("1"), lambda: viewer.set("lr", 1), viewer.stop, viewer.checkpoint,
            viewer.pause, viewer.resume, lambda: viewer.controls.look(), lambda: viewer.commands, lambda: viewer.shares,
            viewer.share, viewer.revoke, lambda: viewer.export("loss"), lambda: viewer.keep(loss), loss.close_window,
            lambda: loss.grant(0.5),
        ]  # fmt: skip
        for ask in refused:
            with pytest.raises(looptap.NotAllowed, match="A viewer may not"):
                ask()
        assert viewer.alive


def test_a_hidden_stream_disappears_at_once_but_not_for_operators(job):
    agent, run = job
    with looptap.attach(run.share().path) as viewer, looptap.attach("shared") as other:
        seen, mine = viewer.stream("loss"), other.stream("loss")
        seen.wait(5)
        run.export("loss", False)
        agent.emit("batch", step=5, loss=2.0)
        assert mine.wait(6)[-1] == (5, 2.0)
        soon(lambda: seen.state == "ended")
        assert (len(seen), seen.reason) == (5, "it is no longer exported")
        assert (viewer.streams, viewer.alive) == ([], True)
        run.export("loss")
        assert viewer.stream("loss").wait(6)[-1] == (5, 2.0)


def test_a_viewer_gets_one_line_of_an_error_without_code(job):
    agent, run = job
    agent.expose(pick=lambda table: table["a name of the job"])
    run.export(run.stream("[pick(e.table) for e in events]", on="batch", window=1), name="broken")
    with looptap.attach(run.share().path) as viewer:
        broken = viewer.stream("broken")
        agent.emit("batch", table={})
        soon(lambda: broken.errors)
        assert "KeyError" in broken.errors[0].error
        assert "\n" not in broken.errors[0].error + broken.traceback


def test_a_viewers_stream_ends_after_as_many_values_as_it_was_to_have(job):
    agent, run = job
    with looptap.attach(run.share().path) as viewer:
        part, whole = viewer.stream("loss", count=7), viewer.stream("loss")
        agent.emit("batch", step=5, loss=1.25)
        whole.wait(6)
        assert part.state == "live"
        for step in range(6, 50):
            agent.emit("batch", step=step, loss=0.5)
        whole.wait(50)
        soon(lambda: part.state == "ended", detail=lambda: repr(part))
        assert [row.step for row in part.values] == [*range(7)]
        assert (part.dropped, part.reason) == (0, "all 7 values that it was to have")
        assert viewer.attached == [whole]


def test_a_key_revoked_while_connected_gets_nothing_more_and_others_continue(job, dial):
    agent, run = job
    mine, other = run.share(), run.share()
    viewer = dial(mine.path)
    viewer.send(encode(m.Read(1, 1, "loss")))
    answer(viewer, 1)
    with looptap.attach(other.path) as friend:
        seen = friend.stream("loss")
        mine.revoke()
        for step in range(5, 50):
            agent.emit("batch", step=step, loss=0.5)
        assert len(seen.wait(50)) == 50
        for number in range(2, 22):
            viewer.send(encode(m.GetStreams(number)))
        soon(lambda: parts_of(agent).connection.link.denied == 20)
        said = []
        viewer.rcvtimeo = 0
        with contextlib.suppress(zmq.Again):
            while True:
                said.append(decode_from_agent(viewer.recv()))
        assert said[-1] == m.Goodbye("the operator of the run has ended this share", dismissed=True)
        values = sum(len(message.times) // 8 for message in said if isinstance(message, m.Values))
        assert values <= 5
        assert other.viewers == [friend.session.client]
        with pytest.raises(looptap.RefusedKey, match="has been ended"):
            looptap.attach(mine.path, timeout=5)


OWN = "step, loss * 100"


def test_each_share_shows_its_own_streams_and_not_those_exported_to_all(job):
    agent, run = job
    mine = run.stream(OWN, on="batch", name="own")
    first, second, third = run.share(streams=["private"]), run.share(streams=mine), run.share()
    assert [share.streams for share in (first, second, third)] == [("private",), ("own",), None]
    assert [share.streams for share in run.shares] == [("private",), ("own",), None]
    assert {s.name: (s.exported, len(s.shares)) for s in run.streams} == {
        "loss": (True, 0), "secret": (False, 0), "private": (False, 1), "own": (False, 1)
    }  # fmt: skip
    with contextlib.ExitStack() as held:
        one, two, three = (held.enter_context(looptap.attach(share.path)) for share in (first, second, third))
        assert [[s.name for s in viewer.streams] for viewer in (one, two, three)] == [["private"], ["own"], ["loss"]]
        assert [(s.exported, s.shares) for s in one.streams] == [(True, ())]
        assert [viewer.events() for viewer in (one, two, three)] == [{}, {"batch": 5}, {"batch": 5}]
        for viewer, there in ((one, "private"), (two, "own"), (three, "loss")):
            for name in {"loss", "secret", "private", "own"} - {there}:
                with pytest.raises(QueryError, match=f"no exported stream '{name}'; there are: '{there}'"):
                    viewer.stream(name)
        own, private = two.stream("own"), one.stream("private")
        agent.emit("batch", step=5, loss=2.0)
        assert own.wait(1) == [(5, 200.0)]
        run.export("secret", share=first)
        with pytest.raises(QueryError, match="no share 'none'"):
            run.export("secret", share="none")
        with pytest.raises(QueryError, match="created without streams of its own"):
            run.export("secret", share=third)
        assert [[s.name for s in viewer.streams] for viewer in (one, two, three)] == [
            ["secret", "private"], ["own"], ["loss"]
        ]  # fmt: skip
        run.export("private", False, share=first)
        soon(lambda: private.state == "ended")
        assert private.reason == "it is no longer exported"
        run.export("own", share=first)
        also = one.stream("own")
        mine.close()
        second.revoke()
        soon(lambda: own.state == "ended")
        agent.emit("batch", step=6, loss=1.0)
        assert also.wait(2)[-1] == (6, 100.0)  # another share shows it
        run.export("own", False)  # hidden from all viewers
        soon(lambda: also.state == "ended" and "own" not in [s.name for s in run.streams])
        assert [one.alive, three.alive] == [True, True]
        with pytest.raises(looptap.RefusedKey, match="has been ended"):
            looptap.attach(second.path, timeout=5)


@pytest.mark.parametrize("ended", ["revoked", "expired", "refused"])
def test_a_query_that_only_one_share_shows_ends_with_that(job, ended, tmp_path):
    agent, run = job
    mine = run.stream(OWN, on="batch", name="own")
    if ended == "refused":
        (tmp_path / "there.json").touch()
        with pytest.raises(looptap.UnsafeFile, match="already something"):
            run.share(streams=[mine], path=tmp_path / "there.json")
    else:
        share = run.share(streams=[mine], expires=0.3 if ended == "expired" else 60)
    agent.emit("batch", step=5, loss=2.0)
    assert mine.wait(1) == [(5, 200.0)]
    mine.close()
    if ended == "revoked":
        share.revoke()
    soon(lambda: not run.shares and "own" not in [s.name for s in run.streams])
    assert parts_of(agent).sources.open("batch").queries[0].name == "loss"
    assert len(parts_of(agent).sources.open("batch").queries) == 1


def test_no_frame_of_a_share_names_what_another_one_shows(job, dial):
    agent, run = job
    run.share(streams=["secret"])
    run.share(streams=run.stream(OWN, on="batch", name="another's"))
    viewer = dial(run.share(streams=["loss"]).path, hello=False)
    viewer.send(encode(m.Hello(m.VERSION, "bare")))
    said, number = [viewer.recv()], 0
    for request in REQUESTS[1:-1]:
        if (number := getattr(request, "request", 0)) and not isinstance(request, m.Detach):
            viewer.send(encode(request))
            said.append(viewer.recv())
            while getattr(decode_from_agent(said[-1]), "request", 0) != number:
                said.append(viewer.recv())
    agent.emit("hidden", secret=9)
    agent.emit("batch", step=9, loss=1.0)
    while not isinstance(decode_from_agent(said[-1]), m.Beat):
        said.append(viewer.recv())
    names = (b"hidden", b"private", b"secret", b"another", b"* 100")
    assert [frame for frame in said if any(name in frame for name in names)] == []
    assert any(b"loss" in frame for frame in said)


def followed_until_it_expires(run):
    """Return a share, a viewer of it and a stream; the share has not expired yet."""
    for seconds in (0.3, 3, 30):
        share = run.share(expires=seconds)
        with contextlib.ExitStack() as opened, contextlib.suppress(looptap.RefusedKey, RunEnded):
            viewer = opened.enter_context(looptap.attach(share.path))
            loss = viewer.stream("loss")
            opened.pop_all()
            return share, viewer, loss
    raise AssertionError("no viewer could follow a stream within 30 s")


def test_a_share_ends_when_its_time_is_over(job):
    agent, run = job
    before = bound()
    share, viewer, loss = followed_until_it_expires(run)
    with viewer:
        soon(lambda: viewer.state == "ended")
        assert "expired" in viewer.reason
        assert loss.state == "ended"
    soon(lambda: bound() == before)
    assert (run.shares, parts_of(agent).connection.link.alarm) == ([], math.inf)
    with pytest.raises(looptap.RefusedKey, match=r"expired .* ago; ask for a new file"):
        looptap.attach(share.path)


def test_a_share_that_ends_at_its_time_leaves_the_others(job):
    _, run = job
    run.share(expires=0.3)
    longer = run.share(expires=60)
    soon(lambda: [share.id for share in run.shares] == [longer.id], 60)
    with looptap.attach(longer.path) as viewer:
        assert viewer.alive


def test_an_expired_key_is_refused_even_before_its_share_has_ended(job, dial):
    agent, run = job
    path = run.share(expires=60).path
    viewer = dial(path)
    parts = parts_of(agent)
    zap, (shared,) = parts.connection.link.authenticator, parts.dispatcher.access_grants.shares.values()
    assert zap.role(shared.key.decode()) == "viewer"
    viewer.send(encode(m.GetStreams(1)))
    assert isinstance(answer(viewer, 1), m.Done)
    zap.admit(shared.key, "viewer", time.monotonic())  # it has passed, and the I/O thread has not looked yet
    assert zap.role(shared.key.decode()) is None
    denied = parts_of(agent).connection.link.denied
    viewer.send(encode(m.GetStreams(2)))
    soon(lambda: parts_of(agent).connection.link.denied > denied, 60)
    with pytest.raises(looptap.RefusedKey):
        looptap.attach(path, timeout=5)
    assert len(run.shares) == 1


def test_a_share_that_is_impossible_says_so(job):
    agent, run = job
    for expires in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(QueryError, match="lasts for more than 0 seconds"):
            run.share(expires=expires)
    with pytest.raises(looptap.BadEndpoint, match="everywhere"):
        run.share(endpoint="tcp://*:5555")
    with socket.create_server(("127.0.0.1", 0)) as other, pytest.raises(looptap.EndpointBusy):
        run.share(endpoint=f"tcp://127.0.0.1:{other.getsockname()[1]}")
    with pytest.raises(QueryError, match="no share 'none'"):
        run.revoke("none")
    assert len(parts_of(agent).connection.link.sockets) == 1
    from looptap.testing import pair

    with pytest.raises(looptap.RemoteError, match="no sockets"):
        pair()[1].share()


def test_attaching_to_an_ended_or_remote_share_says_which(job, tmp_path):
    _, run = job
    share = run.share(endpoint="tcp")
    assert "through ssh" in share.reach
    assert "your own user" in run.share().reach
    file = read_connection_file(share.path)
    share.revoke()
    with pytest.raises(looptap.RefusedKey, match="has been ended"):
        looptap.attach(share.path)
    elsewhere = msgspec.structs.replace(file, process=msgspec.structs.replace(file.process, host="node7"))
    (tmp_path / "far.json").write_bytes(msgspec.json.encode(elsewhere))
    (tmp_path / "far.json").chmod(0o600)
    with pytest.raises(looptap.NoAnswer, match=r"ssh -N -L \d+:127.0.0.1:\d+ node7"):
        looptap.attach(tmp_path / "far.json", timeout=2)


# ---------------------------------------------------------------- bounds


def test_viewers_shares_and_their_streams_have_bounds_of_their_own(directory, monkeypatch):
    monkeypatch.chdir(directory)
    limits = looptap.Limits(clients=2, viewers=2, shares=1, streams=3)
    with looptap.Agent("bounded", limits=limits) as agent, looptap.attach("bounded") as run:
        agent.stream("loss", "loss", on="batch")
        run.export("loss")
        share = run.share()
        with pytest.raises(looptap.LimitReached, match=r"Limits\.shares"):
            run.share()
        with looptap.attach(share.path) as first, looptap.attach(share.path) as second:
            with pytest.raises(looptap.LimitReached, match=r"Limits\.viewers"):
                looptap.attach(share.path)
            held = [first.stream("loss"), first.stream("loss"), second.stream("loss")]
            with pytest.raises(looptap.LimitReached, match=r"Limits\.streams"):
                second.stream("loss")
            with looptap.attach("bounded") as other:
                held += [other.stream("loss", on="batch") for _ in range(3)]
            assert len(held) == 6


BLOB = b"x" * 10_000


def test_viewers_that_flood_or_never_read_affect_neither_job_nor_operator(job, dial):
    agent, run = job
    agent.stream("blob", "step, blob", on="big", history=100)
    run.export("blob")
    path = run.share().path
    liars = [dial(path) for _ in range(8)]
    for viewer in liars:
        viewer.send(encode(m.Read(1, 1, "blob")))
        viewer.send(encode(m.Got(1 << 60)))
    mine = run.stream("step, blob", on="big")
    over, sent = threading.Event(), [0]
    flooder = dial(path)

    def flood():
        flooder.sndtimeo = 100
        while not over.is_set():
            with contextlib.suppress(zmq.Again):
                flooder.send(encode(m.Got(1 << 60)))
                flooder.send(encode(m.Attach(sent[0], 1, CODE, "batch")))
                sent[0] += 2

    flooding = threading.Thread(target=flood)
    flooding.start()
    began, heard = time.monotonic(), parts_of(agent).connection.link.frames_in
    for step in range(3000):
        agent.emit("big", step=step, blob=BLOB)
        if step % 100 == 99:
            soon(lambda step=step: mine.arrived >= step - 300)
    assert len(mine.wait(3000, timeout=300)) == 3000
    run.stats(timeout=300)
    soon(lambda: sent[0] > 1000 and time.monotonic() - began > 1.0)
    per_second = (parts_of(agent).connection.link.frames_in - heard) / (time.monotonic() - began)
    over.set()
    flooding.join(300)
    assert (mine.dropped, mine.gaps) == (0, [])
    assert per_second < 64 / 0.05 + 2000  # what viewers are heard for, and the operator's own
    by_role = [c for c in agent.stats()["clients"] if c["role"] == "viewer"]
    assert len(by_role) == 9
    # A liar has what libzmq and the kernel hold for it, not what it says to have taken in.
    assert max(c["sent_bytes"] for c in by_role) < 16 << 20
    assert parts_of(agent).connection.link.faults == 0


# ---------------------------------------------------------------- S8: hostile bytes

HOSTILE = """
    import os, random, sys, threading
    import zmq, looptap
    from looptap.protocol import messages as m
    from looptap.protocol.codec import decode_from_agent, encode
    from looptap.protocol.files.connection import read_connection_file
    from looptap.testing import parts_of

    agent = looptap.Agent("hostile")
    agent.stream("loss", "loss", on="batch")
    run = looptap.attach("hostile")
    run.export("loss")
    file = read_connection_file(run.share().path)
    context = zmq.Context()
    viewer = context.socket(zmq.DEALER)
    viewer.linger, viewer.rcvtimeo = 0, 20000
    viewer.curve_serverkey = file.server_public.encode()
    viewer.curve_publickey, viewer.curve_secretkey = file.client.public, file.client.secret
    viewer.connect(file.endpoints[0])
    hello = encode(m.Hello(m.VERSION))
    viewer.send(hello)
    viewer.recv()
    evil = b"cposix\\nsystem\\n(S'true'\\ntR."
    code = m.Code("__import__('os').system('true')", evil, sys.version_info[:2])
    samples = [encode(x) for x in (
        m.Attach(1, 1, code, "batch"), m.Call(1, "x", code, "batch"), m.Read(1, 1, "loss"),
        m.GetStreams(2), m.Detach(3, 1), m.DeclareStream(4, 0, "loss", False, True),
        m.CreateShare(5, 1.0), m.Revoke(6), m.GetStats(7), m.Got(9),
    )] + [evil]
    rng, events = random.Random(7), set()

    def hook(event, arguments):
        if watching and threading.current_thread().name == "looptap-io" and event.split(".")[0] in (
            "exec", "compile", "import", "pickle", "os", "subprocess", "open", "marshal", "code",
        ):
            events.add(event)

    def round(count):
        for _ in range(count):
            data = bytearray(rng.choice(samples))
            for _ in range(rng.randrange(3)):
                data[rng.randrange(len(data))] = rng.randrange(256)
            viewer.send(bytes(data))
        viewer.send(hello)
        viewer.send(encode(m.GetStreams(987_654)))
        while getattr(decode_from_agent(viewer.recv()), "request", 0) != 987_654:
            pass

    watching = False
    round(200)  # imports at first use
    sys.addaudithook(hook)
    watching = True
    for _ in range(10):
        round(60)
    watching = False
    agent.emit("batch", loss=0.5)
    faults = parts_of(agent).connection.link.faults
    print(sorted(events), faults, [(s.name, s.exported, s.kept) for s in run.streams], len(run.shares))
    run.close()
    agent.close()
"""


@pytest.mark.promise("S7", "S8")
@pytest.mark.usefixtures("processes")
def test_hostile_bytes_of_a_viewer_execute_import_and_open_nothing(directory):
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(HOSTILE)], capture_output=True, text=True, cwd=directory, timeout=300
    )
    assert done.stdout == "[] 0 [('loss', True, False)] 1\n", done.stdout + done.stderr


# ---------------------------------------------------------------- links and processes

OPERATOR = """
    import sys, looptap
    run = looptap.attach("shared")
    run.export(run.stream("step", on="batch"), name="steps")
    print(run.share().path, flush=True)
    sys.stdin.read()
"""


@pytest.mark.promise("S7")
@pytest.mark.usefixtures("processes")
def test_an_exported_stream_outlives_its_killed_operator_while_a_viewer_reads(job):
    agent, _ = job
    command = [sys.executable, "-c", textwrap.dedent(OPERATOR)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as operator:
        path = operator.stdout.readline().strip()
        with looptap.attach(path) as viewer:
            steps = viewer.stream("steps")
            for step in range(100):
                agent.emit("batch", step=step)
            steps.wait(100)
            operator.send_signal(signal.SIGKILL)
            operator.wait(300)
            for step in range(100, 200):
                agent.emit("batch", step=step)
            assert steps.wait(200, timeout=300) == list(range(200))
            assert (steps.dropped, steps.gaps) == (0, [])


def test_a_viewers_lost_link_is_restored_without_a_gap(job):
    agent, run = job
    share = run.share(endpoint="tcp")
    with Proxy(share.endpoints[0]) as proxy:
        file = msgspec.structs.replace(read_connection_file(share.path), endpoints=(proxy.endpoint,))
        share.path.write_bytes(msgspec.json.encode(file))
        with looptap.attach(share.path) as viewer:
            loss = viewer.stream("loss")
            for turn in range(3):
                proxy.cut()
                agent.emit("batch", step=5 + turn, loss=0.5)
                soon(lambda turn=turn: len(loss) == 6 + turn)
            assert [r.number for r in loss.records] == list(range(1, 9))
            assert loss.gaps == []


@pytest.mark.usefixtures("processes")
def test_a_viewers_file_works_through_a_command_too(job):
    _, run = job
    path = run.share().path
    with looptap.attach(f"command:{sys.executable} -m looptap.cli bridge {path}") as viewer:
        assert viewer.role == "viewer"
        assert len(viewer.stream("loss").wait(5, timeout=300)) == 5


def test_a_viewer_hastens_no_values_and_leaves_nothing_behind(job, dial):
    agent, run = job
    for number in range(3):
        viewer = dial(run.share().path, hello=False)
        viewer.send(encode(m.Hello(m.VERSION, "\x1b[2Jviewer\n", token=f"{number:032}")))
        viewer.recv()
        viewer.send(encode(m.Read(1, 1, "loss", latency="low")))
        answer(viewer, 1)
        assert parts_of(agent).dispatcher.linger() == PROMPT_SECONDS
        assert run.shares[-1].who == ["[2Jviewer"]
        viewer.send(encode(m.Leave()))
        soon(lambda: len(parts_of(agent).dispatcher.clients) == 1)
    assert parts_of(agent).dispatcher.sessions.reached == {}


def test_another_viewer_cannot_take_over_streams_by_a_token(job, dial):
    _, run = job
    shares = run.share(), run.share()
    first, second = (dial(share.path, hello=False) for share in shares)
    hello = encode(m.Hello(m.VERSION, "bare", token="a" * 32))
    first.send(hello)
    first.recv()
    first.send(encode(m.Read(1, 1, "loss")))
    answer(first, 1)
    second.send(hello)
    assert decode_from_agent(second.recv()).streams == ()


FORKED = """
    import os, socket, sys, time, looptap
    agent = looptap.Agent("forked")
    run = looptap.attach("forked")
    share = run.share(endpoint="tcp")
    port = int(share.endpoints[0].rpartition(":")[2])
    inside, outside = os.pipe()
    child = os.fork()
    if not child:
        os.close(outside)
        os.read(inside, 1)
        os._exit(0)
    share.revoke()
    for _ in range(1000):
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except ConnectionRefusedError:
            print("free", flush=True)
            break
        except ConnectionResetError:  # it was closed between the kernel's yes and ours
            pass
        time.sleep(0.01)
    os.close(outside)
    os.waitpid(child, 0)
    run.close()
    agent.close()
"""


@pytest.mark.usefixtures("processes")
@pytest.mark.filterwarnings("ignore")
def test_a_forked_child_keeps_no_port_of_a_share(directory):
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(FORKED)], capture_output=True, text=True, cwd=directory,
        timeout=300,
    )  # fmt: skip
    assert done.stdout == "free\n", done.stdout + done.stderr


# ---------------------------------------------------------------- the shell


def looptap_says(capsys, *arguments):
    """Return the exit code and the output of a command."""
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    said = capsys.readouterr()
    return ended.value.code, said.out + said.err


def test_the_shell_shares_two_curves_and_revokes_the_share(job, capsys, tmp_path):
    agent, _ = job
    file = str(tmp_path / "for-ada.json")
    code, said = looptap_says(
        capsys, "share", "shared", "--stream", "loss", "--stream", "mean(e.loss for e in events)",
        "--expires", "2h", "--tcp", "127.0.0.1", "-o", file,
    )  # fmt: skip
    assert (code, "2 h" in said or "120 min" in said) == (0, True), said
    assert "'loss', 'mean(e.loss for e in events)'" in said
    agent.emit("batch", step=5, loss=1.0)
    agent.emit("epoch")
    code, said = looptap_says(capsys, "watch", file, "loss", "mean(e.loss for e in events)", "--count", "1", "--json")
    assert (code, json.loads(said.splitlines()[0])["value"]) == (0, {"step": 0, "loss": 0.0})
    code, said = looptap_says(capsys, "streams", file, "--json")
    assert [(s["name"], s["exported"]) for s in json.loads(said)] == [
        ("loss", True), ("mean(e.loss for e in events)", True)
    ]  # fmt: skip
    code, said = looptap_says(capsys, "ls", file)
    assert (code, "viewer" in said, "secret" in said) == (0, True, False)
    code, said = looptap_says(capsys, "call", file, "1")
    assert (code, "A viewer may not run code" in said) == (1, True)

    def viewers():
        code, said = looptap_says(capsys, "share", "shared", "--list", "--json")
        assert code == 0
        return [share["viewers"] for share in json.loads(said)["shares"]]

    soon(lambda: viewers() == [[]], detail=viewers)
    code, said = looptap_says(capsys, "share", "shared", "--hide", "loss")
    assert (code, "'loss'" in said) == (0, False)
    code, said = looptap_says(capsys, "share", "shared", "--revoke")
    assert (code, bool(re.match(r"1 share ended: [0-9a-f]{8}\n", said))) == (0, True)
    code, said = looptap_says(capsys, "watch", file, "loss")
    assert (code, "ask for a new file" in said) == (1, True)
    code, said = looptap_says(capsys, "share", "shared", "--expires", "soon")
    assert (code, "5m, 8h or 2d" in said) == (2, True)


def test_in_the_shell_each_share_has_streams_of_its_own(job, capsys, tmp_path):
    def share(*words):
        return json.loads(looptap_says(capsys, "share", "shared", *words, "--json")[1])

    files = [str(tmp_path / f"{number}.json") for number in range(3)]
    first = share("--stream", "private", "-o", files[0])
    second = share("--stream", "step * 2", "--name", "double", "-o", files[1])
    third = share("-o", files[2])
    assert [one["streams"] for one in (first, second, third)] == [["private"], ["double"], ["loss"]]
    assert [one["streams"] for one in share("--list")["shares"]] == [["private"], ["double"], None]
    said = looptap_says(capsys, "share", "shared", "--list")[1].splitlines()
    assert [re.search(r"shows (.*?); at", line)[1] for line in said] == [
        "'private'", "'double'", "'loss' (all that is exported)"
    ]  # fmt: skip
    code, said = looptap_says(capsys, "watch", files[0], "double")
    assert (code, "no exported stream 'double'; there are: 'private'" in said) == (1, True), said
    assert share("--stream", "secret", "--id", first["share"])["streams"] == ["secret", "private"]
    share("--hide", "private", "--id", first["share"])
    assert [s["name"] for s in json.loads(looptap_says(capsys, "streams", files[0], "--json")[1])] == ["secret"]
    code, said = looptap_says(capsys, "share", "shared", "--stream", "secret", "--id", third["share"])
    assert (code, "without streams of its own" in said) == (1, True), said


def test_the_shell_starts_and_stops_keeping_a_query(job, capsys):
    agent, run = job
    code, said = looptap_says(capsys, "keep", "shared", "step * 2", "--name", "double", "--json")
    assert (code, json.loads(said)["kept"]) == (0, True)
    agent.emit("batch", step=4, loss=0.5)
    code, said = looptap_says(capsys, "streams", "shared")
    assert re.search(r"double .*kept, handed over by", said.replace("\n", " "))
    soon(lambda: agent.stats()["store"]["kept"] == 1)
    code, said = looptap_says(capsys, "keep", "shared", "double", "--end")
    assert (code, "no longer kept" in said) == (0, True)
    assert looptap.open(agent.stats()["store"]["file"]).stream("double").values == [8]
    assert [s.name for s in run.streams] == ["loss", "secret", "private"]


def test_the_shell_reports_that_a_handed_over_query_fails(job, capsys):
    agent, _ = job
    over = threading.Event()

    def train():
        while not over.wait(0.01):
            agent.emit("batch", step=4, loss=0.5)

    thread = threading.Thread(target=train)
    thread.start()
    try:
        for words in (("keep", "shared", "losss"), ("share", "shared", "--stream", "losss", "--name", "typo")):
            with pytest.raises(SystemExit):
                main(list(words))
            said = capsys.readouterr().err  # before or after it has ended for the misspelled name
            assert re.match("looptap: .*(fails so far: no|has had an) observable 'losss'", said)
    finally:
        over.set()
        thread.join()


def test_packed_answers_of_the_agent_to_a_viewer_name_nothing_that_is_hidden(job, dial):
    agent, run = job
    viewer = dial(run.share().path, hello=False)
    viewer.send(encode(m.Hello(m.VERSION, "bare")))
    said = [viewer.recv()]
    for number, request in enumerate((m.GetStreams(1), m.Read(2, 1, "loss"), m.Read(3, 2, "none"), m.GetStats(4)), 1):
        viewer.send(encode(request))
        said.append(viewer.recv())
        while getattr(decode_from_agent(said[-1]), "request", 0) != number:
            said.append(viewer.recv())
    agent.emit("batch", step=9, loss=1.0)
    while not isinstance(decode_from_agent(said[-1]), m.Beat):
        said.append(viewer.recv())
    assert [frame for frame in said if b"hidden" in frame or b"private" in frame or b"secret" in frame] == []
    streams = next(reply for reply in map(decode_from_agent, said) if getattr(reply, "request", 0) == 1)
    assert [stream["name"] for stream in unpack(streams.value)] == ["loss"]


def test_a_shared_query_that_has_failed_names_nothing_that_is_hidden(job):
    agent, run = job
    agent.stream("fails", "step, lsos", on="batch")
    run.export("fails")
    with looptap.attach(run.share().path) as viewer:
        stream = viewer.stream("fails")
        agent.emit("batch", step=9, loss=1.0, secret=3)
        soon(lambda: stream.state == "failed")
        said = [stream.reason, stream.traceback, stream.outlook(), repr(stream), repr(viewer.streams)]
    assert [text for text in said if "secret" in text] == []
    assert stream.reason == "no observable 'lsos' at this 'batch' event."


def test_viewers_get_the_history_of_a_number_that_was_shared_and_of_no_other(directory, monkeypatch):
    monkeypatch.chdir(directory)  # for the connection files
    with looptap.Agent("shown") as agent, looptap.attach("shown") as run:
        for step in range(30):
            agent.emit("batch", step=step, loss=1 / (1 + step), secret=step)
            soon(lambda step=step: step > 3 or any(one.points > step for one in run.scalars))
        share, later = (
            run.share(streams=run.stream("step, loss", name="loss")),
            run.share(streams=run.stream("secret", history=False, name="later")),
        )
        agent.emit("batch", step=30, loss=0.01, secret=1)
        for _ in range(2):  # the second comes after the first has read it
            with looptap.attach(share.path) as viewer:
                loss = viewer.stream("loss")
                soon(lambda loss=loss: loss.values and loss.values[-1].step == 30)
                assert loss.values[0].step == 0
                assert loss.history.first == 1
                with pytest.raises(NotAllowed):
                    viewer.scalars  # noqa: B018
        with looptap.attach(later.path) as viewer:
            assert viewer.stream("later").wait(1, timeout=300) == [1]


def test_a_shared_number_begins_with_its_history_where_its_operator_had_that():
    agent, run = pair("shared", history=True)
    for step in range(50):
        agent.emit("batch", step=step, loss=1 / (1 + step), secret=step)
        run.scalars  # noqa: B018 - has the history look at each event
    run.export(run.stream("step, loss"), name="with")
    run.export(run.stream("loss", history=False), name="without")
    run.export(run.stream("loss + 1", name="asked"))
    for step in range(50, 60):
        agent.emit("batch", step=step, loss=1 / (1 + step), secret=step)
    stream = run.stream("with")
    found = stream.wait(12, timeout=300)
    assert [row.step for row in stream.values][-10:] == list(range(50, 60))
    assert found[0].step == 0
    events = [record.event for record in stream.records]
    assert events == sorted(set(events))
    assert stream.history is not None
    assert [record.number for record in stream.records] == list(range(1, len(events) + 1))
    assert stream.dropped == 0
    for name in ("without", "asked"):
        other = run.stream(name)
        assert other.history is None
        assert len(other.wait(10, timeout=300)) == 10
    agent.close()
