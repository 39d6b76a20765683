"""Ctrl-C at every instruction of an event: raised once; counts and locks intact."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from interrupts import interrupted
from torch.overrides import BaseTorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import looptap
from looptap.agent.agent import Agent
from looptap.agent.control.event_schedule import EventSchedule
from looptap.agent.control.knobs.control_watch import WATCHED_EVENTS_COUNT
from looptap.agent.control.replay import replay
from looptap.agent.handoff.value_ring import Cursor
from looptap.client.control.pending import CommandPending
from looptap.client.run import Run
from looptap.protocol import messages as m
from looptap.protocol.replies import CommandRecord
from looptap.streams.operators.windows import Count, Group, Seconds, Sliding
from looptap.testing import pair, parts_of

pytestmark = pytest.mark.pure

BEFORE, AFTER = 3, 5
"""Events before the one that is interrupted, and after it."""


def host(x: float) -> float:
    """Return x, by a function that looptap does not know."""
    return float(x)


SUM = "sum(e.step for e in events)"
QUERIES: dict[str, dict[str, Any]] = {
    "number": {"query": "step"},
    "row": {"query": "step, loss"},
    "every": {"query": "step", "every": 2},
    "tensor": {"query": "step + 0 * x.sum()"},
    "guarded": {"query": "host(step)"},
    "function": {"query": lambda e: e.step},
    "generator": {"query": "(x for e in events for x in (e.step, e.step))"},
    "generator, guarded": {"query": "(host(x) for e in events for x in (e.step, e.step))"},
    "throttle": {"query": "step", "throttle": 1e-9},
    "recent": {"query": "step + 0 * mean(e.step for e in recent(3))"},
    "recent, guarded": {"query": "step + 0 * mean(host(e.step) for e in recent(3))"},
    "fold": {"query": "ema((e.step for e in events), 1.0)"},
    "latest": {"query": "step, latest('epoch').step"},
    "recorder": {"query": "step", "when": "step >= 0", "before": 1, "after": 100},
    "group": {"query": SUM},
    "group, guarded": {"query": "sum(host(e.step) for e in events)"},
    "group_by": {"query": "sum(group_by(((e.step % 2, e.step) for e in events), sum).values())"},
    "count": {"query": SUM, "window": 2},
    "count, tensor": {"query": "sum(e.step + 0 * e.x.sum() for e in events)", "window": 2},
    "seconds": {"query": SUM, "window": looptap.seconds(1e-9)},
    "sliding": {"query": SUM, "window": looptap.sliding(2)},
    "sliding, guarded": {"query": "sum(host(e.step) for e in events)", "window": looptap.sliding(2)},
}


class Job:
    """A job whose I/O thread sleeps until `wake`, as it may for as long as an event."""

    def __init__(self, **how: Any) -> None:
        self.agent: Agent
        self.run: Run
        self.agent, self.run = pair("interrupted", **how)
        self.agent.expose(host=host)
        self.steps: dict[int, int] = {}
        self.step = 0

    def asleep(self, at: int, event: str = "batch") -> tuple[int, KeyboardInterrupt | None]:
        """Raise an event with Ctrl-C at its ``at``-th instruction."""
        parts_of(self.agent).connection.manual = True
        self.step += 1
        x = torch.ones(2)
        reported = interrupted(lambda: self.agent.emit(event, step=self.step, loss=0.5, x=x), at)
        parts_of(self.agent).connection.manual = False
        parts_of(self.agent).connection.deliver()
        return reported

    def emit(self, event: str = "batch") -> None:
        self.step += 1
        self.agent.emit(event, step=self.step, loss=0.5, x=torch.ones(2))

    def whole(self) -> None:
        """Check that no lock is taken."""
        sources = parts_of(self.agent).sources
        for lock in (sources.lock, sources.evaluator.turn.lock):
            assert not lock._is_owned()
        assert not sources.evaluator.turn.thread


def interrupt_everywhere(run: Callable[[int], tuple[int, Any]], fraction: int) -> None:
    """Press Ctrl-C at each ``fraction``-th instruction, from a random one on."""
    count, pressed = run(0)
    assert pressed is None
    start = random.randrange(fraction)
    print(f"{count} instructions, each {fraction}th from {start + 1} on")
    for at in range(start + 1, count + 1, fraction):
        reached, pressed = run(at)
        assert type(pressed) is KeyboardInterrupt or reached < at, at


def sweep(fraction: int) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("fraction", [fraction, pytest.param(1, marks=pytest.mark.soak)])


def of(record: Any) -> int:
    value = record.value[0] if isinstance(record.value, tuple) else record.value
    return int(value)


def check_stream(job: Job, stream: Any, kind: str, steps: dict[int, int]) -> None:
    """Check that each value of these events arrived, or counts as lost or cut."""
    records = [record for record in stream.records if record.number]
    numbers = [record.number for record in records]
    assert numbers == sorted(set(numbers))
    assert stream.state == "ended", (stream.state, stream.reason)
    last = max([*numbers, 0])
    assert stream.dropped + len(records) >= last, (numbers, stream.dropped)
    lost = stream.dropped
    assert lost <= 2
    window = QUERIES[kind].get("window")
    if "events" not in str(QUERIES[kind]["query"]) or kind == "fold" or kind.startswith("generator"):
        every = QUERIES[kind].get("every", 1)
        each = 2 if kind.startswith("generator") else 1
        due = [n for n in steps if n % every == 0]
        # of an evaluation that was cut short it is not known that it would have given two values
        assert len(records) + lost in (each * len(due), each * len(due) - bool(lost) * (each - 1)), (numbers, lost)
        for record in records:
            assert of(record) == steps[record.event]
        return
    for record in records:
        if record.partial or isinstance(record.value, str) or record.error:
            continue
        if window is None:
            events = range(1, record.event + 1)
        elif kind == "seconds":
            events = range(record.event - 1, record.event) if record.event < len(steps) else (record.event,)
            assert record.value in (steps[record.event - 1], steps[record.event])
            continue
        else:
            events = range(max(1, record.event - 1), record.event + 1)
        assert record.value == sum(steps[n] for n in events), (record, steps)
    if window is None:
        assert len(records) + lost == 1, records
    elif kind.startswith("sliding"):
        assert len(records) + lost == len(steps)
    elif kind.startswith("count"):
        assert len(records) + lost in (len(steps) // 2, len(steps) // 2 + len(steps) % 2)
    else:  # the end of the run cuts the last one off, and the event that was interrupted may have none of its own
        missed = len(steps) - len(records) - lost
        assert missed == 0 or (missed == 1 and any(record.partial for record in records[:-1]))


@pytest.mark.long
@sweep(97)
@pytest.mark.parametrize("enough", [1, 3, 4])
@pytest.mark.parametrize("kind", QUERIES)
def test_ctrl_c_anywhere_in_an_event_leaves_counts_and_locks_intact(kind, enough, fraction):
    def once(at: int) -> tuple[int, KeyboardInterrupt | None]:
        job = Job()
        how = dict(QUERIES[kind])
        stream = job.run.stream(how.pop("query"), on="batch", buffer=100, **how)
        parts_of(job.agent).sources.evaluator.max_pending = enough
        steps: dict[int, int] = {}

        def note() -> None:
            steps.setdefault(parts_of(job.agent).sources.by_name["batch"].number, job.step)

        for _ in range(BEFORE):
            job.emit()
            note()
        reported = job.asleep(at)
        note()
        job.whole()
        for _ in range(AFTER):
            job.emit()
            note()
        assert list(steps) == list(range(1, len(steps) + 1))
        assert len(steps) >= BEFORE + AFTER
        job.emit("epoch")
        job.agent.close()
        check_stream(job, stream, kind, steps)
        return reported

    interrupt_everywhere(once, fraction)


@sweep(97)
@pytest.mark.parametrize("before", [1, 3])
def test_ctrl_c_anywhere_in_an_event_that_the_budget_withholds_loses_no_count(before, fraction):
    def slow(step: int) -> int:
        began = time.thread_time()
        while step == 1 and time.thread_time() - began < 0.03:
            pass
        return step

    def once(at: int) -> tuple[int, KeyboardInterrupt | None]:
        job = Job(budget=0.03)
        job.agent.expose(slow=slow)
        streams = [job.run.stream("slow(step)", on="batch", every=n, unsafe=True, name=str(n)) for n in (1, 2)]
        for _ in range(before):
            job.emit()
        reported = job.asleep(at)
        job.whole()
        for _ in range(AFTER):
            job.emit()
        number = parts_of(job.agent).sources.by_name["batch"].number
        for stats, every in zip(job.run.agent_stats().queries, (1, 2), strict=True):
            assert stats.values + stats.withheld == number // every, stats
            assert stats.withheld or at  # to press it takes long enough to fill the purse
        job.agent.close()
        assert [stream.state for stream in streams] == ["ended"] * 2
        return reported

    interrupt_everywhere(once, fraction)


class Sees(TorchDispatchMode):
    """A dispatch mode of the job."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


