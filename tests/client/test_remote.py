"""Remote runs: through a directly started `looptap bridge`, and through sshd."""

import contextlib
import functools
import gc
import getpass
import os
import shlex
import socket
import subprocess
import sys
import threading
from pathlib import Path

import psutil
import pytest
import warm
from programs import need
from rank_jobs import environment, started
from training_loop import training
from waiting import soon

import looptap
from looptap.client.ranks.merge_relay import MergeRelayTransport
from looptap.client.run import Run
from looptap.client.transport.tunnel.framing import LINE_BUFFER_BYTES, copy_inward, copy_outward, heading_of
from looptap.client.transport.tunnel.process import CommandRoute, command_to_run, relay_of
from looptap.protocol import errors
from looptap.protocol.errors import NoAnswer, NoSuchRun, NotLooptap, RunEnded, UnsafeFile, VersionMismatch
from looptap.protocol.files.connection import private_dir

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="starts shells")

attach = functools.partial(looptap.attach, timeout=300)
"""As `looptap.attach`; a command is a session of its own, which on a busy machine starts late."""
LOOPTAP = shlex.join([sys.executable, "-m", "looptap.cli"])
BRIDGE = f"command:{LOOPTAP} bridge digits"


@pytest.fixture
def agent(place):
    """Run a loop with an agent until the test is over."""
    with looptap.Agent("digits") as agent, training(agent, 0.005, loss=0.5):
        yield agent


@pytest.fixture(autouse=True)
def nothing_is_left():
    """Check that neither a process nor a thread outlives its run."""
    before = threading.enumerate()
    yield
    soon(lambda: not [t for t in threading.enumerate() if t.name.startswith("looptap-") and t not in before])
    soon(lambda: not bridges())


def children(chosen):
    """Return the ``chosen`` descendants of this process; one may end meanwhile."""
    found = []
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if chosen(child):
                found.append(child)
    return found


def bridges():
    """Return this process's commands that lead to a run."""
    return children(lambda child: "bridge" in child.cmdline() or child.name() == "ssh")


def sleeping():
    """Return this process's commands that print nothing."""
    return children(lambda child: child.name() == "sleep")


def works(run):
    """Make one request of every kind."""
    stream = run.stream("step, loss", on="batch")
    assert stream.wait(n=20, timeout=300)
    steps = [value.step for value in stream.values]
    assert steps == list(range(steps[0], steps[0] + len(steps)))
    assert isinstance(run.call("step"), int)
    assert run.stacks()["threads"]
    assert run.stats()["clients"]
    return stream


# ---------------------------------------------------------------- a plain command


@pytest.mark.promise("S33", "S35")
@pytest.mark.usefixtures("processes")
def test_a_run_behind_a_command_is_complete_and_ends_with_close(agent):
    run = attach(BRIDGE)
    assert run.id == agent.run.id
    assert len(bridges()) == 1
    works(run)
    run.close()
    soon(lambda: not bridges())


@pytest.mark.usefixtures("processes")
def test_the_socket_of_a_connection_is_removed_once_connected(agent):
    before = set(private_dir().glob("bridge-*.sock"))
    with attach(BRIDGE):
        soon(lambda: set(private_dir().glob("bridge-*.sock")) <= before)


@pytest.mark.promise("S33")
@pytest.mark.usefixtures("processes")
def test_a_dropped_run_ends_its_command(agent):
    run = attach(BRIDGE)
    assert len(bridges()) == 1
    del run
    gc.collect()
    soon(lambda: not bridges())


CLIENT = """
import sys, time, looptap
run = looptap.attach(sys.argv[1], timeout=300)
print("attached", flush=True)
time.sleep(60)
"""


@pytest.mark.usefixtures("processes")
def test_a_killed_client_ends_its_bridge(agent):
    with warm.Popen([sys.executable, "-c", CLIENT, BRIDGE], stdout=subprocess.PIPE) as client:
        assert client.stdout.readline() == b"attached\n"
        (bridge,) = psutil.Process(client.pid).children()
        client.kill()
        client.wait()
        soon(lambda: not bridge.is_running() or bridge.status() == psutil.STATUS_ZOMBIE)


