"""Functions, libraries and the process: a question that changes them is refused."""

from __future__ import annotations

import array
import builtins
import collections
import contextlib
import contextvars
import copy
import decimal
import functools
import gc
import io
import os
import queue
import signal
import sys
import threading
import types
import warnings
import weakref

import numpy as np
import pytest
import torch
from guarded_jobs import ask
from torch import nn

import looptap
from looptap.streams.errors import QueryError
from looptap.testing import pair

variable: contextvars.ContextVar[int] = contextvars.ContextVar("variable", default=0)


def refused(query, event=None, /, **exposed):
    """Ask, and return why it was refused."""
    try:
        said = ask(query, event, **exposed).traceback or ""
    except QueryError as error:
        said = str(error)
    assert "not known to be harmless" in said or "Refused" in said
    assert "unsafe=True" in said or "run.call" in said
    return said


class Listing(list):
    """A list whose items are set by a method of the job's."""

    def put(self, items):
        super().__setitem__(slice(None), items)
        return len(self)


def put_slice(items):
    own = [1]
    own[:] = items
    return own


def put_bytes(items):
    own = bytearray(3)
    own[0:1] = items
    return len(own)


def put_byte(items):
    own = bytearray(3)
    own[0] = items
    return len(own)


class Indexed:
    """An object that is a number and a sequence by methods of the job's own."""

    def __init__(self):
        self.asked = []

    def __index__(self):
        self.asked.append("index")
        return 1

    def __iter__(self):
        self.asked.append("iter")
        return iter([1, 2])

    def __len__(self):
        self.asked.append("len")
        return 2


@pytest.mark.parametrize("put", [put_slice, put_bytes, lambda items: Listing().put(items)])
def test_a_slice_is_not_made_of_an_iterator_of_the_job(put):
    items = iter([1, 2, 3])
    refused("put(items)", None, put=put, items=items)
    assert list(items) == [1, 2, 3]


@pytest.mark.parametrize("put", [put_slice, put_bytes, put_byte, lambda items: Listing().put(items)])
def test_a_slice_is_not_made_of_an_object_whose_code_would_run(put):
    thing = Indexed()
    refused("put(thing)", None, put=put, thing=thing)
    assert thing.asked == []


def test_a_slice_is_made_of_what_is_plain():
    assert ask("put([1, 2]), put_bytes(b'ab'), put_byte(7), Listing().put((1, 2))", None, put=put_slice,
               put_bytes=put_bytes, put_byte=put_byte, Listing=Listing).values == [([1, 2], 4, 3, 2)]  # fmt: skip


PROCESS = {
    "gc.disable() or 1": gc.isenabled,
    "gc.set_threshold(3) or 1": gc.get_threshold,
    "warnings.simplefilter('ignore') or 1": lambda: list(warnings.filters),
    "os.environ.update(ZZ='1') or 1": lambda: dict(os.environ),
    "os.environ.pop('PATH')": lambda: dict(os.environ),
    "os.chdir('/') or 1": os.getcwd,
    "sys.path.append('x') or 1": lambda: list(sys.path),
    "sys.setrecursionlimit(900) or 1": sys.getrecursionlimit,
    "signal.signal(10, print) and 1": lambda: signal.getsignal(10),
    "setattr(decimal.getcontext(), 'prec', 3) or 1": lambda: decimal.getcontext().prec,
    "setattr(sys, 'stdout', None) or 1": lambda: sys.stdout,
    "os.system('true')": os.getpid,
}


@pytest.mark.parametrize("query", PROCESS)
def test_what_all_code_of_the_process_shares_is_not_changed(query):
    module = query.removeprefix("setattr(").partition(".")[0].partition(",")[0]
    before = PROCESS[query]()
    refused(f"def q(e):\n    import {module}\n    return {query}")
    assert PROCESS[query]() == before


MODES = (
    "torch.set_flush_denormal(True)",
    "torch.backends.cuda.enable_flash_sdp(False)",
    "torch._C._set_fwd_grad_enabled(False)",
    "torch._C._set_multithreading_enabled(False)",
    "torch.clear_autocast_cache()",
    "torch.set_default_dtype(torch.float64)",
    "torch.set_num_threads(1)",
    "np.seterr(all='raise')",
)


@pytest.mark.parametrize("query", MODES)
def test_modes_of_the_process_are_not_changed(query):
    refused(query)


class Thing:
    def __init__(self):
        self.numbers, self.view = array.array("d", [1, 2]), memoryview(bytearray(b"xyz"))
        self.weight, self.tasks, self.lock = torch.ones(3), queue.Queue(), threading.Lock()
        self.reference, self.others = weakref.ref(self.weight), weakref.WeakValueDictionary(w=self.weight)
        self.sobol, self.file = torch.quasirandom.SobolEngine(2, scramble=True, seed=1), io.BytesIO(b"abcdef")
        self.rng, self.seeds = np.random.default_rng(1), np.random.SeedSequence(5)
        self.masked = np.ma.masked_array(np.arange(4.0), mask=[0, 1, 0, 0])
        self.user, self.chain = collections.UserDict(a=1), collections.ChainMap({"a": 1})
        self.normal = torch.distributions.Normal(torch.zeros(2), torch.ones(2))
        self.strided, self.simple = np.ones((40, 40))[::2, ::2], types.SimpleNamespace(x=1)
        self.tasks.put(1)
        self.closing = functools.partial(self.numbers.append, 4.0)

    def by_context(self):
        variable.set(5)

    def by_import(self):
        import sys as own

        own.path.append("x")

    def by_class(self):
        Thing.shared = 3


