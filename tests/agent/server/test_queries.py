"""Attached queries end to end over `looptap.testing.pair`, without sockets."""

from __future__ import annotations

import math
import threading

import numpy as np
import pytest
import torch
from torch import nn
from waiting import soon

import looptap
from looptap.agent.io.server_socket import SendResult
from looptap.agent.server.exporter import MAX_IN_FLIGHT_BYTES
from looptap.protocol import messages as m
from looptap.protocol.codec import decode_from_agent, encode
from looptap.streams.errors import QueryError
from looptap.testing import pair, parts_of


@pytest.fixture
def job():
    agent, run = pair("job")
    yield agent, run
    agent.close()


def batches(agent, n, **more):
    for i in range(n):
        agent.emit("batch", step=i, loss=float(i), **more)


# ---------------------------------------------------------------- groups and windows


def test_the_event_that_closes_a_group_ends_its_window_before_its_own_queries_run(job):
    agent, run = job
    mean = run.stream("mean(e.loss for e in events)", on="batch")
    both = run.stream("epoch, latest('batch').loss", on="epoch")
    batches(agent, 4)
    agent.emit("epoch", epoch=0)
    batches(agent, 2)
    agent.emit("epoch", epoch=1)
    assert mean.values == [1.5, 0.5]
    assert both.values == [(0, 3.0), (1, 1.0)]


def test_the_host_may_end_a_group_by_hand(job):
    agent, run = job
    count = run.stream("len(events)", on="batch")
    batches(agent, 3)
    agent.end_group("batch")
    assert count.values == [3]


def test_a_client_may_close_a_window_at_any_moment(job):
    agent, run = job
    count = run.stream("len(events)", on="batch")
    batches(agent, 3)
    count.close_window()
    batches(agent, 1)
    agent.emit("epoch")
    assert [r.value for r in count.records] == [3, 1]


def test_a_window_cut_by_the_attach_or_the_end_of_the_stream_is_partial(job):
    agent, run = job
    batches(agent, 2)
    late = run.stream("len(events)", on="batch")
    batches(agent, 2)
    agent.emit("epoch")
    batches(agent, 3)
    agent.emit("epoch")
    batches(agent, 1)
    late.close()
    assert [(r.value, r.partial) for r in late.records] == [(2, True), (3, False), (1, True)]


def test_windows_of_the_outermost_type_close_at_the_end_of_the_run_and_attach_says_so():
    agent, run = pair("job")
    total = run.stream("sum(e.epoch for e in events)", on="epoch")
    assert any("end of the run" in note for note in total.notes)
    for i in range(3):
        agent.emit("epoch", epoch=i)
    agent.close()
    assert total.values == [3]
    assert total.state == "ended"


def test_events_and_sliding_windows_ignore_groups(job):
    agent, run = job
    threes = run.stream("sum(e.step for e in events)", on="batch", window=3)
    sliding = run.stream("max(e.step for e in events)", on="batch", window=looptap.sliding(2))
    batches(agent, 4)
    agent.emit("epoch")
    batches(agent, 2)
    assert threes.values == [3, 4]
    assert sliding.values == [0, 1, 2, 3, 3, 1]


# ---------------------------------------------------------------- errors


def test_a_mapped_query_skips_one_bad_event_and_continues(job):
    agent, run = job
    inverse = run.stream("1 / step", on="batch")
    batches(agent, 3)
    run.stats()
    assert inverse.values == [1.0, 0.5]
    assert inverse.error_count == 1
    assert "ZeroDivisionError" in inverse.traceback
    assert inverse.state == "live"


def test_a_reducing_query_yields_an_error_item_and_starts_clean(job):
    agent, run = job
    total = run.stream("sum(1 / e.step for e in events)", on="batch", window=2)
    batches(agent, 4)
    first, second = total.records
    assert "ZeroDivisionError" in first.error
    assert math.isclose(second.value, 1 / 2 + 1 / 3)
    assert total.values == [second.value]


def test_a_hundred_errors_in_a_row_or_a_system_exit_detach_the_query(job):
    agent, run = job
    wrong = run.stream("nothing_of_that_name", on="batch")
    exits = run.stream("lambda e: exit(3)", on="batch", unsafe=True)
    batches(agent, 99)
    assert wrong.state == "live"
    batches(agent, 1)
    assert wrong.state == "failed"
    assert "100 errors" in wrong.reason
    assert exits.state == "failed"
    assert "SystemExit(3)" in exits.reason


def test_a_query_that_cannot_be_compiled_is_an_error_at_the_client_with_its_column(job):
    _, run = job
    with pytest.raises(QueryError) as caught:
        run.stream("sum(e.loss for e in events) + step", on="batch")
    assert caught.value.column == 30
    assert "last(e.step" in caught.value.hint