@pytest.mark.usefixtures("processes")
def test_a_bridge_shows_no_keys_to_a_person(agent):
    ours, theirs = os.openpty()
    done = subprocess.run([*shlex.split(LOOPTAP), "bridge", "digits"], stdout=theirs, stderr=subprocess.PIPE, text=True)
    os.close(theirs)
    os.close(ours)
    assert done.returncode == 1
    assert "to a program, not to a person" in done.stderr


@pytest.mark.usefixtures("processes")
def test_a_shell_greeting_and_other_line_endings_are_harmless(agent):
    greeting = f"command:sh -c {shlex.quote(f'echo Welcome to node7; echo; exec {LOOPTAP} bridge digits')}"
    with attach(greeting) as run:
        works(run)


@pytest.mark.promise("S33", "S35")
@pytest.mark.usefixtures("processes")
def test_a_lost_connection_is_restored_by_starting_the_command_again(agent):
    with attach(BRIDGE) as run:
        stream = works(run)
        for _ in range(2):
            (bridge,) = bridges()
            before = len(stream.records)
            bridge.kill()
            soon(lambda gone=bridge: [b for b in bridges() if b.pid != gone.pid] and run.state == "live")
            soon(lambda n=before: len(stream.records) > n + 20)
        assert isinstance(run.call("step"), int)
        assert stream.state == "live"


@pytest.mark.usefixtures("processes")
def test_a_run_that_ends_says_so_through_the_command(place):
    agent = looptap.Agent("digits")
    with attach(BRIDGE) as run:
        agent.close("that was all")
        soon(lambda: run.state == "ended")
        assert run.reason == "that was all"
        soon(lambda: not bridges())


JOB = "import looptap, time; a = looptap.Agent('digits'); print('ready', flush=True); time.sleep(60)"


@pytest.mark.usefixtures("processes")
def test_a_killed_job_is_known_to_have_ended_by_what_the_next_start_says(place):
    with warm.Popen([sys.executable, "-c", JOB], stdout=subprocess.PIPE) as job:
        assert job.stdout.readline() == b"ready\n"
        with attach(BRIDGE) as run:
            job.kill()
            job.wait()
            soon(lambda: run.state == "failed")
            assert "has ended" in run.reason


@pytest.mark.usefixtures("processes")
def test_a_later_run_of_the_name_is_not_confused_with_the_lost_one(place):
    with warm.Popen([sys.executable, "-c", JOB], stdout=subprocess.PIPE) as job:
        assert job.stdout.readline() == b"ready\n"
        with attach(BRIDGE) as run, looptap.Agent("other") as other:
            (place / f"{run.id}.0.operator.json").unlink()
            path = next(place.glob("other*.json"))
            path.write_text(path.read_text().replace("other", "digits"))
            job.kill()
            job.wait()
            soon(lambda: run.state == "failed")
            assert "leads to another one now" in run.reason
            path.write_text(path.read_text().replace("digits", "other"))
            assert other.run.id.startswith("other")


@pytest.mark.usefixtures("processes")
def test_closing_while_a_command_hangs_does_not_wait_for_it(place, tmp_path):
    script = tmp_path / "once"  # leads to the run the first time, hangs from then on
    script.write_text(f"#!/bin/sh\nif [ -e {tmp_path}/twice ]; then exec sleep 600; fi\ntouch {tmp_path}/twice\n")
    with script.open("a") as file:
        file.write(f"exec {LOOPTAP} bridge digits\n")
    script.chmod(0o700)
    with looptap.Agent("digits"):
        run = attach(f"command:{script}")
        (bridge,) = bridges()
        bridge.kill()
        soon(sleeping)
        run.close()
        soon(lambda: not sleeping())


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize(
    ("command", "kind", "said"),
    [
        (f"{LOOPTAP} bridge nothing", NoSuchRun, "No run matches 'nothing'. Alive: digits"),
        (f"{LOOPTAP} bridge ssh://inner/digits", NoSuchRun, "of the machine it is started on"),
        ("/no/such/program", NoAnswer, "'/no/such/program' cannot be started: No such file"),
        ("sh -c 'echo looptap: not found >&2; exit 127'", NoAnswer, r"said: looptap: not found\. .*name it in full"),
        ("sh -c 'echo out of order >&2; exit 3'", NoAnswer, "ended with exit code 3 .*said: out of order"),
        ("true", NoAnswer, "ended with exit code 0 and named no run"),
        ("echo looptap-bridge/2 x", VersionMismatch, "version 2 of the bridge and this one 1"),
        ("echo looptap-bridge/1 nonsense", NotLooptap, "cannot be understood: nonsense"),
        ("echo 'looptap-bridge/1 {\"file\": 3}'", UnsafeFile, "is not a connection file"),
        ('echo \'looptap-bridge/1 {"error": "RunEnded", "text": "a\\u001b[2Jb"}\'', RunEnded, r": a\[2Jb$"),
        ('echo \'looptap-bridge/1 {"error": "os", "text": "x"}\'', errors.LinkError, ": x$"),
        ("'", NoSuchRun, "No closing quotation"),
        ("", NoSuchRun, "has no command"),
    ],
)
def test_an_error_quotes_the_words_of_the_far_side(agent, command, kind, said):
    with pytest.raises(kind, match=said) as raised:
        attach(f"command:{command}")
    assert type(raised.value) is kind


