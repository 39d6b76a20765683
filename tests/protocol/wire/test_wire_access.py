"""Access control: none off loopback, none without a key, none beyond a role."""

from __future__ import annotations

import contextlib
import gc
import os
import random
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import get_args

import pytest
import zmq
import zmq.utils.z85
from listening import bound
from waiting import soon

from looptap.agent.io import authenticator
from looptap.agent.io.server_socket import secure
from looptap.protocol import messages
from looptap.protocol.errors import BadEndpoint, LinkError
from looptap.protocol.files.connection import private_dir
from looptap.protocol.keys import KeyPair, RoleKeys
from looptap.protocol.limits import Limits
from looptap.protocol.roles import ALLOWED, may_send, refusal


def test_by_default_an_agent_listens_at_one_private_path_and_nowhere_else(wire):
    before = bound()
    wire.open()
    (path,) = set(bound()) - set(before)
    assert f"ipc://{path}" == wire.link.endpoints[0]
    assert not path.startswith("@")
    assert Path(path).parent == wire.directory
    assert Path(path).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("endpoint", ["tcp", "tcp://localhost:*", "tcp://127.0.0.1:*"])
def test_tcp_is_on_loopback_unless_another_host_is_named(wire, endpoint):
    before = bound()
    wire.open(endpoint)
    (address,) = set(bound()) - set(before)
    assert address.startswith("0100007F:")
    assert wire.link.endpoints == (f"tcp://127.0.0.1:{int(address.partition(':')[2], 16)}",)


@pytest.mark.parametrize(
    ("endpoint", "reason"),
    [
        ("tcp://*:5555", "write 'everywhere:5555'"),
        ("tcp://0.0.0.0:5555", "write 'everywhere:5555'"),
        ("tcp://0:*", r"write 'everywhere:\*'"),
        ("tcp://[::]:5555", "write 'everywhere:5555'"),
        ("ipc://@looptap", "open to every user"),
        ("ipc://*", "not an absolute path"),
        ("ipc://relative", "not an absolute path"),
        ("tcp://127.0.0.1", "is not an endpoint"),
        ("tcp://127.0.0.1:0", "ports are 1 to 65535"),
        ("tcp://127.0.0.1:70000", "ports are 1 to 65535"),
        ("tcp://no.such.host.invalid:5555", "Write its IP address"),
        ("tcp://192.0.2.1:5555", "not an address of this machine"),
        ("everywhere:x", "has no port"),
        ("pgm://eth0;239.0.0.1:5555", "is not an endpoint"),
    ],
)
def test_a_wide_abstract_or_malformed_endpoint_is_refused_with_a_way_out(wire, endpoint, reason):
    with pytest.raises(BadEndpoint, match=reason):
        wire.open(endpoint)
    assert list(wire.directory.iterdir()) == []


def test_all_interfaces_are_served_only_for_the_word_everywhere(wire):
    before = bound()
    wire.open("everywhere:*")
    (address,) = set(bound()) - set(before)
    assert address.startswith("00000000:")
    assert wire.link.endpoints[0].startswith("tcp://127.0.0.1:")


def test_the_private_directory_is_closed_to_others_under_any_umask(monkeypatch):
    monkeypatch.setattr(os, "getuid", lambda: 4_000_000_000 + os.getpid())
    for umask in (0o000, 0o022, 0o277, 0o777):
        before = os.umask(umask)
        try:
            directory = private_dir()
        finally:
            os.umask(before)
        assert directory.stat().st_mode & 0o777 == 0o700
        directory.rmdir()


CONNECT = """
import os, socket, sys
os.setgroups([]); os.setgid(65534); os.setuid(65534)
for _ in range(100):
    try: socket.socket(socket.AF_UNIX).connect(sys.argv[1]); print("in")
    except PermissionError: pass
"""


@pytest.mark.usefixtures("processes")
@pytest.mark.promise("S1")
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_user_cannot_even_connect(wire):
    path = wire.open().endpoints[0].removeprefix("ipc://")
    out = subprocess.run([sys.executable, "-IS", "-c", CONNECT, path], capture_output=True, check=True)
    assert out.stdout == b""


# ---------------------------------------------------------------- keys


def unauthorized(wire):
    """Return the socket options of each kind of unauthorized client."""
    outsider = KeyPair.fresh()
    curve = {"curve_publickey": outsider.public, "curve_secretkey": outsider.secret}
    ours = {"curve_publickey": wire.keys.client.public, "curve_secretkey": wire.keys.client.secret}
    return {
        "NULL": {},
        "PLAIN": {"plain_username": b"operator", "plain_password": b"operator"},
        "unknown key": curve | {"curve_serverkey": wire.keys.server.public},
        "wrong server": ours | {"curve_serverkey": KeyPair.fresh().public},
        "public half only": ours | {"curve_secretkey": outsider.secret, "curve_serverkey": wire.keys.server.public},
    }