CHANGES = (
    "thing.numbers.append(4.0)",
    "operator.setitem(thing.view, 0, 65)",
    "thing.reference().zero_().sum()",
    "thing.others['w'].data.zero_().sum()",
    "thing.tasks.get()",
    "thing.lock.acquire()",
    "thing.file.read()",
    "thing.file.write(b'x')",
    "thing.sobol.draw(1).sum()",
    "thing.rng.spawn(2)[0].normal()",
    "thing.seeds.spawn(2)[0]",
    "thing.masked.__setitem__(0, 9)",
    "thing.masked.mask.fill(True)",
    "thing.user.update(b=2)",
    "thing.chain.update(b=2)",
    "thing.normal.loc.data.add_(1).sum()",
    "thing.strided.__setitem__((3, 3), 7)",
    "thing.closing()",
    "thing.by_context()",
    "thing.by_import()",
    "thing.by_class()",
    "thing.simple.__dict__.update(x=2)",
    "thing.weight.grad_fn.register_hook(print)",
    "thing.tasks.queue.clear()",
    "thing.others.clear()",
    "thing.user.data.clear()",
)


def state(thing):
    return (
        list(thing.numbers),
        bytes(thing.view),
        thing.weight.tolist(),
        thing.tasks.qsize(),
        thing.lock.locked(),
        thing.file.tell(),
        thing.file.getvalue(),
        thing.sobol.num_generated,
        str(thing.rng.bit_generator.state),
        thing.rng.bit_generator.seed_seq.n_children_spawned,
        thing.seeds.n_children_spawned,
        thing.masked.tolist(),
        dict(thing.user),
        dict(thing.chain),
        thing.normal.loc.tolist(),
        thing.strided.sum(),
        thing.simple.x,
        variable.get(),
        list(sys.path),
        sorted(vars(Thing)),
        dict(thing.others),
        torch.get_rng_state().tolist(),
    )


@pytest.mark.parametrize("query", CHANGES)
def test_objects_of_libraries_are_left_as_they_were(query):
    thing = Thing()
    before = state(thing)
    stream = ask(query, thing=thing)
    assert state(thing) == before
    assert stream.error_count == 1


@pytest.mark.filterwarnings("ignore:`torch.jit")
@pytest.mark.parametrize("query", ["script(x).sum()", "script.eval() and 1", "script.fc.weight.data.zero_().sum()"])
def test_a_scripted_module_is_not_run(query):
    class Scripted(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc, self.norm = nn.Linear(4, 4), nn.BatchNorm1d(4)

        def forward(self, x):
            return self.norm(self.fc(x))

    script = torch.jit.script(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)))
    before = {name: value.clone() for name, value in script.state_dict().items()}
    stream = ask(query.replace("script.fc", "script[0]"), {"x": torch.randn(4, 4)}, script=script)
    assert stream.error_count == 1
    assert all(torch.equal(value, before[name]) for name, value in script.state_dict().items())
    assert all(module.training for module in script.modules())


EVENT = (
    "def q(e):\n    e.loss = 9\n    return 1",
    "def q(e):\n    del e.__dict__['loss']\n    return 1",
    "def q(e):\n    e.more = 9\n    return 1",
)


@pytest.mark.parametrize("query", EVENT)
def test_other_queries_see_the_event_as_the_loop_emitted_it(query):
    agent, run = pair("event")
    agent.expose(late=looptap.lazy(lambda: [5]))
    changing, grown, late = run.stream(query), run.stream("late.append(1) or 1"), run.stream("late[-1]")
    loss, more = run.stream("loss"), run.stream("'more' in e.__dict__")
    agent.emit("batch", loss=0.5)
    agent.close()
    assert (loss.values, late.values) == ([0.5], [5])
    assert more.values in ([False], [])
    assert changing.error_count == grown.error_count == 1


@pytest.mark.usefixtures("processes")
def test_a_loader_that_keeps_its_workers_is_not_reset():
    loader = torch.utils.data.DataLoader(range(8), batch_size=2, num_workers=1, persistent_workers=True)
    ours = iter(loader)
    first = next(ours)
    refused("sum(1 for _ in loader)", loader=loader)
    assert ask("len(loader) + loader.batch_size", loader=loader).latest == 6
    assert loader._iterator is ours
    assert [first.tolist(), *(batch.tolist() for batch in ours)] == [[0, 1], [2, 3], [4, 5], [6, 7]]


def graph():
    w = torch.ones(3, requires_grad=True)
    h = w * 2
    return w, h, (h * h).sum()


