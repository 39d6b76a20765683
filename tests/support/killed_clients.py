"""Clients that change a job's learning rate until they are killed at random.

python killed_clients.py COUNT prints at the end how many were killed after their first change.
"""

import contextlib
import os
import random
import signal
import sys
import time

import looptap


def steer(reported):
    """Set the rate until killed."""
    chance = random.Random(os.getpid())
    with looptap.attach("agreeing") as run:
        while True:
            with contextlib.suppress(looptap.NotAgreed):
                run.set("lr", chance.random() / 100, expected=None)
                os.write(reported, b"x")


at_work, chance = 0, random.Random(1)
for _ in range(int(sys.argv[1])):
    reported, tell = os.pipe()
    if (child := os.fork()) == 0:
        steer(tell)
    os.close(tell)
    os.read(reported, 1)  # its first change
    time.sleep(chance.uniform(0.0, 0.1))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os.close(reported)
    at_work += 1
print(at_work)