def test_an_event_that_was_never_raised_is_reported_at_the_attach(job):
    agent, run = job
    batches(agent, 1)
    assert any("'bacth'" in note and "batch" in note for note in run.stream("loss", on="bacth").notes)


def test_before_the_first_event_a_note_says_that_there_was_no_event(job):
    _, run = job
    assert run.stream("loss", on="batch").notes[0] == "no event of any type so far."
    notes = run.stream("latest('eval').loss", on="batch").notes  # another test may have compiled an emit
    assert notes[-1] == "latest('eval') is None until there is such an event; so far there was no event of any type."


def test_another_event_type_that_was_never_raised_is_reported_at_the_attach(job):
    agent, run = job
    agent.emit("epoch", error=0.5)
    batches(agent, 1)
    wrong = run.stream("step, latest('epcoh').error", on="batch", when="latest('eval').loss > 1")
    assert [note.split(" is None")[0] for note in wrong.notes] == ["latest('epcoh')", "latest('eval')"]
    assert "so far only batch, epoch. Did you mean 'epoch'?" in wrong.notes[0]
    late = run.stream("latest('epoch').error", on="batch")
    assert late.notes == ["latest('epoch'): None until the next such event; number 1 came before the attach"]


def test_a_name_that_the_other_event_lacks_is_reported_once_it_is_raised(job):
    agent, run = job
    agent.emit("epoch", error=0.5)
    wrong = run.stream("latest('epoch').eror", on="batch")
    batches(agent, 1)
    assert not any("eror" in note for note in wrong.notes)
    agent.emit("epoch", error=0.5)
    parts_of(agent).dispatcher.on_heartbeat_timer()
    assert any("latest('epoch'): no observable 'eror'" in n and "Did you mean 'error'?" in n for n in wrong.notes)


@pytest.mark.parametrize(
    "query",
    [
        "e", "(e for e in events if e.loss < 5)", "filter(None, events)", "list(events)", "[e for e in events]",
        "last(events)", "last(e for e in events)", "[(e.step, e) for e in events]", "{'all': events[-1]}",
    ],
)  # fmt: skip
def test_an_event_is_not_a_value_and_the_error_says_what_to_ask_for(job, query):
    agent, run = job
    bare = run.stream(query, on="batch", window=2)
    batches(agent, 4, accuracy=0.5)
    assert bare.values == []
    first, *rest = bare.traceback.splitlines()
    assert rest == []
    assert "is the event itself" in first
    assert "as in e.step or (e.step, e.loss, e.accuracy)." in first


def test_a_class_is_no_query(job):
    _, run = job
    with pytest.raises(QueryError, match=r"Linear is a class; .*\n.*lambda e: Linear\(e\)"):
        run.stream(nn.Linear, on="batch")


def test_a_function_of_the_language_that_is_not_called_says_how_to(job):
    agent, run = job
    recent, latest = (run.stream(q, on="batch") for q in ("mean(e.loss for e in recent)", "latest.error"))
    batches(agent, 1)
    assert recent.traceback.endswith("Say of how many events: mean(e.loss for e in recent(100)).")
    assert latest.traceback.endswith("Say of which event: latest('epoch').error.")


def test_every_window_that_fails_is_an_error_record_and_counted_once(job):
    agent, run = job
    total = run.stream("sum(1 / e.zero for e in events)", on="batch", window=2)
    one = run.stream("1 / zero", on="batch")
    batches(agent, 7, zero=0)
    parts_of(agent).dispatcher.on_heartbeat_timer()
    assert len(total.errors) == total.error_count == 3
    assert one.error_count == 7
    with pytest.raises(looptap.LooptapError, match=r"failed 3 times: ZeroDivisionError"):
        total.wait(1, timeout=0.01)


def test_a_value_that_cannot_leave_the_job_is_an_error_that_names_it(job):
    agent, run = job
    agent.expose(lock=threading.Lock())
    whole = run.stream("lock", on="batch")
    batches(agent, 1)
    assert whole.values == []
    assert "_thread.lock" in whole.traceback


# ---------------------------------------------------------------- lazy, exposed, re-entrant


