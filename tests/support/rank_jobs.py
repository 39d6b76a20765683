"""Jobs on several ranks: processes with a launcher's environment, over gloo."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator

import warm
from waiting import soon

_ANY = random.SystemRandom()
_BELOW_EPHEMERAL_PORTS = 12_000, 32_000
LOOP = """
import os, sys, time
import torch
import torch.distributed as dist
import looptap

torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()
with looptap.Agent({name!r}{listen}, budget=float("inf")) as agent:  # a busy machine suspends no query
    agent.expose(rank_twice=2 * rank)
    step = 0
    while not agent.stop_requested:
        for batch in range({batches} + {uneven} * rank):
            loss = torch.tensor(float(100 * rank + step % 100))
            dist.all_reduce(loss.clone()) if not {uneven} else None
            {slow}
            agent.emit("batch", step=step, loss=loss.item(), odd=step % 2)
            step += 1
            time.sleep({pause})
        dist.barrier()
        agent.emit("epoch", error=1.0 / (step + 1))
    dist.barrier()
"""


def free_port() -> int:
    """Return a free port of loopback that the system gives to no other socket."""
    while True:
        port = _ANY.randrange(*_BELOW_EPHEMERAL_PORTS)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def environment(directory, rank, ranks, port, **more):
    """Return the variables that torchrun sets for its workers."""
    reported = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    reported |= {"TORCHELASTIC_RUN_ID": "none", "LOOPTAP_DIR": directory, **more}
    return {**os.environ, **{name: str(value) for name, value in reported.items()}}


@contextlib.contextmanager
def ranks(directory, count, *, name="many", batches=20, uneven=0, pause=0.002, slow="pass", listen="", port=None):
    """Run ``count`` processes that train together until stopped; then kill them."""
    port = port or free_port()
    code = LOOP.format(name=name, batches=batches, uneven=uneven, pause=pause, slow=slow, listen=listen)
    children = [
        warm.Popen([sys.executable, "-c", code], env=environment(directory, rank, count, port)) for rank in range(count)
    ]
    try:
        yield children
    finally:
        end(children)


def printed(directory, command, world) -> list[str]:
    """Run a command on ``world`` ranks to its end; return what each printed."""
    port = free_port()
    children = [
        warm.Popen(command, env=environment(directory, rank, world, port), stdout=subprocess.PIPE, text=True)
        for rank in range(world)
    ]
    try:
        texts = [child.communicate(timeout=500)[0] for child in children]
        assert [child.poll() for child in children] == [0] * world
    except subprocess.TimeoutExpired:
        for child in children:
            child.send_signal(signal.SIGUSR2)  # the stacks of all of them
        raise
    finally:
        end(children)
    return texts


def end(children):
    """Kill processes, stopped ones too."""
    for child in children:
        with contextlib.suppress(ProcessLookupError):
            child.send_signal(signal.SIGCONT)
            child.kill()
        child.wait()


def started(directory, count, name="many") -> Iterator[object]:
    """Return the one run of that name with agents on ``count`` ranks."""
    from looptap.client.attach import runs

    def complete():
        found = [run for run in runs(directory) if run.name == name and run.alive]
        return found[0] if found and len(found[0].members) == count and not found[0].missing else None

    return soon(complete, 300, detail=f"{count} ranks announce themselves")
