"""Ranks on a host that only ssh reaches: queried, changed and lost from here."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import pytest
from far_host import NAME, far_host
from rank_jobs import LOOP
from waiting import soon

import looptap
from looptap.protocol.errors import LinkError, NoSuchRun

RUN = f"ssh://{NAME}/many"
QUERY = "sum(e.loss for e in events), len(events), min(e.step for e in events), max(e.step for e in events)"
APART = """
import time, looptap
with looptap.Agent("many", budget=float("inf")) as agent:
    while not agent.stop_requested:
        agent.emit("batch", step=0)
        time.sleep(0.01)
"""


@pytest.fixture
def far(tmp_path, monkeypatch):
    """Yield a folder that both hosts see, with an `ssh` that leads to the other one."""
    (tmp_path / "here").mkdir(0o700)
    monkeypatch.setenv("LOOPTAP_DIR", str(tmp_path / "here"))
    place = Path(tempfile.mkdtemp(prefix="looptap-far-"))
    try:
        with far_host(place) as near:
            monkeypatch.setenv("PATH", f"{near}:{os.environ['PATH']}")
            yield place
    finally:
        shutil.rmtree(place)


def there(command, **how):
    """Start a command on the other host; it ends with its ssh."""
    return subprocess.Popen(["ssh", NAME, command], stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **how)


def reached(ranks):
    """Return the run, once all its ranks are there."""

    def complete():
        try:
            run = looptap.attach(RUN)
        except (LinkError, NoSuchRun):
            time.sleep(0.5)
            return None
        if all(not isinstance(one, Exception) for one in run.ranks.each(lambda rank: rank.id).values()):
            return run
        run.close()
        return None

    run = soon(complete, detail="all ranks are there")
    assert list(run.ranks) == list(range(ranks))
    return run


def complete(stream):
    return [record for record in stream.records if not record.partial]


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_torchrun_ranks_on_another_host_are_queried_and_changed_as_here(far):
    code = LOOP.format(name="many", batches=20, uneven=0, pause=0.005, slow="pass", listen="")
    (far / "job.py").write_text(code)
    launcher = "-m torch.distributed.run --master-addr 127.0.0.1 --master-port 29531 --nproc-per-node 4"
    job = there(f"{far}/far/python {launcher} {far}/job.py")
    try:
        with reached(4) as run:
            mean = run.stream("loss - 100 * rank, rank", ranks="all", combine="mean")
            direct = run.stream(QUERY, combine="merge")
            began = time.monotonic()
            relayed = run.stream(QUERY, combine="merge", relay=True)
            print(f"a relay over ssh was there after {time.monotonic() - began:.1f} s")
            assert "ranks 0-3 by a relay" in relayed.notes
            assert len(relayed.parts) == 1

            def common():
                ours, theirs = ({r.event: r.value for r in complete(stream)} for stream in (direct, relayed))
                return [(ours[event], theirs[event]) for event in ours.keys() & theirs.keys()]

            soon(lambda: len(common()) >= 5 and len(complete(mean)) >= 100, detail="values of all ranks by both ways")
            assert all(ours == theirs and ours.v1 == 80 for ours, theirs in common())
            assert all(r.value == ((r.event - 1) % 100, 1.5) for r in complete(mean))
            assert run.call("rank", ranks="all") == {0: 0, 1: 1, 2: 2, 3: 3}
            skew = run.skew()
            soon(lambda: complete(skew), detail="events of all ranks come")
            assert skew.latest.uncertainty == 0.0  # one host, one clock, wherever we are
            assert sorted(run.stacks(ranks="all")) == [0, 1, 2, 3]
            assert run.stop().event
            soon(lambda: run.state == "ended", detail="the job ends")
        assert job.wait(60) == 0
    finally:
        job.kill()
        job.wait()


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_a_killed_rank_on_another_host_is_reported_and_the_rest_continue(far):
    (far / "job.py").write_text(APART)
    reported = "WORLD_SIZE=3 MASTER_ADDR=127.0.0.1 MASTER_PORT=29532 TORCHELASTIC_RUN_ID=none"
    jobs = [there(f"RANK={rank} {reported} exec {far}/far/python {far}/job.py") for rank in range(3)]
    try:
        with reached(3) as run:
            stream = run.stream("step", ranks="all", combine="list")
            relayed = run.stream("len(events)", combine="merge", relay=True, window=20)
            soon(lambda: complete(stream) and relayed.latest == 60, detail="values of all ranks come")
            began = time.monotonic()
            subprocess.run(["ssh", NAME, f"kill -9 {run.ranks[2].info.pid}"], check=True)
            soon(lambda: 2 in stream.gone, detail="the death is reported")
            print(f"the death of a rank was reported after {time.monotonic() - began:.1f} s: {stream.gone[2]}")
            assert "process" in stream.gone[2]
            soon(lambda: stream.latest == [0, 0] and relayed.latest == 40, detail="the others go on")
            assert run.ranks.missing == (2,)
            with pytest.raises(NoSuchRun, match=r"rank 2 of .* cannot be reached.*ranks=\[0, 1\]"):
                run.call("rank", ranks="all")
            assert run.call("rank", ranks=1) == 1
            soon(lambda: any("lacks rank 2" in note for note in relayed.notes), detail="the relay says who is gone")
    finally:
        for job in jobs:
            job.kill()
            job.wait()


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_a_relay_starts_on_the_host_of_the_ranks_where_both_hosts_share_the_directory(far, monkeypatch):
    shared = far / "shared"
    shared.mkdir(0o700)
    monkeypatch.setenv("LOOPTAP_DIR", str(shared))
    (far / "job.py").write_text(APART.replace("budget", "listen='tcp://10.213.58.2:*', budget"))
    reported = f"LOOPTAP_DIR={shared} WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=29533 TORCHELASTIC_RUN_ID=none"
    jobs = [there(f"RANK={rank} {reported} exec {far}/far/python {far}/job.py") for rank in range(2)]
    try:
        soon(lambda: any(not found.missing for found in looptap.runs()), detail="both ranks are there")
        with looptap.attach("many") as run:
            relayed = run.stream("len(events)", combine="merge", relay=True, window=20)
            assert "ranks 0-1 by a relay" in relayed.notes
            soon(lambda: relayed.latest == 40, detail="values of both ranks come")
            (part,) = relayed.parts.values()
            assert part.run.session.transport.command[-2] == NAME
    finally:
        for job in jobs:
            job.kill()
            job.wait()