@pytest.mark.parametrize("endpoint", [None, "tcp"], ids=["ipc", "tcp"])
@pytest.mark.parametrize("kind", ["NULL", "PLAIN", "unknown key", "wrong server", "public half only"])
def test_no_frame_without_a_key_is_handled(wire, kind, endpoint):
    wire.open(endpoint)
    for _ in range(20):
        assert wire.is_refused(wire.link.endpoints[0], **unauthorized(wire)[kind])
    assert wire.handler.heard == []
    friend = wire.dial()
    friend.send(b"hello")
    assert friend.recv() == b"hello"


@pytest.mark.parametrize("endpoint", [None, "tcp"], ids=["ipc", "tcp"])
def test_the_keys_of_an_ended_run_open_nothing(wire, endpoint):
    ended = RoleKeys.fresh("operator")
    wire.open(endpoint)
    options = {
        "curve_publickey": ended.client.public,
        "curve_secretkey": ended.client.secret,
        "curve_serverkey": wire.keys.server.public,
    }
    for _ in range(20):
        assert wire.is_refused(wire.link.endpoints[0], **options)
    assert wire.handler.heard == []
    assert wire.link.authenticator.refused >= 20


def test_every_server_socket_of_an_agent_demands_keys_in_an_enforced_domain(wire):
    wire.open()
    wire.open("tcp", keys=RoleKeys.fresh("viewer"))
    sockets = [s for s in gc.get_objects() if issubclass(type(s), zmq.Socket) and not s.closed]
    public = [s for s in sockets if s.last_endpoint.startswith((b"ipc", b"tcp"))]
    assert len(public) == 2
    for server in public:
        assert server.mechanism == zmq.CURVE
        assert server.curve_server
        assert server.get(zmq.ZAP_ENFORCE_DOMAIN)
        assert server.zap_domain


def test_without_an_authenticator_no_client_is_admitted(wire):
    with zmq.Context() as context, context.socket(zmq.ROUTER) as router:
        secure(router, wire.keys.server, Limits())
        router.bind("tcp://127.0.0.1:*")
        options = {
            "curve_publickey": wire.keys.client.public,
            "curve_secretkey": wire.keys.client.secret,
            "curve_serverkey": wire.keys.server.public,
        }
        assert wire.is_refused(router.last_endpoint.decode(), **options)
        assert not router.poll(0)


@pytest.mark.promise("S3")
def test_the_authenticator_refuses_all_random_requests(wire):
    wire.open()
    rng = random.Random(3)
    good = [b"1.0", b"1", authenticator.DOMAIN, b"", b"", b"CURVE", b"k" * 32]
    with wire.link.sockets[0].router.context.socket(zmq.DEALER) as asker:
        asker.rcvtimeo, asker.linger = 60_000, 0
        asker.connect(authenticator.ENDPOINT)
        for _ in range(1000):
            frames = [rng.choice([f, rng.randbytes(rng.randrange(40))]) for f in good]
            asker.send_multipart([b"", *frames[: rng.randint(1, 7)], *[b"x"] * rng.randrange(3)])
        codes = [asker.recv_multipart()[3] for _ in range(1000)]
    assert set(codes) == {b"400"}
    friend = wire.dial()
    friend.send(b"hello")
    assert friend.recv() == b"hello"


def test_each_handshake_is_counted_once():
    keys = RoleKeys.fresh("operator").client
    zap = authenticator.Authenticator()
    assert (zap.admitted, zap.refused) == (0, 0)
    with zmq.Context() as context, zap.open(context), context.socket(zmq.REQ) as asker:
        asker.rcvtimeo, asker.linger = 60_000, 0
        asker.connect(authenticator.ENDPOINT)
        for admitted, refused in ((0, 1), (1, 1)):
            key = zmq.utils.z85.decode(keys.public)
            asker.send_multipart([b"1.0", b"1", authenticator.DOMAIN, b"", b"", b"CURVE", key])
            zap.answer()
            asker.recv_multipart()
            assert (zap.admitted, zap.refused) == (admitted, refused)
            zap.admit(keys.public, "operator")


@pytest.fixture
def zap():
    """Return an authenticator, and a function that returns its reply to frames."""
    found = authenticator.Authenticator()
    with zmq.Context() as context, found.open(context), context.socket(zmq.REQ) as asker:
        asker.rcvtimeo, asker.linger = 60_000, 0
        asker.connect(authenticator.ENDPOINT)

        def ask(*frames):
            asker.send_multipart(frames)
            found.answer()
            return asker.recv_multipart()

        found.ask = ask
        yield found
        found.close()


