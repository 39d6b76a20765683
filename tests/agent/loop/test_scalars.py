"""The history of scalars: from the first event on, bounded, without harm."""

from __future__ import annotations

import collections
import itertools
import math
import random
import subprocess
import sys
import textwrap
import threading
import time
from array import array
from typing import ClassVar

import numpy as np
import pytest
import torch
import warm
from torch import nn
from training_loop import training
from waiting import soon

import looptap
from looptap.agent.handoff.scalar_looks import FIRST_EVENTS_COUNT, MAX_PENDING_COUNT
from looptap.agent.loop.plain_numbers import exposed_numbers, plain_numbers
from looptap.agent.scalars.scalar_table import MAX_ROWS, ScalarTable
from looptap.protocol.errors import MessageError, NotAllowed
from looptap.protocol.replies import KeptScalars
from looptap.store.kept_scalars import kept_batch
from looptap.streams.values import device_transfer
from looptap.testing import Clock, pair, parts_of

JOB = """
    import sys, time, torch, looptap
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    agent = looptap.Agent("plain")
    agent.expose(model=model, optimizer=optimizer)
    step = 0
    while True:
        x = torch.ones(8, 4)
        loss = ((model(x) - 1) ** 2).mean() + 1 / (step + 1)
        optimizer.zero_grad(); loss.backward(); optimizer.step()
        agent.emit("batch", step=step, loss=loss, x=x)
        step += 1
        if step == 8000:
            print("there", flush=True)
        if step >= 8000:
            time.sleep(0.001)
"""


def table_of(count, spacing=0.1, names=("loss",)):
    """Return a table after ``count`` looks."""
    table = ScalarTable("batch")
    for name in names:
        table.open(name)
    for number in range(1, count + 1):
        table.add(number, number * spacing, dict.fromkeys(names, number / 2))
    return table


# ---------------------------------------------------------------- what is kept


