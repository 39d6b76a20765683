"""Deferred queries, evaluated on the columns of a batch and event by event.

Two jobs with the same streams run in one process; one of them cannot evaluate columns. A block emits the events of one
batch, which only keeps their numbers, and then evaluates them: 256 events, as in a loop that runs faster than its
readers, or 20, as in a loop of 1,000 events a second. A figure is the time to evaluate one event. It does not include
`emit`, or what happens to the values afterwards, which columns also make cheaper. Both jobs yield exactly the same
values.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial

from harness import Row, in_units, interleave, main

from looptap.testing import Pair, pair, parts_of

ROUNDS, BATCHES = 40, 4
QUERIES: dict[str, int | None] = {
    "loss * 2": None,
    "step, loss * 2 - 1": None,
    "(e.loss * 2 for e in events if e.step % 10 == 0)": None,
    "loss if loss < 3 else 3.0": None,
    "mean(e.loss for e in events)": 100,
    "max(e.loss for e in events) - min(e.loss for e in events)": 100,
    "sum(e.loss for e in events if e.step % 2)": 100,
    "quantile((e.loss for e in events), [0.1, 0.5, 0.9])": 100,
    "group_by(((e.step % 10, e.loss) for e in events), mean)": 100,
}
"""Queries, and the windows of those that reduce."""


class Job:
    """A job with one query, whose batches are evaluated when it says so."""

    def __init__(self, query: str, columns: bool) -> None:
        self.job: Pair = pair(manual=True)
        agent, run = self.job
        self.stream = run.stream(query, on="batch", window=QUERIES[query], buffer=10**6)
        self.evaluator = parts_of(agent).sources.evaluator
        self.evaluator.max_pending = 10**6
        if not columns:
            pipeline = parts_of(agent).sources.open("batch").queries[0].pipeline
            pipeline.form = None
            for slot in getattr(pipeline, "slots", ()):
                slot.columns = None
        self.agent, self.step = agent, 0

    def batch(self, count: int) -> float:
        """Return the seconds that one event of a batch of ``count`` takes."""
        took = 0.0
        for _ in range(BATCHES):
            for _ in range(count):
                self.agent.emit("batch", step=self.step, loss=self.step % 97 / 16)
                self.step += 1
            start = time.perf_counter()
            self.evaluator.drain()
            took += time.perf_counter() - start
        return took / BATCHES / count

    def values(self) -> list[object]:
        self.agent.close()
        self.job.deliver()
        assert not self.stream.dropped
        return list(self.stream.values)


def rows() -> Iterator[Row]:
    for query, window in QUERIES.items():
        for count in (256, 20):
            both = {"columns": Job(query, True), "events": Job(query, False)}
            seen = interleave({name: partial(job.batch, count) for name, job in both.items()}, ROUNDS)
            values = both["columns"].values()
            assert values
            assert values == both["events"].values()
            ratio = seen.ratio("columns", "events")
            yield Row(
                f"{query}{f' in windows of {window}' if window else ''}: evaluating an event in a batch of {count} "
                "(baseline: event by event)",
                in_units(seen.median("events")),
                in_units(seen.median("columns")),
                str(ratio),
            )


if __name__ == "__main__":
    main(rows, __doc__)