def test_a_command_that_the_far_side_suggests_leads_through_it():
    line = b"""looptap-bridge/1 {"error": "NoAnswer", "text": "Go: looptap.attach('ssh://node7/x')"}"""
    with pytest.raises(NoAnswer, match=r"attach\('ssh://login/node7/x'\)"):
        heading_of(line, "ssh://login/digits")


@pytest.mark.usefixtures("processes")
def test_a_relay_that_cannot_be_started_says_so_in_the_words_of_its_command():
    run = "command:sh -c 'echo no such queue >&2; exit 3' looptap bridge x"
    with pytest.raises(NoAnswer, match=r"looptap relay x-1 --ranks 0,1` has ended with exit code 3\. It said: no such"):
        Run(MergeRelayTransport(relay_of(run, "x-1", "0,1")), timeout=20.0)
    with pytest.raises(NoSuchRun, match="lacks the words looptap bridge"):
        relay_of("command:mine bridge x", "x-1", "0,1")


@pytest.mark.usefixtures("processes")
def test_a_command_that_says_nothing_is_given_up_and_ended(place):
    remote = CommandRoute("command:sh -c 'echo waiting for the queue >&2; exec sleep 60'")
    with pytest.raises(NoAnswer, match=r"did not say within 1 s which run.*waiting for the queue"):
        remote.open(1.0)
    soon(lambda: not sleeping())


@pytest.mark.usefixtures("processes")
def test_a_command_whose_end_takes_long_is_reaped_all_the_same(monkeypatch):
    monkeypatch.setattr("looptap.client.transport.tunnel.running_command._EXIT_GRACE_SECONDS", 0.0)
    with pytest.raises(NoAnswer, match="did not say within"):
        CommandRoute("command:sleep 60").open(0.0)
    gc.collect()
    soon(lambda: not sleeping())


@pytest.mark.usefixtures("processes")
def test_another_rank_has_to_be_named_in_the_command(agent):
    with pytest.raises(NoSuchRun, match="looptap bridge --rank 1"):
        attach(BRIDGE, rank=1)


def test_bytes_pass_as_lines_unchanged_and_a_malformed_line_ends_it():
    payload = os.urandom(300_000) + b"\n\r\0" * 1000
    ours, theirs = socket.socketpair()
    reader, writer = os.pipe()
    with ours, theirs, open(reader, "rb", LINE_BUFFER_BYTES) as source, open(writer, "wb", LINE_BUFFER_BYTES) as sink:
        back, received = socket.socketpair()
        with back, received:
            threads = [
                threading.Thread(target=lambda: (copy_outward(theirs, sink), sink.write(b"!\n"), sink.close())),
                threading.Thread(target=lambda: (copy_inward(source, back), back.shutdown(socket.SHUT_WR))),
                threading.Thread(target=lambda: (ours.sendall(payload), ours.shutdown(socket.SHUT_WR))),
            ]
            for thread in threads:
                thread.start()
            got = b""
            while more := received.recv(65_536):
                got += more
            for thread in threads:
                thread.join()
    assert got == payload


