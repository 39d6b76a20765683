"""`Run.watch_function`: calls of a function of the job as events."""

import gc
import itertools
import os
import random
import sys
import threading
import weakref

import pytest

from looptap.agent.loop.calls.call_events import function_of
from looptap.agent.loop.calls.short_values import short
from looptap.streams.errors import QueryError
from looptap.testing import pair

OLD = sys.version_info < (3, 12)
WATCHES = pytest.mark.skipif(OLD, reason="sys.monitoring came with Python 3.12")


class Things:
    """What a job holds."""


def evaluate(model, data, *, scale=1.0):
    model, total = (None, 0.0) if model else (model, 0.0)
    for x in data:
        total += x * scale
    return total


class Trainer:
    """A class with a method of the same name."""

    def evaluate(self, epoch):
        accuracy = epoch / 10
        return {"accuracy": accuracy}


def failing(x):
    raise ValueError(f"no {x}")


def counting(count):
    yield from range(count)
    return "all"


def tools():
    return [] if OLD else [tool for tool in range(6) if sys.monitoring.get_tool(tool) == "looptap"]


@pytest.fixture
def job():
    agent, run = pair("job")
    yield agent, run
    agent.close()
    assert tools() == []


@pytest.mark.skipif(not OLD, reason="sys.monitoring is there")
def test_an_older_python_is_named_with_a_way_out(job):
    with pytest.raises(QueryError, match=r"needs Python 3\.12 or newer .* it runs 3\.11.*agent\.emit"):
        job[1].watch_function("evaluate")


@pytest.mark.parametrize("name", ["", "evaluate()", "a b", "3x", "a..b"])
def test_what_is_no_name_of_a_function_is_refused(job, name):
    with pytest.raises(QueryError, match="no name of a function"):
        job[1].watch_function(name)


def test_an_event_that_the_job_itself_raises_under_such_a_name_stays_one(job):
    agent, run = job
    agent.emit("evaluate()", loss=1.0)
    stream = run.stream("loss", on="evaluate()")
    agent.emit("evaluate()", loss=2.0)
    evaluate(None, [1])
    assert stream.values == [2.0]


def test_names_of_events_that_are_functions():
    assert [function_of(name) for name in ("a()", "a.b()", "a", "()", "a()()", "a b()", "batch")] == [
        "a", "a.b", "", "", "", "", "",
    ]  # fmt: skip


def test_a_small_value_stays_and_a_large_one_becomes_a_text():
    torch = pytest.importorskip("torch")
    assert short([1, "a", (None, 2.5), {"x": {"y": {"z": 1}}}]) == [1, "a", [None, 2.5], {"x": {"y": "<dict of 1>"}}]
    assert short(torch.zeros(64, 10)) == "<Tensor (64, 10) float32>"
    assert short(torch.ones(2)).tolist() == [1, 1]
    assert short("x" * 1000) == "x" * 200 + "…"
    assert short(Things()) == "<Things>"


@WATCHES
def test_each_call_is_an_event_with_arguments_as_at_the_call_and_the_result(job):
    stream = job[1].watch_function("evaluate")
    assert evaluate(Things(), [1, 2], scale=3.0) == 9.0
    assert Trainer().evaluate(4) == {"accuracy": 0.4}
    assert [tuple(row) for row in stream.values] == [
        ({"model": "<Things>", "data": [1, 2], "scale": 3.0}, 9.0),
        ({"self": "<Trainer>", "epoch": 4}, {"accuracy": 0.4}),
    ]


@WATCHES
def test_a_longer_name_tells_functions_apart_and_variables_are_read_at_the_end(job):
    stream = job[1].watch_function("Trainer.evaluate", "accuracy, epoch, function, seconds < 60, exception")
    evaluate(None, [1])
    Trainer().evaluate(5)
    assert [tuple(row) for row in stream.values] == [(0.5, 5, f"{__name__}.Trainer.evaluate", True, None)]


@WATCHES
def test_a_function_that_is_defined_later_and_one_inside_another_are_found(job):
    stream = job[1].watch_function("inner", "result")
    exec(compile("def inner(): return 'later'", "job.py", "exec"), space := {"__name__": "job"})
    space["inner"]()

    def inner():
        return tuple(kept)

    kept = [1, 2]
    inner()
    assert stream.values == ["later", (1, 2)]


