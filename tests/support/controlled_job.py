"""A job with a control, a trigger and a stream: 50 steps a second for an hour."""

import math
import sys
import time

import looptap


class Echo:
    factor = looptap.Control(int, default=2, minimum=1, maximum=16, unit="times", doc="how often a batch is used")
    shuffle = looptap.Control(bool, default=True)


echo = Echo()
with looptap.Agent(sys.argv[1], may_pause=5.0) as agent:
    agent.expose(echo=echo)
    agent.trigger("evaluate", lambda: 0.75)
    agent.stream("loss", "step, loss", on="batch")
    for step in range(180_000):
        agent.emit("batch", step=step, loss=math.exp(-step / 500) + 0.05 * math.sin(step))
        if step % 100 == 99:
            agent.emit("epoch", epoch=step // 100)
        time.sleep(0.02)