@sweep(97)
@pytest.mark.parametrize("query", ["x", "x.sum()", "loss"])
def test_ctrl_c_anywhere_in_an_event_inside_modes_of_the_job_leaves_them_active(query, fraction):
    modes = [Sees(), BaseTorchFunctionMode(), Sees(), BaseTorchFunctionMode()]

    def active() -> list[Any]:
        own = torch._C
        return [
            *map(own._get_dispatch_stack_at, range(own._len_torch_dispatch_stack())),
            *map(own._get_function_stack_at, range(own._len_torch_function_stack())),
        ]

    def once(at: int) -> tuple[int, KeyboardInterrupt | None]:
        job = Job()
        job.run.stream(query, on="batch")
        job.emit()
        with contextlib.ExitStack() as inside:
            for mode in modes:
                inside.enter_context(mode)
            reported = job.asleep(at)
            assert active() == [*modes[::2], *modes[1::2]]
        job.whole()
        job.agent.close()
        return reported

    interrupt_everywhere(once, fraction)


@sweep(97)
@pytest.mark.parametrize("enough", [1, 100])
@pytest.mark.parametrize("kind", ["group", "group, guarded", "group_by", "fold"])
def test_ctrl_c_anywhere_in_the_event_that_ends_a_group_ends_it_once(kind, enough, fraction):
    def once(at: int) -> tuple[int, KeyboardInterrupt | None]:
        job = Job()
        stream = job.run.stream(QUERIES[kind]["query"], on="batch")
        epochs = job.run.stream("event_number", on="epoch")
        parts_of(job.agent).sources.evaluator.max_pending = enough
        for _ in range(BEFORE):
            job.emit()
        reported = job.asleep(at, "epoch")
        job.whole()
        batch, epoch = parts_of(job.agent).sources.by_name["batch"], parts_of(job.agent).sources.by_name["epoch"]
        assert batch.groups_ended == epoch.number  # a group has ended if there was the event, and else not
        for _ in range(AFTER):
            job.emit()
        job.emit("epoch")
        job.agent.close()
        assert epochs.dropped + epochs.arrived == epoch.number
        if kind == "fold":
            return reported
        windows = [range(1, 4), range(5, 10)] if epoch.number == 2 else [[1, 2, 3, 5, 6, 7, 8, 9]]
        assert stream.arrived + stream.error_count + stream.dropped == len(windows)
        for record in stream.records:
            if not (record.partial or record.error):
                assert record.value == sum(windows[record.number - 1])
        return reported

    interrupt_everywhere(once, fraction)


