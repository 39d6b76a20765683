"""Several agents in one process, for a guard to watch: crowd.py FIRST COUNT PERIOD; ends when its input does.

Waits for a line, then raises a batch of each agent every PERIOD seconds, an epoch of 50. At one batch of each epoch
``alarm`` is 1; ``sent`` is the time of the event. At the end it prints as JSON the CPU seconds since that line, those
of a second run of the same loop without any agent, and the number of batches.
"""

from __future__ import annotations

import json
import os
import select
import sys
import time

import looptap

EPOCH = 50


def loop(agents: list[looptap.Agent], period: float, steps: float) -> tuple[float, int]:
    """CPU seconds and steps, until ``steps`` are done or there is something to read."""
    began, step = time.process_time(), 0
    due = time.monotonic()
    while step < steps and not select.select([sys.stdin], [], [], max(0.0, due - time.monotonic()))[0]:
        step, due = step + 1, due + period
        for number, agent in enumerate(agents):
            loss, alarm = 1 / step, step % EPOCH == number % EPOCH
            agent.emit("batch", step=step, loss=loss, alarm=alarm, sent=time.time())
            if step % EPOCH == 0:
                agent.emit("epoch", epoch=step // EPOCH, loss=loss)
    return time.process_time() - began, step


def main() -> None:
    first, count, period = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    agents = [looptap.Agent(f"crowd-{first + number:03}") for number in range(count)]
    print(os.getpid(), flush=True)
    sys.stdin.readline()
    seconds, steps = loop(agents, period, float("inf"))
    sys.stdin.readline()
    for agent in agents:
        agent.close()
    print(json.dumps({"seconds": seconds, "steps": steps}), flush=True)


if __name__ == "__main__":
    main()