@pytest.mark.parametrize("count", [1, 2, 1999, 2000, 2001, 2002, 4001, 10_000, 30_000])
def test_a_table_keeps_its_first_and_newest_row_and_spreads_the_rest_evenly(count):
    table = table_of(count)
    assert (table.events[0], table.events[-1]) == (1, count)
    assert len(table.events) <= MAX_ROWS
    assert len(table.events) >= min(count, MAX_ROWS // 2)
    steps = [after - before for before, after in itertools.pairwise(table.events)][:-1]  # the newest row comes and goes
    assert not steps or max(steps) <= 2 * min(steps)
    assert list(table.columns["loss"].values) == [event / 2 for event in table.events]
    assert len(table.times) == len(table.columns["loss"].present) == len(table.events)


def test_looks_at_the_pace_of_the_table_are_all_kept():
    table = table_of(2001)
    kept, now = len(table.events), table.times[-1]
    for number in range(1, 101):
        table.add(2001 + number, now + number * table.pace, {"loss": 0.0})
    assert len(table.events) >= kept + 99


def test_a_number_that_few_events_have_is_not_thinned_away():
    table = ScalarTable("batch")
    for name in ("loss", "val"):
        table.open(name)
    for number in range(1, 20_001):
        numbers = {"loss": 1.0} | ({"val": 2.0} if number % 500 == 499 else {})
        table.add(number, number * 0.1, numbers)
    assert table.columns["val"].points >= 20
    assert len(table.events) <= MAX_ROWS + 100
    assert table.columns["val"].latest == 2.0


def test_both_rows_beside_a_step_of_an_exposed_number_stay():
    table = ScalarTable("batch")
    table.open("loss")
    table.open("optimizer.lr", exposed=True)
    rates = {1: 0.5, 701: 0.25, 702: 0.5, 5000: 0.125, 19_999: 0.5}
    rate = 0.5
    for number in range(1, 30_001):
        rate = rates.get(number, rate)
        table.add(number, number * 0.1, {"loss": float(number), "optimizer.lr": rate})
    for number in (701, 702, 5000, 19_999):
        assert {number - 1, number} <= set(table.events)
    assert len(table.events) <= MAX_ROWS


@pytest.mark.long
@pytest.mark.parametrize("every", [1, 7, 400])
def test_schedules_do_not_fill_a_table(every):
    table = ScalarTable("batch")
    names = [f"optimizer.lr[{group}]" for group in range(40)]
    for name in names:
        table.open(name, exposed=True)
    for number in range(1, 20_001):
        table.add(number, number * 0.1, dict.fromkeys(names, 1 / (1 + number // every)))
    assert MAX_ROWS // 2 <= len(table.events) <= MAX_ROWS
    assert table.pace < 2.0  # as without steps


def test_the_history_has_the_numbers_before_a_command_and_after_it():
    clock = Clock(time.monotonic())
    job = pair(history=True, clock=clock)
    optimizer = torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.5)
    job.agent.expose(optimizer=optimizer)
    for _ in range(FIRST_EVENTS_COUNT + 5):
        job.agent.emit("batch", loss=1.0)
    (table,) = job.parts.dispatcher.scalars.tables()
    table.pace = 100.0  # as after 30 hours
    for _ in range(50):
        clock.advance(0.01)
        job.agent.emit("batch", loss=1.0)
    with pytest.raises(looptap.CommandPending) as pending:
        job.run.set("optimizer.lr", 0.125, timeout=0)
    for _ in range(50):
        clock.advance(0.01)
        job.agent.emit("batch", loss=1.0)
    record = job.run.outcome(pending.value.id)
    (table,) = job.parts.dispatcher.scalars.tables()
    kept = dict(zip(table.events, table.columns["optimizer.lr"].values, strict=True))
    assert kept[record.number] == 0.5
    assert kept[record.number + 1] == 0.125


def test_events_that_are_repeated_replace_those_of_before():
    table = table_of(100)
    table.add(60, 11.0, {"loss": 7.0})
    assert (table.events[-2], table.events[-1], len(table.events)) == (59, 60, 60)


def test_types_of_numbers_come_back_as_they_were():
    agent, run = pair(history=True)
    agent.emit("batch", step=3, loss=0.5, flag=True, big=2**60, nan=math.nan, np=np.float32(0.25), count=np.int64(7))
    found = {one.name: one for one in run.scalars}
    assert [found[name].value for name in ("step", "loss", "flag", "np", "count")] == [3, 0.5, True, 0.25, 7]
    assert math.isnan(found["nan"].value)
    for name, kind in (("step", int), ("loss", float), ("flag", bool), ("big", int), ("count", int)):
        assert type(run.stream(name).values[0]) is kind


BIG = [2**53 + 1, 1 - 2**60, 7, 2**63 - 1, -(2**63), 2**53, 2**62 + 511]
UNSIGNED = [2**63, 2**64 - 1, 2**64 - 1025, 5]


def test_integers_beyond_the_exact_floats_come_back_as_they_were():
    agent, run = pair(history=True)
    for n in BIG:
        agent.emit("batch", n=n, tensor=torch.tensor(n), numpy=np.int64(n), mixed=n if n % 2 else 0.5)
    for name in ("n", "tensor", "numpy"):
        found = run.stream(name).values
        assert (found, {*map(type, found)}) == (BIG, {int})
    assert run.stream("mixed, n").values == [(n if n % 2 else 0.5, n) for n in BIG]
    for n in [*UNSIGNED, 2**64]:
        agent.emit("epoch", unsigned=n, numpy=np.uint64(n % 2**64))
    assert run.stream("unsigned").values == UNSIGNED
    assert run.stream("numpy", on="epoch", history=True).values == [*UNSIGNED, 0]


def test_a_full_table_thins_integers_beyond_the_exact_floats_without_rounding_them():
    table = ScalarTable("batch")
    table.open("n", exposed=True)
    for number in range(1, MAX_ROWS + 500):
        table.add(number, number * 0.1, {"n": 2**60 + number})
    assert [table.columns["n"].number(row) for row in range(len(table.events))] == [2**60 + n for n in table.events]
    assert table.columns["n"].changes == MAX_ROWS + 498


def test_the_first_hundred_events_of_each_type_are_kept_and_then_marked_ones():
    clock = Clock()
    job = pair(history=True, clock=clock)
    sources = job.parts.sources
    for step in range(150):
        job.agent.emit("step", step=step)
        clock.advance(0.001)
    assert not sources.by_name["step"].has_work  # idle again: it counts
    (step, speed) = sorted(job.run.scalars, key=lambda one: one.name != "step")
    assert (step.on, step.points, step.first, step.last, step.value) == ("step", 100, 1, 100, 99)
    assert (speed.name, speed.points, round(speed.value)) == ("events_per_second", 1, 1000)
    job.beat()
    assert sources.by_name["step"].has_work
    for step in range(150, 160):
        job.agent.emit("step", step=step)
        clock.advance(0.001)
    assert not sources.by_name["step"].has_work
    (step, speed) = sorted(job.run.scalars, key=lambda one: one.name != "step")
    assert (step.points, step.last, step.value) == (101, 151, 150)
    assert (speed.points, round(speed.value)) == (2, 1000)


def test_looks_that_the_io_thread_does_not_take_are_few_whatever_the_types_of_events():
    job = pair(history=True)
    looks = job.parts.sources.looks
    for number in range(900):
        for step in range(5):
            job.agent.emit(f"type {number}", loss=step)
    assert len(looks.pending) <= MAX_PENDING_COUNT + 900
    assert len(job.run.scalars) == 100


@pytest.mark.usefixtures("processes")
def test_the_end_of_a_run_of_some_epochs_is_its_last_event_however_fast_they_are(directory, tmp_path):
    with looptap.Agent("short", config={}, store=tmp_path / "short.looptap") as agent:
        for epoch in range(60):
            agent.emit("epoch", epoch=epoch, loss=1 / (epoch + 1))
    with looptap.open(tmp_path / "short.looptap") as run:
        assert run.stream("epoch").values == list(range(60))
    (row,) = looptap.compare([tmp_path / "short.looptap"])
    assert row.figure("final", "loss") == row.figure("best", "loss") == 1 / 60


def test_after_hours_an_event_is_still_looked_at_each_second_and_the_newest_number_is_fresh():
    clock = Clock(time.monotonic() + 100_000)
    job = pair(history=True, clock=clock)
    history = job.parts.dispatcher.scalars
    job.agent.emit("batch", loss=-1.0)
    for _ in range(FIRST_EVENTS_COUNT):
        job.agent.emit("batch", loss=-1.0)
    (table,) = history.tables()
    table.pace, rows = 100.0, len(table.events)  # as after 30 hours
    for second in range(1000):
        clock.advance(1.0)
        assert history.mark(clock()) == math.inf  # the heartbeat alone wakes the thread
        job.agent.emit("batch", loss=float(second))
        job.agent.emit("batch", loss=0.0)  # after the look
        assert job.run.scalars[0].value == second
    assert len(table.events) <= rows + 15
    assert all(after - before >= 75 for before, after in itertools.pairwise([*table.times][rows:-2]))


def test_the_learning_rates_and_numbers_that_the_job_exposes_are_kept_beside():
    agent, run = pair(history=True)
    model = nn.Linear(2, 2)
    one = torch.optim.SGD(model.parameters(), lr=0.5)
    two = torch.optim.Adam([{"params": [model.weight]}, {"params": [model.bias], "lr": 0.25}], lr=0.125)
    agent.expose(one=one, two=two, scale=3.0, name="text", model=model)
    agent.emit("batch", loss=1.0)
    assert [(s.name, s.value, s.exposed) for s in run.scalars] == [
        ("loss", 1.0, False), ("one.lr", 0.5, True), ("two.lr[0]", 0.125, True), ("two.lr[1]", 0.25, True),
        ("scale", 3.0, True),
    ]  # fmt: skip
    rate = run.stream("two.lr[1]")
    two.param_groups[1]["lr"] = 0.0625
    agent.emit("batch", loss=1.0)
    assert rate.values == [0.25, 0.0625]
    assert rate.name == "two.lr[1]"


def test_names_beyond_the_bound_are_counted_and_said():
    agent, run = pair(history=True, limits=looptap.Limits(scalars=5))
    agent.emit("batch", **{f"n{i}": i for i in range(20)})
    scalars = run.scalars
    assert [one.name for one in scalars] == [f"n{i}" for i in range(5)]
    assert (scalars.left_out, scalars.limit) == (15, 5)
    assert "15 more names" in repr(scalars)
    assert len(plain_numbers({f"n{i}": i for i in range(1000)})[0]) == 256


def test_where_there_is_not_room_for_all_names_the_main_ones_and_each_type_of_events_have_some():
    agent, run = pair(history=True)
    optimizer = torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=0.5)
    agent.expose(optimizer=optimizer)
    many = {f"layer{i}.norm": float(i) for i in range(150)}
    agent.emit("batch", **many, train_loss=1.0)
    agent.emit("epoch", epoch=1, map50=0.5, f1=0.25)
    agent.emit("batch", **many, train_loss=0.5)
    found = {(one.name, one.on) for one in run.scalars}
    assert len(found - {("events_per_second", "batch")}) == 100
    assert found >= {("train_loss", "batch"), ("optimizer.lr", "batch")}
    assert found >= {("epoch", "epoch"), ("map50", "epoch"), ("f1", "epoch")}
    assert run.stream("train_loss").values[0] == 1.0
    assert run.scalars.left_out == 150 + 2 + 3 - 100


def test_types_of_events_that_come_later_displace_no_main_name():
    agent, run = pair(history=True, limits=looptap.Limits(scalars=5))
    agent.emit("batch", a=1, loss=2.0, b=3, acc=4.0, c=5)
    for number in range(20):
        agent.emit(f"type {number}", value=number)
    found = {one.name for one in run.scalars if one.on == "batch"}
    assert found >= {"loss", "acc"}
    assert len(run.scalars) == 5


def test_names_that_find_no_room_are_not_each_tried():
    job, calls = pair(history=True), collections.Counter()
    for number in range(50):
        job.agent.emit(f"type {number}", **{f"name {n}": n for n in range(250)})
    sys.setprofile(lambda frame, event, _: calls.update([frame.f_code.co_name] * (event == "call")))
    try:
        job.parts.dispatcher.scalars.collect()
    finally:
        sys.setprofile(None)
    assert len(job.run.scalars) == 100
    assert 0 < calls["_make_room"] < 1000  # of 12,500 names


def test_a_name_of_pythons_own_is_no_scalar():
    agent, run = pair(history=True)
    agent.emit("batch", loss=1.0, **{"__class__": 1.0, "__loss": 2.0})
    assert [one.name for one in run.scalars] == ["loss", "__loss"]


def test_without_a_history_nothing_is_kept_and_the_list_says_why():
    agent, run = pair(history=False)
    agent.emit("batch", loss=1.0)
    assert run.scalars == []
    assert "history=False" in repr(run.scalars)
    stream = run.stream("loss")
    agent.emit("batch", loss=2.0)
    assert (stream.values, stream.history) == ([2.0], None)


# ---------------------------------------------------------------- streams


def test_a_stream_of_a_kept_name_begins_with_its_history_and_says_so():
    job = pair(history=True)
    agent, run = job.agent, job.run
    for step in range(3):
        agent.emit("batch", step=step, loss=1 / (step + 1))
        job.parts.sources.by_name["batch"].mark()
    loss, both = run.stream("loss"), run.stream("step, loss")
    agent.emit("batch", step=3, loss=0.25)
    assert loss.values == [1.0, 0.5, 1 / 3, 0.25]
    assert both.values == [(0, 1.0), (1, 0.5), (2, 1 / 3), (3, 0.25)]
    assert both.latest.loss == 0.25
    assert [(r.number, r.event, r.history) for r in loss.records] == [
        (1, 1, True), (2, 2, True), (3, 3, True), (4, 4, False)
    ]  # fmt: skip
    assert loss.history[:2] == (1, 3)
    assert loss.dropped == 0
    assert "begins with 3 values" in loss.notes[0]
    (live,) = [run.stream("loss", history=False)]
    asked = run.stream("step, loss", on="batch", history=True)
    agent.emit("batch", step=4, loss=0.2)
    assert (live.values, len(asked.values)) == ([0.2], 4 + 1)
    assert run.stream("loss", on="batch").values == []


def test_a_name_that_is_no_python_name_and_a_type_that_is_not_batch_are_found():
    agent, run = pair(history=True)
    agent.emit("step", **{"train/loss": 0.5, "class": 1})
    loss, keyword = run.stream("train/loss"), run.stream("class")
    agent.emit("step", **{"train/loss": 0.25, "class": 2})
    assert (loss.values, loss.on, keyword.values) == ([0.5, 0.25], "step", [1, 2])


def test_a_stream_that_the_job_declares_wins_over_the_history():
    agent, run = pair(history=True)
    agent.stream("loss", "2 * loss")
    agent.emit("batch", loss=1.0)
    assert run.stream("loss").values == [2.0]


def test_rows_lack_the_events_that_lack_a_name():
    job = pair(history=True)
    for step in range(6):
        job.agent.emit("batch", loss=float(step), **({"val": step} if step % 2 else {}))
        job.parts.sources.by_name["batch"].mark()
    assert job.run.stream("val").values == [1, 3, 5]
    assert job.run.stream("loss, val").values == [(1.0, 1), (3.0, 3), (5.0, 5)]


def test_the_speed_is_kept_and_continues():
    clock = Clock()
    job = pair(history=True, clock=clock)
    for _ in range(5):
        job.agent.emit("batch", loss=1.0)
        clock.advance(0.5)
        job.parts.sources.by_name["batch"].mark()
    speed = job.run.stream("events_per_second")
    for _ in range(5):
        job.agent.emit("batch", loss=1.0)
        clock.advance(0.5)
    assert speed.values == [2.0] * len(speed.values)
    assert len(speed.values) >= 8


def test_a_history_of_another_shape_is_refused():
    good = {
        "on": "batch", "query": "loss", "fields": None, "events": array("q", [1, 2]).tobytes(), "times": bytes(16),
        "columns": (array("d", [0.5, 0.25]).tobytes(),), "present": (b"\1\1",), "kinds": ("float",), "pace": 1.0,
        "clock": 0.0,
    }  # fmt: skip
    assert kept_batch(KeptScalars(**good), 1, 0).values == [0.5, 0.25]
    for bad in (
        {"events": bytes(8)}, {"times": bytes(9)}, {"columns": (bytes(8),)}, {"present": (b"\1",)}, {"columns": ()},
        {"events": array("q", [-1, 2]).tobytes()}, {"kinds": ()}, {"fields": ("a", "b")},
        {"kinds": ("int",), "columns": (array("d", [math.nan] * 2).tobytes(),)},
        {"rests": (bytes(2),)}, {"rests": (bytes(4), bytes(4))},
        {"rests": (array("h", [1, 1]).tobytes(),), "columns": (array("d", [math.nan] * 2).tobytes(),)},
    ):  # fmt: skip
        with pytest.raises(MessageError):
            kept_batch(KeptScalars(**good | bad), 1, 0)


# ---------------------------------------------------------------- without harm


class Trap:
    """An object whose every method is a fault of the one who calls it."""

    touched: ClassVar[list[object]] = []

    def __getattr__(self, name):
        Trap.touched.append(name)
        raise AttributeError(name)

    def _trapped(self, *arguments):
        Trap.touched.append("called")
        raise RuntimeError

    __float__ = __int__ = __index__ = __bool__ = __len__ = __iter__ = __array__ = __eq__ = __hash__ = _trapped


class TrapType(type):
    def __hash__(cls):
        Trap.touched.append("hashed")
        return 1

    def __eq__(cls, other):
        Trap.touched.append("compared")
        return False


class TrapInt(int):
    __int__ = __float__ = __index__ = Trap._trapped


class TrapTensor(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        Trap.touched.append(func)
        raise RuntimeError


class TrapOptimizer(torch.optim.SGD):
    def __getattribute__(self, name):
        Trap.touched.append(name)
        return super().__getattribute__(name)


class TrapName(str):
    __slots__ = ()

    def __hash__(self):
        Trap.touched.append("name")
        return super().__hash__()

    isprintable = __eq__ = Trap._trapped


def test_looking_at_numbers_runs_no_code_of_the_job():
    trap, other = Trap(), TrapType("Other", (), {})()
    tensor = torch.ones(()).as_subclass(TrapTensor)
    optimizer = TrapOptimizer([nn.Parameter(torch.ones(2))], lr=0.5)
    observables = {"a": trap, "b": other, "c": TrapInt(3), "d": tensor, "e": looptap.lazy(trap._trapped), "loss": 0.5}
    Trap.touched.clear()
    assert plain_numbers(observables) == ({"loss": 0.5}, 0)
    assert exposed_numbers({"trap": trap, "other": other, "optimizer": optimizer}) == {"optimizer.lr": 0.5}
    assert Trap.touched == []
    named = {TrapName("x"): 1.0}
    Trap.touched.clear()
    assert plain_numbers(named) == ({}, 0)
    assert Trap.touched == []


def test_a_mode_of_torch_sees_no_operation_of_a_look():
    from torch.overrides import TorchFunctionMode
    from torch.utils._python_dispatch import TorchDispatchMode

    seen = []

    class Functions(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            seen.append(func)
            return func(*args, **(kwargs or {}))

    class Dispatched(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(func)
            return func(*args, **(kwargs or {}))

    loss = torch.tensor(0.5)
    for mode in (Functions, Dispatched):
        with mode():
            seen.clear()
            assert plain_numbers({"loss": loss, "step": 3}) == ({"step": 3}, 0)
            assert seen == []
    assert plain_numbers({"loss": loss})[0] == {"loss": 0.5}
    try:
        torch.set_default_device("cpu")
        assert plain_numbers({"loss": loss})[0] == {"loss": 0.5}
    finally:
        torch.set_default_device(None)


def test_odd_tensors_and_numbers_are_left_out_and_nothing_raises():
    odd = {
        "empty": torch.ones(0), "two": torch.ones(2), "meta": torch.ones((), device="meta"), "complex": 1j,
        "turning": torch.tensor(1j), "huge": 10**400, "text": "a", "none": None, "date": np.timedelta64(1),
        "wide": np.longdouble(1), "array": np.ones(1), "sparse": torch.ones(1).to_sparse(),
    }  # fmt: skip
    found, _ = plain_numbers(odd)
    assert set(found) <= {"sparse"}
    graph = (torch.ones(1, requires_grad=True) * 2).sum()
    half = torch.tensor(0.5, dtype=torch.bfloat16)
    found, _ = plain_numbers({"one": torch.ones(1), "graph": graph, "half": half})
    assert found == {"one": 1.0, "graph": 2.0, "half": 0.5}
    assert torch.func.vmap(lambda x: x + len(plain_numbers({"x": x})[0]))(torch.zeros(3)).tolist() == [0.0] * 3


def test_random_numbers_modes_and_gradients_are_as_without_looks():
    def run(history):
        torch.manual_seed(1), random.seed(1), np.random.seed(1)
        agent, _ = pair(history=history)
        model = nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        agent.expose(model=model, optimizer=optimizer)
        for step in range(20):
            loss = model(torch.randn(4, 3)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            with torch.no_grad():
                agent.emit("batch", step=step, loss=loss)
            if history:
                parts_of(agent).sources.by_name["batch"].mark()
            assert torch.is_grad_enabled()
        return [*model.weight.flatten().tolist(), torch.rand(1).item(), random.random(), np.random.rand()]

    assert run(True) == run(False)


def test_a_copy_from_a_device_is_kept_once_it_has_arrived(monkeypatch):
    arrived = []

    def start(self, value):
        host = torch.full((), float(value))
        return device_transfer.DeviceCopy(host, lambda: pytest.fail("waited"), lambda: bool(arrived))

    monkeypatch.setattr("looptap.agent.loop.plain_numbers._Reader._of_tensor", start)
    job = pair(history=True)
    job.agent.emit("batch", loss=torch.tensor(0.5))
    assert job.run.scalars == []
    arrived.append(True)
    assert [one.value for one in job.run.scalars] == [0.5]


def test_marks_from_another_thread_lose_no_query():
    """Marks and the first query come and go while events are raised."""
    job = pair(history=True)
    source = job.parts.sources.open("batch")
    over = threading.Event()

    def mark():
        while not over.is_set():
            source.mark()

    marking = threading.Thread(target=mark)
    marking.start()
    try:
        for _ in range(50):
            stream = job.run.stream("step", on="batch")
            for step in range(20):
                job.agent.emit("batch", step=step)
            assert stream.values == list(range(20))
            stream.close()
    finally:
        over.set()
        marking.join()


# ---------------------------------------------------------------- real jobs


@pytest.fixture
def job(processes, directory):
    """Yield a job of which nothing is declared, 8,000 steps after its start."""
    with warm.Popen([sys.executable, "-c", textwrap.dedent(JOB)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "there\n"
        yield process
        process.kill()


def test_a_client_that_comes_at_step_8000_gets_the_curve_from_the_first_event(job):
    with looptap.attach("plain") as run:
        names = {one.name: one for one in run.scalars}
        assert {"step", "loss", "optimizer.lr", "events_per_second"} <= set(names)
        assert "x" not in names
        assert names["loss"].first == 1
        assert names["optimizer.lr"].value == 0.1
        loss = run.stream("step, loss")
        kept = loss.history.last
        loss.wait(kept + 50, timeout=300)
        records = loss.records
        assert (records[0].event, records[0].value.step) == (1, 0)
        assert records[0].value.loss > records[-1].value.loss
        assert all(record.value.step == record.event - 1 for record in records)
        assert [record.history for record in records[: kept + 1]] == [True] * kept + [False]
        assert all(after.event > before.event for before, after in itertools.pairwise(records))
        live = records[kept:]
        assert [record.event for record in live] == list(range(live[0].event, live[0].event + len(live)))
        assert loss.dropped == 0
        assert loss.gaps == []
        spread = [record.time for record in records[:kept]]
        assert max(b - a for a, b in itertools.pairwise(spread)) < max(5.0, (spread[-1] - spread[0]) / 2)


def test_a_loop_without_clients_is_idle_between_its_looks(directory):
    with looptap.Agent("idle") as agent:
        source = parts_of(agent).sources.open("batch")
        agent.emit("batch", loss=1.0)
        soon(lambda: source.has_work)  # marked once more, without a client
        agent.emit("batch", loss=1.0)
        assert source.has_work == source.look_next
        soon(lambda: agent.emit("batch", loss=1.0) or not source.has_work)
        assert source.number >= FIRST_EVENTS_COUNT
        with looptap.attach("idle") as run, training(agent, loss=0.5):
            soon(lambda: next(one for one in run.scalars if one.name == "loss").points > 5)


def test_the_history_is_for_operators_alone(directory, tmp_path):
    with looptap.Agent("shared") as agent, looptap.attach("shared") as run:
        agent.stream("shown", "step")
        agent.emit("batch", step=1, secret=0.5)
        run.export("shown")
        path = tmp_path / "viewer.json"
        run.share(path=path)
        with looptap.attach(path) as viewer:
            with pytest.raises(NotAllowed):
                _ = viewer.scalars
            with pytest.raises(looptap.QueryError):
                viewer.stream("secret")
            assert viewer.stream("shown").values == [1]


def test_a_stream_that_follows_its_run_begins_each_with_its_history(directory):
    first = looptap.Agent("following")
    first.emit("batch", loss=1.0)
    with looptap.attach("following", follow=True) as run:
        loss = run.stream("loss")
        first.emit("batch", loss=2.0)
        loss.wait(2, timeout=300)
        first.close()
        with looptap.Agent("following") as second:
            second.emit("batch", loss=3.0)
            soon(lambda: loss.seams)
            soon(lambda: second.emit("batch", loss=4.0) or 4.0 in loss.values)
            assert loss.values[:3] == [1.0, 2.0, 3.0]
            numbers = [record.number for record in loss.records]
            assert numbers == list(range(1, len(numbers) + 1))


def test_the_memory_of_the_history_is_bounded():
    table = table_of(20_000, names=[f"n{i}" for i in range(10)])
    held = sum(sys.getsizeof(c.values) + sys.getsizeof(c.present) for c in table.columns.values())
    assert held / len(table.columns) < 30_000
    assert sys.getsizeof(table.events) + sys.getsizeof(table.times) < 60_000


def test_a_look_takes_little_time():
    """A look at five numbers takes less than a millisecond, even on a busy machine."""
    observables = {"step": 1, "loss": torch.tensor(0.5), "a": 1.0, "b": np.float32(1), "c": True}
    times = []
    for _ in range(200):
        began = time.thread_time()
        plain_numbers(observables)
        times.append(time.thread_time() - began)
    assert sorted(times)[100] < 1e-3