class Enough(Exception):
    """The host's ``on_stop``."""


COMMANDS: dict[str, Callable[[Run], object]] = {
    "set": lambda run: run.set("rate", 2.0, timeout=0),
    "call": lambda run: run.call(lambda e: e.act(), timeout=0),
    "trigger": lambda run: run.trigger("act", timeout=0),
    "checkpoint": lambda run: run.checkpoint(timeout=0),
    "set after a checkpoint": lambda run: run.set("rate", 2.0, checkpoint=True, timeout=0),
    "pause": lambda run: run.pause(1e-3, timeout=0),
    "stop": lambda run: run.stop(timeout=0),
}


@pytest.mark.long
@sweep(97)
@pytest.mark.parametrize("kind", COMMANDS)
def test_ctrl_c_anywhere_in_an_event_with_a_command_leaves_it_done_once_or_refused(kind, fraction):
    def once(at: int) -> tuple[int, KeyboardInterrupt | None]:
        job, acts = Job(may_pause=1.0), []
        agent, run = job.agent, job.run
        agent.control("rate", lambda: 1.0 + len(acts), lambda value: acts.append(value))
        agent.trigger("act", lambda: acts.append(1))
        agent.checkpoint(lambda: "path" if "checkpoint" in kind and kind != "checkpoint" else acts.append(1))
        agent.expose(act=lambda: acts.append(1))
        steps = run.stream("step", on="batch")
        job.emit()
        with pytest.raises(CommandPending) as pending:
            COMMANDS[kind](run)
        before = parts_of(agent).sources.by_name["batch"].number
        reported = job.asleep(at)
        job.whole()
        for _ in range(2 + WATCHED_EVENTS_COUNT):  # so long a set control is read
            job.emit()
        assert steps.arrived + steps.dropped == parts_of(agent).sources.by_name["batch"].number
        assert not parts_of(agent).sources.by_name["batch"].commands
        (record,) = run.commands
        assert record["outcome"] in ("done", "failed"), record
        if record["outcome"] == "failed":
            assert "Ctrl-C" in record["error"]
            if "nothing was done" in record["error"]:
                assert not acts
        elif kind not in ("pause", "stop"):
            assert len(acts) == 1
        if kind == "stop" and record["outcome"] == "done":
            assert agent.stop_requested
        assert len(acts) <= 1 or kind.startswith("set")
        assert record["number"] in (before + 1, before + 2, 0)
        assert pending.value.id == record["id"]
        agent.close()
        return reported

    interrupt_everywhere(once, fraction)