def test_a_handshake_is_answered_as_rfc_27_says_with_the_key_as_user_id(zap):
    keys, until = KeyPair.fresh(), time.monotonic() + 1000.0
    key = zmq.utils.z85.decode(keys.public)
    question = [b"1.0", b"77", authenticator.DOMAIN, b"", b"", b"CURVE", key]
    refused = [b"1.0", b"77", b"400", b"this key is not admitted", b"", b""]
    admitted = [b"1.0", b"77", b"200", b"OK", keys.public, b""]
    assert zap.ask(*question) == refused
    for end, answer in ((until, admitted), (time.monotonic(), refused), (until, admitted)):
        zap.admit(keys.public, "viewer", end)
        assert zap.ask(*question) == answer
        assert zap.role(keys.public.decode()) == ("viewer" if answer == admitted else None)
    for place, wrong in ((0, b"1.1"), (2, b"elsewhere"), (5, b"PLAIN"), (6, key[:-1]), (6, key + b"k")):
        assert zap.ask(*[wrong if n == place else frame for n, frame in enumerate(question)])[2] == b"400"
    assert zap.ask(*question[:-1])[2] == b"400"
    assert zap.ask(*question, b"more") == refused
    assert zap.ask(b"1.0") == [b"1.0", b"", *refused[2:]]
    assert zap.ask(b"1.0", b"77") == refused
    assert zap.ask(*question) == admitted
    zap.revoke(keys.public)
    assert zap.ask(*question) == refused
    assert zap.role(keys.public.decode()) is None
    zap.revoke(keys.public)  # for the second time
    assert zap.role("no key of ours \udcff") is None


def test_a_closed_authenticator_answers_nothing_and_can_be_closed_again():
    zap = authenticator.Authenticator()
    with zmq.Context() as context:
        door = zap.open(context)
        zap.answer()  # no request is pending
        zap.close()
        assert door.closed
        zap.answer()
        zap.close()


def test_several_handshakes_that_wait_are_answered_at_once():
    zap = authenticator.Authenticator()
    question = [b"1.0", b"1", authenticator.DOMAIN, b"", b"", b"CURVE", b"k" * 32]
    with zmq.Context() as context, zap.open(context), contextlib.ExitStack() as held:
        askers = [held.enter_context(context.socket(zmq.REQ)) for _ in range(5)]
        for asker in askers:
            asker.rcvtimeo, asker.linger = 60_000, 0
            asker.connect(authenticator.ENDPOINT)
            asker.send_multipart(question)
        zap.answer()
        assert [asker.recv_multipart()[2] for asker in askers] == [b"400"] * 5


# ---------------------------------------------------------------- roles

CODE = messages.Code("loss")
OPERATORS_ONLY = [
    messages.Attach(1, 1, CODE, "batch"),
    messages.CloseWindow(1, 1),
    messages.Grant(1, 1, 0.1),
    messages.Call(1, "id", CODE, "batch"),
    messages.Command(1, "id", "set", "lr"),
    messages.Agree(1, "id", 7),
    messages.GetStats(1), messages.GetStacks(1), messages.GetControls(1), messages.GetCommands(1),
    messages.GetShares(1), messages.GetScalars(1), messages.GetModules(1), messages.GetClock(1),
    messages.DeclareStream(1, 1, "loss", export=True),
    messages.CreateShare(1, 60.0),
    messages.Revoke(1),
]  # fmt: skip
ALSO_VIEWERS = [
    messages.Hello((1, 0)), messages.GetStreams(1), messages.Read(1, 1, "loss"), messages.Detach(1, 1), messages.Beat(),
    messages.Leave(), messages.Got(1), messages.GetConfig(1),
]  # fmt: skip
ANSWERS = [messages.Goodbye(), messages.Refused("no", (1, 0)), messages.Failed(1, "", ""), messages.Done(1)]


@pytest.mark.promise("S6")
@pytest.mark.parametrize(
    ("sent", "roles"),
    [(m, {"operator"}) for m in OPERATORS_ONLY]
    + [(m, {"operator", "viewer"}) for m in ALSO_VIEWERS]
    + [(m, set()) for m in [*ANSWERS, object()]],
    ids=lambda p: type(p).__name__,
)
def test_each_message_is_allowed_to_exactly_the_roles_of_the_table(sent, roles):
    assert {role for role in ("operator", "viewer", "", "root") if may_send(role, sent)} == roles


def test_a_refusal_names_the_role_and_what_it_may_not_do():
    for role, begins in (("viewer", "A viewer may not "), ("root", "The role 'root' may not ")):
        assert refusal(role, messages.GetClock(1)).startswith(f"{begins}ask for the clock of the job")


