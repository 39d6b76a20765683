"""The compiled rows of a plan, and what the tap puts there (make soak: more)."""

from __future__ import annotations

import gc
import resource
import sys
import threading
from typing import Any

import pytest
import torch
from counts import FULL, examples
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from looptap.agent.loop.columns.event_batch import MISSED, EventBatch, GroupEnd
from looptap.agent.loop.tap.choice import new_lock
from looptap.streams.events import EventOrigin
from looptap.streams.native.compiled import tap, which_tap
from looptap.testing import Pair, pair, parts_of

pytestmark = pytest.mark.skipif(which_tap() == "pure Python", reason="the tap was not built, or is not wanted")

NAMES = ["a", "b"]
EVENTS = 100_000_000 if FULL else 300_000
KEPT_BYTES = 4_000_000
"""What a run of these many events may leave, for the allocator's own needs."""

value = st.one_of(
    st.integers(), st.integers(-5, 5), st.floats(), st.booleans(), st.none(), st.text(max_size=3), st.complex_numbers()
)
numbers = st.one_of(st.tuples(st.floats(), st.floats()), st.tuples(st.integers(-9, 9), st.booleans()))
steps = st.lists(
    st.one_of(
        st.tuples(st.just("row"), st.one_of(numbers, numbers, st.tuples(value, value))),
        st.tuples(st.just("end"), st.integers(1, 9)),
        st.tuples(st.just("missed")),
        st.tuples(st.just("take"), st.integers(0, 6)),
        st.tuples(st.just("clear")),
    ),
    max_size=60,
)


def seen(rows: Any) -> list[Any]:
    """Return all that a batch of these rows shows, with the types of its values."""
    batch = EventBatch.of_rows(EventOrigin("batch"), NAMES, rows)
    found: list[Any] = [
        (None if event is None else event is MISSED or [(v, type(v)) for v in event.__looptap_shown__()[0].values()],
         number, now, began)
        for event, number, now, began in batch.occurrences
    ]  # fmt: skip
    found += [batch.ends, len(batch), list(batch.event_numbers), list(batch.event_times)]
    events = batch.events
    for some in () if events is None else (events, events.every(2)):
        table = [some.table(NAMES, False), some.table(NAMES[1:], True)] if len(some) else []
        found += [(list(one), [*map(type, one)]) for one in table]
        found += [type(some.column(name)) for name in NAMES if len(some)]
    return found


@settings(max_examples=examples(4000))
@given(steps)
def test_rows_are_the_flat_list_that_they_stand_for(program):
    flat: Any = []
    rows, width = tap.Rows(3 + len(NAMES)), 3 + len(NAMES)
    for number, (what, *how) in enumerate(program, 1):
        if what == "clear":
            flat.clear()
            rows.clear()
        elif what == "take":
            end = how[0] * width
            assert repr(seen(rows[:end])) == repr(seen(flat[:end]))
            assert repr(seen(rows[end : 2 * end])) == repr(seen(flat[end : 2 * end]))
            del rows[:end], flat[:end]
        else:
            third = number - 1 if what == "row" else GroupEnd(how[0]) if what == "end" else MISSED
            row = (number, number / 4, third, *(how[0] if what == "row" else (None, None)))
            flat += row
            rows += row
        assert (len(rows), bool(rows)) == (len(flat), bool(flat))
    assert repr(seen(rows)) == repr(seen(flat))


def test_rows_refuse_what_is_no_row_and_stay_as_they_were():
    rows = tap.Rows(4)
    rows += (1, 0.5, 0, 2.5)
    long, text, late, huge = (1, 0.5, 0, 1, 2), ("a", 0.5, 0, 1), (1, None, 0, 1), (2**70, 0.5, 0, 1)
    for wrong in ((1, 0.5, 0), [1, 0.5, 0, 2.5], long, text, late, huge):
        with pytest.raises((TypeError, ValueError, OverflowError)):
            rows += wrong
    rows += (2, 0.5, 0, 2.5)
    with pytest.raises(ValueError, match="from the front"):
        del rows[4:]
    del rows[:4]
    for cut in (slice(1, 4), slice(0, 3), slice(0, 4, 2), slice(None, None, -1), 0, "a"):
        with pytest.raises((TypeError, ValueError)):
            rows[cut]
        with pytest.raises((TypeError, ValueError)):
            del rows[cut]
    with pytest.raises(TypeError):
        rows[:4] = []
    for width in (-1, 0, 2, sys.maxsize):
        with pytest.raises((ValueError, MemoryError)):
            tap.Rows(width)
    assert (len(rows), rows.columns()[3]) == (4, (("d", rows.columns()[3][0][1]),))


