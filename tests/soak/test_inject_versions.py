"""`looptap inject` into other versions of Python than the command's own.

LOOPTAP_INJECT_PYTHONS names interpreters, separated by colons, each of an environment with looptap; none of them
needs torch. Each is injected into SOAK_INJECTIONS times, at random moments of a job that computes and has threads and
a worker process.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import subprocess
import time

import pytest
from waiting import soon

import looptap
from looptap.cli.commands.runs.injecting.injection import inject
from looptap.cli.commands.runs.injecting.target import target, why_not_traced

PYTHONS = [one for one in os.environ.get("LOOPTAP_INJECT_PYTHONS", "").split(":") if one]
INJECTIONS = int(os.environ.get("SOAK_INJECTIONS", "10"))
pytestmark = [
    pytest.mark.skipif(not PYTHONS, reason="LOOPTAP_INJECT_PYTHONS names no interpreters"),
    pytest.mark.skipif(shutil.which("gdb") is None or bool(why_not_traced()), reason="gdb may not attach"),
]
JOB = """
import hashlib, random, sys, threading, time
from concurrent.futures import ProcessPoolExecutor

def square(number):
    return number * number

def wait():
    while True:
        time.sleep(0.001)

if __name__ == "__main__":
    threading.Thread(target=wait, daemon=True).start()
    random.seed(0)
    agent, found, step, digest = None, None, 0, hashlib.sha256()
    with ProcessPoolExecutor(1) as pool:
        pool.submit(square, 1).result()
        print("ready", "looptap" in sys.modules, flush=True)
        end = None
        while end is None or time.monotonic() < end:
            step += 1
            if step <= 400:  # what is compared
                digest.update(repr((random.random(), pool.submit(square, step).result())).encode())
                total = sum(number * 0.5 for number in range(20_000))
                if step == 400:
                    found = digest.hexdigest(), total
                    print(found, flush=True)
            else:
                time.sleep(0.005)
            looptap = sys.modules.get("looptap")
            if agent is None and looptap is not None and hasattr(looptap, "Agent"):
                agent = looptap.Agent("injected")
            if agent is not None:
                agent.emit("batch", step=step)
                if agent.stop_requested and end is None and found:
                    end = 0.0
    print("ended", flush=True)
"""


def end(job):
    """Kill a job with its worker, which would live on."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(job.pid, signal.SIGKILL)
    job.wait()
    job.stdout.close()


@pytest.mark.parametrize("python", PYTHONS)
def test_a_job_of_another_python_answers_and_computes_the_same(python, directory, tmp_path, progress):
    script = tmp_path / "job.py"
    script.write_text(JOB)
    moments, taken = random.Random(1), []

    def begun():
        job = subprocess.Popen([python, str(script)], stdout=subprocess.PIPE, text=True, start_new_session=True)
        assert job.stdout.readline() == "ready False\n"
        return job

    job = begun()
    bare = job.stdout.readline()
    end(job)
    for number in range(INJECTIONS):
        job = begun()
        try:
            time.sleep(moments.uniform(0, 2))
            done = inject(target(job.pid))
            taken.append(done.seconds)
            assert (done.method, done.version) == ("gdb", looptap.__version__)
            assert job.stdout.readline() == bare
            soon(lambda job=job: any(one.name == "injected" and one.pid == job.pid for one in looptap.runs()))
            with looptap.attach("injected") as run:
                stream = run.stream("step", on="batch")
                soon(lambda stream=stream: len(stream.values) > 3)
                run.stop()
            assert job.communicate(timeout=60)[0] == "ended\n"
            assert job.returncode == 0
        finally:
            end(job)
        progress(number + 1, f"injections into {python}")
    print(f"{python}: {len(taken)} injections, {min(taken):.1f} to {max(taken):.1f} s")