@pytest.mark.parametrize("refused", [(m.Values, m.Bundle), (m.Values, m.Bundle, m.Status)])
def test_the_end_and_losses_of_a_stream_reach_a_client_without_room_for_values(monkeypatch, refused):
    monkeypatch.setattr("looptap.agent.server.request_dispatcher.LAST_VALUES_TIMEOUT_SECONDS", 0.05)
    monkeypatch.setattr(
        "looptap.agent.server.request_dispatcher.LAST_STATUS_TIMEOUT_SECONDS", 60.0
    )  # twenty tries, on however busy a machine
    agent, run = pair("full")
    link, tries = parts_of(agent).connection, 0

    def send(peer, frame):
        nonlocal tries
        if not isinstance(decode_from_agent(frame), refused):
            return link.send(peer, frame)
        tries += 1
        return (
            link.send(peer, frame) if isinstance(decode_from_agent(frame), m.Status) and tries > 20 else SendResult.FULL
        )

    stream = run.stream("step", on="batch")
    batches(agent, 3)
    parts_of(agent).dispatcher.send, link.manual = send, True  # the I/O thread is busy elsewhere
    batches(agent, 5)
    agent.close("the job is done")
    assert stream.values == [0, 1, 2]
    assert (stream.state, stream.reason, stream.dropped) == ("ended", "the job is done", 5)


def test_a_reply_without_room_comes_later_and_before_the_values(directory):
    with looptap.Agent("full") as agent, looptap.attach("full") as run:
        tries, link = [], parts_of(agent).dispatcher.send

        def send(peer, frame):
            message = decode_from_agent(frame)
            if isinstance(message, m.Beat):
                return link(peer, frame)
            tries.append(message)
            return SendResult.FULL if len(tries) < 5 else link(peer, frame)

        parts_of(agent).dispatcher.send = send
        stream = run.stream("step", on="batch")
        batches(agent, 3)
        stream.wait(3)
        assert [type(one) for one in tries[:5]] == [m.Done] * 5  # the same one, until there is room
        assert stream.values == [0, 1, 2]


def test_replies_pending_for_a_client_that_does_not_read_are_bounded_in_bytes(job):
    agent, _ = job
    parts_of(agent).dispatcher.send = lambda peer, frame: SendResult.FULL
    (client,) = parts_of(agent).dispatcher.clients.values()
    for number in range(40):
        call = m.Call(number, str(number), m.Code("'x' * 100_000"), "batch")
        parts_of(agent).dispatcher.receive(client.peer, "operator", encode(call))
    batches(agent, 1)
    assert 500_000 < sum(map(len, client.unsent_replies)) <= MAX_IN_FLIGHT_BYTES


def test_a_lazy_observable_is_computed_only_when_read_and_once_an_event(job):
    agent, run = job
    calls = []
    emit = lambda: agent.emit("batch", loss=1.0, norm=looptap.lazy(lambda: calls.append(1) or 2.0))  # noqa: E731 - one event
    run.stream("loss", on="batch")
    emit()
    assert not calls
    a, b = run.stream("norm", on="batch"), run.stream("norm * 2", on="batch")
    emit()
    assert (a.values, b.values, len(calls)) == ([2.0], [4.0], 1)


def test_functions_exposed_by_the_host_are_known_by_name(job):
    agent, run = job
    agent.expose(double=lambda x: 2 * x)
    twice = run.stream("double(loss)", on="batch")
    batches(agent, 2)
    assert twice.values == [0.0, 2.0]


def test_an_event_that_a_query_emits_counts_and_no_query_sees_it(job):
    agent, run = job
    agent.expose(agent=agent)
    inner = run.stream("x", on="inner")
    outer = run.stream(lambda e: e.agent.emit("inner", x=e.step), on="batch", unsafe=True)
    batches(agent, 2)
    assert outer.values == [None, None]
    assert agent.stats()["events"]["inner"] == 2
    agent.emit("inner", x=7)
    assert (inner.values, inner.dropped) == ([7], 2)


def test_a_name_can_be_used_again_at_once(job):
    agent, run = job
    for _ in range(100):
        stream = run.stream("loss", on="batch", name="loss")
        batches(agent, 1)
        stream.close()
        assert stream.values == [0.0]
    assert run.stats()["queries"] == []


# ---------------------------------------------------------------- the flight recorder


def test_the_flight_recorder_sends_what_came_before_the_condition_and_after(job):
    agent, run = job
    box = run.stream("step, loss", on="batch", when="isnan(loss)", before=3, after=2)
    for i in range(20):
        agent.emit("batch", step=i, loss=math.nan if i in (10, 11) else float(i))
    assert [v.step for v in box.values] == [7, 8, 9, 10, 11, 12]
    assert [r.value.step for r in box.records if r.trigger] == [10]
    assert not box.gaps


