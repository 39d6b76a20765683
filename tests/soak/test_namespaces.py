"""Two network namespaces and their cable: a link that is cut, a job on two hosts."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time

import pytest
from rank_jobs import LOOP, environment, started
from waiting import soon

JOB = """
import sys, threading, time, looptap
from looptap.testing import parts_of
agent = looptap.Agent("far", listen="tcp://10.213.57.1:5570", budget=float("inf"))
going = threading.Event()
def talk():
    for line in sys.stdin:
        if line.startswith("stop"):
            going.set()
        queries = {q["name"]: q["values"] for q in agent.stats()["queries"]}
        reached = list(parts_of(agent).dispatcher.sessions.reached.values())
        print(looptap_json({"made": queries, "reached": reached[-1] if reached else {}}), flush=True)
looptap_json = __import__("json").dumps
threading.Thread(target=talk, daemon=True).start()
print("ready", flush=True)
step = 0
while not going.wait(0.002):
    step += 1
    agent.emit("batch", step=step)
    if step % 10 == 0:
        agent.emit("epoch")
threading.Event().wait()
"""
CLIENT = """
import json, sys, threading, time, looptap
run = looptap.attach("far")
mapped = run.stream("step", on="batch", name="mapped")
window = run.stream("len(events)", on="batch", window=7, name="window")
group = run.stream("len(events)", on="batch", name="group")
print("ready", flush=True)
for line in sys.stdin:
    reported = {"now": time.monotonic(), "state": run.state, "reason": run.reason, "latest": mapped.latest}
    for s in (mapped, window, group):
        reported[s.name] = [s.attach.stream, s.arrived, s.dropped, [g.missing for g in s.gaps]]
    records = mapped.records
    reported["even"] = all(b.event - a.event == b.number - a.number for a, b in zip(records, records[1:]))
    print(json.dumps(reported), flush=True)
"""
HERE, THERE = "looptap-a", "looptap-b"
DOWN = [1.0, 6.0, 60.0]
"""Seconds that the cable is out."""


def ip(*words):
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


@pytest.fixture
def cable():
    """Connect HERE (10.213.57.1) and THERE (.2); yield how to cut and restore that."""
    if sys.platform != "linux" or os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("network namespaces need Linux, root and the command ip (Debian: iproute2)")
    try:
        ip("netns", "add", HERE)
    except subprocess.CalledProcessError as error:
        pytest.skip(f"this machine makes no network namespaces: {error.stderr.strip()}")
    try:
        ip("netns", "add", THERE)
        ip("link", "add", "lt-a", "netns", HERE, "type", "veth", "peer", "name", "lt-b", "netns", THERE)
        for space, end, address in ((HERE, "lt-a", "10.213.57.1/24"), (THERE, "lt-b", "10.213.57.2/24")):
            ip("-n", space, "addr", "add", address, "dev", end)
            ip("-n", space, "link", "set", end, "up")
            ip("-n", space, "link", "set", "lo", "up")
        yield lambda state: ip("-n", HERE, "link", "set", "lt-a", state)
    finally:
        for space in (HERE, THERE):
            subprocess.run(["ip", "netns", "del", space], capture_output=True)


@contextlib.contextmanager
def child(space, code):
    """Run a process in a namespace that answers each line with one of JSON."""
    command = ["ip", "netns", "exec", space, sys.executable, "-c", code]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:

        def ask(line="tell"):
            process.stdin.write(line + "\n")
            process.stdin.flush()
            return json.loads(process.stdout.readline())

        try:
            assert process.stdout.readline() == "ready\n"
            yield ask
        finally:
            process.kill()


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize("end", ["the job's", "the client's"])
def test_streams_continue_within_two_seconds_of_the_restored_cable_and_add_up(end, cable, directory):
    if end == "the job's":
        pull = cable
    else:

        def pull(state):
            ip("-n", THERE, "link", "set", "lt-b", state)

    with child(HERE, JOB) as job, child(THERE, CLIENT) as client:

        def going_on(reported):
            soon(lambda: all(client()[name][1] > reported[name][1] for name in ("mapped", "window", "group")), 20)

        for seconds in DOWN:
            going_on(client())
            pull("down")
            gone = time.monotonic()
            while time.monotonic() < gone + seconds:
                latest = client()["latest"]
                time.sleep(0.02)
            pull("up")
            back = time.monotonic()
            reported = soon(lambda latest=latest: (t := client())["latest"] > latest and t, 20)
            took = reported["now"] - back
            print(f"{seconds:g} s out ({end} end): first value after {took:.2f} s; {reported['mapped'][2]} missing")
            assert took < 2
            going_on(reported)
        job("stop")
        added_up = soon(lambda: (t := client()) and _adds_up(job(), t) and t, 20)
        print({name: added_up[name][1:] for name in ("mapped", "window", "group")})
        assert added_up["even"]
        assert None not in added_up["mapped"][3]
        unknown = [added_up[name][3].count(None) for name in ("window", "group")]
        assert unknown in ([1, 1], [2, 2])  # 60 s are too long; 6 s where the agent found the link to be broken


def _adds_up(made, reported):
    """Return True if both reductions' received and missing values add up."""
    return all(
        made["reached"].get(str(number), 0) + made["made"][name] == arrived + missing
        for name, (number, arrived, missing, _) in ((n, reported[n]) for n in ("window", "group"))
    )