@WATCHES
def test_a_call_that_raises_is_an_event_and_raises_what_it_raised(job):
    stream = job[1].watch_function("failing", "arguments, result, exception")
    with pytest.raises(ValueError, match="no 3"):
        failing(3)
    assert [tuple(row) for row in stream.values] == [({"x": 3}, None, "ValueError: no 3")]


@WATCHES
def test_a_generator_is_an_event_when_it_is_exhausted(job):
    stream = job[1].watch_function("counting")
    assert [*counting(3)] == [0, 1, 2]
    broken_off = counting(9)
    next(broken_off)
    broken_off.close()
    assert [tuple(row) for row in stream.values] == [({"count": 3}, "all")]


@WATCHES
def test_a_call_that_was_under_way_ends_with_an_event(job):
    run, streams = job[1], []

    def training(count):
        streams.append(run.watch_function("training", "arguments, result, seconds"))
        count -= 1
        return count

    training(3)
    assert [tuple(row) for row in streams[0].values] == [({"count": 2}, 2, None)]


@WATCHES
def test_it_ends_with_the_last_reader_and_is_there_again_with_the_next(job):
    run = job[1]
    first, second = (
        run.watch_function("evaluate", "result"),
        run.stream("mean(e.result for e in events)", on="evaluate()", window=2),
    )
    assert len(tools()) == 1
    evaluate(None, [1])
    first.close()
    evaluate(None, [3])
    assert len(tools()) == 1
    second.close()
    assert tools() == []
    evaluate(None, [5])
    third = run.watch_function("evaluate", "result")
    evaluate(None, [7])
    assert (first.values, second.values, third.values) == ([1.0], [2.0], [7.0])


@WATCHES
def test_a_query_on_other_events_reads_the_newest_call(job):
    agent, run = job
    stream = run.stream("step, latest('Trainer.evaluate()').accuracy", on="batch")
    agent.emit("batch", step=0)
    Trainer().evaluate(7)
    agent.emit("batch", step=1)
    assert [tuple(row) for row in stream.values] == [(0, None), (1, 0.7)]
    stream.close()
    assert tools() == []


@WATCHES
def test_a_stop_is_raised_where_the_function_ends():
    class Stop(Exception):
        pass

    agent, run = pair("stopping", on_stop=Stop)
    stream = run.watch_function("evaluate", "result", budget=float("inf"))
    asking = threading.Thread(target=run.stop, kwargs={"on": "evaluate()"})
    asking.start()
    calls = itertools.count()
    with pytest.raises(Stop):  # noqa: PT012 - it calls until it is stopped
        while next(calls) >= 0:
            evaluate(None, [1])
    asking.join()
    assert stream.values == [1.0] * next(calls)
    agent.close()


@WATCHES
def test_nothing_of_a_call_lives_longer(job):
    stream = job[1].watch_function("evaluate", "result, data")
    model = Things()
    gone = weakref.ref(model)
    evaluate(model, [1])
    del model
    gc.collect()
    assert gone() is None
    assert len(stream.values) == 1


@pytest.mark.promise("functions")
@WATCHES
def test_a_watched_job_computes_the_same(job):
    def steps():
        draw = random.Random(0)
        return [evaluate(None, [draw.random() for _ in range(3)]) for _ in range(200)]

    plain = steps()
    stream = job[1].watch_function("evaluate", "result", budget=float("inf"))
    assert steps() == plain
    assert stream.values == plain


@WATCHES
def test_calls_on_several_threads_are_all_events(job):
    stream = job[1].watch_function("Trainer.evaluate", "epoch", budget=float("inf"), latency="low")
    threads = [threading.Thread(target=lambda: [Trainer().evaluate(n) for n in range(100)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(stream.values) == sorted([*range(100)] * 4)


@WATCHES
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")
@pytest.mark.usefixtures("processes")
def test_a_forked_child_watches_nothing(job):
    stream = job[1].watch_function("evaluate", "result")
    child = os.fork()
    if child == 0:
        evaluate(None, [1])
        os._exit(len(tools()))
    assert os.waitpid(child, 0)[1] == 0
    evaluate(None, [2])
    assert stream.values == [2.0]


@WATCHES
def test_the_places_of_other_tools_are_left_alone(job):
    taken = [tool for tool in (4, 3, 5, 2) if sys.monitoring.get_tool(tool) is None]
    for tool in taken:
        sys.monitoring.use_tool_id(tool, "another")
    try:
        with pytest.raises(QueryError, match="all taken in the job, by another"):
            job[1].watch_function("evaluate")
    finally:
        for tool in taken:
            sys.monitoring.free_tool_id(tool)
