"""A job that closes the descriptors of its agent, or has none left (S38)."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator

import pytest
from slowness import LONG_SECONDS
from waiting import soon

import looptap
from looptap.protocol.errors import LinkError
from looptap.streams.native.compiled import load_compiled

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="descriptors as Linux lists them"),
    pytest.mark.usefixtures("place", "processes"),
]
without = load_compiled("_parking") is None
parks = pytest.mark.skipif(without, reason="without the compiled part libzmq ends the process")


@contextlib.contextmanager
def started(code: str, *arguments: str, **how: object) -> Iterator[subprocess.Popen[str]]:
    """Start a job, and wait until it says that it is ready."""
    command = [sys.executable, "-c", textwrap.dedent(code), *arguments]
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen(command, text=True, **pipes, **how) as job:
        try:
            assert job.stdout.readline() == "ready\n"
            yield job
        finally:
            job.kill()


def end_of(job: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Let a job run to its end."""
    out, said = job.communicate("\n", timeout=LONG_SECONDS)
    return job.returncode, out, said


CLOSES = """
    import os, sys, looptap
    agent = looptap.Agent("daemon", store="kept", limits=looptap.Limits(heartbeat=0.1))
    agent.stream("loss", "loss", keep=True)

    def go_on(steps, files=()):
        for step in steps:
            agent.emit("batch", step=step, loss=step / 2)
            for file in files:
                file.write(b"%d " % step)

    def close_all():
        if sys.argv[1] == "range":
            os.closerange(3, 4096)
        for number in range(3, 256):
            try:
                os.close(number)
            except OSError:
                pass

    go_on(range(100))
    while agent.stats()["store"]["kept"] < 100:
        pass
    print("ready", flush=True)
    sys.stdin.readline()
    close_all()
    files = [open(f"{number}.txt", "wb", buffering=0) for number in range(40)]
    read = [open("given.txt", "rb", buffering=0) for number in range(10)]
    go_on(range(100, 1000), files)
    print("closed", flush=True)
    sys.stdin.readline()
    go_on(range(1000, 1100), files)
    agent.close()
    assert not any(file.tell() for file in read)
    print("over", flush=True)
"""


@pytest.mark.promise("S38")
@pytest.mark.parametrize("how", ["range", pytest.param("each", marks=parks)])
def test_a_job_that_closes_all_descriptors_keeps_its_files_its_agent_and_its_store(how, tmp_path):
    (tmp_path / "given.txt").write_text("what the job reads")
    with started(CLOSES, how, cwd=tmp_path) as job, looptap.attach("daemon") as run:
        stream = run.stream("step", on="batch")
        print(file=job.stdin, flush=True)
        assert job.stdout.readline() == "closed\n"
        soon(lambda: run.state == "live")
        with looptap.attach("daemon") as other:
            assert other.id == run.id
        code, out, said = end_of(job)
        assert (code, out) == (0, "over\n"), said
        assert said.count("has closed the file descriptors of its agent") == 1
        soon(lambda: stream.values[-1:] == [1099])
    for number in range(40):
        assert (tmp_path / f"{number}.txt").read_text() == "".join(f"{step} " for step in range(100, 1100))
    (file,) = (tmp_path / "kept").iterdir()
    assert file.stat().st_mode & 0o777 == 0o600
    with looptap.open(file) as stored:
        assert stored.stream("loss").values == [step / 2 for step in range(1100)]
        assert stored.reason == "the run ended"


ENDS = """
    import os, sys, looptap
    agent = looptap.Agent("ends", store="kept")
    agent.stream("loss", "loss", keep=True)
    for step in range(100):
        agent.emit("batch", step=step, loss=0.5)
    print("ready", flush=True)
    sys.stdin.readline()
    os.closerange(3, 4096)
    for step in range(100):
        agent.emit("batch", step=step, loss=0.5)
    {end}
"""
WAYS = {
    "agent.close()": 0,
    "sys.exit(3)": 3,
    "raise SystemError": 1,
    "os._exit(os.waitstatus_to_exitcode(os.wait()[1])) if os.fork() else sys.exit(4)": 4,
    "os.abort()": -signal.SIGABRT,
    "os.execv('/bin/true', ['true'])": 0,
}


@pytest.mark.parametrize("end", WAYS)
def test_a_job_that_has_just_closed_all_descriptors_ends_as_it_would(end, tmp_path):
    with started(ENDS.format(end=end), cwd=tmp_path) as job, looptap.attach("ends") as run:
        run.stream("step", on="batch")
        assert end_of(job)[0] == WAYS[end]


