"""The state guard: a query's changes are restored, refused, or reported by name."""

from __future__ import annotations

import collections
import functools
import io
import random
import threading

import numpy as np
import pytest
import torch
from guarded_jobs import ask, reported
from torch import nn
from waiting import soon

import looptap
from looptap.streams.errors import QueryError
from looptap.streams.language.compiler import QuerySpec, compile_query
from looptap.testing import pair


class Odd:
    """An object that runs code in whatever way it is read."""

    def __init__(self):
        self.count, self.rng = 0, np.random.default_rng(5)

    @property
    def draws(self):
        return self.rng.normal()

    @functools.cached_property
    def cached(self):
        return torch.rand(1).item()

    def __getitem__(self, key):
        self.count += 1
        return torch.rand(2)

    def __add__(self, other):
        self.count += 1
        return other

    def __bool__(self):
        self.count += 1
        return True

    def __eq__(self, other):
        self.count += 1
        return False

    __hash__ = None

    def __format__(self, how):
        self.count += 1
        return "odd"


class Slotted:
    __slots__ = ("count",)

    def __init__(self):
        self.count = 0

    def step(self):
        self.count += 1
        return self.count


class Stream(torch.utils.data.IterableDataset):
    """An iterator that continues where the last one stopped."""

    def __init__(self):
        self.numbers = iter(range(100))

    def __iter__(self):
        return self.numbers


@pytest.mark.parametrize(
    "query",
    [
        "odd.draws", "odd.cached", "odd[0].sum()", "odd + 1", "1 if odd else 2", "odd == 1", "f'{odd}'", "not odd",
        "[odd][0] + 1", "max([odd, odd], key=lambda o: o + 1) + 2", "{'a': odd}['a'] + 1",
        "(lambda o: o[0])(odd).sum()",
        "next(map(operator.itemgetter(0), [odd])).sum()", "'{0:}'.format(odd)", "any([odd])", "odd in [odd, 1]",
    ],
)  # fmt: skip
def test_reading_an_object_of_the_job_leaves_it_as_it_was(query):
    odd, torchs = Odd(), torch.get_rng_state()
    state = str(odd.rng.bit_generator.state)
    ask(query, odd=odd)
    assert set(vars(odd)) == {"count", "rng"}
    assert odd.count == 0
    assert str(odd.rng.bit_generator.state) == state
    assert torch.equal(torch.get_rng_state(), torchs)


@pytest.mark.parametrize("where", ["observable", "declared"])
@pytest.mark.parametrize(
    "query", ["things[0] + 1", "[t + 1 for t in things][0]", "sum(things, start=0)", "things[:1][0] + 1"]
)
def test_objects_in_plain_containers_are_seen(query, where):
    odd = Odd()
    if where == "declared":
        ask(query, things=[odd])
    else:
        ask(query, {"things": [odd]})
    assert odd.count == 0


CHANGED = {
    "things.append(1) or 1": "things", "things.sort() or 1": "things[", "deep['a'].append(2) or 1": "deep['a']",
    "deep.pop('a')[0]": "deep['a']", "deep.setdefault('b', 3)": "deep['b']", "queue.popleft()": "queue",
    "names.add('z') or 1": "names", "setattr(odd, 'count', 3) or 1": "odd.count", "slotted.step()": "slotted.count",
    "numbers.fill(0) or 1": "numbers", "np.add.at(numbers, 0, 1) or 1": "numbers", "x.numpy().fill(0) or 1": "x",
    "operator.setitem(x.numpy(), 0, 9.0) or 1": "x", "x.data.zero_().sum()": "x", "x.resize_(1).sum()": "x",
    "model.register_forward_hook(print) and 1": "a hook", "model.train(False) and 1": "model.training",
    "model.double() and 1": "model.weight", "model.weight.requires_grad_(False).sum()": "model.weight.requires_grad",
    "setattr(model, '__class__', torch.nn.Identity) or 1": "model.__class__", "y.detach_().sum()": "y.grad_fn",
    "vars(odd).update(n=1) or 1": "odd.n", "model.__setattr__('weight', torch.nn.Parameter(x)) or 1": "model.weight",
}  # fmt: skip


@pytest.mark.parametrize("query", CHANGED)
def test_a_change_is_restored_and_named(query):
    own = {
        "things": [3, 1, 2], "deep": {"a": [1]}, "queue": collections.deque([1, 2]), "names": {"a"}, "odd": Odd(),
        "slotted": Slotted(), "numbers": np.arange(1.0, 4.0), "model": nn.Linear(2, 2),
    }  # fmt: skip
    x = torch.ones(2)
    y = (own["model"].weight * 2).sum()
    weight = own["model"].weight
    (sentence,) = reported(ask(query, {"x": x, "y": y}, **own))
    assert sentence.startswith(CHANGED[query].rstrip("["))
    assert "restored" in sentence
    assert "run.call" in sentence
    assert own["things"] == [3, 1, 2]
    assert own["deep"] == {"a": [1]}
    assert list(own["queue"]) == [1, 2]
    assert own["names"] == {"a"}
    assert vars(own["odd"]).keys() == {"count", "rng"}
    assert own["odd"].count == own["slotted"].count == 0
    assert own["numbers"].tolist() == [1, 2, 3]
    assert x.tolist() == [1, 1]
    assert type(own["model"]) is nn.Linear
    assert own["model"].training
    assert own["model"].weight is weight
    assert weight.dtype is torch.float32
    assert weight.requires_grad
    assert not own["model"]._forward_hooks
    y.backward()
    assert weight.grad.tolist() == [[2, 2], [2, 2]]