def test_an_object_that_rows_let_go_may_use_them():
    class Last:
        def __del__(self) -> None:
            rows.clear()
            rows.__iadd__((9, 0.5, 0, "again"))

    rows = tap.Rows(4)
    for number in range(20):
        rows += (number, 0.5, 0, Last())
    del rows[:40]
    assert rows.columns()[3] == (["again"],)
    rows += (1, 0.5, Last(), 0)
    rows.clear()
    assert rows.columns()[3] == (["again"],)


# ------------------------------------------------------------ the lock


def test_the_lock_is_an_rlock():
    lock = new_lock()
    assert isinstance(lock, type(threading.RLock()))
    with lock, lock:
        assert lock._is_owned()
        assert lock.acquire(blocking=False)
        lock.release()
    assert not lock._is_owned()
    with pytest.raises(RuntimeError, match="un-acquired"):
        lock.release()
    for wrong in ((1, 2, 3), ("a",), (True, "b"), (False, 1)):
        with pytest.raises((TypeError, ValueError)):
            lock.acquire(*wrong)
    taken = threading.Thread(target=lock.acquire)
    taken.start()
    taken.join()
    assert lock.acquire(timeout=0.01) is False
    assert lock.acquire(blocking=False) is False


# ------------------------------------------------------------ events that only have to be kept


def kept(*queries: str, **how: Any) -> tuple[Pair, list[Any]]:
    """Return a job whose next events only have to be kept, and its streams."""
    job = pair("kept", manual=True, **how)
    sources = parts_of(job.agent).sources
    sources.evaluator.max_pending = sources.unobserved.max_pending = 256
    streams = [job.run.stream(query, on="batch", buffer=1000) for query in queries or ("step, loss",)]
    for step in range(3):
        job.agent.emit("batch", step=step, loss=0.5)
        job.deliver()
    job.agent.emit("batch", step=3, loss=0.5)  # which wakes the I/O thread, so that the next ones do not
    assert source_of(job).shortcut is not None
    return job, streams


def source_of(job: Pair) -> Any:
    return parts_of(job.agent).sources.by_name["batch"]


@pytest.mark.parametrize("loss", [0.5, torch.tensor(0.5), torch.tensor(3), torch.tensor(True), None, "text"])
def test_an_event_that_only_has_to_be_kept_runs_no_python_code(loss):
    job, (stream,) = kept()
    ran: list[str] = []
    sys.setprofile(lambda frame, what, arg: ran.append(frame.f_code.co_name) if what == "call" else None)
    try:
        for step in range(20):
            job.agent.emit("batch", step=step, loss=loss, other=None)
    finally:
        sys.setprofile(None)
    assert ran == []
    job.deliver()
    expected = loss.item() if isinstance(loss, torch.Tensor) else loss
    assert stream.values[4:] == [(step, expected) for step in range(20)]
    job.agent.close()


def test_a_query_at_each_tenth_event_leaves_the_events_between_to_the_tap():
    job, (stream,) = kept()
    weight = torch.ones(4)
    norm = job.run.stream("norm(weight)", on="batch", every=10)
    ran: dict[int, list[str]] = {}
    for step in range(4, 42):
        calls = ran.setdefault(source_of(job).number + 1, [])
        sys.setprofile(lambda frame, what, arg: calls.append(frame.f_code.co_name) if what == "call" else None)  # noqa: B023
        try:
            job.agent.emit("batch", step=step, loss=0.5, weight=weight)
        finally:
            sys.setprofile(None)
    job.deliver()
    assert [number for number, calls in ran.items() if calls] == [5, 6, 10, 20, 30, 40]  # the first two make the plan
    assert stream.values == [(step, 0.5) for step in range(42)]
    assert norm.values == [2.0] * 4
    job.agent.close()


