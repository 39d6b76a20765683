"""Clients that are stopped and continued: received and missing values add up."""

from __future__ import annotations

import json
import math
import os
import random
import signal
import subprocess
import sys
import threading
import time

import pytest
import warm
from places import SUPPORT
from waiting import soon

import looptap
from looptap import Limits

QUICK = Limits(heartbeat=0.05, heartbeat_timeout=0.2)
CLIENT = SUPPORT / "stopped_client.py"


class Job:
    """A loop on a thread; ``events`` is their number, once it has ended."""

    def __init__(self, pause):
        self.agent = looptap.Agent("stopped", budget=math.inf, limits=QUICK)
        self.agent.stream("declared", "step", history=100_000)
        self.agent.log(logged=0)
        self.events, self._pause, self._over = 0, pause, False
        self._thread = threading.Thread(target=self._loop, daemon=True)
        self._thread.start()

    def _loop(self):
        while not self._over:
            self.events += 1
            self.agent.emit("batch", step=self.events, text="x" * 2000)
            self.agent.log(logged=self.events)
            time.sleep(self._pause)

    def end(self):
        self._over = True
        self._thread.join(300)
        self.agent.close()


@pytest.fixture
def client(processes):
    with warm.Popen([sys.executable, str(CLIENT)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        yield child
        child.kill()


def wrong(reported, events):
    """Return what is unaccounted for in a client's report on so many events."""
    found = []
    for name, one in reported["streams"].items():
        exact, known = one["arrived"] + one["missing"], not one["unknown"]
        if exact != one["newest"] - one["begins"] + 1 or one["jumps"] > one["missing"]:
            found.append((name, "the numbers do not add up"))
        if one["missing"] > one["dropped"]:
            found.append((name, "dropped counts less than the gaps"))
        if not one["first"] or name == "window":
            continue
        number, event = one["first"]
        every = 3 if name == "every third" else 1
        start = event - every * (number - 1)  # the event of the value 1
        if name == "logged":
            made = events + 1
        elif name == "declared":
            made = events
        else:
            made = (events - start) // every + 1
        if known and exact + one["begins"] - 1 != made:
            found.append((name, f"{exact} of {made} values are accounted for"))
        elif exact + one["begins"] - 1 > made:
            found.append((name, f"{exact} values of {made}"))
    return found


def one_run(client, directory, chance):
    """Stop and continue a run's client at random; return the faults and its report."""
    job = Job(chance.choice([0.0002, 0.001, 0.005]))
    try:
        (path,) = directory.glob("*.json")
        client.stdin.write(f"{path}\n")
        client.stdin.flush()
        assert client.stdout.readline() == "attached\n"
        for _ in range(chance.choice([0, 1, 1, 2])):
            time.sleep(chance.uniform(0, 0.2))
            os.kill(client.pid, signal.SIGSTOP)
            time.sleep(chance.choice([0.02, 0.15, 0.25, 0.4, 0.7, 1.0]))  # up to more than 3 times the limit of silence
            early = chance.random() < 0.3
            if early:  # the run ends while its client is stopped
                job.end()
            os.kill(client.pid, signal.SIGCONT)
            if early:
                break
        time.sleep(chance.choice([0.0, 0.02, 0.3]))
    finally:
        os.kill(client.pid, signal.SIGCONT)
        job.end()
    reported = json.loads(client.stdout.readline())
    soon(lambda: not list(directory.glob("*.json")), 60)
    return wrong(reported, job.events), reported


def look(client, directory, seed):
    found, reported = one_run(client, directory, random.Random(seed))
    assert not found, (seed, found, reported)


@pytest.mark.parametrize("seed", range(3))
def test_received_and_missing_values_of_a_stopped_client_add_up(client, directory, seed):
    look(client, directory, seed)


@pytest.mark.soak
def test_received_and_missing_values_of_stopped_clients_add_up(client, directory, progress):
    for seed in range(500):
        look(client, directory, seed)
        progress(seed, "runs")
