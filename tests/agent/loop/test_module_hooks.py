"""Queries over modules: hooks on just these modules, while a stream asks."""

from __future__ import annotations

import copy
import dataclasses
import gc
import io
import pickle
import random
import tracemalloc
import warnings
import weakref

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from waiting import soon

import looptap
from looptap.streams.errors import QueryError
from looptap.streams.values.modules.named_modules import walk
from looptap.testing import pair

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # what Dynamo's own imports warn of is not ours
    import torch._dynamo


class Net(nn.Module):
    """A model whose modules record what they got and returned."""

    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8))
        self.head = nn.Linear(8, 2)
        self.seen = {}

    def forward(self, x):
        hidden = self.encoder(x)
        if hidden.requires_grad:
            hidden.retain_grad()
        self.seen = {"x": x, "hidden": hidden}
        return self.head(hidden)


def hooks_on(model):
    """Return how many hooks stand on each module, and on its tensors."""
    return {
        name: len(one._forward_hooks) + len(one._forward_pre_hooks) + len(one._backward_hooks)
        for name, one in model.named_modules()
    }


def watched(model):
    """Return the names of the modules that have hooks."""
    return {name for name, count in hooks_on(model).items() if count}


@pytest.fixture
def job():
    """Return a model, its agent, its run, and a function that makes a step."""
    torch.manual_seed(0)
    model = Net()
    agent, run = pair("hooked")
    agent.expose(model=model)

    def step(times=1):
        for _ in range(times):
            model.zero_grad()
            model(torch.randn(5, 4)).square().mean().backward()
            agent.emit("batch")

    return model, agent, run, step


def test_a_query_waits_while_the_loop_does_not_use_its_module():
    generator, critic = nn.Linear(4, 4), nn.Linear(4, 1)
    agent, run = pair("phases")
    agent.expose(generator=generator, critic=critic)
    stream = run.stream("activations('generator').shape[0]", on="batch")

    def step(trained, rows):
        trained(torch.randn(rows, 4)).sum().backward()
        agent.emit("batch")

    step(generator, 1)  # the hook is in from the first event on
    step(generator, 2)
    for _ in range(150):
        step(critic, 2)
    step(generator, 3)
    assert stream.values == [2, 3]
    assert stream.state == "live"
    assert stream.error_count
    assert "'generator' was not called since the last 'batch' event. The loop may not use it here." in stream.traceback


def test_a_query_on_a_module_that_is_never_called_ends_after_a_few_events_and_says_so(job):
    model, _, run, step = job
    model.unused = nn.Linear(4, 4)
    never = run.stream("activations('unused', shape)")
    means = run.stream("mean(norm(activations('unused')) for e in events)", window=2)
    later = run.stream("activations('head', shape)", every=25)
    step(24)
    assert never.state == "failed"
    assert never.error_count == 20
    assert "'unused' was not called during 20 'batch' events" in never.reason
    assert "'unused' was not called" in means.traceback
    step(51)
    assert later.values == [(5, 2)] * 2


def test_activations_inputs_and_gradients_are_those_of_the_model(job):
    model, _agent, run, step = job
    stream = run.stream("activations('encoder'), inputs('encoder'), grads_of('encoder'), inputs('head')", on="batch")
    expected = []
    for _ in range(4):
        step()
        expected.append((model.seen["hidden"].detach(), model.seen["x"], model.seen["hidden"].grad))
    assert len(stream.values) == 3  # hooks are put in at the first event
    for (out, given, grad, inner), (hidden, x, of_hidden) in zip(stream.values, expected[1:], strict=True):
        for found, truth in ((out, hidden), (given, x), (grad, of_hidden), (inner, hidden)):
            assert np.array_equal(np.asarray(found), truth.numpy())
    assert (stream.error_count, stream.state) == (0, "live")