def test_an_event_while_another_thread_is_in_one_waits_for_its_turn():
    job, (stream,) = kept()
    lock = source_of(job).lock
    entered, done = threading.Event(), threading.Event()

    def emit() -> None:
        entered.set()
        job.agent.emit("batch", step=10, loss=1.5)
        done.set()

    with lock:
        thread = threading.Thread(target=emit)
        thread.start()
        assert entered.wait(300)
        assert not done.wait(0.05)  # it cannot come through, however long it is waited for
        assert source_of(job).number == 4
        job.agent.emit("batch", step=9, loss=1.5)  # this thread may: the lock is its own
    assert done.wait(300)
    thread.join()
    job.deliver()
    assert stream.values[4:] == [(9, 1.5), (10, 1.5)]
    job.agent.close()


def negated(number: float) -> torch.Tensor:
    """Return a scalar that torch negates when it is read, which C leaves to it."""
    return torch.tensor(complex(0.0, -number)).conj().imag


class Sees(TorchFunctionMode):
    """A mode of the host's, which may change or interrupt what is asked of a tensor."""

    def __init__(self, error: type[BaseException] | None) -> None:
        super().__init__()
        self.error = error

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self.error is not None:
            raise self.error
        found = function(*args, **(kwargs or {}))
        return 7.0 if function is torch.Tensor.item else found


class Watches(TorchDispatchMode):
    """A mode of the host's, which sees each operation."""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError, SystemExit])
@pytest.mark.parametrize(
    "make", [negated, torch.tensor, lambda number: torch.tensor(number, dtype=torch.complex64).real]
)
def test_a_mode_of_the_hosts_does_not_see_how_a_tensor_is_read(make, error):
    job, (stream,) = kept()
    loss = make(0.25)
    with Sees(error):
        job.agent.emit("batch", step=4, loss=loss)
        assert torch._C._len_torch_function_stack() == 1
    job.agent.emit("batch", step=5, loss=loss)
    job.deliver()
    assert stream.values[4:] == [(4, 0.25), (5, 0.25)]
    assert not stream.dropped
    assert not source_of(job).lock._is_owned()
    job.agent.close()


def test_a_tensor_inside_a_mode_or_a_transform_is_read_as_by_item():
    job, (stream,) = kept()
    with Watches():
        job.agent.emit("batch", step=4, loss=torch.tensor(0.25))
    with torch.device("cpu"):
        job.agent.emit("batch", step=5, loss=torch.tensor(0.125))

    def loss(x: Any) -> Any:
        job.agent.emit("batch", step=6, loss=x)
        return x * 2

    torch.func.grad(loss)(torch.tensor(3.0))
    torch.func.functionalize(loss)(torch.tensor(4.0))
    job.deliver()
    assert stream.values[4:] == [(4, 0.25), (5, 0.125), (6, 3.0), (6, 4.0)]
    torch.func.vmap(loss)(torch.arange(3.0))  # which has no value now
    job.deliver()
    assert len(stream.values) == 8
    job.agent.close()


ORDINARY = [
    *(torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool),
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
]
READABLE = {
    "negated": lambda: negated(-1.0),
    "without memory": lambda: torch._efficientzerotensor(()),
    "quantized": lambda: torch.quantize_per_tensor(torch.tensor(1.0), 0.1, 0, torch.quint8),
    "functional": lambda: torch._to_functional_tensor(torch.tensor(1.0)),
    "copied when written": lambda: torch._lazy_clone(torch.tensor(1.0)),
    "of another type": lambda: torch.tensor(1, dtype=torch.uint16),
    "part of another": lambda: torch.arange(5.0)[3],
    "part of another, expanded": lambda: torch.arange(5.0).expand(2, 5)[1, 4],
    "with a gradient": lambda: (torch.ones(3, requires_grad=True) * 2).sum(),
}
OTHERS = {
    "on no device": lambda: torch.empty((), device="meta"),
    "sparse": lambda: torch.sparse_coo_tensor(torch.zeros(0, 1, dtype=torch.int64), torch.ones(1), ()),
    "without a value": lambda: torch.Tensor(),
    "complex": lambda: torch.tensor(1 + 2j),
    "of one element": lambda: torch.ones(1),
}