def test_the_condition_may_use_earlier_events(job):
    agent, run = job
    box = run.stream("step", on="batch", when="loss > 3 * mean(e.loss for e in recent(4))", before=1)
    for i, loss in enumerate([1.0] * 6 + [20.0, 1.0]):
        agent.emit("batch", step=i, loss=loss)
    assert box.values == [5, 6]


def test_a_recorder_that_never_fires_sends_nothing_and_holds_a_bounded_number(job):
    agent, run = job
    box = run.stream("x", on="batch", when="step < 0", before=5)
    for _ in range(30):
        batches(agent, 20, x=np.zeros(100))
    assert box.values == []
    (served,) = parts_of(agent).dispatcher.exporter.streams
    assert len(served.query.recorder.held) == 5


# ---------------------------------------------------------------- real torch objects: TensorWatch's notebook queries


def network(agent, epochs=1):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    agent.expose(model=model, optimizer=optimizer)
    for epoch in range(epochs):
        for step in range(5):
            image, target = torch.randn(6, 1, 4, 4), torch.randint(0, 3, (6,))
            output = model(image)
            losses = nn.functional.cross_entropy(output, target, reduction="none")
            optimizer.zero_grad()
            losses.mean().backward()
            optimizer.step()
            agent.emit("batch", step=step, loss=losses.mean(), losses=losses, image=image, target=target, output=output)
        agent.emit("epoch", epoch=epoch)
    return model


def test_mean_absolute_gradients_and_weights_per_layer(job):
    agent, run = job
    grads = run.stream("layer_norms(model, 'grad', 'mean_abs')", on="batch")
    weights = run.stream(lambda e: {n: p.abs().mean() for n, p in e.model.named_parameters()}, on="epoch")
    model = network(agent)
    assert list(grads.latest) == list(weights.latest) == [n for n, _ in model.named_parameters()]
    for name, parameter in model.named_parameters():
        assert math.isclose(grads.latest[name], parameter.grad.abs().mean().item(), rel_tol=1e-5)
        assert math.isclose(weights.latest[name], parameter.abs().mean().item(), rel_tol=1e-6)


def test_the_worst_predictions_with_image_output_and_target(job):
    agent, run = job
    worst = run.stream("batch_topk(2, losses, image=image, output=output, target=target)", on="batch")
    whole = run.stream(
        "nlargest(2, ((l.item(), t.item(), i) for e in events for l, t, i in zip(e.losses, e.target, e.image)),"
        " key=lambda row: row[0])",
        on="batch",
    )
    network(agent)
    rows = worst.latest
    assert len(rows) == 2
    assert rows[0]["image"].shape == (1, 4, 4)
    assert rows[0]["output"].shape == (3,)
    ((first, second),) = whole.values
    assert first[0] >= second[0]
    assert first[2].shape == (1, 4, 4)


def test_random_samples_of_predictions(job):
    agent, run = job
    some = run.stream("batch_sample(3, output=output, target=target)", on="batch")
    epoch = run.stream("sample((t.item() for e in events for t in e.target), 4)", on="batch")
    network(agent)
    assert len(some.latest) == 3
    assert len(epoch.values[0]) == 4


def test_the_learning_rate_against_the_loss(job):
    agent, run = job
    pairs = run.stream("optimizer.param_groups[0]['lr'], loss", on="batch")
    network(agent)
    assert pairs.latest[0] == 0.1
    assert isinstance(pairs.latest[1], float)


def test_confusion_counts_over_an_epoch(job):
    agent, run = job
    counts = run.stream("sum(confusion(e.target, e.output, 3) for e in events)", on="batch")
    network(agent)
    assert counts.values[0].sum() == 30
    assert counts.values[0].shape == (3, 3)


def test_squares_through_math_and_map(job):
    agent, run = job
    roots = run.stream("map(lambda e: math.sqrt(e.step), events)", on="batch")
    rms = run.stream("math.sqrt(sum(e.loss**2 for e in events) / len(events))", on="batch")
    batches(agent, 5)
    agent.emit("epoch")
    assert roots.values[4] == 2.0
    assert math.isclose(rms.values[0], math.sqrt(30 / 5))


def test_the_loss_by_class_is_a_keyed_aggregation(job):
    agent, run = job
    by_class = run.stream(
        "group_by(((t.item(), l.item()) for e in events for t, l in zip(e.target, e.losses)), mean)", on="batch"
    )
    network(agent)
    assert set(by_class.values[0]) <= {0, 1, 2}


# ---------------------------------------------------------------- commands


def test_a_call_runs_once_at_the_next_event_and_returns_its_result():
    import threading

    agent, run = pair("job")
    model = nn.Linear(2, 2)
    agent.expose(model=model)
    results = []
    thread = threading.Thread(target=lambda: results.append(run.call(lambda e: e.model.weight.data.fill_(3).sum())))
    thread.start()
    while not results:
        agent.emit("batch")
    thread.join()
    assert results == [12.0]
    assert model.weight.eq(3).all()
    agent.close()