# ---------------------------------------------------------------- a job on two hosts

AHEAD = 1000.0
"""Seconds that the monotonic clock of the other host is ahead."""
ELSEWHERE = """
hostname elsewhere
echo 11111111-2222-3333-4444-555555555555 > "$1/boot" && mount --bind "$1/boot" /proc/sys/kernel/random/boot_id
shift
exec "$@"
"""
ASKING = """
import json, sys, time, looptap
run = looptap.attach("many")
query = "sum(e.loss for e in events), len(events), min(e.step for e in events), max(e.step for e in events)"
streams = {
    "all": run.stream("step, loss", ranks="all", history=False),
    "mean": run.stream("loss - 100 * rank, rank", ranks="all", combine="mean"),
    "group": run.stream(query, combine="merge"),
    "seconds": run.stream(
        "len(events), min(e.event_time for e in events)", combine="list", window=looptap.seconds(0.5)
    ),
    "skew": run.skew(),
}
print("ready", flush=True)
for line in sys.stdin:
    reported = {name: [[*r.value, r.partial, r.event, r.rank] for r in s.records if name == "all" or not r.partial]
            for name, s in streams.items()}
    reported["notes"], reported["dropped"] = streams["skew"].notes, sum(s.dropped for s in streams.values())
    reported["alive"] = {rank: each.alive for rank, each in looptap.runs()[0].members.items()}
    reported["states"], reported["how"] = streams["all"].states, [repr(s) for s in streams.values()]
    reported["stacks"] = sorted(run.stacks(ranks="all"))
    print(json.dumps(reported), flush=True)
"""


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_a_job_on_two_hosts_with_other_clocks_is_one_run(cable, directory):
    other = ["unshare", "--uts", "--mount", "--time", f"--monotonic={AHEAD:.0f}", "--kill-child"]
    other += ["sh", "-ec", ELSEWHERE, "sh"]
    if subprocess.run([*other, str(directory), "true"], capture_output=True).returncode:
        pytest.skip("this machine makes no time namespaces (util-linux 2.36 and Linux 5.6 do)")
    children = []
    try:
        for rank in range(4):
            address, link = ("10.213.57.1", "lt-a") if rank < 2 else ("10.213.57.2", "lt-b")
            listen = f", listen='tcp://{address}:*'"
            code = LOOP.format(name="many", batches=20, uneven=0, pause=0.005, slow="pass", listen=listen)
            more = {"MASTER_ADDR": "10.213.57.1", "GLOO_SOCKET_IFNAME": link}
            where = ["ip", "netns", "exec", *([HERE] if rank < 2 else [THERE, *other, str(directory)])]
            settings = environment(directory, rank, 4, 29517, **more)
            children.append(subprocess.Popen([*where, sys.executable, "-c", code], env=settings))
        started(directory, 4)
        with child(HERE, ASKING) as client:
            enough = {"mean": 200, "group": 5, "seconds": 4, "skew": 200}
            reported = client()
            begun = time.monotonic()
            while any(len(reported[name]) < count for name, count in enough.items()):
                assert time.monotonic() < begun + 120, ({name: len(reported[name]) for name in enough}, reported["how"])
                time.sleep(0.2)
                reported = client()
    finally:
        for process in children:
            process.kill()
            process.wait()
    assert reported["alive"] == {"0": True, "1": True, "2": None, "3": None}
    assert reported["states"] == dict.fromkeys("0123", "live")
    assert reported["stacks"] == [0, 1, 2, 3]
    assert reported["dropped"] == 0
    places = [(event, rank) for *_, event, rank in reported["all"]]
    assert places == sorted(places)
    assert all(own == (event - 1) % 100 and rank == 1.5 for own, rank, _, event, _ in reported["mean"])
    for total, count, first, last, *_ in reported["group"]:
        assert (count, last - first) == (80, 19)
        assert total == sum(100 * rank + step % 100 for rank in range(4) for step in range(first, last + 1))
    for *ranks, _, _, _ in reported["seconds"]:
        starts = [begin - (AHEAD if rank > 1 else 0.0) for rank, (_, begin) in enumerate(ranks)]
        assert max(starts) // 0.5 == min(starts) // 0.5  # on the clock of rank 0 it is the same half of a second
    spreads = sorted(one[0] for one in reported["skew"])
    uncertain = max(one[3] for one in reported["skew"])
    print(f"spread {1e3 * spreads[len(spreads) // 2]:.2f} ms, known to {1e3 * uncertain:.2f} ms; {reported['notes']}")
    assert 0 < uncertain < 0.05
    assert spreads[len(spreads) // 2] < 0.1 + uncertain
