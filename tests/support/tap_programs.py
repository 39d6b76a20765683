"""Runs programs of events and queries, for test_tap.py.

With the tap that the environment allows. As a program: reads a line of JSON a program, and answers with a line that
says which tap runs and what it did.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import looptap
from looptap.client.control.commands import CommandPending
from looptap.streams.native.compiled import which_tap
from looptap.testing import Pair, pair, parts_of


class Name(str):
    """An event's name of another type than str."""


class Count(int):
    """A number of a class of the host's."""


def inferred() -> torch.Tensor:
    """Return a tensor without a version counter."""
    with torch.inference_mode():
        return torch.tensor(0.5)


def freed() -> torch.Tensor:
    """Return a tensor without memory, as sharded training leaves parameters."""
    tensor = torch.tensor(0.5)
    tensor.untyped_storage().resize_(0)
    return tensor


class NotNamed:
    """An object that cannot be hashed."""

    __hash__ = None  # type: ignore[assignment]


MAKE: dict[str, Callable[[], Any]] = {
    "int": lambda: 3,
    "negative": lambda: -7,
    "big": lambda: 2**70,
    "float": lambda: 0.5,
    "nan": lambda: math.nan,
    "infinite": lambda: -math.inf,
    "true": lambda: True,
    "none": lambda: None,
    "text": lambda: "a",
    "list": lambda: [1, 2],
    "float32": lambda: torch.tensor(0.1),
    "float64": lambda: torch.tensor(0.1, dtype=torch.float64),
    "float16": lambda: torch.tensor(0.1, dtype=torch.float16),
    "bfloat16": lambda: torch.tensor(0.1, dtype=torch.bfloat16),
    "int64": lambda: torch.tensor(2**62 + 1),
    "int8": lambda: torch.tensor(-5, dtype=torch.int8),
    "uint8": lambda: torch.tensor(250, dtype=torch.uint8),
    "bool": lambda: torch.tensor(True),
    "complex tensor": lambda: torch.tensor(1 + 2j),
    "gradient": lambda: torch.tensor(0.25, requires_grad=True) * 2,
    "leaf": lambda: torch.tensor(0.25, requires_grad=True),
    "parameter": lambda: torch.nn.Parameter(torch.tensor(1.5)),
    "one of many": lambda: torch.arange(6.0)[4],
    "negated": lambda: torch.tensor(1 + 2j).conj().imag,
    "meta": lambda: torch.tensor(0.5, device="meta"),
    "sparse": lambda: torch.tensor(0.5).to_sparse(),
    "quantized": lambda: torch.quantize_per_tensor(torch.tensor(0.5), 0.1, 0, torch.qint8),
    "vector": lambda: torch.tensor([1.0, 2.0]),
    "element": lambda: torch.tensor([0.5]),
    "zero elements": lambda: torch.tensor([]),
    "numpy": lambda: np.float64(0.5),
    "numpy int": lambda: np.int32(4),
    "int16": lambda: torch.tensor(-300, dtype=torch.int16),
    "int32": lambda: torch.tensor(2**31 - 1, dtype=torch.int32),
    "uint16": lambda: torch.tensor(65_535, dtype=torch.uint16),
    "uint64": lambda: torch.tensor(2**64 - 1, dtype=torch.uint64),
    "float8": lambda: torch.tensor(0.5).to(torch.float8_e4m3fn),
    "smallest": lambda: torch.tensor(6e-8, dtype=torch.float16),
    "largest": lambda: torch.tensor(3.3e38, dtype=torch.bfloat16),
    "negative zero": lambda: torch.tensor(-0.0),
    "no number": lambda: torch.tensor(math.nan, dtype=torch.float16),
    "negated view": lambda: torch._neg_view(torch.tensor(2.0)),
    "zero tensor": lambda: torch._efficientzerotensor(()),
    "expanded": lambda: torch.tensor([7.0]).expand(3)[1],
    "inference": inferred,
    "freed": freed,
    "largest int": lambda: 2**63 - 1,
    "smallest int": lambda: -(2**63),
    "too large": lambda: 2**63,
    "complex": lambda: 1 + 2j,
    "own text": lambda: Name("a"),
    "own int": lambda: Count(3),
    "lazy": lambda: looptap.lazy(lambda: 2.5),
    "nothing hashable": NotNamed,
}
"""Observables by the names that programs have for them."""

EVENTS: dict[str, Any] = {"batch": "batch", "epoch": "epoch", "fold": "fold", "other": "other", "named": Name("batch")}
QUERIES: list[tuple[str, dict[str, Any]]] = [
    ("loss", {}), ("step, loss", {}), ("step + 1, loss", {}), ("loss", {"every": 2}), ("loss", {"when": "loss > 0"}),
    ("mean(e.loss for e in events)", {}), ("sum(e.step for e in events)", {"window": 2}),
    ("max(e.step for e in events)", {"window": 3, "every": 1}), ("latest('epoch').step, step", {}), ("x", {}),
    ("step", {}), ("loss", {"every": 3}), ("step, loss, x, text", {}), ("mean(e.loss for e in events)", {"window": 4}),
    ("lambda e: e.step", {}), ("event_number, event_dt, step", {}), ("sum(x)", {}), ("step, text", {}),
]  # fmt: skip
WRONG: list[Callable[[Any], Any]] = [
    lambda agent: agent.emit(),
    lambda agent: agent.emit("batch", 1),
    lambda agent: agent.emit(event="batch"),
    lambda agent: agent.emit(3),
    lambda agent: agent.emit(["batch"], step=1),
    lambda agent: agent.emit(NotNamed(), step=1),
    lambda agent: agent.emit(None),
    lambda agent: agent.emit("batch", self=1, event=2),
    lambda agent: agent.emit(**{"batch": 1}),
    lambda agent: agent.emit("batch", **{1: 2}),
    lambda agent: type(agent).emit(3, "batch"),
    lambda agent: type(agent).emit(),
    lambda agent: type(agent).emit(agent, "batch", step=1),
    lambda agent: type(agent).emit.__get__(agent)("epoch", step=1),
]
"""Calls of `emit` that are unusual, or wrong."""


