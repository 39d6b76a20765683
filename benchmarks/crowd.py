"""Several agents in one process for a guard: crowd.py FIRST COUNT PERIOD [STEPS].

Prints a line when they are there, and waits for one. Then each agent raises a batch every PERIOD seconds, and an epoch
after 50, until STEPS are done or there is input again. At one batch of each epoch ``alarm`` is true; ``sent`` is the
time. When its input has ended the agents are closed; printed as JSON are the steps and the CPU seconds that they took.
"""

from __future__ import annotations

import json
import math
import select
import sys
import time

import looptap

EPOCH = 50


def loop(agents: list[looptap.Agent], period: float, steps: float) -> int:
    """Raise events until done; return the number of steps."""
    step, due = 0, time.monotonic()
    while step < steps and not select.select([sys.stdin], [], [], max(0.0, due - time.monotonic()))[0]:
        step, due = step + 1, due + period
        for number, agent in enumerate(agents):
            alarm = step % EPOCH == number % EPOCH
            agent.emit("batch", step=step, loss=1 / step, alarm=alarm, sent=time.time())
            if step % EPOCH == 0:
                agent.emit("epoch", epoch=step // EPOCH, loss=1 / step)
    return step


def main() -> None:
    first, count, period = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    agents = [looptap.Agent(f"crowd-{first + number:03}") for number in range(count)]
    print(len(agents), flush=True)
    sys.stdin.readline()
    before = time.process_time()
    steps = loop(agents, period, float(sys.argv[4]) if len(sys.argv) > 4 else math.inf)
    seconds = time.process_time() - before
    sys.stdin.read()
    for agent in agents:
        agent.close()
    print(json.dumps({"steps": steps, "seconds": seconds}), flush=True)


if __name__ == "__main__":
    main()
