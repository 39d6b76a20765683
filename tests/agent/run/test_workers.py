"""Worker processes of a loader: the agent's copy is inert and harmless (S22)."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import textwrap

import pytest
import warm
from waiting import soon

import looptap
from looptap.client.attach import runs

pytestmark = [
    pytest.mark.usefixtures("processes"),
    pytest.mark.skipif(sys.platform == "win32", reason="workers as POSIX makes them"),
]

LOADING = """
    import multiprocessing, os, signal, sys, torch, looptap

    class Data(torch.utils.data.Dataset):
        def __init__(self, agent, model):
            self.agent, self.model = agent, model
        def __len__(self):
            return 8
        def __getitem__(self, i):
            self.agent.emit("batch", n=-1)
            self.agent.expose(i=i)
            self.agent.emit("read", n=-1)
            self.agent.close()
            return torch.tensor("inert" in repr(self.agent) and multiprocessing.parent_process() is not None)

    if __name__ == "__main__":
        signal.alarm(300)
        method, workers, epochs = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
        with looptap.Agent("loading") as agent:
            print("ready", flush=True)
            sys.stdin.readline()
            for epoch in range(epochs):
                loader = torch.utils.data.DataLoader(
                    Data(agent, None), batch_size=2, num_workers=workers, multiprocessing_context=method
                )
                for batch in loader:
                    agent.emit("batch", n=int(batch.sum()))
                agent.emit("epoch", epoch=epoch)
            print(agent.stats()["events"], flush=True)
            sys.stdin.readline()
"""
LONG = [pytest.mark.soak, pytest.mark.timeout(300)]


@pytest.mark.promise("S22")
@pytest.mark.parametrize(
    ("method", "workers", "epochs"),
    [
        ("fork", 2, 5),
        ("spawn", 1, 1),
        pytest.param("spawn", 2, 5, marks=LONG),
        pytest.param("forkserver", 2, 5, marks=LONG),
    ],
)
def test_an_agent_in_a_worker_is_inert_and_the_stream_continues(method, workers, epochs, tmp_path, monkeypatch):
    (tmp_path / "runs").mkdir(mode=0o700)
    monkeypatch.setenv("LOOPTAP_DIR", str(tmp_path / "runs"))
    program = tmp_path / "loading.py"
    program.write_text(textwrap.dedent(LOADING))
    command = [sys.executable, str(program), method, str(workers), str(epochs)]
    with warm.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as job:
        assert job.stdout.readline() == "ready\n"
        with looptap.attach("loading") as run:
            stream = run.stream("n", on="batch")
            sums = run.stream("sum(e.n for e in events)", on="batch")
            job.stdin.write("go\n")
            job.stdin.flush()
            assert job.stdout.readline() == f"{{'batch': {4 * epochs}, 'epoch': {epochs}}}\n"
            assert stream.wait(4 * epochs, timeout=300) == [2] * (4 * epochs)
            assert sums.wait(epochs, timeout=300) == [8] * epochs
            job.stdin.write("end\n")
            job.stdin.close()
        assert job.wait(300) == 0


ORPHANING = """
    import os, signal, sys, time, looptap
    agent = looptap.Agent("orphaning", listen=sys.argv[1] or None)
    signal.alarm(300)
    child = os.fork()
    if not child:
        signal.alarm(300)
        time.sleep(60)
        os._exit(0)
    print(child, flush=True)
    while True:
        agent.emit("batch")
        time.sleep(0.001)
"""


@pytest.mark.promise("S22")
@pytest.mark.parametrize("listen", ["", "tcp"])
def test_a_killed_job_is_reported_dead_at_once_although_a_worker_survives(listen, directory):
    command = [sys.executable, "-c", textwrap.dedent(ORPHANING), listen]
    with warm.Popen(command, stdout=subprocess.PIPE, text=True) as job:
        worker = int(job.stdout.readline())
        try:
            with looptap.attach("orphaning") as run:
                stream = run.stream("event_number", on="batch")
                stream.wait(1, timeout=300)
                job.kill()
                job.wait(300)
                soon(lambda: stream.state != "live")  # the worker's copies of its sockets do not keep its clients
            os.kill(worker, 0)  # it is still there
            assert [one.alive for one in runs()] == [False]
        finally:
            job.kill()
            with contextlib.suppress(ProcessLookupError):
                os.kill(worker, signal.SIGKILL)
