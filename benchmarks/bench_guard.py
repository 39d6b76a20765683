"""One `looptap.guard` with four rules over 100 agents.

Ten agents run in each process, each with 20 batches a second. The benchmark measures the cost of the guard and of the
agents, and the time from an event to the firing of its rule. The agents' cost includes their loop, which only emits
events; the baseline is the same loop without a guard.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from typing import Any

from harness import Row, helper, in_units, main

import looptap

PROCESSES, EACH, PERIOD, SECONDS = 10, 10, 0.05, 20.0
AGENTS = PROCESSES * EACH


@contextlib.contextmanager
def crowd() -> Iterator[list[Any]]:
    with contextlib.ExitStack() as stack:
        arguments = [(str(EACH * number), str(EACH), str(PERIOD)) for number in range(PROCESSES)]
        processes = [stack.enter_context(helper("crowd.py", *words)) for words in arguments]
        for process in processes:
            process.stdout.readline()
        yield processes


def say(processes: list[Any]) -> None:
    for process in processes:
        process.stdin.write("\n")
        process.stdin.flush()


def ended(processes: list[Any]) -> list[dict[str, float]]:
    """Return what each process has done."""
    say(processes)
    for process in processes:
        process.stdin.close()
    return [json.loads(process.stdout.read()) for process in processes]


def memory() -> int:
    """Return the bytes that this process holds."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")


def unwatched() -> float:
    """Return the CPU seconds that an agent and its loop take in a second."""
    with crowd() as processes:
        say(processes)
        time.sleep(SECONDS / 2)
        return sum(done["seconds"] for done in ended(processes)) / (SECONDS / 2) / AGENTS


def rows() -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as directory:
        os.environ["LOOPTAP_DIR"] = directory
        yield from measured(unwatched())


def measured(bare: float) -> Iterator[Row]:
    delays: list[float] = []

    def arrived(firing: looptap.Firing) -> None:
        delays.append(time.time() - firing.value[1])

    rules = [
        looptap.Rule("alarm", show="step, sent", again=0.0, budget=math.inf, actions=[arrived]),
        looptap.Rule("mean(e.loss for e in events)", above=2.0, budget=math.inf),
        looptap.Rule.worse_than_siblings("loss", step="epoch", budget=math.inf),
        looptap.Rule.stalled(minutes=10),
    ]
    with crowd() as processes:
        before = memory()
        with looptap.guard("crowd-*", rules) as guard:
            while len(guard.watched) < len(rules) * AGENTS:
                time.sleep(0.05)
            say(processes)
            cpu, began = time.process_time(), time.monotonic()
            time.sleep(SECONDS)
            took = time.monotonic() - began
            watcher = (time.process_time() - cpu) / took / AGENTS
            held, threads = (memory() - before) / AGENTS, len(os.listdir("/proc/self/task"))
            done = ended(processes)
            guard.wait(60)
            alarms = [each for each in guard.watched if each.rule == "alarm"]
    raised = EACH * sum(int(each["steps"]) for each in done)
    judged, missing = sum(each.judged for each in alarms), sum(each.missing for each in alarms)
    watched = sum(each["seconds"] for each in done) / took / AGENTS
    figures = {"judged": judged, "raised": raised, "missing": missing, "threads": threads, "delays": delays}
    yield Row("batches of 100 agents that a rule has judged (baseline: raised)", f"{raised:,}", f"{judged:,}", "",
              "all", judged == raised and not missing, figures)  # fmt: skip
    median, worst = statistics.median(delays), statistics.quantiles(delays, n=100)[98]
    yield Row("from an event to the action of its rule", "", f"{in_units(median)}, p99 {in_units(worst)}", "",
              "median ≤ 0.2 s", median <= 0.2)  # fmt: skip
    yield Row("the watcher's CPU for each agent", "", f"{in_units(watcher)} a second", "", "≤ 1% of a core",
              watcher <= 0.01)  # fmt: skip
    yield Row("the watcher's memory for each agent", "", f"{held / 2**20:.2f} MiB, {threads} threads in all", "",
              "≤ 1 MiB", held <= 2**20)  # fmt: skip
    yield Row("an agent's CPU, its loop included (baseline: unwatched)", f"{in_units(bare)} a second",
              f"{in_units(watched)} a second")  # fmt: skip


if __name__ == "__main__":
    main(rows, __doc__)
