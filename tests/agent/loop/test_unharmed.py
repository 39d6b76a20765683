"""Clients and queries never hurt the loop (S14, S18, S19, S20)."""

from __future__ import annotations

import gc
import os
import random
import signal
import statistics
import subprocess
import sys
import textwrap
import threading
import time
import weakref

import numpy as np
import pytest
import torch
import warm
from counts import FULL
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from waiting import soon

import looptap
from looptap.agent.loop.thread_time import thread_usage
from looptap.streams.preserving import graph_capture
from looptap.testing import pair, parts_of

pytestmark = pytest.mark.pure

EXCEPTIONS = [
    ValueError, TypeError, KeyError, AttributeError, ZeroDivisionError, MemoryError, RecursionError, StopIteration,
    StopAsyncIteration, GeneratorExit, SystemExit, AssertionError,
]  # fmt: skip
STAGES = {
    "mapped": "boom()",
    "filter": "(e.loss for e in events if boom())",
    "item": "sum(boom() for e in events)",
    "fold": "reduce(lambda a, e: boom(), events, 0)",
    "key": "max((e.loss for e in events), key=lambda x: boom())",
    "running": "accumulate((e.loss for e in events), lambda a, b: boom())",
    "close": "sum(e.loss for e in events) + boom()",
    "recent": "mean(boom() for e in recent(3))",
    "collected": "[boom() for i, e in enumerate(events)]",
    "group": "group_by(((boom(), 1) for e in events), mean)",
    "sliding": "max(boom() for e in events)",
    "condition": "step",
    "function of events": "lambda events: boom()",
    "lazy": "late",
    "attribute": "nasty.attribute",
    "snapshot": "nasty",
}
HOW = {"sliding": {"window": looptap.sliding(3)}, "condition": {"when": "boom()", "before": 2}}


class Nasty:
    """An object of which every use raises."""

    def __init__(self, error):
        self.__dict__["_error"] = error

    def __getattr__(self, name):
        raise self._error

    def __repr__(self):
        raise self._error

    @property
    def __class__(self):
        return type(self)


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("kind", EXCEPTIONS, ids=lambda k: k.__name__)
def test_the_loop_continues_whatever_a_query_raises(stage, kind):
    def boom():
        raise kind("boom")

    agent, run = pair("unharmed")
    agent.expose(boom=boom)
    bad = run.stream(STAGES[stage], on="batch", **HOW.get(stage, {}))
    after = run.stream("step", on="batch")
    for i in range(4):
        agent.emit("batch", step=i, loss=1.0, late=looptap.lazy(boom), nasty=Nasty(kind("boom")))
    agent.emit("epoch")
    agent.close()
    assert after.values == [0, 1, 2, 3]
    assert bad.error_count or "SystemExit" in bad.reason


def test_a_keyboard_interrupt_always_goes_through():
    def interrupted():
        raise KeyboardInterrupt

    agent, run = pair("unharmed")
    agent.expose(interrupted=interrupted)
    stream = run.stream("interrupted()", on="batch")
    for _ in range(3):
        with pytest.raises(KeyboardInterrupt):
            agent.emit("batch")
    assert agent.stats()["events"]["batch"] == 3
    assert stream.state == "live"
    agent.close()