LAST = """
    import os, resource, sys, looptap
    resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200))
    agent, held = looptap.Agent("last", limits=looptap.Limits(heartbeat=2.0, heartbeat_timeout=20.0)), []
    agent.emit("batch", step=0)
    print("ready", flush=True)
    for line in sys.stdin:
        try:
            while line == "short\\n":
                held.append(os.open(os.devnull, os.O_RDONLY))
        except OSError:
            pass
        while held and line == "enough\\n":
            os.close(held.pop())
        agent.emit("batch", step=1)
        print(line, end="", flush=True)
    agent.close()
    print("over", flush=True)
"""


@parks
def test_a_client_that_comes_when_no_descriptor_is_left_does_not_end_the_job():
    with started(LAST) as job:
        for word in "short", "enough":
            print(word, file=job.stdin, flush=True)
            assert job.stdout.readline() == f"{word}\n"
            if word == "short":
                with pytest.raises((LinkError, looptap.RunEnded)):
                    looptap.attach("last", timeout=1.0)

        def attaches() -> bool:
            with contextlib.suppress(LinkError, looptap.RunEnded), looptap.attach("last", timeout=1.0):
                return True
            return False

        soon(attaches)
        code, out, said = end_of(job)
        assert (code, out) == (0, "\nover\n"), said


ABORTS = """
    import ctypes, faulthandler, os, signal, sys, threading, zmq, looptap
    {before}
    agent = looptap.Agent("aborts")
    {after}
    agent.emit("batch", step=0)
    print("ready", flush=True)
    sys.stdin.readline()
    {end}
    threading.Event().wait(60)
"""
OWN_ZMQ = "own = zmq.Context().socket(zmq.PULL); os.close(own.FD); own.EVENTS"
ABORTING = {
    "of the job": ("", "", "os.abort()"),
    "of C code": ("", "", "ctypes.CDLL(None).abort()"),
    "of another thread": ("", "", "threading.Thread(target=os.abort).start()"),
    "of other code on our thread": ("", "", "agent._parts.connection.link.post(os.abort)"),
    "of the job's own sockets": ("", "", OWN_ZMQ),
    "by kill": ("", "", "os.kill(os.getpid(), signal.SIGABRT)"),
    "with a handler before": ("signal.signal(signal.SIGABRT, lambda *_: None)", "", "os.abort()"),
    "with a handler after": ("", "signal.signal(signal.SIGABRT, lambda *_: None)", "os.abort()"),
    "with faulthandler before": ("faulthandler.enable()", "", "os.abort()"),
    "with faulthandler after": ("", "faulthandler.enable()", "os.abort()"),
}


@pytest.mark.parametrize("kind", ABORTING)
def test_abort_ends_a_job_as_without_an_agent(kind):
    before, after, end = ABORTING[kind]
    with started(ABORTS.format(before=before, after=after, end=end)) as job:
        code, _, said = end_of(job)
        assert code == -signal.SIGABRT
        assert ("Fatal Python error: Aborted" in said) is ("faulthandler" in kind)
        assert ("Current thread" in said) is ("faulthandler" in kind)


INSIDE = """
    import os, sys, zmq, looptap
    from looptap.protocol.process.parking import count_parked
    agent = looptap.Agent("parked", limits=looptap.Limits(heartbeat=0.1))
    link = agent._parts.connection.link

    def breaks():
        (socket,) = link.sockets
        os.closerange(3, 4096)
        socket.router.getsockopt(zmq.EVENTS)

    print("ready", flush=True)
    sys.stdin.readline()
    link.post(breaks)
    while not (count_parked() == 1 and link.sockets):
        pass
    agent.emit("batch", step=7)
    print("closed", flush=True)
    sys.stdin.readline()
    agent.close()
    print("over", flush=True)
"""


@parks
def test_where_libzmq_aborts_on_our_thread_another_one_continues():
    """Libzmq is called with the interpreter lock, and the thread stops inside it."""
    with started(INSIDE) as job, looptap.attach("parked") as run:
        stream = run.stream("step", on="batch")
        print(file=job.stdin, flush=True)
        assert job.stdout.readline() == "closed\n"
        soon(lambda: stream.values == [7])
        code, out, said = end_of(job)
        assert (code, out) == (0, "over\n"), said