@sweep(97)
def test_ctrl_c_anywhere_in_a_log_leaves_declared_streams_intact(fraction):
    def once(at: int) -> tuple[int, KeyboardInterrupt | None]:
        job = Job()
        agent, run = job.agent, job.run
        agent.stream("steps", "step", on="batch")
        agent.stream("sums", SUM, on="batch", window=2)
        agent.log(a=0, b=0)
        streams = {name: run.stream(name) for name in ("a", "b", "steps", "sums")}
        job.emit()
        parts_of(agent).connection.manual = True

        def both() -> None:
            agent.log(a=1, b=1)
            agent.emit("batch", step=10)

        reported = interrupted(both, at)
        parts_of(agent).connection.manual = False
        parts_of(agent).connection.deliver()
        job.whole()
        agent.log(a=2, b=2)
        for _ in range(AFTER):
            job.emit()
        agent.close()
        for name in "ab":
            values = streams[name].values
            assert (values[0], values[-1]) == (0, 2)
            assert len(values) + streams[name].dropped in (2, 3)
        a, b = (streams[name].arrived + streams[name].dropped for name in "ab")
        assert a == b, (a, b)
        assert streams["steps"].arrived + streams["steps"].dropped in (1 + AFTER, 2 + AFTER)
        return reported

    interrupt_everywhere(once, fraction)