def test_hooks_stand_on_the_modules_asked_while_a_stream_asks(job):
    model, _agent, run, step = job
    step(2)
    assert watched(model) == set()
    one = run.stream("activations('encoder.1').mean()", on="batch")
    assert watched(model) == set()  # not before the next event: another thread asks
    step()
    assert watched(model) == {"encoder.1"}
    two = run.stream("norm(activations('encoder.1')), norm(inputs('head'))", on="batch", every=2)
    step(3)
    assert hooks_on(model)["encoder.1"] == 2
    assert watched(model) == {"encoder.1", "head"}
    one.close()
    step()
    assert hooks_on(model)["encoder.1"] == 1
    two.close()
    step()
    assert watched(model) == set()
    assert len(one.values) == 3


def test_a_hook_goes_at_the_next_call_even_without_an_event(job):
    model, _agent, run, step = job
    stream = run.stream("activations('encoder.1').mean()", on="batch")
    step(2)
    stream.close()
    model(torch.randn(5, 4))
    assert watched(model) == set()


def test_hooks_go_with_the_run(job):
    model, agent, run, step = job
    run.stream("activations('*', norm), grads_of('head').norm()", on="batch")
    step(2)
    assert len(watched(model)) == 5
    agent.close()
    assert watched(model) == set()


def test_patterns_lists_and_functions_of_each_tensor(job):
    _model, _agent, run, step = job
    every = run.stream("activations('encoder.*', shape)", on="batch")
    listed = run.stream("activations(['head', 'encoder.0'], lambda t: t.abs().max())", on="batch")
    stats = run.stream("activations('encoder.?', activation_stats)", on="batch")
    samples = run.stream("activations('head')[:2]", on="batch")
    mean = run.stream("mean(norm(activations('head')) for e in events)", on="batch", window=2)
    step(4)
    assert every.values[0] == {"encoder.0": (5, 8), "encoder.1": (5, 8), "encoder.2": (5, 8)}
    assert list(listed.values[0]) == ["head", "encoder.0"]
    assert stats.values[0]["encoder.1"]["zeros"] > 0
    assert np.asarray(samples.values[0]).shape == (2, 2)
    assert len(mean.values) == 1
    assert "proven as it runs" in every.explain()


def test_a_query_of_modules_may_stand_beside_others_and_in_any_form(job):
    model, agent, run, _step = job
    forms = [
        "step, activations('head').mean()", "(norm(activations('head')) for e in events)",
        "lambda e: norm(activations('head'))", "max(norm(inputs('head')) for e in events)",
        "mean(norm(activations('head')) for e in recent(2))", "ema((norm(activations('head')) for e in events), 0.5)",
        "{'a': activations('head', norm), 'b': activations('encoder', norm)}",
    ]  # fmt: skip
    streams = [run.stream(form, on="batch") for form in forms]
    streams.append(run.stream(lambda e: norm(activations("head")), on="batch"))  # noqa: F821 - names of the language
    for number in range(4):
        model(torch.randn(5, 4)).sum().backward()
        agent.emit("batch", step=number)
    agent.emit("epoch")
    for form, stream in zip([*forms, "a function"], streams, strict=True):
        assert len(stream.values) == (1 if form.startswith("max") else 3), (form, stream.traceback)


@pytest.mark.promise("modules")
def test_what_is_trained_is_the_same_bit_by_bit_with_and_without_hooks():
    def train(ask):
        torch.manual_seed(3), np.random.seed(3), random.seed(3)
        model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.Flatten(), nn.Dropout(),
                              nn.Linear(4 * 36, 3))  # fmt: skip
        optimizer = torch.optim.Adam(model.parameters())
        agent, run = pair("identical")
        agent.expose(model=model)
        losses = []
        for step in range(30):
            if ask and step % 6 == 0:  # put in and taken out, over and over
                streams = [
                    run.stream(query, on="batch")
                    for query in ("activations('*', activation_stats)", "grads_of('*', norm)", "inputs('5')")
                ]
            if ask and step % 6 == 4:
                assert all(stream.values for stream in streams)
                for stream in streams:
                    stream.close()
            optimizer.zero_grad()
            loss = model(torch.randn(8, 1, 8, 8)).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            agent.emit("batch", loss=loss)
        state = [tensor.numpy().tobytes() for tensor in model.state_dict().values()]
        return losses, state, torch.get_rng_state().tolist(), random.getstate(), np.random.get_state()[1].tolist()

    assert train(ask=True) == train(ask=False)


