"""A process that ends while a thread of a backend is inside torch ends cleanly."""

from __future__ import annotations

import subprocess
import sys

import pytest
from rank_jobs import end, environment, free_port

BEGIN = """
import os
import time
from datetime import timedelta

import torch
import torch.distributed as dist

dist.init_process_group("gloo")


class Late:
    def __del__(self):
        time.sleep(1.0)  # while the interpreter ends


late = Late()
"""
A_VOTE = """
from looptap.agent.control import process_group

process_group._MAX_CLOSE_SECONDS = 100.0  # on a busy machine
ballots = process_group.Ballots()
ballots._ask(lambda store: store.wait(["never"], timedelta(seconds=0.7)))
while ballots.since is None:
    time.sleep(0.001)
ballots.close()
"""
AN_ALL_REDUCE = """
from looptap.training.collectives import all_reduce

for thread in map(int, os.listdir("/proc/self/task")):  # gloo's run only while this one waits
    os.sched_setaffinity(thread, {sorted(os.sched_getaffinity(thread))[-1]})
    if thread != os.getpid():
        os.sched_setscheduler(thread, os.SCHED_IDLE, os.sched_param(0))
for _ in range(20):
    all_reduce(torch.ones(1000))
"""


@pytest.mark.promise("S25")
@pytest.mark.usefixtures("processes")
@pytest.mark.skipif(not hasattr(__import__("os"), "SCHED_IDLE"), reason="a thread is made to lag behind on Linux")
@pytest.mark.parametrize(("code", "world"), [(A_VOTE, 1), (AN_ALL_REDUCE, 2)], ids=["a vote", "an all-reduce"])
def test_a_thread_that_returns_from_torch_late_does_not_abort_the_process(tmp_path, code, world):
    port = free_port()
    children = [
        subprocess.Popen(
            [sys.executable, "-c", BEGIN + code], env=environment(tmp_path, rank, world, port),
            stderr=subprocess.PIPE, text=True,
        )
        for rank in range(world)
    ]  # fmt: skip
    try:
        texts = [child.communicate(timeout=500)[1] for child in children]
    finally:
        end(children)
    assert [child.returncode for child in children] == [0] * world, texts