@pytest.mark.parametrize(
    "query",
    [
        "torch.autograd.grad(loss, w)[0].sum()",
        "loss.backward()",
        "torch.autograd.backward(loss)",
        "h.detach_().sum()",
        "h.mul_(0).sum()",
        "h.set_(torch.zeros(1)).sum()",
        "h.retain_grad()",
        "(w * 3).sum().backward()",
        "next(map(torch.autograd.backward, [loss]))",
        "def q(e):\n    e.loss.backward()",
        "h.register_hook(print)",
    ],
)
def test_the_graph_of_the_loop_stays_whole(query):
    w, h, loss = graph()
    refused(query, {"w": w, "h": h, "loss": loss})
    assert w.grad is None
    loss.backward()
    assert w.grad.tolist() == [8, 8, 8]


def accuracy(output, target, *, best=1):
    with torch.no_grad():
        counts = []
        for row, wanted in zip(output.topk(best).indices, target, strict=True):
            counts.append(float(wanted in row))
        return sum(counts) / len(counts)


class Scores:
    scale = 2

    def __init__(self):
        self.values = [1.0, 3.0]

    @property
    def mean(self):
        return sum(self.values) / len(self.values) * self.scale

    def __getitem__(self, place):
        return self.values[place]

    def __len__(self):
        return len(self.values)


@pytest.mark.parametrize(
    ("query", "answer"),
    [
        ("accuracy(out, y)", 1.0),
        ("accuracy(out, y, best=2)", 1.0),
        ("scores.mean", 4.0),
        ("scores[1] + scores.scale", 5.0),
        ("len(scores) + scores.scale", 4),
        ("max(scores.values)", 3.0),
        ("scores.scale if scores else 0", 2),
        ("[s for s in scores.values]", [1, 3]),
        ("sorted({'a': 2, 'b': 1}.items(), key=operator.itemgetter(1))[0][0]", "b"),
        ("getattr(scores, 'me' + 'an')", 4.0),
        ("list(filter(lambda v: v > 1, scores.values))", [3.0]),
        ("dict(zip('ab', scores.values))['b']", 3.0),
        ("functools.reduce(lambda a, b: a + b, scores.values)", 4.0),
        ("{(1, 2): 3}[(1, 2)]", 3),
        ("np.add.reduce(np.array(scores.values))", 4.0),
        ("(lambda *a: sum(a))(*scores.values)", 4.0),
    ],
)
def test_harmless_functions_and_classes_of_the_job_are_followed(query, answer):
    event = {"out": torch.eye(3), "y": torch.arange(3)}
    stream = ask(query, event, accuracy=accuracy, scores=Scores())
    assert not stream.error_count, stream.traceback
    found = stream.latest
    assert (list(found) if isinstance(answer, list) else found) == answer


def test_of_two_functions_on_a_line_the_one_that_was_asked_is_followed():
    add, less = (lambda a, b: a + b), (lambda a, b: a - b)
    assert ask("less(5, 3) + add(1, 1)", add=add, less=less).latest == 4


class Private:
    def private(self, __by):
        return __by + 1


def test_functions_with_defaults_of_an_enclosing_function_and_private_arguments_are_followed():
    functions = [lambda x, by=by: x * by for by in (2, 3)]
    private = Private()
    assert ask("functions[1](2) + private.private(3)", functions=functions, private=private).latest == 10


def test_distributions_are_made_in_a_question():
    query = "torch.distributions.Categorical(logits=x).entropy().mean()"
    assert ask(query, {"x": torch.zeros(2, 4)}).latest == pytest.approx(np.log(4))


class Tripled(property):
    """A property that computes more than its function."""

    def __get__(self, value, owner=None):
        return 3 * super().__get__(value, owner)


class Ending:
    """Counts its ends, and hides what is refused."""

    log: list[int] = []  # noqa: RUF012  # for all of them

    def __init__(self):
        self.items = []

    def __del__(self):
        self.log.append(1)

    def by_finally(self):
        try:
            self.items.append(1)
        finally:
            return 7  # noqa: B012  # that is what it is about

    def by_suppress(self):
        with contextlib.suppress(BaseException):
            self.items.append(1)
        return 7

    @Tripled
    def tripled(self):
        return 2


class Builtins(dict):
    """Builtins that count what is looked up."""

    def __getitem__(self, name):
        Ending.log.append(2)
        return super().__getitem__(name)


def test_a_refusal_is_not_hidden_and_a_copy_has_no_end():
    thing = Ending()
    names = {"__builtins__": Builtins(vars(builtins))}
    made = types.FunctionType(accuracy.__code__, names)
    for query in ("thing.by_finally()", "thing.by_suppress()", "copy_of(thing)", "thing.tripled", "made(1, 2)"):
        refused(query, thing=thing, copy_of=copy.copy, made=made)
    assert (thing.items, Ending.log) == ([], [])


def test_a_refusal_names_the_line_of_the_job():
    log = []

    def noted(value):
        log.append(value)
        return value

    said = refused("noted(1)", noted=noted)
    assert "log.append(value)" in said
    assert ".append() would change a list of the job" in said
    assert log == []