def test_nothing_of_a_step_outlives_its_event(job):
    model, agent, run, step = job
    streams = [run.stream(f"{kind}('*', norm)", on="batch", every=every)
               for kind in ("activations", "inputs", "grads_of") for every in (1, 3)]  # fmt: skip
    step(3)
    outputs = []
    for _ in range(6):
        out = model(torch.randn(5, 4))
        out.grad_fn.metadata["mark"] = mark = Net()  # lives as long as the graph
        outputs.append((weakref.ref(out), weakref.ref(model.seen["hidden"]), weakref.ref(mark)))
        out.sum().backward()
        del out, mark
        model.seen = {}
        agent.emit("batch")
    gc.collect()
    assert [one() for three in outputs for one in three] == [None] * 18
    assert all(stream.values for stream in streams)
    for stream in streams:
        stream.close()
    out = model(torch.randn(5, 4))  # the hooks are closed and go with this call
    kept = weakref.ref(out)
    del out
    assert kept() is None
    assert watched(model) == set()


def test_memory_does_not_grow(job):
    model, agent, run, _step = job
    stream = run.stream("activations('*', norm), grads_of('*', norm)", on="batch")
    weight = nn.Parameter(torch.zeros(8))  # a leaf that a module returns outlives each step
    model.head = nn.Identity()
    agent.emit("batch")
    other = run.stream("grads_of('head').norm()", on="batch")

    def steps(count):
        for _ in range(count):
            model.zero_grad()
            model.head(weight).sum().backward()
            model.encoder(torch.randn(5, 4)).sum().backward()
            agent.emit("batch")

    steps(20)
    tracemalloc.start()
    try:
        steps(20)
        before = tracemalloc.get_traced_memory()[0]
        steps(300)
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert other.values
    assert stream.values
    assert len(weight._backward_hooks or ()) <= 1
    assert grown < 300 * 1_500  # the values that the client holds


# ---------------------------------------------------------------- models of all kinds


def ask(model, query, forward, events=3):
    """Return the stream of a query over a model whose steps ``forward`` makes."""
    agent, run = pair("asked")
    agent.expose(model=model)
    stream = run.stream(query, on="batch")
    for _ in range(events):
        forward()
        agent.emit("batch")
    return stream


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_checkpointed_module_is_seen_once_a_step(reentrant):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.outer, self.calls = nn.Linear(4, 4), nn.Linear(4, 1), 0
            self.inner.register_forward_hook(self.count)

        def count(self, *given):
            self.calls += 1

        def forward(self, x):
            return self.outer(checkpoint(self.inner, x, use_reentrant=reentrant))

    model, x = Model(), torch.randn(3, 4, requires_grad=True)
    stream = ask(model, "activations('inner'), grads_of('inner').norm()", lambda: model(x).sum().backward())
    assert model.calls == (6 if reentrant else 3)  # the other kind stops as soon as it has what it needs
    out, gradient = stream.values[-1]
    assert np.array_equal(np.asarray(out), model.inner(x).detach().numpy())
    assert gradient == pytest.approx(model.outer.weight.detach().norm().item() * 3**0.5, rel=1e-6)
    assert stream.error_count == 0


def test_modules_that_return_tuples_dicts_and_dataclasses():
    @dataclasses.dataclass
    class Output:
        logits: torch.Tensor
        cache: object = None

    class Head(nn.Module):
        def forward(self, x, scale):
            return Output(x * scale, cache=object())

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn, self.head = nn.LSTM(4, 3), Head()

        def forward(self, x):
            return self.head(self.rnn(x)[0], scale=2.0)

    model = Model()
    query = "activations('rnn', shape), activations('head', shape), inputs('head', shape), grads_of('head', shape)"
    stream = ask(model, query, lambda: model(torch.randn(2, 5, 4)).logits.sum().backward())
    assert tuple(stream.values[-1]) == (
        ((2, 5, 3), ((1, 5, 3), (1, 5, 3))), {"logits": (2, 5, 3), "cache": None}, {"0": (2, 5, 3), "scale": 2.0},
        {"logits": (2, 5, 3), "cache": None},
    )  # fmt: skip