@pytest.mark.parametrize(
    ("query", "name"),
    [("big.zero_().sum()", "big"), ("wide.fill(0) or 1", "wide"), ("many.pop()", "many"),
     ("getattr(big, 'da' + 'ta').zero_().sum()", "big"), ("h.retain_grad() or 1", "h.retains_grad"),
     ("h.grad_fn.register_hook(print) and 1", "a hook of the graph"), ("next(iter(odd.numbers))", "odd.numbers")],
)  # fmt: skip
def test_a_change_that_cannot_be_restored_is_named(query, name):
    odd = Odd()
    odd.numbers = (n for n in range(3))
    query = query.replace("odd.numbers", "getattr(odd, 'num' + 'bers')")  # what is named in full is refused
    big, h = torch.ones(100_000), torch.ones(2, requires_grad=True) * 2
    stream = ask(query, {"big": big, "h": h}, wide=np.ones(1_000_000), many=list(range(5000)), odd=odd)
    (sentence,) = reported(stream)
    assert sentence.startswith(f"{name} changed in place at event 1, ")
    assert "the loop continues with the changed value" in sentence


def test_a_change_of_what_was_saved_for_the_backward_pass_does_not_end_the_loop():
    w = torch.ones(100_000, requires_grad=True)
    h = w * 2
    loss = (h * h).sum()
    stream = ask("h.detach().add_(1).sum()", {"h": h})
    assert reported(stream)
    loss.backward()  # would raise if it knew


def graph():
    w = torch.ones(3, requires_grad=True)
    h = w * 2
    return w, h, (h * h).sum()


@pytest.mark.parametrize(
    "query",
    [
        "torch.autograd.grad(loss, w)[0].sum()", "torch.autograd.grad(loss, h, retain_graph=False)[0].sum()",
        "torch.autograd.grad([loss], [w], None, False)[0].sum()",
        "list(map(torch.autograd.grad, [loss], [w]))[0][0].sum()",
        "torch.autograd.functional.vjp(lambda v: v.sum(), w.detach())[1].sum()",
        "torch.autograd.graph._engine_run_backward((loss,), (loss * 0 + 1,), False, False, (w,), True)[0].sum()",
        "def q(e):\n    import torch\n    return torch.autograd.grad(e.loss, e.w)[0].sum()",
    ],
)  # fmt: skip
def test_a_gradient_that_a_query_asks_for_leaves_the_graph_to_the_loop(query):
    w, h, loss = graph()
    stream = ask(query, {"w": w, "h": h, "loss": loss})
    assert stream.error_count == 0
    loss.backward()
    assert w.grad.tolist() == [8, 8, 8]
    with pytest.raises(RuntimeError, match="second time"):  # as in a loop without queries
        loss.backward()


@pytest.mark.parametrize(
    "query",
    [
        "loss.backward()", "torch.autograd.backward(loss)", "torch.Tensor.backward(loss)", "(w * 3).sum().backward()",
        "next(map(torch.autograd.backward, [loss]))", "torch.autograd.backward([loss], inputs=[w])",
        "def q(e):\n    e.loss.backward()",
    ],
)  # fmt: skip
def test_a_backward_pass_is_refused_with_the_way_out(query):
    w, h, loss = graph()
    stream = ask(query, {"w": w, "h": h, "loss": loss})
    assert "torch.autograd.grad(" in stream.traceback
    assert w.grad is None
    loss.backward()
    assert w.grad.tolist() == [8, 8, 8]


@pytest.mark.parametrize(
    "query", ["next(it)", "list(it)", "sum(it)", "[n for n in it]", "holder.it.__next__()", "3 in it"]
)
@pytest.mark.parametrize(
    "make", [lambda: iter([1, 2, 3]), lambda: (n for n in range(3)), lambda: zip([1, 2], [3, 4], strict=True)]
)
def test_an_iterator_of_the_loop_is_refused(query, make):
    it, expected = make(), list(make())
    holder = Odd()
    holder.it = it
    stream = ask(query, it=it, holder=holder)
    assert "is an iterator of the loop" in stream.traceback
    assert list(it) == expected


@pytest.mark.usefixtures("processes")
def test_a_loader_that_keeps_its_workers_is_not_reset():
    loader = torch.utils.data.DataLoader(range(8), batch_size=2, num_workers=1, persistent_workers=True)
    ours = iter(loader)
    first = next(ours)
    stream = ask("sum(1 for _ in loader)", loader=loader)
    assert "persistent_workers" in stream.traceback
    assert ask("len(loader)", loader=loader).arrived == 1
    assert loader._iterator is ours
    assert [first.tolist(), *(batch.tolist() for batch in ours)] == [[0, 1], [2, 3], [4, 5], [6, 7]]