@pytest.mark.promise("S18")
@pytest.mark.usefixtures("processes")
def test_each_of_fifty_ctrl_c_reaches_the_user(directory):
    code = """
        import looptap, signal, sys, torch
        signal.alarm(300)  # in case nothing else interrupts it
        with looptap.Agent("interrupted") as agent:
            print("ready", flush=True)
            sys.stdin.readline()
            caught = reported = step = 0
            while caught < 50:
                try:  # the next interrupt comes when this one has been reported: in here, and nowhere else
                    while True:
                        if reported < caught:
                            reported = caught
                            print(reported, flush=True)
                        agent.emit("batch", step=step, loss=torch.tensor(1.0))
                        step += 1
                except KeyboardInterrupt:
                    caught += 1
            print(caught, flush=True)
            agent.emit("batch", step=-1, loss=torch.tensor(1.0))
            print("unharmed", flush=True)
    """
    child = warm.Popen(
        [sys.executable, "-c", textwrap.dedent(code)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdin is not None
    assert child.stdout is not None
    with child:
        assert child.stdout.readline() == "ready\n"
        with looptap.attach("interrupted") as run:
            queries = ("step, loss", "mean(e.loss for e in events)", "torch.rand(2)")
            streams = [run.stream(q, on="batch", every=n, buffer=100) for n, q in enumerate(queries, 1)]
            child.stdin.write("go\n")
            child.stdin.flush()
            streams[0].wait(1, timeout=300)
            for n in range(1, 51):
                time.sleep(random.random() / 100)
                child.send_signal(signal.SIGINT)
                assert child.stdout.readline() == f"{n}\n"
            assert child.stdout.readline() == "unharmed\n"
            deadline = time.monotonic() + 60
            while streams[0].state == "live" and time.monotonic() < deadline:
                time.sleep(0.01)
            assert streams[0].latest[0] == -1
            assert streams[0].arrived + streams[0].dropped == streams[0].records[-1].number
        assert child.wait(300) == 0


# ---------------------------------------------------------------- S19: the loop's state


class Mode(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


LEFT_OPEN = []


def leave_open(context):
    """Enter the context, and keep it from being closed."""
    LEFT_OPEN.append(context)
    context.__enter__()


MEDDLING = {
    "grad mode": lambda e: torch.no_grad().__enter__(),
    "inference mode": lambda e: torch.inference_mode().__enter__(),
    "autocast": lambda e: torch.autocast("cpu", torch.bfloat16).__enter__() and None,
    "grad mode, left open": lambda e: leave_open(torch.no_grad()),
    "inference mode, left open": lambda e: leave_open(torch.inference_mode()),
    "autocast, left open": lambda e: leave_open(torch.autocast("cpu", torch.float16, cache_enabled=False)),
    "dispatch mode, left open": lambda e: leave_open(Mode()),
    "a device, left open": lambda e: leave_open(torch.device("meta")),
    "default device": lambda e: torch.set_default_device("meta"),
    "anomaly mode": lambda e: torch.autograd.set_detect_anomaly(True) and None,
    "precision": lambda e: torch.set_float32_matmul_precision("medium"),
    "only warn": lambda e: torch.use_deterministic_algorithms(True, warn_only=True),
    "saved tensors": lambda e: leave_open(torch.autograd.graph.save_on_cpu()),
    "default dtype": lambda e: torch.set_default_dtype(torch.float64),
    "threads": lambda e: torch.set_num_threads(torch.get_num_threads() + 1),
    "deterministic": lambda e: torch.use_deterministic_algorithms(True),
    "dispatch mode": lambda e: Mode().__enter__() and None,
    "the stance of torch.compile": lambda e: torch.compiler.set_stance("force_eager") and None,
    "torch's random numbers": lambda e: torch.rand(3),
    "a seed": lambda e: torch.manual_seed(0) and None,
    "random": lambda e: random.random(),
    "numpy's random numbers": lambda e: np.random.rand(),
    "dropout": lambda e: nn.functional.dropout(e.x, 0.5),
    "a new graph": lambda e: e.model(e.x).sum(),
    "text that draws": "torch.randn(2), x.sum()",
    "a reduction that draws": "mean(torch.rand(1).item() for e in events)",
    "a reduction of graphs": "sum(e.loss for e in events)",
}


def train(query=None, steps=20):
    """Return a small job's losses and random states, with ``query`` from step 5."""
    torch.manual_seed(1)
    random.seed(1)
    np.random.seed(1)
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.2), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    agent, run = pair("state")
    agent.expose(model=model)
    losses, stream = [], None
    for step in range(steps):
        if step == 5 and query is not None:
            stream = run.stream(query, on="batch")
        x = torch.randn(8, 4) + random.random() + np.random.rand()
        loss = model(x).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        agent.emit("batch", step=step, loss=loss, x=x)
    agent.emit("epoch")
    state = (
        torch.get_rng_state().tolist(), random.getstate(), np.random.get_state()[1].tolist(), torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(), torch.is_autocast_enabled("cpu"), torch.get_default_dtype(),
        torch.get_num_threads(), torch.are_deterministic_algorithms_enabled(), torch._C._len_torch_dispatch_stack(),
        torch._C._len_torch_function_stack(), torch.get_default_device(), torch.ones(1).device,
        torch.is_anomaly_enabled(), torch.get_float32_matmul_precision(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        torch.is_autocast_cache_enabled(), torch.get_autocast_dtype("cpu"),
        torch._C._autograd._top_saved_tensors_default_hooks(False), torch._dynamo.eval_frame._stance,
    )  # fmt: skip
    agent.close()
    return losses, state, stream


@pytest.fixture(scope="module")
def bare():
    return train()[:2]


@pytest.mark.parametrize("what", MEDDLING)
def test_a_query_leaves_the_state_of_the_loop_as_it_was(what, bare):
    losses, state, stream = train(MEDDLING[what])
    assert losses == bare[0]
    assert state == bare[1]
    assert stream.arrived or stream.error_count


def test_observables_are_dead_after_the_event_whatever_a_query_keeps():
    hoard = []
    agent, run = pair("memory")
    agent.expose(hoard=hoard.append)
    queries = {
        "hoard(e) or x.sum()": True,
        "hoard(x) or x.sum()": False,
        "sum(e.x.sum() for e in events)": False,
        "1 / 0 * x": False,
        "[a.step for a, b in itertools.pairwise(events)]": False,
    }
    streams = [run.stream(query, on="batch", unsafe=unsafe) for query, unsafe in queries.items()]
    for step in range(10):
        x = torch.ones(3, requires_grad=True) * 2
        dead = weakref.ref(x)
        agent.emit("batch", step=step, x=x)
        del x
        gc.collect()
        assert dead() is None
    assert len(hoard) == streams[0].arrived == 10
    assert (streams[1].arrived, streams[1].error_count) == (0, 1)  # refused: it would keep a tensor of the job
    agent.close()


class Mark:
    """An object that lives as long as the graph node that holds it."""


def test_a_graph_is_not_kept_by_a_reduction():
    agent, run = pair("memory")
    total = run.stream("reduce(lambda a, e: a + e.loss, events, 0)", on="batch")
    w = torch.ones(3, requires_grad=True)
    grown = []
    for _ in range(50):
        loss = (w * 2).sum()
        loss.grad_fn.metadata["mark"] = mark = Mark()
        grown.append(weakref.ref(mark))
        agent.emit("batch", loss=loss)
        del loss, mark
    assert not [g for g in grown if g() is not None]
    agent.emit("epoch")
    assert total.values == [300.0]
    agent.close()


# ---------------------------------------------------------------- S20, S14: threads


@pytest.mark.promise("S20")
@pytest.mark.parametrize("queries", [0, 2])
def test_events_from_eight_threads_are_counted_exactly_and_in_order(queries):
    agent, run = pair("threads")
    streams = [run.stream(q, on="batch", buffer=100_000) for q in ("event_number", "len(events)")[:queries]]
    go, each = threading.Barrier(8), 10_000 if FULL or not queries else 2_500

    def work():
        go.wait()
        for i in range(each):
            agent.emit("batch", step=i)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    agent.emit("epoch")
    assert agent.stats()["events"]["batch"] == 8 * each
    if queries:
        assert streams[0].values == list(range(1, 8 * each + 1))
        assert streams[1].values == [8 * each]
    agent.close()


def test_a_blocked_io_thread_neither_slows_the_loop_nor_goes_uncounted(directory):
    agent = looptap.Agent("blocked", limits=looptap.Limits(outbox_values=1000))
    with looptap.attach("blocked") as run:
        stream = run.stream("step", on="batch")
        release = threading.Event()
        parts_of(agent).connection.post(lambda: release.wait(300))
        agent.emit("batch", step=0)
        times, (_, waits) = [], thread_usage()
        for step in range(1, 5000):
            started = time.thread_time()
            agent.emit("batch", step=step)
            times.append(time.thread_time() - started)
        waited = thread_usage()[1] - waits  # of itself: that others had the processor does not count
        release.set()
        agent.emit("batch", step=5000)
        stream.wait(1000, timeout=300)
        agent.close()
        soon(lambda: stream.state != "live")
        assert waited < 50
        assert statistics.quantiles(times, n=100)[98] < 200e-6
        assert stream.dropped > 3000
        assert stream.arrived + stream.dropped == 5001


# ---------------------------------------------------------------- inert agents


def test_an_inert_agent_takes_every_call(monkeypatch, tmp_path):
    import pickle

    monkeypatch.setenv("LOOPTAP_DIR", str(tmp_path / "missing"))
    monkeypatch.setenv("RANK", "3")
    missing = looptap.Agent("job")
    filtered = looptap.Agent("job", ranks=[0])
    monkeypatch.setenv("LOOPTAP_DISABLED", "1")
    for agent in (missing, filtered, looptap.Agent("job"), looptap.Agent("job", enabled=False),
                  pickle.loads(pickle.dumps(missing))):  # fmt: skip
        agent.expose(model=1)
        agent.emit("batch", loss=1)
        agent.emit("anything", loss=1)
        agent.end_group("batch")
        assert "inert" in repr(agent)
        assert not any(agent.stats()["events"].values())
        agent.close()


def test_mistakes_of_the_host_are_logged_once_and_never_raised(caplog):
    agent, _ = pair("mistaken")
    for _ in range(3):
        agent.emit(["not a name"], x=1)
    assert len([r for r in caplog.records if "loop continues" in r.message]) == 1
    for i in range(2000):
        agent.emit(f"type{i}")
    assert len(agent.stats()["events"]) <= 1000
    agent.close()


@pytest.mark.parametrize("name", ["", "a/b", "x" * 101, 3, "new\nline"])
def test_a_bad_name_is_a_sentence_at_construction(name):
    with pytest.raises(ValueError, match="a run's name is"):
        looptap.Agent(name)


@pytest.mark.usefixtures("processes")
def test_a_forked_child_has_an_inert_agent_and_leaves_its_parents_alone(directory):
    with looptap.Agent("parent") as agent, looptap.attach("parent") as run:
        stream = run.stream("step", on="batch")
        child = os.fork()
        if child == 0:
            agent.emit("batch", step=99)
            agent.close()
            os._exit(0 if "inert" in repr(agent) else 1)
        assert os.waitpid(child, 0)[1] == 0
        agent.emit("batch", step=1)
        assert stream.wait(1, timeout=300) == [1]


@pytest.mark.usefixtures("processes")
def test_dataloader_workers_by_fork_do_not_disturb_the_stream(directory):

    class Data(torch.utils.data.Dataset):
        def __len__(self):
            return 32

        def __getitem__(self, i):
            agent.emit("read", i=i)  # inert in the worker
            return torch.tensor(float(i))

    with looptap.Agent("loader") as agent, looptap.attach("loader") as run:
        stream = run.stream("n", on="batch")
        for _ in range(2):
            loader = torch.utils.data.DataLoader(Data(), batch_size=8, num_workers=2, multiprocessing_context="fork")
            for batch in loader:
                agent.emit("batch", n=len(batch))
        assert stream.wait(8, timeout=300) == [8] * 8


@pytest.mark.parametrize("ours", ["cpu", None])
def test_a_default_device_that_the_job_has_chosen_stays(ours):
    agent, run = pair("device")
    torch.set_default_device(ours)
    try:
        run.stream(lambda e: torch.set_default_device("meta"), on="batch")
        run.stream(lambda e: leave_open(torch.device("meta")), on="batch")
        depth = torch._C._len_torch_function_stack()
        for _ in range(3):
            agent.emit("batch")
            assert torch._C._len_torch_function_stack() == depth
            assert torch.ones(1).device.type == "cpu"
    finally:
        torch.set_default_device(None)
    assert torch._C._len_torch_function_stack() == 0
    agent.close()


class Calls(TorchFunctionMode):
    """A function mode that notes what is called."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.seen.append(func)
        return func(*args, **(kwargs or {}))


class Operations(Mode):
    """A dispatch mode that notes each operation."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen.append(func)
        return func(*args, **(kwargs or {}))


QUERIES_IN_MODES = (
    "lambda e: torch.rand(2)", "x", "loss", "loss * 2", "model(x).sum()", "(x * 2).sum()",
    "layer_norms(model, 'weight')", "mean(e.x for e in events)", "max(e.loss for e in events)", "torch.ones(2).sum()",
)  # fmt: skip


@pytest.mark.parametrize("device", [None, "cpu"])
def test_the_modes_that_the_job_has_entered_stay_and_see_nothing_of_queries(device):
    agent, run = job = pair("modes", manual=True)
    model, x, calls, operations = nn.Linear(4, 2), torch.ones(3, 4), Calls(), Operations()
    agent.expose(model=model)
    streams = [run.stream(text, on="batch") for text in QUERIES_IN_MODES]
    streams.append(run.stream("x", on="batch", unsafe=True))
    loss = model(x).sum()
    try:
        torch.set_default_device(device)
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16), operations, calls:
            before = torch._C._len_torch_dispatch_stack(), torch._C._len_torch_function_stack()
            for _ in range(4):
                agent.emit("batch", x=x, loss=loss)
            agent.log(picture=x, loss=loss)
            agent.end_group("batch")
            agent.emit("epoch")
            assert not torch.is_grad_enabled()
            assert torch.is_autocast_enabled("cpu")
            assert (torch._C._len_torch_dispatch_stack(), torch._C._len_torch_function_stack()) == before
    finally:
        torch.set_default_device(None)
    assert (operations.seen, calls.seen) == ([], [])
    assert torch._C._len_torch_dispatch_stack() == torch._C._len_torch_function_stack() == 0
    with torch.inference_mode():
        agent.emit("batch", x=x, loss=loss)
        assert torch.is_inference_mode_enabled()
    assert torch.is_grad_enabled()
    job.deliver()
    agent.close()
    assert [(stream.text, stream.traceback) for stream in streams if stream.error_count or not stream.arrived] == []


@pytest.mark.parametrize("where", ["a mode of torch's own that traces", "a transform"])
def test_a_query_is_refused_where_torch_itself_would_see_it(where):
    agent, run = pair("transforms")
    stream = run.stream(lambda e: torch.rand(2), on="batch")
    if where == "a transform":
        torch.func.vmap(lambda x: agent.emit("batch") or x)(torch.ones(2))
    else:
        with FakeTensorMode(), Mode():
            agent.emit("batch")
            assert torch._C._len_torch_dispatch_stack() == 2
    assert stream.error_count == 1
    assert "which would see the query's tensor operations" in stream.traceback
    agent.close()


@pytest.mark.usefixtures("processes")
def test_an_event_loads_no_library_that_the_job_has_not():
    program = """
        import sys, torch
        from looptap.testing import pair
        agent, run = pair("lean")
        stream = run.stream("lambda e: e.x", on="batch")
        agent.emit("warm", x=1)
        loaded = set(sys.modules)
        agent.emit("batch", x=1)
        agent.emit("batch", x=torch.ones(1))
        print(stream.arrived, sorted(set(sys.modules) - loaded))
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, check=True)
    assert done.stdout == "2 []\n"


# ---------------------------------------------------------------- CUDA graphs


def test_inside_a_cuda_graph_an_event_is_only_counted_with_one_warning(monkeypatch, caplog):
    """Here the device is a fake; tests/agent/loop/test_cuda.py captures a real graph."""
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: captures[-1])
    monkeypatch.setattr(graph_capture, "captured", 0)
    captures, agent, run = [False], *pair("graph")
    streams = [run.stream(q, on="batch") for q in ("step", lambda e: e.step, "len(events)")]
    for step in range(9):
        captures.append(step % 3 == 1)
        agent.emit("batch", step=step)
    captures.append(False)
    agent.emit("epoch")
    assert [stream.values for stream in streams] == [[0, 2, 3, 5, 6, 8]] * 2 + [[6]]
    stats = agent.stats()
    assert (stats["events"]["batch"], stats["events_in_cuda_graphs"]) == (9, 3)
    assert len([r for r in caplog.records if "CUDA graph" in r.message]) == 1
    agent.close()


def test_without_queries_cuda_graphs_are_not_checked(monkeypatch):
    asked = []
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: True)
    monkeypatch.setattr(graph_capture, "capturing", lambda: asked.append(True))
    agent, run = pair("graph")
    for step in range(3):
        agent.emit("batch", step=step)
    assert asked == []
    stream = run.stream("step", on="batch")
    agent.emit("batch", step=3)
    assert (asked, stream.values) == ([True], [3])
    agent.close()