def test_a_shared_module_gives_its_newest_call_under_each_name():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Linear(4, 4)
            self.second = self.first

        def forward(self, x):
            self.last = self.second(self.first(x))
            return self.last

    model = Model()
    stream = ask(model, "activations('*')", lambda: model(torch.randn(2, 4)))
    assert set(stream.values[-1]) == {"first", "second"}
    for value in stream.values[-1].values():
        assert np.array_equal(np.asarray(value), model.last.detach().numpy())


def test_an_activation_that_the_model_changes_in_place_is_copied():
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True))
    x = torch.randn(64, 4)
    stream = ask(model, "activations('0').min(), activations('1').min()", lambda: model(x))
    assert stream.values[-1][0] < 0 == stream.values[-1][1]
    assert stream.error_count == 0


def test_a_model_that_begins_to_change_an_activation_in_place_is_noticed():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.inplace = nn.Linear(4, 4), False

        def forward(self, x):
            out = self.layer(x)
            return out.zero_() if self.inplace else out

    model, x = Model(), torch.ones(2, 4)
    agent, run = pair("later")
    agent.expose(model=model)
    stream = run.stream("activations('layer').abs().sum()", on="batch")
    for number in range(6):
        model.inplace = number >= 3
        with torch.no_grad():
            model(x)
        agent.emit("batch")
    assert all(stream.values)
    assert len(stream.values) == 4
    assert stream.error_count == 1
    assert "in place, as ReLU" in stream.traceback


@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")  # what Dynamo reads
class TestCompiled:
    def model(self):
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        return nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4), nn.ReLU()))

    @pytest.mark.parametrize("in_place", [False, True])
    def test_a_module_inside_is_refused_and_the_whole_is_not(self, in_place):
        model = self.model()
        if in_place:
            model[1].compile(backend="eager")
        else:
            model[1] = torch.compile(model[1], backend="eager")
        agent, run = pair("compiled")
        agent.expose(model=model)
        with pytest.raises(QueryError, match=r"'1\.0': it is inside torch\.compile"):
            run.stream("activations('1.0')", on="batch")
        if in_place:
            with pytest.raises(QueryError, match=r"'1': it is inside"):
                run.stream("activations('1')", on="batch")
        names = {"0"} if in_place else {"0", "1"}
        stream = ask(model, "activations('*', shape)", lambda: model(torch.randn(2, 4)).sum().backward())
        assert set(stream.values[-1]) == names
        assert {one.name for one in run.modules().values() if not one.problem} == {"model", *names}

    def test_hooks_neither_break_a_graph_nor_have_it_compiled_again(self):
        model = self.model()
        compiled = torch.compile(lambda x: model(x), backend="eager", fullgraph=True)
        agent, run = pair("graph")
        agent.expose(model=model)
        x = torch.randn(2, 4)
        before = compiled(x)
        graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
        stream = run.stream("activations('0')", on="batch")
        for _ in range(3):
            assert torch.equal(compiled(x), before)
            agent.emit("batch")
        assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == graphs
        assert "'0' was not called since the last 'batch' event" in stream.traceback
        assert "torch.compile" in stream.traceback

    def test_a_hook_that_is_there_first_gets_into_no_graph(self):
        model = self.model()
        agent, run = pair("graph")
        agent.expose(model=model)
        x = torch.randn(2, 4)
        stream = run.stream("activations('0').sum(), grads_of('1').sum()", on="batch")
        for _ in range(2):
            model(x).sum().backward()
            agent.emit("batch")
        compiled = torch.compile(lambda x: model(x), backend="aot_eager", fullgraph=True)
        assert torch.equal(compiled(x), model(x))
        compiled(x).sum().backward()
        assert len(stream.values) == 1


def test_torchs_fast_path_of_a_transformer_is_left_on():
    layer = nn.TransformerEncoderLayer(8, 2, batch_first=True)
    agent, run = pair("transformer")
    agent.expose(layers=nn.Sequential(layer, nn.Linear(8, 2)))
    for name in ("0", "0.linear1", "0.*"):
        with pytest.raises(QueryError, match="fast path"):
            run.stream(f"activations({name!r})", on="batch")
    assert run.stream("activations('1')", on="batch").state == "live"
    slow = nn.TransformerEncoderLayer(8, 2)  # has none, since it is not batch_first
    stream = ask(slow, "activations('linear1', shape)", lambda: slow(torch.randn(3, 2, 8)))
    assert stream.values