@sweep(97)
@pytest.mark.parametrize("window", [Group(), Count(3), Sliding(3), Seconds(1e3)])
def test_ctrl_c_anywhere_in_an_event_of_aligned_ranks_costs_no_window(window, fraction):
    def once(at: int) -> tuple[int, KeyboardInterrupt | None]:
        job = Job()
        service = parts_of(job.agent).dispatcher
        ring = service.outbox.open()
        reader = Cursor(ring)
        attach = m.Attach(1, 1, m.Code(SUM), "batch", window, align=m.VALUES)
        query = service.queries.attached(attach, ring)
        service.queries.install(query)
        for _ in range(BEFORE):
            job.emit()
        reported = job.asleep(at)
        job.whole()
        for _ in range(AFTER):
            job.emit()
        job.emit("epoch")
        columns = reader.peek(1000, 10**9)
        values = [] if columns is None else [(v.window, v.value, v.flags) for v in columns.values]
        windows = [window for window, _, _ in values]
        assert windows == sorted(set(windows)), windows
        number = parts_of(job.agent).sources.by_name["batch"].number
        shift = BEFORE + AFTER + 1 - number  # the event was not counted, and its step is none of theirs
        for at_window, value, flags in values:
            if flags:
                continue
            last = {Count: 3 * at_window, Sliding: at_window}.get(type(window), number)
            first = 1 if isinstance(window, Group | Seconds) else max(1, last - 2)
            assert value == sum(n + (shift if n > BEFORE else 0) for n in range(first, last + 1)), (values, shift)
        if isinstance(window, Count):
            assert windows == list(range(1, number // 3 + 1))
        job.agent.close()
        return reported

    interrupt_everywhere(once, fraction)


@sweep(97)
def test_ctrl_c_anywhere_in_a_replayed_event_leaves_each_command_done_once_or_refused(fraction):
    def once(at: int) -> tuple[int, KeyboardInterrupt | None]:
        job, acts = Job(), []
        service = parts_of(job.agent).dispatcher
        job.agent.trigger("act", lambda: acts.append(1))
        entries = [{"what": "trigger", "name": "act", "value": None, "event": "batch", "number": n} for n in (2, 2, 3)]
        replay(entries, "replay of entries", service.commands, service.queries)
        job.emit()
        reported = job.asleep(at)
        job.whole()
        job.emit()
        job.emit()
        records = job.run.commands
        done = [record for record in records if record["outcome"] == "done"]
        assert len(done) <= len(acts)
        assert all("Ctrl-C" in record["error"] for record in records if record not in done), records
        assert len(records) in (2, 3)  # of one that was interrupted before it was on record, the log tells
        assert not parts_of(job.agent).sources.by_name["batch"].commands
        job.agent.close()
        return reported

    interrupt_everywhere(once, fraction)


@sweep(97)
def test_ctrl_c_anywhere_where_a_command_of_several_ranks_is_due_does_it_once(fraction):
    def once(at: int) -> tuple[int, KeyboardInterrupt | None]:
        job, service = Job(), None
        service = parts_of(job.agent).dispatcher
        commands, ran = service.commands.commands, []
        due = EventSchedule(service.queries, "batch")
        scheduled = []
        for n in range(3):
            job.agent.trigger(f"run{n}", lambda n=n: ran.append(n))
            record = CommandRecord(id=f"id{n}", client="a client", what="trigger", name=f"run{n}", on="batch")
            scheduled.append(commands.accept(service.commands.command_of(record)))
            scheduled[n].validate()
            due.add(2 + n // 2, record.id, scheduled[n])
        job.emit()
        reported = job.asleep(at)
        job.whole()
        job.emit()
        job.emit()
        assert not due.pending
        assert len(set(ran)) == len(ran)
        for n, record in enumerate(command.record for command in scheduled):
            assert record.outcome in ("done", "failed"), record
            assert n in ran or "nothing was done" in record.error or "had begun" in record.error, record
        job.agent.close()
        return reported

    interrupt_everywhere(once, fraction)
