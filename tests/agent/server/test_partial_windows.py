"""Which windows are flagged partial: a value that lacks events says so."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import looptap
from looptap.protocol.errors import LinkError
from looptap.streams.operators.windows import Window
from looptap.testing import Pair, pair

LAST_THREE = looptap.sliding(3)
QUERIES = ["sum(e.step for e in events)", "math.fsum(e.step for e in events)", "sum([e.step for e in events])"]
BY_THE_LOOP = "sum(e.own.of(e.step) for e in events)"  # which calls code of the job, on its thread alone


class Own:
    """Code of the job that changes it."""

    calls = 0

    def of(self, value: int) -> int:
        self.calls += 1
        return value


def new_job() -> Pair:
    both = pair()
    both.agent.expose(own=Own())
    return both


@pytest.fixture
def job():
    both = new_job()
    yield both
    both.agent.close()


def batches(job: Pair, first: int, last: int) -> None:
    for step in range(first, last + 1):
        job.agent.emit("batch", step=step)


def found(stream: looptap.Stream) -> list[tuple[object, bool]]:
    return [(r.value, r.partial) for r in stream.records]


def absent(job: Pair, meanwhile: Callable[[], None]) -> None:
    """Cut the link for so long that the agent forgets its client; then restore it."""
    (client,) = job.parts.dispatcher.clients.values()
    receiver = job.parts.connection.receivers[client.peer]
    job.parts.dispatcher.on_disconnect(client.peer)
    receiver.on_lost(LinkError("the link broke."))
    meanwhile()
    receiver.on_back()


@pytest.mark.parametrize("query", QUERIES)
def test_a_sliding_window_attached_in_mid_run_is_partial_until_it_is_full(job, query):
    early = job.run.stream(query, on="batch", window=LAST_THREE)
    batches(job, 1, 5)
    late = job.run.stream(query, on="batch", window=LAST_THREE)
    batches(job, 6, 9)
    assert not any(r.partial for r in early.records)  # it has all events that there have been
    assert found(late) == [(6, True), (13, True), (21, False), (24, False)]


def test_a_sliding_window_of_every_second_event_goes_by_these(job):
    early = job.run.stream("sum(e.step for e in events)", on="batch", window=LAST_THREE, every=2)
    batches(job, 1, 3)
    late = job.run.stream("sum(e.step for e in events)", on="batch", window=LAST_THREE, every=2)
    batches(job, 4, 10)
    assert not any(r.partial for r in early.records)
    assert found(late) == [(4, True), (10, True), (18, False), (24, False)]


def test_after_an_absence_a_sliding_window_is_partial_until_it_is_full_again(job):
    stream = job.run.stream("sum(e.step for e in events)", on="batch", window=LAST_THREE)
    steps = job.run.stream("step", on="batch")
    chained = job.run.stream("sum(v for v in values)", of=steps, window=LAST_THREE)
    batches(job, 1, 4)
    absent(job, lambda: batches(job, 5, 6))
    before = [(1, False), (3, False), (6, False), (9, False)]
    batches(job, 7, 10)
    expected = [*before, (7, True), (15, True), (24, False), (27, False)]
    assert (found(stream), found(chained)) == (expected, expected)


def test_a_sliding_window_over_values_is_partial_until_it_is_full_of_them(job):
    job.agent.stream("step", "step", on="batch")
    job.agent.stream("wide", "sum(e.step for e in events)", on="batch", window=2)
    early = job.run.stream("sum(v for v in values)", of="step", window=LAST_THREE)
    batches(job, 1, 4)
    late = job.run.stream("sum(v for v in values)", of="step", window=LAST_THREE)
    sums = job.run.stream("sum(v for v in values)", of="wide", window=LAST_THREE)
    batches(job, 5, 10)
    assert not any(r.partial for r in early.records)
    assert found(late) == [(5, True), (11, True), (18, False), (21, False), (24, False), (27, False)]
    assert found(sums) == [(11, True), (26, True), (45, False)]


def test_a_sliding_window_over_a_shared_stream_goes_by_the_values_of_its_client(job):
    with job.attach() as other:
        steps = {run: run.stream("step", on="batch") for run in (job.run, other)}
        batches(job, 1, 4)
        sums = [run.stream("sum(v for v in values)", of=steps[run], window=LAST_THREE) for run in steps]
        batches(job, 5, 8)
        assert [found(total) for total in sums] == [[(5, True), (11, True), (18, False), (21, False)]] * 2


def test_a_sliding_window_over_values_that_misses_one_is_partial_until_it_is_full_again(job):
    job.agent.stream("tenth", "10 / step", on="batch")
    total = job.run.stream("len(list(values))", of="tenth", window=LAST_THREE)
    for step in (1, 2, 5, 0, 10, 10, 10, 10):
        job.agent.emit("batch", step=step)
    assert [r.partial for r in total.records][:3] == [False] * 3
    assert total.values[-1] == 3


@pytest.mark.parametrize("early", [False, True])
def test_the_latest_value_of_another_event_says_that_there_was_one(job, early):
    def attach() -> looptap.Stream:
        return job.run.stream("step, latest('epoch').accuracy", on="batch")

    stream = attach() if early else None
    assert stream is None or "None until there is such an event" in str(stream.notes)
    job.agent.emit("epoch", accuracy=0.5)
    if stream is None:
        stream = attach()
    else:
        absent(job, lambda: None)
    batches(job, 2, 2)
    note = "latest('epoch'): None until the next such event; number 1 came before the attach"
    assert note in stream.notes
    job.agent.emit("epoch", accuracy=0.75)
    batches(job, 3, 3)
    job.beat()
    assert note not in stream.notes
    assert stream.values == [(2, None), (3, 0.75)]


@pytest.mark.parametrize("query", [QUERIES[0], BY_THE_LOOP])
@pytest.mark.parametrize("epochs", [0, 1])
def test_the_group_that_the_end_of_the_run_cuts_off_is_partial(query, epochs):
    job = new_job()
    job.agent.stream("declared", query, on="batch", unsafe=True)
    streams = [job.run.stream(query, on="batch", unsafe=True), job.run.stream("declared")]
    over = job.run.stream("max(v for v in values)", of=job.run.stream("step", on="batch"))
    for _ in range(epochs):
        batches(job, 1, 3)
        job.agent.emit("epoch")
    batches(job, 4, 5)
    job.agent.close()
    assert [found(stream) for stream in streams] == [[(6, False)] * epochs + [(9, True)]] * 2
    assert found(over) == [(3, False)] * epochs + [(5, True)]


def test_the_last_group_is_whole_if_the_job_ended_it_and_so_is_a_run_that_is_the_group():
    job = pair()
    batch = job.run.stream("len(events)", on="batch")
    epoch = job.run.stream("len(events)", on="epoch")
    evaluation = job.run.stream("len(events)", on="eval")
    for _ in range(2):
        batches(job, 1, 3)
        job.agent.emit("eval")
        job.agent.emit("epoch")
    job.agent.close()
    assert found(batch) == [(3, False), (3, False)]
    assert (found(epoch), found(evaluation)) == ([(2, False)], [(2, False)])


@pytest.mark.parametrize("query", [QUERIES[0], BY_THE_LOOP])
@pytest.mark.parametrize("window", [None, 5, looptap.seconds(1e6)])
def test_a_window_that_a_client_closes_is_partial_and_the_next_one_is_not(job, query, window: Window | int | None):
    total = job.run.stream(query, on="batch", window=window, unsafe=True)
    batches(job, 1, 2)
    total.close_window()
    batches(job, 3, 3)
    seen = found(total)
    assert seen in ([(3, True)], [(6, True)])  # unknown code ends at the next event
    total.close_window()
    batches(job, 4, 4)
    assert found(total)[len(seen) :][:1] in ([(3, True)], [(4, True)])


def test_to_close_an_empty_window_or_one_that_slides_flags_nothing(job):
    group = job.run.stream("len(events)", on="batch")
    sliding = job.run.stream("sum(e.step for e in events)", on="batch", window=LAST_THREE)
    batches(job, 1, 3)
    job.agent.emit("epoch")
    for stream in (group, sliding):
        stream.close_window()
    batches(job, 4, 5)
    job.agent.emit("epoch")
    assert found(group) == [(3, False), (2, False)]
    assert found(sliding) == [(1, False), (3, False), (6, False), (9, False), (12, False)]


RECENT = "sum(e.step for e in recent(3))"
RECENT_IN_LIST = "sum([e.own.of(e.step) for e in recent(3)])"  # one by one, on the loop's thread


@pytest.mark.parametrize("query", [RECENT, RECENT_IN_LIST, f"({RECENT} for e in events if e.step % 1 == 0)"])
def test_the_last_events_of_a_query_attached_in_mid_run_are_partial_until_they_are_all_there(job, query):
    early = job.run.stream(query, on="batch", unsafe="own" in query)
    batches(job, 1, 5)
    late = job.run.stream(query, on="batch", unsafe="own" in query)
    batches(job, 6, 60)  # many at once, too
    assert not any(r.partial for r in early.records)  # it has all events that there have been
    assert found(late)[:4] == [(6, True), (13, True), (21, False), (24, False)]
    assert late.values[2:] == early.values[7:]
    assert not any(r.partial for r in late.records[2:])


def test_after_an_absence_the_last_events_are_partial_until_they_are_all_there_again(job):
    stream = job.run.stream(RECENT, on="batch", every=2)
    steps = job.run.stream("step", on="batch")
    chained = job.run.stream("sum(v for v in recent(3))", of=steps)
    batches(job, 1, 4)
    absent(job, lambda: batches(job, 5, 6))
    batches(job, 7, 12)
    assert found(stream) == [(2, False), (6, False), (8, True), (18, True), (30, False)]
    before = [(1, False), (3, False), (6, False), (9, False)]
    assert found(chained) == [*before, (7, True), (15, True), (24, False), (27, False), (30, False), (33, False)]


@pytest.mark.parametrize(
    "fold", ["(x for x in itertools.accumulate(e.step for e in events))", "ema((e.step for e in events), 1)"]
)
def test_a_fold_that_begins_in_the_middle_of_a_group_is_partial_up_to_its_end(job, fold):
    early = job.run.stream(fold, on="batch")
    batches(job, 1, 2)
    late = job.run.stream(fold, on="batch")
    batches(job, 3, 4)
    job.agent.emit("epoch")
    batches(job, 5, 6)
    assert [r.partial for r in early.records] == [False] * 6
    assert [r.partial for r in late.records] == [True, True, False, False]
    absent(job, lambda: None)
    batches(job, 7, 7)
    job.agent.emit("epoch")
    batches(job, 8, 8)
    assert [r.partial for r in late.records][4:] == [True, False]


def test_a_window_is_partial_if_the_last_events_that_its_items_look_at_are_not_all_there(job):
    query = "sum(e.step > mean(x.step for x in recent(3)) for e in events)"
    batches(job, 1, 3)
    job.agent.emit("epoch")
    late = job.run.stream(query, on="batch")
    for _ in range(2):
        batches(job, 4, 6)
        job.agent.emit("epoch")
    assert [r.partial for r in late.records] == [True, False]