def test_a_scripted_module_is_refused():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        model = nn.Sequential(nn.Linear(4, 4), torch.jit.script(nn.Sequential(nn.Linear(4, 4))))
    agent, run = pair("scripted")
    agent.expose(model=model)
    with pytest.raises(QueryError, match="TorchScript"):
        run.stream("activations('1.0')", on="batch")


def test_a_pass_under_a_transform_or_mode_of_torch_is_left_alone():
    model = nn.Linear(4, 4)

    class Sees(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            seen.append(str(function))
            return function(*args, **(kwargs or {}))

    def forward():
        torch.func.vmap(model)(torch.randn(3, 4))
        with Sees():
            model(torch.randn(3, 4))

    seen = []
    forward()
    bare, seen = seen, []
    stream = ask(model, "activations('model')", forward)
    assert seen == bare * 3
    assert "mode or transform" in stream.traceback
    assert not stream.values


def test_wrappers_have_no_names_of_their_own():
    inner = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    model = nn.DataParallel(inner)
    assert [one.name for one in walk(model)] == ["", "0", "1"]
    assert [one.module for one in walk(model)] == [model, inner[0], inner[1]]
    stream = ask(model, "activations('0', shape), activations('model', shape)", lambda: model(torch.randn(2, 4)))
    assert tuple(stream.values[-1]) == ((2, 4), (2, 4))


def test_a_model_with_hooks_is_copied_and_saved_without_them(job):
    model, _agent, run, step = job
    model.seen = {}
    plain = pickle.dumps(model)
    run.stream("activations('*', norm), inputs('head', norm), grads_of('head')", on="batch")
    step(2)
    model.seen = {}
    twin = copy.deepcopy(model)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    with torch.serialization.safe_globals([Net, nn.Sequential, nn.Linear, nn.ReLU]):
        loaded = torch.load(file, weights_only=True)
    assert pickle.dumps(model) == plain
    assert not watched(twin)
    assert not watched(loaded)
    assert not twin.head._forward_pre_hooks_with_kwargs
    assert len(watched(model)) > 3
    x = torch.randn(2, 4)
    assert torch.equal(twin(x), model(x))
    assert torch.equal(loaded(x), model(x))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.save(model(x), io.BytesIO())


# ---------------------------------------------------------------- names


def test_names_of_modules_that_are_wrong_say_so(job):
    model, _agent, run, _step = job
    for query, words in (
        ("activations('encoder.9')", "no module 'encoder.9' in model"),
        ("activations('haed')", "Did you mean 'head'"),
        ("grads_of('decoder.*')", "no module 'decoder.*'"),
        ("activations(7)", "takes the name of a module"),
        ("activations('head', norm, 3)", "takes the name of a module"),
        ("activations(step)", "takes the name of a module"),
    ):
        with pytest.raises(QueryError, match=words.replace(".", r"\.").replace("*", r"\*")):
            run.stream(query, on="batch")
    with pytest.raises(QueryError, match="copies of observables"):
        run.stream("step", on="batch", when="norm(activations('head')) > 3")
    stream = run.stream("step", on="batch")
    with pytest.raises(QueryError, match="here are values of a stream"):
        stream.query("activations('head')")
    assert watched(model) == set()


def test_an_empty_name_is_the_model_itself(job):
    model, _agent, run, step = job
    streams = [run.stream(query, on="batch") for query in ("activations('')", "activations('model')")]
    several = run.stream("activations(['', 'head'], norm)", on="batch")
    step(3)
    assert [v.tolist() for v in streams[0].values] == [v.tolist() for v in streams[1].values] != []
    assert set(several.values[-1]) == {"model", "head"}
    for stream in (*streams, several):
        stream.close()
    step(1)
    assert watched(model) == set()
    agent, run = pair("two")
    agent.expose(netG=nn.Linear(2, 2), netD=nn.Linear(2, 2))
    with pytest.raises(QueryError, match="'' is a module of several models"):
        run.stream("activations('')", on="batch")


def test_two_models_need_a_name_in_front():
    agent, run = pair("gan")
    agent.expose(netG=nn.Sequential(nn.Linear(2, 2)), netD=nn.Sequential(nn.Linear(2, 2)))
    with pytest.raises(QueryError, match="a module of several models"):
        run.stream("activations('0')", on="batch")
    assert run.stream("activations('netG.0')", on="batch").state == "live"
    assert set(run.modules()) == {"netG", "netG.0", "netD", "netD.0"}
    assert set(run.modules("netD.*")) == {"netD.0"}


def test_an_evaluation_of_a_model_that_is_gone_is_no_value_of_the_next_training():
    agent, run = pair("modules")
    stream = run.stream("activations('0', shape)", on="batch")
    for rows in (2, 3):
        model = nn.Sequential(nn.Linear(4, rows))
        for _ in range(6):
            model(torch.ones(rows, 4))
            agent.emit("batch", model=model)
        model(torch.ones(9, 4))  # the evaluation after it
        del model
    agent.close()
    assert stream.values == [(2, 2)] * 5 + [(3, 3)] * len(stream.values[5:])
    assert len(stream.values) > 5


def test_a_model_may_be_passed_to_events_and_be_replaced():
    agent, run = pair("passed", history=True)
    model = nn.Sequential(nn.Linear(4, 4))
    stream = run.stream("activations('0').shape", on="batch")
    for _ in range(3):
        model(torch.randn(2, 4))
        agent.emit("batch", net=model)
    assert stream.values == [(2, 4)] * 2
    assert "0" in run.modules()
    agent.expose(model=model)
    other = run.stream("activations('0').shape", on="epoch")
    model(torch.randn(2, 4)), agent.emit("epoch")
    model[0] = nn.Linear(4, 3)
    for _ in range(3):
        model(torch.randn(2, 4)), agent.emit("epoch")
    assert other.values == [(2, 3)] * 2
    assert "was replaced" in other.traceback


def test_observables_of_these_names_stay_what_they_are(job):
    _model, agent, run, _step = job
    agent.emit("batch", inputs=3.0)
    stream = run.stream("inputs, inputs * 2", on="batch")
    sum_of = run.stream("sum(e.inputs for e in events)", on="batch")
    agent.emit("batch", inputs=4.0)
    agent.emit("epoch")
    assert (tuple(stream.values[0]), sum_of.values) == ((4.0, 8.0), [4.0])


def test_a_job_lists_its_modules(job):
    model, _agent, run, _step = job
    model.head.weight.requires_grad_(False)
    modules = run.modules()
    assert list(modules) == ["model", "encoder", "encoder.0", "encoder.1", "encoder.2", "head"]
    assert (modules["model"].kind, modules["model"].parameters) == ("Net", sum(p.numel() for p in model.parameters()))
    assert modules["head"].shapes == {"weight": (2, 8), "bias": (2,)}
    assert (modules["head"].parameters, modules["head"].trained) == (18, 2)
    assert list(run.modules("encoder.?")) == ["encoder.0", "encoder.1", "encoder.2"]
    assert "head       Linear, 18 parameters, 16 of them frozen, weight 2×8 bias 2" in repr(modules)
    assert "none was passed" in repr(pair("empty")[1].modules())


def test_over_the_wire_hooks_come_and_go_with_the_client():
    model = Net()
    with looptap.Agent("wired", budget=float("inf")) as agent:
        agent.expose(model=model)

        def step():
            model(torch.randn(5, 4)).sum().backward()
            agent.emit("batch")

        with looptap.attach("wired") as run:
            assert next(iter(run.modules("enc"))) == "encoder"
            stream = run.stream("activations('encoder.*', activation_stats)", on="batch")
            soon(lambda: step() or len(stream.values) >= 3)
            assert watched(model) == {"encoder.0", "encoder.1", "encoder.2"}
        soon(lambda: step() or not watched(model))  # the client is gone