@pytest.mark.parametrize(
    ("name", "rank", "command"),
    [
        ("ssh://node/run", None, ["node", "looptap bridge run"]),
        ("ssh://node", None, ["node", "looptap bridge"]),
        ("ssh://node/run", 2, ["node", "looptap bridge --rank 2 run"]),
        ("ssh://me@node:2222/run", None, ["ssh://me@node:2222", "looptap bridge run"]),
        ("ssh://login/node/run", None, ["-J", "login", "node", "looptap bridge run"]),
        ("ssh://a/me@b:22/node/run", None, ["-J", "a,me@b:22", "node", "looptap bridge run"]),
        ("ssh://node/it's; rm -r *", None, ["node", """looptap bridge 'it'"'"'s; rm -r *'"""]),
        ("ssh://node/-x", None, ["node", "looptap bridge -- -x"]),
    ],
)
def test_an_ssh_name_is_short_for_a_command(name, rank, command):
    assert command_to_run(name, rank)[6:] == command


@pytest.mark.parametrize(
    "name", ["ssh://", "ssh:///run", "ssh://-oProxyCommand=x/run", "ssh://a b/run", "ssh://a//run"]
)
def test_a_malformed_ssh_name_is_refused(name):
    with pytest.raises(NoSuchRun, match="is no host"):
        command_to_run(name)


# ---------------------------------------------------------------- through sshd


def key(path):
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)], check=True)
    return path.with_suffix(".pub").read_text()


@pytest.fixture
def sshd(processes, tmp_path, place, monkeypatch):
    """Run sshd on loopback, with an `ssh` for the hosts login, node and stranger."""
    binary, near = need("sshd", "RUNS BEHIND SSH ARE"), need("ssh", "RUNS BEHIND SSH ARE")
    separation = Path("/run/sshd")  # where sshd goes without rights, if it was started with them
    made = os.geteuid() == 0 and not separation.exists()
    if made:
        separation.mkdir(0o755)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    host = key(tmp_path / "host")
    (tmp_path / "authorized_keys").write_text(key(tmp_path / "user"))
    key(tmp_path / "unknown")
    (tmp_path / "known_hosts").write_text(f"[127.0.0.1]:{port} {host}")
    programs, client = tmp_path / "far", tmp_path / "near"
    for folder, name, line in [
        (programs, "looptap", f"exec {LOOPTAP} "),
        (client, "ssh", f"exec {near} -F {tmp_path}/ssh_config "),
    ]:
        folder.mkdir()
        (folder / name).write_text(f'#!/bin/sh\n{line}"$@"\n')
        (folder / name).chmod(0o755)
    far = {"PATH": f"{programs}:/usr/bin:/bin", "LOOPTAP_DIR": str(place)}
    far |= {"PYTHONPATH": os.environ["PYTHONPATH"]} if "PYTHONPATH" in os.environ else {}
    settings = {
        "Port": port, "ListenAddress": "127.0.0.1", "HostKey": tmp_path / "host", "PidFile": "none", "UsePAM": "no",
        "AuthorizedKeysFile": tmp_path / "authorized_keys", "StrictModes": "no", "PasswordAuthentication": "no",
        "PermitRootLogin": "yes", "SetEnv": " ".join(f'{name}="{value}"' for name, value in far.items()),
    }  # fmt: skip
    (tmp_path / "sshd_config").write_text("".join(f"{name} {value}\n" for name, value in settings.items()))
    (tmp_path / "ssh_config").write_text(
        f"Host stranger\n  IdentityFile {tmp_path}/unknown\nHost unheard-of\n  HostKeyAlias unheard-of\n"
        f"Host * !stranger\n  IdentityFile {tmp_path}/user\nHost *\n  IdentitiesOnly yes\n"
        f"  HostName 127.0.0.1\n  Port {port}\n  User {getpass.getuser()}\n"
        f"  UserKnownHostsFile {tmp_path}/known_hosts\n  StrictHostKeyChecking yes\n"
    )
    monkeypatch.setenv("PATH", f"{client}:{os.environ['PATH']}")
    server = subprocess.Popen(
        [binary, "-D", "-e", "-f", str(tmp_path / "sshd_config")], stderr=subprocess.PIPE, text=True
    )
    try:
        for line in server.stderr:
            if "Server listening" in line:
                break
        else:
            pytest.fail("sshd ended before it listened")
        drain = threading.Thread(target=server.stderr.read)
        drain.start()
        there = subprocess.run(["ssh", "node", "true"], capture_output=True, text=True)
        if "Permission denied" in there.stderr:
            pytest.skip(f"this user's account is locked: {there.stderr.strip()}")
        assert there.returncode == 0, there.stderr
        yield psutil.Process(server.pid)
    finally:
        server.terminate()
        server.wait()
        drain.join()
        server.stderr.close()
        if made:
            separation.rmdir()


