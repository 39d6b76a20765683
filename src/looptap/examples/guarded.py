"""Eight small trainings under a guard, which ends the three bad ones.

python -m looptap.examples.guarded [--steps 1500]
"""

import argparse
import math
import multiprocessing
import sys
import time
from typing import Any

import torch
from torch import nn

import looptap

EPOCH_STEPS = 20
"""Steps of an epoch."""
RATES = {"rate-1": 0.03, "rate-2": 0.035, "rate-3": 0.04, "rate-4": 0.045, "rate-5": 0.05}
BAD = {"explodes": 1e3, "stalls": 0.02, "learns-nothing": 0.0}
"""Learning rates of the bad jobs; one of them stalls at a lock that is never released."""
RULES = [
    looptap.Rule("isnan(loss)", on="batch", budget=math.inf, actions=["stop"]),
    looptap.Rule.stalled(minutes=4 / 60, actions=["shell: kill $LOOPTAP_PID"]),
    looptap.Rule.worse_than_siblings(
        "max(loss, 0.05)", step="epoch", on="epoch", by=3, lasting=3, budget=math.inf, actions=["stop"]
    ),
]


def train(name: str, rate: float, steps: int, go: Any, progress: Any) -> None:
    """Fit a sine; ``progress`` holds the steps done and the seconds they took."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(1, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)
    lock = multiprocessing.Lock()
    with looptap.Agent(f"guarded-{name}") as agent:
        while not go.wait(0.1):  # start together, so that the jobs can be compared
            agent.emit("waiting")
        began, total = time.monotonic(), 0.0
        for step in range(1, steps + 1):
            x = 6 * torch.rand(256, 1) - 3
            loss = nn.functional.mse_loss(model(x), torch.sin(2 * x))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
            progress[:] = [step, time.monotonic() - began]
            if name == "stalls" and step == 100:
                lock.acquire()
                lock.acquire()
            agent.emit("batch", step=step, loss=loss)
            if step % EPOCH_STEPS == 0:
                agent.emit("epoch", epoch=step // EPOCH_STEPS, loss=total / EPOCH_STEPS)
                total = 0.0
            if agent.stop_requested:
                break


def main() -> None:
    """Start the jobs, guard them, and print what was ended and what that has saved."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--steps", type=int, default=1500, help="steps of each job")
    steps = arguments.parse_args().steps
    fork = multiprocessing.get_context("fork")  # torch is imported once
    go = fork.Event()
    progress = {name: fork.Array("d", 2) for name in (RATES | BAD)}
    jobs = {
        name: fork.Process(target=train, args=(name, rate, steps, go, progress[name]), daemon=True)
        for name, rate in (RATES | BAD).items()
    }
    for job in jobs.values():
        job.start()
    with looptap.guard("guarded-*", RULES) as guard:
        while len(guard.watched) < len(jobs) * len(RULES) and all(job.is_alive() for job in jobs.values()):
            time.sleep(0.05)
        print(f"{len(jobs)} jobs of {steps} steps, guarded by: {'; '.join(rule.name for rule in RULES)}", flush=True)
        go.set()
        shown = 0
        while any([job.is_alive() for job in jobs.values()]) or not guard.wait(0.1):  # asks, and so reaps, each
            shown = show(guard, shown)
            time.sleep(0.1)
        show(guard, shown)
        ended = {firing.run for firing in guard.firings if firing.action not in ("gap", "problem")}
        missing = sum(watched.missing for watched in guard.watched)
    took = {name: (float(one[0]), float(one[1])) for name, one in progress.items()}
    saved = 0.0
    for name, (done, seconds) in took.items():
        early = any(run.startswith(f"guarded-{name}-2") for run in ended)
        saved += (steps - done) * seconds / max(1.0, done) if early else 0.0
        print(f"{name:15} {done:5.0f} steps{'  ended by the guard' if early else ''}")
    planned = saved + sum(seconds for _, seconds in took.values())
    print(f"Saved: {saved:.1f} s of {planned:.1f} s of compute, and the time until a person finds the stalled job.")
    print(f"Values that the rules did not see: {missing}")
    sys.exit(any(job.exitcode is None for job in jobs.values()))


def show(guard: looptap.Guard, shown: int) -> int:
    """Print the firings that are new."""
    firings = guard.firings
    for firing in firings[shown:]:
        value = f"{firing.value:.3g}" if isinstance(firing.value, float) else firing.value
        print(f"{firing.run}: {firing.rule} ({value}) → {firing.action}: {firing.outcome}", flush=True)
    return len(firings)


if __name__ == "__main__":
    main()
