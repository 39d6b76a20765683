"""A job on several ranks with commands, and clients that are killed during one."""

from __future__ import annotations

import contextlib
import itertools
import json
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import warm
from rank_jobs import end, environment, free_port
from waiting import soon

import looptap
from looptap.streams.errors import NotAgreed

JOB = Path(__file__).with_name("agreeing_job.py")


@contextlib.contextmanager
def job(folder, ranks=2, steps=0, **more):
    """Run a job on ``ranks`` ranks; yield its processes and a client of rank 0."""
    port = free_port()
    command = [sys.executable, str(JOB), str(folder), str(steps)]
    children = [warm.Popen(command, env=environment(folder, rank, ranks, port, **more)) for rank in range(ranks)]
    try:
        soon(lambda: there(children), 200)  # where many tests run at once, to import torch takes a while
        with looptap.attach("agreeing") as run:
            soon(lambda: run.events().get("batch", 0) > 0)
            yield children, run
    finally:
        end(children)


def there(children):
    """Return True if all ranks have announced themselves."""
    assert not any(child.poll() for child in children), "a rank has failed"
    return [one for one in looptap.runs() if one.alive and len(one.members) == len(children)]


def ended(folder, children):
    """Return what each rank has written, once all have ended without error."""
    for child in children:
        assert child.wait(300) == 0
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(len(children))]


CLIENT = """
    import sys, time
    import looptap
    from looptap.protocol import messages as m
    run = looptap.attach("agreeing")
    for kind in range(3):
        id = f"killed-{sys.argv[1]}-{kind}"
        prepare = lambda asks: asks.send(m.Call(asks.number(), id, m.Code("1"), "batch", False, 2))
        answers = [prepare(run.ranks[rank].session.requests).result(60) for rank in (0, 1)]
        if kind:  # it is named to one rank only, or to none
            number = max(answer.number for answer in answers) + 1
            requests = run.ranks[kind - 1].session.requests
            requests.send(m.Agree(requests.number(), id, number))
    print("now", flush=True)
    time.sleep(60)
"""


def visit(run, steps):
    """Reattach every ten steps and send a command; return how many clients have died."""
    killed, deaths = [], []
    for count in itertools.count():
        if count % 6 == 1:
            death = threading.Thread(target=die, args=(count, killed))
            death.start()
            deaths.append(death)
        try:
            with looptap.attach("agreeing") as other:
                losses = [other.ranks[rank].stream("loss", on="batch") for rank in other.ranks]
                with contextlib.suppress(NotAgreed):
                    assert len(set(other.call("step").values())) == 1
                    soon(lambda streams=losses: all(one.arrived for one in streams) or not run.alive)
        except looptap.LooptapError:  # the job has just ended
            if run.alive and run.events()["batch"] < steps - 50:
                raise
        soon(lambda wanted=10 * count: run.events()["batch"] >= wanted or not run.alive)
        if not run.alive or 10 * count > steps - 30:
            for death in deaths:
                death.join(300)
            return sum(killed)


def die(count, killed):
    """Start a client that is killed in the middle of its commands."""
    command = [sys.executable, "-c", textwrap.dedent(CLIENT), str(count)]
    quiet = subprocess.DEVNULL
    with warm.Popen(command, stdout=subprocess.PIPE, stderr=quiet) as client:  # the job may end before it comes
        killed.append(bool(client.stdout.readline()))
        client.kill()