@pytest.mark.parametrize("name", ["ssh://node/digits", "ssh://login/node/digits"])
def test_a_run_is_reached_through_sshd_directly_and_by_way_of_another_host(sshd, agent, name):
    with attach(name) as run:
        assert run.id == agent.run.id
        works(run)
    soon(lambda: not bridges())
    soon(lambda: not sshd.children())


def test_a_broken_ssh_connection_is_restored(sshd, agent):
    with attach("ssh://node/digits") as run:
        stream = works(run)
        for side in (bridges, lambda: sshd.children(recursive=True)):
            before = len(stream.records)
            old = {process.pid for process in bridges()}
            for process in side():
                with contextlib.suppress(psutil.NoSuchProcess):  # with another of them
                    process.kill()
            soon(lambda old=old: [one for one in bridges() if one.pid not in old] and run.state == "live")
            soon(lambda n=before: len(stream.records) > n + 20)
        assert stream.state == "live"


def test_the_command_line_takes_such_a_name_wherever_it_takes_a_run(sshd, agent, here):
    for arguments, said in [
        (["watch", "ssh://node/digits", "step", "--count", "3", "--timeout", "30"], "3 values"),
        (["call", BRIDGE, "step >= 0"], "True"),
        (["stacks", BRIDGE], "MainThread"),
        (["ls", BRIDGE], agent.run.id),
    ]:
        code, out, err = here(*arguments)
        assert (code, said in out + err) == (0, True), out + err


def test_messages_of_ssh_or_the_far_side_are_passed_on(sshd, agent, tmp_path):
    with pytest.raises(NoAnswer, match=r"exit code 255.*Permission denied \(publickey.*try it by hand"):
        attach("ssh://stranger/digits")
    with pytest.raises(NoAnswer, match=r"Host key verification failed|No .* host key is known"):
        attach("ssh://unheard-of/digits")
    with pytest.raises(NoSuchRun, match=r"ssh://node/nothing: No run matches 'nothing'\. Alive: digits"):
        attach("ssh://node/nothing")
    (tmp_path / "far" / "looptap").unlink()
    with pytest.raises(NoAnswer, match=r"exit code 127.*looptap.*not found.*name it in full"):
        attach("ssh://node/digits")
    with attach(f"command:ssh node {LOOPTAP} bridge digits") as run:
        assert run.id == agent.run.id


RANK = """
import time, looptap
with looptap.Agent("digits", budget=float("inf")) as agent:
    while not agent.stop_requested:
        agent.emit("batch")
        time.sleep(0.005)
"""


def test_ranks_behind_sshd_are_reached_by_one_connection_each_or_by_a_relay(sshd, place, tmp_path, monkeypatch):
    jobs = [warm.Popen([sys.executable, "-c", RANK], env=environment(place, rank, 2, 29501)) for rank in (0, 1)]
    try:
        started(place, 2, "digits")
        (tmp_path / "here").mkdir(0o700)
        monkeypatch.setenv("LOOPTAP_DIR", str(tmp_path / "here"))
        with attach("ssh://node/digits") as run:
            both = run.stream("rank", ranks="all", combine="list")
            relayed = run.stream("len(events)", combine="merge", window=20, relay=True, timeout=300)
            assert "ranks 0-1 by a relay" in relayed.notes
            soon(lambda: both.latest == [0, 1] and relayed.latest == 40)
            assert run.call("rank", ranks=1) == 1
            assert run.skew().wait(1)[0].uncertainty == 0.0
            jobs[1].kill()
            soon(lambda: 1 in both.gone and relayed.latest == 20)
            assert run.ranks.missing == (1,)
    finally:
        for job in jobs:
            job.kill()
            job.wait()