def test_a_client_without_room_delays_no_other_and_gets_its_values_later(job, monkeypatch):
    agent, run = job
    step = run.stream("step", on="batch")
    with monkeypatch.context() as patched:
        patched.setattr(parts_of(agent).dispatcher, "send", lambda peer, frame: SendResult.FULL)
        batches(agent, 3)
    assert step.values == []

    def room():
        agent.emit("batch", step=3)
        return step.values

    soon(room)
    assert step.values[:4] == [0, 1, 2, 3]


def whole(events):
    return sum(e.lss for e in events)


@pytest.mark.parametrize(
    "query",
    [
        "mean(e.lss for e in events)", "max((e.loss for e in events if e.lss > 3), default=0)",
        "reduce(lambda a, e: a + e.lss, events, 0)", "[a.lss for a, b in itertools.pairwise(events)]",
        "sum(events['lss']) / len(events)", whole,
    ],
)  # fmt: skip
def test_a_mistyped_name_in_a_reduction_is_reported_at_the_first_event(job, query):
    agent, run = job
    stream = run.stream(query, on="batch", window=1000)
    batches(agent, 1)
    soon(lambda: "Did you mean 'loss'?" in str(stream.notes), detail=lambda: stream.notes)
    assert "there are: " in str(stream.notes)
    assert not stream.arrived
    assert "window has failed" not in str(stream.notes) or "'lss'" in stream.traceback


def test_a_window_that_fails_later_says_so_at_once_and_the_next_one_no_longer(job):
    agent, run = job
    stream = run.stream("sum(1 / e.step for e in events)", on="batch", window=4)
    for step in (2, 0, 1, 1):
        assert "window has failed" not in str(stream.notes)
        agent.emit("batch", step=step)
        if not step:
            break
    soon(lambda: "window has failed" in str(stream.notes))
    assert "ZeroDivisionError" in stream.traceback
    assert stream.error_count == 0
    for _ in range(6):
        agent.emit("batch", step=1)
    soon(lambda: "window has failed" not in str(stream.notes))
    assert stream.error_count == 1
    assert [record.value for record in stream.records if not record.error] == [4.0]


def test_names_that_values_have_are_not_taken_for_observables(job):
    agent, run = job
    stream = run.stream("[(a.x.shape, b.x.sum()) for a, b in itertools.pairwise(events)]", on="batch", window=1000)
    agent.emit("batch", x=np.zeros(2))
    assert "no observable" not in str(stream.notes)


def test_a_reduction_of_what_has_arrived_fails_at_the_first_value_too(job):
    agent, run = job
    rows = run.stream("step, loss", on="batch")
    derived = rows.query("mean(v.lss for v in values)")
    batches(agent, 1)
    soon(lambda: "Did you mean 'loss'?" in derived.traceback)
    assert "window has failed" in str(derived.notes)


@pytest.mark.parametrize("query", ["lambda e: e.e + e.k", "lambda e: (e.e, e.k)", "lambda e: e['e']"])
def test_an_observable_does_not_hide_the_parameter_of_a_lambda_that_has_its_name(query):
    agent, run = pair()
    early = run.stream(query, on="batch")
    agent.emit("batch", e=2, k=1)
    known = run.stream(query, on="batch")
    agent.emit("batch", e=2, k=1)
    agent.close()
    expected = {"lambda e: e.e + e.k": 3, "lambda e: (e.e, e.k)": (2, 1), "lambda e: e['e']": 2}[query]
    assert (early.values, known.values) == ([expected] * 2, [expected])


@pytest.mark.parametrize("window", [7, looptap.seconds(1000)])
@pytest.mark.parametrize("query", ["sum(e.step for e in events)", "math.fsum([e.step for e in events])"])
def test_the_end_of_the_run_yields_the_window_that_it_cuts_off(query, window):
    agent, run = pair()
    agent.stream("declared", query, window=window)
    streams = [run.stream(query, on="batch", window=window), run.stream("declared")]
    for step in range(16):
        agent.emit("batch", step=step)
    agent.close()
    for stream in streams:
        assert sum(stream.values) == sum(range(16))
        assert [record.partial for record in stream.records] == ([False, False, True] if window == 7 else [True])
    agent, run = pair()
    stream = run.stream(query, on="batch", window=7)
    for step in range(14):
        agent.emit("batch", step=step)
    agent.close()
    assert len(stream.values) == 2
