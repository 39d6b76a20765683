"""A seeded fuzz of the compiled tap, for test_sanitized_tap.py.

As a program: `fuzzing_tap.py MODULE SECONDS SEED` loads the module of that file, which a sanitizer watches, and passes
its types what no caller would: values, rows, names, plans and sources of any kind, freed and replaced while in use.
"""

from __future__ import annotations

import contextlib
import gc
import importlib.util
import random
import sys
import threading
import time
from importlib.machinery import ExtensionFileLoader
from typing import Any

NAMES = ["step", "loss", "x", "train/loss", "ä", ""]


def load(path: str) -> Any:
    """Load the module under its own name, so that looptap takes it."""
    loader = ExtensionFileLoader("looptap._tap", path)
    spec = importlib.util.spec_from_file_location("looptap._tap", path, loader=loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    sys.modules["looptap._tap"] = module
    return module


class Text(str):
    """A name that is asked what it equals, and collects garbage at times."""

    asked = 0

    def __eq__(self, other: object) -> bool:
        Text.asked += 1
        if not Text.asked % 1000:
            gc.collect()
        return str.__eq__(self, other)

    __hash__ = str.__hash__


class Last:
    """An object whose end does something."""

    def __init__(self, do: Any) -> None:
        self.do = do

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            self.do()


class Fuzz:
    """Random calls of all that the module has."""

    depth = 0

    def __init__(self, tap: Any, seed: int) -> None:
        self.tap, self.random = tap, random.Random(seed)
        self.agents: list[Any] = []
        self.rows: list[Any] = []

        class Source(tap.SourceState):  # type: ignore[misc,name-defined]
            pass

        class Plan(tap.PlanState):  # type: ignore[misc,name-defined]
            pass

        class Agent:
            def __init__(self, types: Any) -> None:
                self._types = types

            def _kept(self, source: Any, plan: Any) -> None:
                with contextlib.suppress(Exception):
                    plan.rows.clear()

            def reference(self, event: str, /, **observables: Any) -> None:
                if observables.get("step") == 3:
                    raise KeyError("3")

            emit = tap.Emit(reference)

        self.Source, self.Plan, self.Agent = Source, Plan, Agent

    def value(self) -> Any:
        pick = self.random
        return pick.choice(
            [
                lambda: pick.randrange(-5, 5), lambda: pick.getrandbits(80), lambda: pick.random(), lambda: None,
                lambda: True, lambda: "text", lambda: Text("a"), lambda: [1], lambda: 1 + 2j, lambda: b"x",
                lambda: Last(self.step), lambda: float("nan"), lambda: 2**63 - 1, lambda: self.agents,
            ]
        )()  # fmt: skip

    def name(self) -> Any:
        return self.random.choice([*NAMES, "".join(["lo", "ss"]), Text("loss")])

    def plan(self) -> Any:
        pick, plan = self.random, self.Plan()
        names = tuple(self.name() for _ in range(pick.choice([0, 1, 2, 2, 2, 5, 70])))
        width = 3 + len(names) + pick.choice([0, 0, 0, 0, 1, -1])
        rows = self.tap.Rows(width) if width > 2 and pick.random() < 0.9 else []
        self.rows += [rows] if rows is not None and type(rows) is not list else []
        with contextlib.suppress(TypeError):
            plan.keep(names, rows)
        plan.limit = pick.choice([-1, 0, 5, 100, sys.maxsize])
        plan.stale = pick.random() < 0.1
        return plan

    def source(self) -> Any:
        pick, source = self.random, self.Source()
        parts = {
            "number": pick.choice([0, 5, 2**62]), "has_work": pick.random() < 0.8, "only_groups": pick.random() < 0.3,
            "inner_groups": pick.choice([(), (source,), (1,), [], None]), "queries": pick.choice([(), (1,), None]),
            "shortcut": pick.choice([None, self.plan(), self.plan(), self.plan(), 1]), "capturing": self.capturing(),
            "clock": pick.choice([time.monotonic, time.perf_counter, time.time, list, lambda: 1.0, None]),
            "lock": pick.choice([self.tap.Lock(), self.tap.Lock(), self.tap.Lock(), threading.RLock(), None]),
        }  # fmt: skip
        for name, value in parts.items():
            if pick.random() < 0.97:
                with contextlib.suppress(TypeError):
                    setattr(source, name, value)
        return source

    def capturing(self) -> Any:
        def replaced() -> bool:
            self.step()
            return False

        return self.random.choice([None, None, None, lambda: False, lambda: True, lambda: 1 / 0, replaced, 5])

    def agent(self) -> Any:
        types: dict[Any, Any] = {self.name(): self.random.choice([self.source(), self.source(), 1]) for _ in range(4)}
        return self.Agent(self.random.choice([types, types, types, types, [], None]))

    def step(self) -> None:
        """Do one of the things; what it raises does not count."""
        pick = self.random
        if Fuzz.depth > 2 or (Fuzz.depth and self.random.random() < 0.8):  # within an end, within a call
            return
        Fuzz.depth += 1
        with contextlib.suppress(Exception):
            others = ["change", "append", "take", "drop", "odd", "more", "lock", "slide"]
            getattr(self, pick.choice(["emit"] * 12 + others))()
        Fuzz.depth -= 1

    def emit(self) -> None:
        agent = self.random.choice(self.agents)
        event = self.name()
        for _ in range(self.random.choice([1, 1, 1, 5])):
            if self.random.random() < 0.5:
                agent.emit(event, step=self.value(), loss=self.value())
            else:
                count = self.random.choice([0, 1, 3, 3, 3, 3, 3, 30])
                agent.emit(event, **{self.name(): self.value() for _ in range(count)})

    def slide(self) -> None:
        pick = self.random
        older, new = (pick.randbytes(8 * pick.choice([0, 0, 1, 5]) + (pick.random() < 0.05)) for _ in range(2))
        younger = [pick.random() if pick.random() < 0.99 else self.value() for _ in range(pick.choice([0, 1, 4, 9]))]
        size = pick.choice([-1, 0, 1, 2, 5, 6, 9, 40, 2**62])
        lost = older if pick.random() < 0.9 else new
        self.tap.slide(older, lost, pick.random() < 0.5, younger, pick.random(), self.value(), new, size)

    def change(self) -> None:
        source = self.random.choice(list(self.random.choice(self.agents)._types.values()))
        name = self.random.choice(["shortcut", "lock", "queries", "inner_groups", "capturing", "has_work", "clock"])
        if self.random.random() < 0.1:
            delattr(source, name)
        else:
            setattr(source, name, getattr(self.source(), name))

    def append(self) -> None:
        rows = self.random.choice(self.rows)
        third = self.random.choice([0, 5, self.value(), object()])
        values = [self.value() for _ in range(self.random.choice([0, 1, 2, 5]))]
        rows += (self.random.randrange(99), 0.5, third, *values)

    def take(self) -> None:
        rows = self.random.choice(self.rows)
        end = self.random.choice([0, 5, 10, len(rows), -5, 10**30, self.random.randrange(40)])
        rows[:end].columns()
        del rows[:end]
        if self.random.random() < 0.1:
            rows.clear()

    def drop(self) -> None:
        self.agents.pop(self.random.randrange(len(self.agents)))
        self.agents.append(self.agent())
        if len(self.rows) > 50:
            del self.rows[:40]

    def odd(self) -> None:
        emit, tap = self.Agent.__dict__["emit"], self.tap
        self.random.choice(
            [
                lambda: emit(), lambda: emit(1), lambda: emit(1, "loss", 2), lambda: emit.forget(1), lambda: repr(emit),
                lambda: tap.Emit(1), lambda: tap.Emit(len), lambda: emit.__get__(None, None), lambda: emit.__reduce__(),
                lambda: tap.Rows("a"), lambda: tap.Rows(-1), lambda: tap.Rows(2**62), lambda: tap.Rows(width=3, a=1),
                lambda: setattr(emit, self.name(), self.value()), lambda: delattr(emit, self.name()),
                lambda: getattr(emit, self.name()), lambda: tap.know_tensors(1, 2, 3, 4, ()),
                lambda: tap.know_tensors(int, 2, 3, 4, ()), lambda: gc.collect(0), lambda: tap.Lock(1),
                lambda: object.__new__(tap.Emit), lambda: tap.SourceState().number, lambda: tap.PlanState().names,
                lambda: self.plan().keep((), []),
            ]
        )()  # fmt: skip

    def more(self) -> None:
        """Run an Emit of its own, with its class, into a cycle."""
        fuzz = Fuzz(self.tap, self.random.getrandbits(32))
        fuzz.agents.append(fuzz.agent())
        fuzz.emit()
        fuzz.Agent.emit.own = fuzz

    def lock(self) -> None:
        lock = self.random.choice([self.tap.Lock(), self.Source.__mro__, *[s.lock for s in self.sources()]])
        with lock, lock:
            self.emit()
        self.random.choice([lambda: lock.acquire(False), lambda: lock.acquire(1, 2, 3), lock.release, int])()

    def sources(self) -> list[Any]:
        return [source for source in self.random.choice(self.agents)._types.values() if hasattr(source, "lock")]


def events_of_tensors(seed: int) -> None:
    """Raise events whose observables are tensors of any kind, in a real job."""
    import tap_programs

    pick = random.Random(seed)
    steps: list[list[Any]] = [["attach", which, "batch"] for which in pick.sample(range(len(tap_programs.QUERIES)), 3)]
    for _ in range(20):
        steps += [["several", "batch", 3, pick.choice(list(tap_programs.MAKE))], ["deliver"]]
    tap_programs.trace(history=False, pending=256, fast=True, steps=steps)


def main() -> None:
    """Fuzz for a while; end with status 0 if nothing crashed."""
    path, seconds, seed = sys.argv[1], float(sys.argv[2]), int(sys.argv[3])
    tap = load(path)
    fuzz = Fuzz(tap, seed)
    fuzz.agents = [fuzz.agent() for _ in range(4)]
    fuzz.rows = [tap.Rows(5)]
    end, calls = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        fuzz.step()
        calls += 1
    if "tensors" in sys.argv:
        for one in range(30):
            events_of_tensors(seed + one)
    print(f"{calls} calls, seed {seed}")


if __name__ == "__main__":
    main()
