"""Queries that are proven harmless as they run, compared with plain functions.

Both are asked of the same event: the query as the agent evaluates it, with each operation checked before it runs, and
the same expression as a function that nothing checks. The script's function compares 64 labels in a loop; it is
followed by its source. The model has three linear layers of 256 and a BatchNorm, for a batch of 64; the query runs it
on a copy. Gradients are off in both, and the model is in evaluation mode. Arithmetic is not here: it is proven once,
when the query is compiled.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from harness import Row, in_units, interleave, main
from torch import nn

from looptap.streams.events import Event
from looptap.streams.language.compiler import QuerySpec, compile_query

ROUNDS = 40


class Meter:
    """A running average, as scripts have them."""

    def __init__(self) -> None:
        self.total, self.count = 3.0, 2


def accuracy(out: Any, y: Any) -> float:
    right = 0
    for found, wanted in zip(out.argmax(1).tolist(), y.tolist(), strict=True):
        if found == wanted:
            right += 1
    return right / len(y)


QUESTIONS: dict[str, tuple[str, Callable[[Any], Any], int]] = {
    "meter.total": ("an attribute", lambda e: e.meter.total, 400),
    "x.sum()": ("a reduction of a tensor", lambda e: e.x.sum(), 400),
    "accuracy(out, y)": ("a function of the script", lambda e: accuracy(e.out, e.y), 100),
    "model(x).sum()": ("a forward pass", lambda e: e.model(e.x).sum(), 20),
}
"""Queries, what they ask for, the same as functions, and their number in a block."""


def timed(count: int, function: Callable[..., Any], *given: Any) -> float:
    """Return the seconds that a call takes."""
    start = time.perf_counter()
    for _ in range(count):
        function(*given)
    return (time.perf_counter() - start) / count


def rows() -> Iterator[Row]:
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    layers = [nn.Linear(256, 256), nn.BatchNorm1d(256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)]
    model, x = nn.Sequential(*layers).eval(), torch.randn(64, 256)
    shown = {"meter": Meter(), "x": x, "model": model, "out": model(x), "y": torch.randint(0, 10, (64,))}
    event = Event(shown)
    for query, (what, function, count) in QUESTIONS.items():
        push = compile_query(QuerySpec(query, known=frozenset(shown), functions={"accuracy": accuracy})).push
        (flags, answer), *_ = push(event, 0, 0.0)
        assert not flags & 2, answer
        blocks = {
            "plain": partial(timed, count, function, event),
            "proven": partial(timed, count, push, event, 0, 0.0),
        }
        seen = interleave(blocks, ROUNDS)
        yield Row(
            f"{query} ({what}): an evaluation, proven as it runs (baseline: a plain function)",
            in_units(seen.median("plain")),
            in_units(seen.median("proven")),
            str(seen.ratio("proven", "plain")),
            figures={"seconds": seen.seconds["proven"]},
        )


if __name__ == "__main__":
    main(rows, __doc__)