def test_the_table_holds_every_message_of_a_client_and_no_other():
    assert set(ALLOWED) == set(get_args(messages.FromClient))
    assert {type(m) for m in OPERATORS_ONLY + ALSO_VIEWERS} == set(ALLOWED)


def test_a_client_cannot_choose_its_role_by_metadata(wire):
    wire.open()
    viewer = KeyPair.fresh()
    wire.link.authenticator.admit(viewer.public, "viewer")
    operator = wire.keys.client.public
    for i in range(10):
        name = [b"X-User-Id", b"X-Role", b"X-user-id"][i % 3]
        client = wire.dial(client=viewer, metadata=name + b":" + operator, identity=b"operator%d" % i)
        client.send(b"I am the operator")
        assert client.recv() == b"I am the operator"
    with pytest.raises(zmq.ZMQError):
        wire.raw("inproc://nowhere", metadata=b"User-Id:" + operator)
    assert {role for role, _ in wire.handler.heard} == {"viewer"}


def test_a_message_with_a_revoked_key_is_ignored(wire):
    wire.open()
    client = wire.dial()
    client.send(b"one")
    assert client.recv() == b"one"
    wire.link.authenticator.revoke(wire.keys.client.public)
    for _ in range(100):
        client.send(b"two")
    soon(lambda: wire.link.denied == 100)
    assert wire.handler.heard == [("operator", b"one")]
    assert wire.handler.peers == {}


def test_a_changed_role_applies_from_the_next_message_on(wire):
    wire.open()
    client = wire.dial()
    for role in ("operator", "viewer", "operator"):
        wire.link.authenticator.admit(wire.keys.client.public, role)
        client.send(b"who am I?")
        client.recv()
    assert [role for role, _ in wire.handler.heard] == ["operator", "viewer", "operator"]


# ---------------------------------------------------------------- what is not ours

REQUESTS = [
    b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"POST /api HTTP/1.1\r\nHost: attacker.example\r\nContent-Length: 4\r\n\r\nquit",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(64),
    b"\xff\x00\x00\x00\x00\x00\x00\x00\x01\x7f\x03\x00NULL" + bytes(48),
    bytes(random.Random(1).randbytes(500)),
]


def ask(port, request_bytes):
    """Return all that the port sends until it disconnects."""
    answer = b""
    outsider = socket.create_connection(("127.0.0.1", port), timeout=60)
    with outsider, contextlib.suppress(ConnectionError):
        outsider.sendall(request_bytes)
        while part := outsider.recv(4096):
            answer += part
    return answer


@pytest.mark.promise("S10")
@pytest.mark.parametrize("request_bytes", REQUESTS, ids=["get", "post", "tls", "zmtp", "noise"])
def test_requests_of_other_protocols_get_nothing_and_leave_no_descriptor(wire, request_bytes):
    wire.open("tcp", limits=Limits(handshake=0.2))
    port = int(wire.link.endpoints[0].rpartition(":")[2])
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(100):
        answer = ask(port, request_bytes)
        assert b"HTTP" not in answer
        assert len(answer) <= 64  # the greeting that libzmq says to everybody
    soon(lambda: len(os.listdir("/proc/self/fd")) <= before)
    assert wire.handler.heard == []
    friend = wire.dial()
    friend.send(b"hello")
    assert friend.recv() == b"hello"


def test_a_message_of_several_frames_ends_its_peers_state(wire):
    wire.open()
    client = wire.dial()
    client.send(b"hello")
    client.recv()
    assert len(wire.handler.peers) == 1
    client.send_multipart([b"x"] * 5000)
    soon(lambda: wire.link.denied == 1)
    assert wire.handler.peers == {}
    client.send(b"again")
    assert client.recv() == b"again"
    assert [frame for _, frame in wire.handler.heard] == [b"hello", b"again"]


def test_a_frame_over_the_bound_is_dropped_and_the_link_continues(wire):
    wire.open(limits=Limits(inbound_frame=1000))
    client = wire.dial()
    assert wire.is_turned_away(client, lambda: client.send(b"x" * 1001))
    friend = wire.dial()
    friend.send(b"y" * 1000)
    assert friend.recv() == b"y" * 1000
    assert len(wire.handler.heard) == 1


@pytest.mark.parametrize(("has", "version"), [(False, (4, 3, 5)), (True, (4, 3, 4))])
def test_a_libzmq_without_curve_or_too_old_is_a_sentence(wire, monkeypatch, has, version):
    monkeypatch.setattr(zmq, "has", lambda capability: has)
    monkeypatch.setattr(zmq, "zmq_version_info", lambda: version)
    with pytest.raises(LinkError, match=r"libzmq 4\.3\.5 or newer with CURVE"):
        wire.open()