def test_positions_of_hidden_iterators_and_files_are_restored():
    loader, file = torch.utils.data.DataLoader(Stream(), batch_size=2), io.BytesIO(b"abcdef")
    odd = Odd()
    odd.file = file
    file.read(2)
    ask("next(iter(loader)).sum()", loader=loader)
    assert next(iter(loader)).tolist() == [0, 1]
    ask("len(odd.file.read())", odd=odd)
    assert file.read() == b"cdef"


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("step, loss", "guarded only where"), ("batch_topk(2, losses, image=x, anything=y)", "guarded only where"),
        ("batch_topk(2, losses, **columns)", "guarded: batch_topk"),
        ("model(x)", "guarded: model(x) is not known to be harmless"),
        ("torch.rand(2).sum()", "guarded: torch.rand"), (lambda e: e.loss, "guarded: <lambda>"),
        ("1 + 1", "not guarded"),
    ],
)  # fmt: skip
def test_explain_says_what_is_guarded_and_what_that_costs(query, says):
    text = compile_query(QuerySpec(query, known=frozenset({"model"}))).explain()
    assert says in text
    assert ("µs an evaluation" in text) == (says.startswith("guarded: "))


def test_a_generator_that_a_function_of_the_host_draws_from_is_restored():
    rng, calls = np.random.default_rng(1), []
    before = str(rng.bit_generator.state)

    def noise():
        calls.append(1)
        return rng.normal()

    ask("noise()", noise=noise)
    assert str(rng.bit_generator.state) == before
    assert calls == [1]  # what the host's own function does beside is the host's business


def test_an_observable_of_another_event_is_copied_inside_the_guard():
    dice = random.Random(1)

    class Drawn(dict):
        def items(self):
            return [("a", dice.random())]

    agent, run = pair("guarded")
    stream = run.stream("latest('epoch').drawn", on="batch")
    agent.emit("epoch", drawn=Drawn())
    agent.emit("batch", step=1)
    agent.close()
    assert stream.arrived == 1
    assert dice.random() == random.Random(1).random()


def test_a_backward_pass_through_what_the_query_has_made_may_run():
    w, h, loss = graph()
    w.grad = torch.ones(3)
    query = "def q(e):\n    x = e.h.detach().requires_grad_()\n    (x * x).sum().backward()\n    return x.grad"
    stream = ask(query, {"w": w, "h": h, "loss": loss})
    assert stream.error_count == 0
    loss.backward()
    assert w.grad.tolist() == [9, 9, 9]


@pytest.mark.parametrize(
    "change", ["h.sub_(h).sum()", "h.mul_(0).sum()", "h.set_(torch.zeros(1)).sum()", "h.detach_()"]
)
def test_a_result_keeps_its_place_in_the_graph(change):
    w = torch.ones(3, requires_grad=True)
    h = w * 2
    ask(change, {"h": h})
    (h * h).sum().backward()  # the loop continues from it after the event
    assert w.grad.tolist() == [8, 8, 8]


def test_an_array_gets_its_shape_back():
    numbers = np.arange(3.0)
    assert "restored" in reported(ask("numbers.resize((1,), refcheck=False) or 1", numbers=numbers))[0]
    assert numbers.tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    "query",
    [
        "quantile((e.loss for e in events), np.random.rand())", "ema((e.loss for e in events), float(torch.rand(1)))",
        "reduce(lambda a, x: a + x, (e.loss for e in events), draw())",
    ],
)  # fmt: skip
def test_an_argument_that_is_evaluated_before_any_event_can_only_compute(query):
    with pytest.raises(QueryError, match="evaluated once, before any event"):
        compile_query(QuerySpec(query, functions={"draw": random.random}))


class Watched(io.IOBase):
    """An object that records the threads that inspect it, like a file, or call it."""

    def __init__(self):
        self.threads = set()

    def readable(self):
        self.threads.add(threading.get_ident())
        return False

    def call(self, value):
        self.threads.add(threading.get_ident())
        return value


@pytest.mark.parametrize(
    ("query", "lost"),
    [("watched.readable() or loss", 0), ("call(sum(e.loss for e in events))", 1)],
)
def test_unknown_code_and_its_guard_run_on_the_training_thread_alone(directory, query, lost):
    """Closing a stream or window on the I/O thread must restore nothing meanwhile."""
    watched = Watched()
    with looptap.Agent("guarded") as agent, looptap.attach("guarded") as run:
        agent.expose(watched=watched, call=watched.call)
        stream = run.stream(query, on="batch")
        for _ in range(3):
            agent.emit("batch", loss=torch.tensor(1.0))
        stream.close_window()
        agent.emit("batch", loss=torch.tensor(1.0))  # at which the window ends
        agent.emit("batch", loss=torch.tensor(1.0))
        stream.close()
        soon(lambda: not agent.stats()["queries"])
        assert stream.dropped == lost  # the window that was open, whose end would have run the code
        assert watched.threads == {threading.get_ident()}
        assert list(stream.values)[-1] == (4.0 if lost else 1.0)
