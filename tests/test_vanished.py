"""A client that vanishes takes its queries with it, within the heartbeat's limit."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

import looptap

CLIENT = """
import sys, looptap
run = looptap.attach("vanishing")
streams = [run.stream(q, on="batch") for q in ("step", "len(events)", "mean(e.step for e in recent(9))")]
print("attached", flush=True)
sys.stdin.readline()
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM], ids=lambda s: s.name)
def test_the_queries_of_a_client_that_vanishes_are_removed(how, tmp_path, monkeypatch):
    tmp_path.chmod(0o700)
    monkeypatch.setenv("LOOPTAP_DIR", str(tmp_path))
    with looptap.Agent("vanishing") as agent:
        client = subprocess.Popen(
            [sys.executable, "-c", CLIENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        try:
            assert client.stdout is not None
            assert client.stdout.readline() == "attached\n"
            assert len(agent.stats()["queries"]) == 3
            os.kill(client.pid, how)
            deadline = time.monotonic() + 10 * agent.limits.heartbeat_timeout
            while agent.stats()["queries"]:
                agent.emit("batch", step=1)
                assert time.monotonic() < deadline
                time.sleep(0.01)
            assert agent.stats()["clients"] == []
            with looptap.attach("vanishing") as run:  # and somebody else may come
                stream = run.stream("step", on="batch")
                agent.emit("batch", step=2)
                assert stream.wait(1, timeout=10) == [2]
        finally:
            client.kill()
            with client:
                pass
