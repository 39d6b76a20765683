"""Clients, failing or killed, never change a job's losses (S18, S19)."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
import warm
from torch import nn

import looptap

STEPS = 100

CHAOS = """
import contextlib, os, random, signal, sys, time
import looptap
from looptap.streams.errors import LooptapError

signal.alarm(int(sys.argv[1]))
QUERIES = [
    "mark() or (step, loss)", "mark() or 1 / 0", "mark() or loss.nothing", "mean(e.loss for e in events)",
    "mark() or torch.rand(3)", "mark() or torch.manual_seed(0) and None", "mark() or model[0](x).sum()",
    "mark() or layer_norms(model)", "mark() or batch_topk(2, by=out.max(1).values, x=x)", "mark() or np.random.rand()",
    "mark() or torch.set_grad_enabled(False) and None", "max((boom() for e in events))", "leave()",
    "mark() or model.train() and None", "sum(e.loss for e in events)", "x, out",
]

def attack(dice, streams):
    run = looptap.attach("identical", timeout=2)
    while True:
        action = dice.random()
        if action < 0.5 and len(streams) < 4:
            window = dice.choice([None, 5, looptap.seconds(0.01), looptap.sliding(3)])
            streams.append(run.stream(dice.choice(QUERIES), on="batch", window=window, budget=float("inf")))
        elif action < 0.7 and streams:
            streams.pop(dice.randrange(len(streams))).close(timeout=0.01)
        elif action < 0.8 and streams:
            streams.pop()  # drop it
        elif 0.8 < action < 0.88:
            with contextlib.suppress(looptap.CommandPending):
                run.call(dice.choice(["step", "1 / 0", "mark()"]), timeout=0.1)
        elif 0.88 < action < 0.92:
            run.close()
            return
        elif action > 0.92:
            report(streams)
            os.kill(os.getpid(), signal.SIGKILL)

def report(streams):
    tried = sum(stream.arrived + stream.error_count + (stream.state == "failed") for stream in streams)
    print("tried", tried, flush=True)

seed = 0
while True:  # one client after another, each in a process of its own, until this one is ended
    seed += 1
    child = os.fork()
    if not child:
        signal.alarm(300)
        streams = []
        with contextlib.suppress(LooptapError):
            attack(random.Random(seed), streams)
        report(streams)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    print("killed" if os.WIFSIGNALED(status) else "left", flush=True)
    time.sleep(0.005)
"""


def train(agent=None, begin=lambda: None):
    """Train a small convolutional net; return its state by name.

    Each tenth step waits for ``begin``.
    """
    torch.manual_seed(3)
    random.seed(3)
    np.random.seed(3)
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.2), nn.Flatten(), nn.Linear(144, 10)
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    if agent is not None:
        agent.expose(model=model)
    losses = []
    for step in range(STEPS):
        if step % 10 == 0:
            begin()
        x = torch.randn(8, 1, 8, 8) + random.random() + np.random.rand()
        target = torch.randint(10, (8,))
        out = model(x)
        loss = nn.functional.cross_entropy(out, target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if agent is not None:
            agent.emit("batch", step=step, loss=loss, x=x, out=out, target=target)
            if step % 50 == 49:
                agent.emit("epoch", epoch=step // 50)
    modes = torch.is_grad_enabled(), torch.get_default_dtype(), torch.get_num_threads(), model.training
    ended = {"modes": modes, "random numbers of torch": torch.get_rng_state().tolist()}
    ended |= {"random numbers": random.getstate(), "random numbers of numpy": np.random.get_state()[1].tolist()}
    ended |= {name: value.flatten().tolist() for name, value in model.state_dict().items()}
    for number, state in optimizer.state_dict()["state"].items():
        ended |= {f"{name} of parameter {number}": value.flatten().tolist() for name, value in state.items()}
    return ended | {"losses": losses}


def differences(ours, bare):
    """Describe what differs, causes first, with its place and the largest amount."""
    found = []
    for name, theirs in bare.items():
        if ours[name] == theirs:
            continue
        found.append(name)
        if isinstance(theirs, list):
            at = [index for index, pair in enumerate(zip(ours[name], theirs, strict=True)) if pair[0] != pair[1]]
            most = max(abs(ours[name][index] - theirs[index]) for index in at)
            found[-1] += f": {len(at)} of {len(theirs)}, by {most:g} at most, at {at[:10]}"
    return "; ".join(found) or "nothing"


def mark():
    """Do nothing: a function of the job, whose source is followed."""


def boom():
    raise MemoryError("boom")


def leave():
    raise SystemExit("a query leaves")


@pytest.fixture
def chaos(processes, directory):
    """Run a process that attaches one hostile client after another, and kills some."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    report = directory / "report"
    with report.open("w") as file:
        command = [sys.executable, "-c", CHAOS, "7200"]
        child = warm.Popen(command, stdout=file, stderr=subprocess.DEVNULL, start_new_session=True)
        try:
            yield report
        finally:
            child.send_signal(signal.SIGKILL)  # its own child ends by itself: it finds no run, or by its alarm
            child.wait(300)
            torch.set_num_threads(threads)


@pytest.mark.promise("S18", "S19")
@pytest.mark.skipif(sys.platform == "win32", reason="clients are forked")
@pytest.mark.parametrize(
    "times", [10, pytest.param(200, marks=[pytest.mark.soak, pytest.mark.timeout(7200)], id="200")]
)
def test_a_job_under_attack_ends_like_the_job_alone_bit_for_bit(times, chaos, progress):
    bare = train()
    for number in range(times):
        progress(number, f"of {times} jobs were identical")
        with looptap.Agent("identical") as agent:
            agent.expose(mark=mark, boom=boom, leave=leave)

            def under_attack(agent=agent):
                deadline = time.monotonic() + 60
                while not agent.stats()["queries"]:
                    assert time.monotonic() < deadline
                    time.sleep(0.001)

            attacked = train(agent, under_attack)
        if attacked != bare:
            again = differences(train(), bare)
            pytest.fail(f"differs: {differences(attacked, bare)}\nin the bare job, run again: {again}")
    report = chaos.read_text()
    assert sum(int(line.split()[1]) for line in report.splitlines() if line.startswith("tried")) > 3 * times
    assert report.count("killed") > times / 4
