"""A torchrun job with a killed rank: all restart, and `follow=True` continues."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest
from rank_jobs import LOOP
from waiting import soon

import looptap
from looptap.client.attach import runs

# Without a prefix of its own, gloo of PyTorch 2.13 meets the addresses of the attempt before, and no restart succeeds.
APART = """
store, place, size = next(dist.rendezvous("env://"))
store = dist.PrefixStore("attempt " + os.environ["TORCHELASTIC_RESTART_COUNT"], store)
dist.init_process_group("gloo", store=store, rank=place, world_size=size)
"""
QUERY = "sum(e.loss for e in events), len(events), min(e.step for e in events), max(e.step for e in events)"


def complete(stream, after):
    """Return the records behind the value ``after`` that lack no rank."""
    return [record for record in stream.records if not record.partial and record.number > after]


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_streams_of_all_ranks_go_over_to_the_next_attempt_of_torchrun(directory):
    code = LOOP.format(name="many", batches=20, uneven=0, pause=0.005, slow="pass", listen="")
    (directory / "job.py").write_text(code.replace('dist.init_process_group("gloo")', APART))
    launcher = ["-m", "torch.distributed.run", "--standalone", "--max-restarts", "3", "--nproc-per-node", "3"]
    job = subprocess.Popen([sys.executable, *launcher, str(directory / "job.py")], stderr=subprocess.DEVNULL)
    try:
        soon(lambda: [run for run in runs(directory) if not run.missing and run.alive], detail="three ranks are there")
        with looptap.attach("many", follow=True) as run:
            each = run.stream("step", ranks="all", history=False)
            mean = run.stream("loss - 100 * rank, rank", ranks="all", combine="mean")
            merged = run.stream(QUERY, combine="merge")
            skew = run.skew()
            after = dict.fromkeys((each, mean, merged, skew), 0)
            for attempt in range(3):
                soon(lambda: len(complete(mean, after[mean])) > 50, detail="values of all ranks come")
                soon(lambda: len(complete(merged, after[merged])) > 3, detail="windows of all ranks come")
                soon(lambda: complete(skew, after[skew]), detail="events of all ranks come")
                assert list(run.ranks) == [0, 1, 2]
                assert run.ranks.missing == ()
                assert run.call("rank", ranks="all") == {0: 0, 1: 1, 2: 2}
                for record in complete(mean, after[mean]):
                    assert record.value == ((record.event - 1) % 100, 1)
                for record in complete(merged, after[merged]):
                    total, count, first, last = record.value
                    assert (count, last - first) == (60, 19)
                    assert total == sum(100 * rank + step % 100 for rank in range(3) for step in range(first, last + 1))
                found = [record for record in each.records if record.number > after[each]]
                assert {record.rank for record in found} == {0, 1, 2}
                assert all(record.value == record.event - 1 for record in found)
                if attempt < 2:
                    before = run.id
                    os.kill(run.ranks[attempt].info.pid, signal.SIGKILL)  # rank 0, of which run is, and another one
                    soon(lambda: run.id != before and run.state == "live", detail="the next attempt")  # noqa: B023 - at once
                    for stream in after:
                        soon(lambda: len(stream.seams) > attempt, detail="the stream says so")  # noqa: B023 - at once
                        assert stream.seams[-1].new == run.id
                        after[stream] = stream.seams[-1].after
            assert all(stream.state == "live" and stream.dropped == 0 for stream in after)
    finally:
        job.send_signal(signal.SIGTERM)
        job.wait(60)