@pytest.mark.filterwarnings("ignore")
def test_each_kind_of_tensor_has_the_value_of_item_and_prints_nothing(capfd):
    job, (stream,) = kept()
    plain = [torch.tensor(number, dtype=dtype) for number in (0, 1, 3) for dtype in ORDINARY]
    readable = [*plain, *[make() for make in READABLE.values()], *plain]
    others = [make() for make in OTHERS.values()]
    capfd.readouterr()
    for step, loss in enumerate([*others, *readable, *others, *readable], start=4):
        job.agent.emit("batch", step=step, loss=loss)
    job.deliver()
    found = dict(stream.values)
    expected = [loss.item() for loss in readable] * 2
    steps = [*range(4 + len(others), 4 + len(others) + len(readable))]
    steps += [step + len(others) + len(readable) for step in steps]
    assert [(type(found[step]), found[step]) for step in steps] == [(type(one), one) for one in expected]
    assert capfd.readouterr().err == ""
    job.agent.close()


@pytest.mark.parametrize("dtype", ORDINARY)
def test_reading_a_tensor_neither_enters_a_mode_nor_gives_the_gil_away(dtype):
    job, (stream,) = kept()
    loss = torch.tensor(1, dtype=dtype)
    job.agent.emit("batch", step=4, loss=loss)  # the first one shows how to read those of its type
    with Sees(KeyboardInterrupt):
        for step in range(5, 9):
            job.agent.emit("batch", step=step, loss=loss)
    job.deliver()
    assert stream.values[4:] == [(step, loss.item()) for step in range(4, 9)]
    job.agent.close()


def test_a_query_that_comes_or_goes_between_two_events_is_seen_by_the_next():
    job, (stream,) = kept()
    other = job.run.stream("loss", on="batch")
    job.agent.emit("batch", step=4, loss=0.25)
    job.deliver()
    stream.close()
    job.agent.emit("batch", step=5, loss=0.125)
    job.deliver()
    assert (stream.values[4:], other.values) == ([(4, 0.25)], [0.25, 0.125])
    job.agent.close()


# ------------------------------------------------------------ memory


@pytest.mark.long
@pytest.mark.timeout(7200 if FULL else 600)
def test_nothing_is_left_of_many_events():
    job, _ = kept("step, loss", "loss")
    agent, tensor, text, big = job.agent, torch.tensor(0.5), "text", 2**70
    values = (tensor, text, big, 1.5, "wrong", [1])

    def run(events: int) -> None:
        for _ in range(events // 10_000):
            for step in range(4500):
                agent.emit("batch", step=step, loss=1.5)
                agent.emit("idle", step=step, loss=1.5)
            for step in range(164):
                agent.emit("batch", step=step, loss=values[step % 4])
                agent.emit("epoch2", step=step, loss=values[step % 4])
                agent.emit("batch", loss=0.5, **{"step": step})
                agent.emit("idle", step=step, loss=tensor)
                agent.emit("batch", step=step, loss=1.5)
                agent.emit("batch", step=tensor, loss=tensor)
            for odd in values:
                agent.emit("batch", step=odd, loss=odd)
            agent.end_group("batch")
            job.deliver()

    run(EVENTS // 10)
    gc.collect()
    before = [sys.getrefcount(one) for one in (*values, None, agent, type(agent).emit)]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    run(EVENTS)
    gc.collect()
    after = [sys.getrefcount(one) for one in (*values, None, agent, type(agent).emit)]
    assert [b - a for a, b in zip(before, after, strict=True) if abs(b - a) > EVENTS // 1000] == []
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak) * 1024 < KEPT_BYTES
    agent.close()
