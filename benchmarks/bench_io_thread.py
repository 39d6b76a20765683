"""The cost of the I/O thread: its share of a core and its longest hold.

A loop of 1,000 events/s has five streams, opened by a client in another process. In turn, nothing reads the streams, a
chart reads them 20 times a second, or callbacks wait for their values, in shuffled rounds of a few seconds; the seconds
after each change are left out, until the client has said what it needs. The share is the CPU time of that one thread,
whose clock the loop reads; the baseline is the same thread and the same loop without a stream. Every value must arrive.
The longest hold is defined in docs/costs.md. Left out: the threads of libzmq, which encrypt (see bench_shared.py).
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from harness import Row, in_units, interleave, main
from reader import Reader, reader, run
from scaling import longest_hold

import looptap
from looptap.testing import parts_of

STREAMS: dict[str, dict[str, Any]] = {
    "row": {"query": "step, loss"},
    "loss": {"query": "loss"},
    "double": {"query": "2 * loss"},
    "mean": {"query": "mean(e.loss for e in events)", "window": 100},
    "recent": {"query": "mean(e.loss for e in recent(20))"},
}
PERIOD, SETTLE_SECONDS, SECONDS, ROUNDS = 0.001, 4.0, 4.0, 5
SHARE, HOLD_SECONDS, LOOKS_PER_SECOND = 0.005, 0.0005, 20


class Loop:
    """A loop of 1,000 events/s, with the streams of one mode."""

    def __init__(self, agent: looptap.Agent, client: Reader, mode: str) -> None:
        self.agent, self.client, self.mode, self.step = agent, client, mode, 0
        self.io = next(thread for thread in threading.enumerate() if thread.name == "looptap-io")
        self.clock = time.pthread_getcpuclockid(self.io.ident)
        self.link = parts_of(agent).connection.link
        self.flushes: list[float] = []

    def open(self) -> None:
        for name, how in STREAMS.items():
            called = self.mode == "callback" and name != "row"
            self.client.open(f"{self.mode} {name}", on=self.mode, delays=called, **how)

    def run(self, seconds: float) -> None:
        """Emit for so long, with looks in between if the mode is that of a chart."""
        due = time.perf_counter()
        end, look = due + seconds, due
        while due < end:
            self.emit()
            if self.mode == "chart" and due >= look:
                look += 1 / LOOKS_PER_SECOND
                self.client.seen(f"{self.mode} row")
            due += PERIOD
            time.sleep(max(0.0, due - time.perf_counter()))

    def emit(self) -> None:
        self.step += 1
        self.agent.emit(self.mode, step=self.step, loss=1 / self.step)

    def share(self) -> float:
        """Return the share of a core that the I/O thread takes."""
        if self.mode != "none":
            self.open()
        begun = self.step
        self.run(SETTLE_SECONDS)
        before, frames, start = time.clock_gettime(self.clock), self.link.frames_out, time.perf_counter()
        self.run(SECONDS)
        took = time.perf_counter() - start
        share = (time.clock_gettime(self.clock) - before) / took
        self.flushes.append((self.link.frames_out - frames) / took)
        if self.mode != "none":
            for name in STREAMS:
                count = self.step - begun
                self.client.delivered(f"{self.mode} {name}", count // 100 if name == "mean" else count)
                self.client.close(f"{self.mode} {name}")
        return share

    def hold(self) -> float:
        """Return the longest time that the I/O thread keeps the GIL."""
        self.open()
        begun, found = self.step, longest_hold(self.io, self.emit)
        self.client.delivered(f"{self.mode} row", self.step - begun)
        return found


def rows() -> Iterator[Row]:
    modes = {"unseen": "on which nothing looks", "chart": "at which a chart looks", "callback": "with callbacks"}
    with run(history=False, budget=float("inf")) as agent, reader() as client:
        loops = {mode: Loop(agent, client, mode) for mode in ("none", *modes)}
        blocks: dict[str, Callable[[], float]] = {mode: loop.share for mode, loop in loops.items()}
        seen = interleave(blocks, ROUNDS, warm_up=0)
        for mode, words in modes.items():
            share, frames = seen.median(mode), statistics.median(loops[mode].flushes)
            yield Row(
                f"five streams of a loop of 1,000 events/s {words}: the I/O thread's share of a core, in {frames:.0f} "
                "frames a second (baseline: no stream)",
                f"{100 * seen.median('none'):.2g}%", f"{100 * share:.2g}%", str(seen.ratio(mode, "none")),
                f"≤ {100 * SHARE:.1f}%", share <= SHARE, figures=dict(seen.seconds),
            )  # fmt: skip
        hold = loops["unseen"].hold()
        yield Row(
            "the same streams in a loop of 3,000 events/s: the longest hold of the GIL", "", in_units(hold), "",
            f"≤ {in_units(HOLD_SECONDS)}", hold <= HOLD_SECONDS,
        )  # fmt: skip


if __name__ == "__main__":
    main(rows, __doc__)