class Program:
    """Two agents, of which one at a time is used, and the streams of their clients."""

    def __init__(self, history: bool, pending: int, fast: bool) -> None:
        self.time = np.array(1000.0)
        clock = self.time.item if fast else lambda: self.time.item()  # the tap calls only what is not Python code
        groups = ("batch", "epoch", "fold")
        self.jobs: list[Pair] = [
            pair(name, clock=clock, manual=True, groups=groups, history=history) for name in ("one", "two")
        ]
        self.acts: list[int] = []
        for job in self.jobs:
            job.agent.trigger("act", lambda: self.acts.append(1))
            for evaluator in (parts_of(job.agent).sources.evaluator, parts_of(job.agent).sources.unobserved):
                evaluator.max_pending = pending
        self.job = self.jobs[0]
        self.streams: list[Any] = []

    def do(self, what: str, *how: Any) -> Any:
        """Do one step; return what there is to see of it."""
        result = getattr(self, what)(*how)
        sources = parts_of(self.job.agent).sources
        state = {
            name: (source.number, source.group_start, source.groups_ended, source.has_work, source.only_groups,
                   source.last_deferred, source.last_time, source.shortcut is None)
            for name, source in sources.by_name.items()
        }  # fmt: skip
        return [what, result, sorted(state.items()), sources.evaluator.pending(), sources.unobserved.pending()]

    def emit(self, event: str, values: dict[str, str]) -> str:
        return outcome(lambda: self.job.agent.emit(EVENTS[event], **{name: MAKE[of]() for name, of in values.items()}))

    def several(self, event: str, count: int, value: str = "") -> None:
        for step in range(count):
            loss = MAKE[value]() if value else torch.tensor(float(step))
            self.job.agent.emit(event, step=step, loss=loss)

    def spelled(self, event: str, count: int) -> None:
        """Raise events whose observables come from a dict, in an order of their own."""
        names = ["loss", "step", "x", "text"]
        for step in range(count):
            order = names[step % 4 :] + names[: step % 4]
            self.job.agent.emit(event, **{"".join(name): step / 4 if name == "loss" else step for name in order})

    def wrong(self, which: int) -> str:
        return outcome(lambda: WRONG[which](self.job.agent))

    def attach(self, which: int, event: str) -> str:
        query, how = QUERIES[which]
        return outcome(lambda: self.streams.append(self.job.run.stream(query, on=EVENTS[event], **how)))

    def detach(self, which: int) -> None:
        if self.streams:
            self.streams[which % len(self.streams)].close()

    def end_group(self, event: str) -> None:
        self.job.agent.end_group(event)

    def deliver(self) -> None:
        self.job.deliver()

    def advance(self, seconds: float) -> None:
        self.time += seconds

    def mark(self, event: str) -> None:
        source = parts_of(self.job.agent).sources.by_name.get(event)
        if source is not None:
            source.mark()

    def trigger(self) -> str:
        return outcome(lambda: self.job.run.trigger("act", timeout=0))

    def switch(self) -> None:
        self.job = self.jobs[self.job is self.jobs[0]]

    def reload(self) -> str:
        return outcome(lambda: self.job.agent.load_state_dict(self.job.agent.state_dict()))

    def close(self) -> None:
        self.job.agent.close()

    def end(self) -> list[Any]:
        """Close all; return what the streams and the history have."""
        for job in self.jobs:
            job.deliver()
            job.agent.close()
        looks = [parts_of(job.agent).sources.looks for job in self.jobs]
        return [
            [(repr(record.value), type(record.value).__name__, record.number, record.event, record.partial)
             for record in stream.records]
            + [stream.state, stream.dropped, stream.error_count, stream.arrived, str(stream.notes)]
            for stream in self.streams
        ] + [len(self.acts), [repr(list(look.pending)) for look in looks if look is not None]]  # fmt: skip


def outcome(call: Callable[[], Any]) -> str:
    """Return what a call returns or raises, without addresses and identifiers."""
    try:
        return repr(call())
    except CommandPending:
        return "pending"
    except Exception as error:
        return f"{type(error).__name__}: {error}".partition(" object at 0x")[0]


def trace(history: bool, pending: int, fast: bool, steps: list[list[Any]]) -> str:
    """Run a program; return what there was to see."""
    program = Program(history, pending, fast)
    seen = [program.do(*step) for step in steps]
    return repr([*seen, program.end()])


if __name__ == "__main__":
    for line in sys.stdin:
        print(json.dumps([which_tap(), trace(**json.loads(line))]), flush=True)
