"""A job short of descriptors or threads continues, with or without an agent."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from waiting import soon

import looptap
from looptap.protocol.errors import LinkError, RemoteError
from looptap.protocol.process.headroom import DESCRIPTOR_COUNT, THREAD_COUNT

pytestmark = [
    pytest.mark.usefixtures("processes"),
    pytest.mark.skipif(sys.platform != "linux", reason="the limits are those of Linux"),
]

OTHER_USER = 54_321  # who has no processes: the limit of threads counts those of a user
MOST = 40

PROGRAM = """
import ctypes, json, logging, os, resource, sys, threading
import looptap
looptap.Agent
kind, config, most = sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3])


def no_privileges():
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    sets = (ctypes.c_uint32 * 6)()
    libc = ctypes.CDLL(None, use_errno=True)
    os.setresuid({user}, 0, 0)
    assert libc.capget(header, sets) == 0
    for capability in (21, 24):  # SYS_ADMIN and SYS_RESOURCE, which would lift the limit
        sets[0] &= ~(1 << capability)
    assert libc.capset(header, sets) == 0


def descriptors(left):
    resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200))
    held = []
    try:
        while True:
            held.append(os.open(os.devnull, os.O_RDONLY))
    except OSError:
        for one in held[:left]:
            os.close(one)


def threads(left):
    no_privileges()
    resource.setrlimit(resource.RLIMIT_NPROC, (left + 1, left + 1))


def job(left, out):
    said = []
    log = logging.getLogger("looptap")
    log.addHandler(type("Said", (logging.Handler,), {{"emit": lambda self, one: said.append(one.getMessage())}})())
    {{"descriptors": descriptors, "threads": threads}}[kind](left)
    agent = looptap.Agent("short", config=config)
    agent.expose(scale=2.0)
    for step in range(3):
        agent.emit("batch", step=step, loss=0.5)
    agent.log(lr=0.1)
    inert = "inert" in repr(agent)
    agent.close()
    os.write(out, json.dumps([left, inert, said]).encode())


for left in range(most + 1):
    read, write = os.pipe()
    child = os.fork()
    if not child:
        try:
            job(left, write)
        except BaseException as error:
            os.write(write, json.dumps([left, None, [repr(error)]]).encode())
        os._exit(0)
    os.close(write)
    _, status = os.waitpid(child, 0)
    print(json.dumps([left, status, json.loads(os.read(read, 65536) or "null")]), flush=True)
    os.close(read)
"""


def ends(kind: str, config: str, most: int, directory: Path) -> list[list[object]]:
    """Return how a job ended, and what it said, for each number that was left."""
    if kind == "threads" and os.getuid() == 0:
        os.chown(directory, OTHER_USER, -1)
    program = PROGRAM.format(user=OTHER_USER)
    found = subprocess.run(
        [sys.executable, "-c", program, kind, config, str(most)], capture_output=True, text=True, timeout=300,
        cwd=directory,
    )  # fmt: skip
    assert found.returncode == 0, found.stderr
    return [json.loads(line) for line in found.stdout.splitlines()]


@pytest.mark.parametrize("config", ["null", '{"lr": 0.1}'])
@pytest.mark.parametrize(("kind", "needed"), [("descriptors", DESCRIPTOR_COUNT), ("threads", THREAD_COUNT)])
def test_each_number_of_free_descriptors_and_threads(kind, needed, config, directory):
    if kind == "threads" and os.getuid() != 0:
        pytest.skip("other processes of this user count, too; root can take another one")
    found = ends(kind, config, MOST if kind == "descriptors" else 16, directory)
    for left, status, report in found:
        assert status == 0, (left, status)
        _, inert, said = report
        if not needed <= left < needed + 2 * (kind == "threads"):  # two threads open it, and may have ended
            assert inert is (left < needed), (left, said)
        short = [words for words in said if "are needed, and this process" in words]
        assert len(short) == inert, (left, said)
        assert len(said) == len(short), (left, said)


BESIDE = """
import os, resource, threading
from looptap.protocol.process.headroom import free_descriptors

resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200))
held = []
try:
    while True:
        held.append(os.open(os.devnull, os.O_RDONLY))
except OSError:
    for one in held[-4:]:
        os.close(one)
assert free_descriptors(16) == 4, free_descriptors(16)
os.close(held[10]), os.close(held[20])
assert free_descriptors(16) == 6, free_descriptors(16)
over = threading.Event()


def count():
    while not over.is_set():
        free_descriptors(16)


thread = threading.Thread(target=count)
thread.start()
for _ in range(5_000):
    last = [os.open(os.devnull, os.O_RDONLY) for _ in range(6)]
    for one in last:
        os.close(one)
over.set()
thread.join()
print("done")
"""


@pytest.mark.promise("S38")
def test_to_count_the_free_descriptors_takes_none_from_the_job():
    done = subprocess.run([sys.executable, "-c", BESIDE], capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr


LATER = """
import os, resource, sys
import numpy
import looptap

resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200))
agent, held = looptap.Agent("later", limits=looptap.Limits(heartbeat=0.05)), []
agent.emit("batch", step=0)
print("ready", flush=True)
for line in sys.stdin:
    if line == "short\\n":
        try:
            while True:
                held.append(os.open(os.devnull, os.O_RDONLY))
        except OSError:
            pass
    while held and line == "enough\\n":
        os.close(held.pop())
    agent.emit("batch", step=1, big=numpy.zeros(200_000))
    print(line, end="", flush=True)
agent.close()
print("over", flush=True)
"""


@pytest.mark.usefixtures("processes")
@pytest.mark.promise("S38")
def test_a_job_whose_descriptors_run_out_later_accepts_no_client_until_it_has_some(directory):
    with subprocess.Popen(
        [sys.executable, "-c", LATER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as job:

        def say(word: str) -> None:
            print(word, file=job.stdin, flush=True)
            assert job.stdout.readline().strip() == word

        def sockets() -> list[Path]:
            return [one for one in directory.iterdir() if one.name[0] != "." and one.suffix == ".sock"]

        assert job.stdout.readline() == "ready\n"
        with looptap.attach("later") as run:
            say("short")
            soon(lambda: not sockets())
            with pytest.raises(LinkError):
                looptap.attach("later", timeout=1.0)
            with pytest.raises(RemoteError, match="free file descriptors are needed"):
                run.share(streams="step")
            stream = run.stream("step, big", on="batch", max_bytes=10_000_000)
            say("enough")
            soon(sockets)
            say("more")
            assert stream.wait(1)[-1][1].size == 200_000
            with looptap.attach("later") as other:
                assert other.id == run.id
            out, said = job.communicate(timeout=60)
        assert (job.returncode, out) == (0, "over\n"), said
        assert said.count("no other client can attach") == 1
