"""`looptap.probe`: the loop ends bit-identical, and the model is unchanged."""

from __future__ import annotations

import collections
import random
import warnings

import numpy as np
import pytest
import torch
from interrupts import interrupted
from torch import nn

import looptap
from looptap.streams.preserving import module_state
from looptap.streams.preserving.random_state import RandomState, numpy_state
from looptap.streams.preserving.untouched import untouched
from looptap.testing import pair

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # what Dynamo's own imports warn of is not ours
    import torch._dynamo


class Odd(nn.Module):
    """A module that changes all it may of itself in each forward pass."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("seen", torch.zeros(()))
        self.register_buffer("replaced", torch.zeros(4))
        self.register_buffer("passing", torch.zeros(4), persistent=False)
        self.calls, self.log, self.cache, self.deep = 0, [], {}, {"kept": [torch.zeros(2)]}
        self.plain = torch.zeros(3)
        self.queue = collections.deque(maxlen=3)
        self.generator = torch.Generator().manual_seed(3)
        self.numbers, self.more = np.random.default_rng(3), random.Random(3)

    def forward(self, x):
        self.calls += 1
        self.log.append(x)
        self.cache[len(self.cache)] = x
        self.deep["kept"][0] += 1
        self.plain += 1
        self.queue.append(x)
        self.seen += 1
        self.passing.add_(x.detach().mean(0))
        self.replaced = self.replaced + 1
        self.new = x
        drawn = torch.rand(1, generator=self.generator) + torch.rand(1)
        return self.linear(x) * (1 + 0 * self.passing) + 0 * drawn


class Drawing(Odd):
    """One that also draws numbers of Python and numpy, and registers a buffer."""

    def forward(self, x):
        self.register_buffer("another", torch.ones(1))
        drawn = self.numbers.random() + self.more.random() + random.random() + np.random.rand()
        return super().forward(x) + 0 * drawn


def model_of_all_kinds():
    shared = nn.Linear(4, 4)
    model = nn.Sequential(
        nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.3), nn.ReLU(inplace=True), shared, nn.BatchNorm1d(4), shared,
        nn.utils.parametrizations.spectral_norm(nn.Linear(4, 4)), Odd(),
        nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 2)),
    )  # fmt: skip
    model[5].eval()  # a frozen one stays frozen
    return model


def everything(model):
    """Return all that belongs to a model: values and identities."""
    found = []
    for module in model.modules():
        for name, value in sorted(vars(module).items()):
            found.append((id(value), name, repr(value)))
            if isinstance(value, dict):
                found += [(key, id(part), getattr(part, "_version", 0)) for key, part in value.items()]
            if isinstance(value, torch.Generator):
                found.append(value.get_state().tolist())
            if isinstance(value, np.random.Generator):
                found.append(value.bit_generator.state)
            if isinstance(value, random.Random):
                found.append(value.getstate())
            found.append(getattr(value, "_version", 0))
    return found


def globals_of_the_process():
    numbers = np.random.get_state()
    return (
        torch.get_rng_state().tolist(), random.getstate(), numbers[1].tolist(), numbers[2:],
        torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.is_autocast_cache_enabled(),
        torch.is_autocast_enabled("cpu"), torch._dynamo.eval_frame._stance, torch._C._len_torch_dispatch_stack(),
    )  # fmt: skip


def job(query=None, *, steps=6, between=False, direct=False):
    """Return a small job's final state, with a query or the host's own call."""
    torch.manual_seed(1)
    random.seed(1)
    np.random.seed(1)
    model = model_of_all_kinds()
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    agent, run = pair("probing")
    agent.expose(model=model)
    losses, stream = [], None if query is None else run.stream(query, on="batch")
    for step in range(steps):
        x, y = torch.randn(8, 4) + random.random() + np.random.randn(), torch.randint(2, (8,))
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        if between:
            agent.emit("batch", step=step, x=x, y=y)
        loss.backward()
        optimizer.step()
        if not between:
            agent.emit("batch", step=step, x=x, y=y)
        if direct:
            looptap.probe(model, x)
        losses.append(loss.item())
    agent.close()
    odd = model[8]
    return (
        losses, [t.tolist() for t in (*model.state_dict().values(), odd.passing, odd.plain)], globals_of_the_process(),
        [m.training for m in model.modules()], odd.calls, len(odd.log), len(odd.cache), odd.deep["kept"][0].tolist(),
        odd.generator.get_state().tolist(), odd.numbers.bit_generator.state, odd.more.getstate(),
    ), stream  # fmt: skip


@pytest.fixture(scope="module")
def bare():
    return job()[0]


QUERIES = {
    "answers": "probe(model, x).argmax(1)",
    "accuracy of a window": "mean((probe(e.model, e.x).argmax(1) == e.y).float().mean() for e in events)",
    "a graph": "probe(model, x, gradient=True).sum()",
    "a gradient": "saliency(model, x, y)",
    "the model itself": "model(x).argmax(1)",
    "training mode": "probe(model[:8], x, train=True).argmax(1)",
    "a function": lambda e: looptap.probe(e.model, e.x).softmax(1),
}


@pytest.mark.parametrize("between", [False, True], ids=["after the step", "with a pending graph"])
@pytest.mark.parametrize("name", QUERIES)
def test_a_job_whose_model_is_probed_ends_bit_identical(name, between, bare):
    found, stream = job(QUERIES[name], between=between)
    assert found == bare
    assert stream.error_count == 0, stream.notes
    assert stream.arrived or "window" in name


def test_the_host_itself_may_ask(bare):
    assert job(direct=True)[0] == bare


def test_a_model_is_unchanged_after_a_probe():
    model = model_of_all_kinds()
    model(torch.randn(8, 4)).sum().backward()
    fired = []
    for module in model.modules():
        module.register_forward_hook(lambda *_: fired.append(1))
        module.register_forward_pre_hook(lambda *_: fired.append(1))
    before, gradients = everything(model), [p.grad.clone() for p in model.parameters()]
    for gradient in (False, True):
        answer = looptap.probe(model, torch.ones(8, 4), gradient=gradient)
        assert answer.requires_grad == gradient
        if gradient:
            answer.sum().backward()
        assert everything(model) == before
        assert all(map(torch.equal, gradients, [p.grad for p in model.parameters()]))
    assert not fired


def test_the_answer_is_that_of_evaluation_mode():
    model, x = model_of_all_kinds(), torch.randn(8, 4)
    answer = looptap.probe(model, x)
    model.eval()
    with torch.no_grad():
        assert torch.equal(answer, model(x))


# ---------------------------------------------------------------- kinds of models


def counters():
    return {name: dict(count) for name, count in torch._dynamo.utils.counters.items() if count}


class Doing(nn.Module):
    """A model that does ``what`` at each forward pass."""

    def __init__(self, what):
        super().__init__()
        self.linear, self.norm, self.what = nn.Linear(4, 4), nn.BatchNorm1d(4), what

    def forward(self, x):
        self.what(self, x)
        return self.linear(x)


DRAWS = torch.Generator().manual_seed(3)
"""A generator of the job."""


class Parts(nn.Module):
    """A model with a compiled function and a compiled module in it."""

    def __init__(self):
        super().__init__()
        self.norm, self.sine = nn.BatchNorm1d(4), torch.compile(torch.sin, backend="eager")
        self.compiled = torch.compile(nn.Linear(4, 4), backend="eager")

    def forward(self, x):
        return self.compiled(self.sine(self.norm(x)))


@pytest.mark.parametrize("how", ["wrapped", "in place", "in parts", "odd"])
@pytest.mark.filterwarnings("ignore")  # of Dynamo's own
def test_a_compiled_model_is_probed_uncompiled(how):
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.1))
    x = torch.randn(8, 4)
    if how == "in place":
        model = Doing(lambda model, x: None)
        model.compile(backend="eager")
    elif how == "in parts":
        model = Parts()
    elif how == "wrapped":
        model = torch.compile(model, backend="eager")
    else:
        model = torch.compile(model_of_all_kinds()[:6], backend="eager")
    for _ in range(3):
        model(x).sum().backward()
    before = counters()
    assert before
    for _ in range(2):
        for gradient in (False, True):
            assert looptap.probe(model, x, gradient=gradient).shape == (8, 4)
            looptap.probe(model, torch.randn(5, 4), gradient=gradient)
        model(x).sum().backward()
        assert counters() == before


def test_under_autocast_the_loop_still_has_its_gradients():
    model = nn.Linear(4, 4)
    with torch.autocast("cpu", torch.bfloat16):
        assert looptap.probe(model, torch.randn(2, 4)).dtype == torch.bfloat16
        loss = model(torch.randn(2, 4)).sum()
    loss.backward()
    assert model.weight.grad is not None


def test_inference_mode_stays_and_a_gradient_is_possible_in_it():
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    with torch.inference_mode():
        looptap.probe(model, torch.randn(2, 4))
        answer = looptap.probe(model, torch.randn(2, 4), gradient=True)
        assert torch.is_inference_mode_enabled()
        made = nn.Linear(4, 4)
        looptap.probe(made, torch.randn(2, 4))
    answer.sum().backward()
    assert model[0].weight.grad is None
    looptap.probe(made, torch.randn(2, 4))


@pytest.mark.filterwarnings("ignore:.*is deprecated")
def test_hooks_of_torch_that_compute_weights_are_part_of_the_model():
    model = nn.Sequential(nn.utils.spectral_norm(nn.Linear(4, 4)), nn.utils.weight_norm(nn.Linear(4, 4)))
    x = torch.randn(3, 4)
    loss = model(x).sum()
    weights = [layer.weight for layer in model]
    answer = looptap.probe(model, x)
    looptap.probe(model, x, gradient=True).sum().backward()
    assert all(layer.weight is weight for layer, weight in zip(model, weights, strict=True))
    loss.backward()
    assert torch.equal(answer, model.eval()(x))


def test_the_gradient_with_respect_to_an_input_reaches_neither_parameters_nor_the_loop():
    model = nn.LSTM(4, 4, 2, dropout=0.5)
    x = torch.randn(3, 2, 4, requires_grad=True)
    model(x)[0].sum().backward()
    before = [p.grad.clone() for p in (*model.parameters(), x)]
    mine = x.detach().requires_grad_()
    (gradient,) = torch.autograd.grad(looptap.probe(model, mine, gradient=True)[0].sum(), mine)
    assert gradient.abs().sum() > 0
    of_the_loop = (x * 2).exp()
    looptap.probe(model, of_the_loop, gradient=True)[0].sum().backward()
    of_the_loop.sum()  # its graph is whole
    assert all(map(torch.equal, before, [p.grad for p in (*model.parameters(), x)]))


@pytest.mark.filterwarnings("ignore:.*deprecated")
def test_a_scripted_model_is_refused_and_keeps_its_flags():
    model = torch.jit.script(nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.BatchNorm1d(4)))
    x, mean = torch.randn(3, 4), model[2].running_mean.clone()
    for one, where in ((model, "the model"), (nn.Sequential(model), "0")):
        with pytest.raises(looptap.QueryError, match=f"{where} is TorchScript, whose code cannot be checked"):
            looptap.probe(one, x)
    assert model.training
    assert model[1].training
    assert torch.equal(mean, model[2].running_mean)


class Twisted(nn.Module):
    """A model that refers to itself outside its modules."""

    def __init__(self):
        super().__init__()
        self.norm, self.run = nn.BatchNorm1d(4), self.really
        bound = self.really
        self.closure, self.parts = (lambda x: bound(x)), [self.norm]

    def really(self, x):
        return self.norm(x)

    def forward(self, x):
        return self.run(x) + self.closure(x) + self.parts[0](x)


def test_a_model_that_reaches_itself_by_other_ways_is_as_untouched():
    model = Twisted()
    before = everything(model)
    looptap.probe(model, torch.randn(3, 4))
    assert everything(model) == before


class Dicts(nn.Module):
    def forward(self, given, more=None):
        given["x"].mul_(0)
        more.add_(1)
        return {"logits": given["x"], "more": (given["y"], more)}


def test_inputs_in_containers_are_copies_and_so_is_what_a_model_does_to_them():
    x, more = torch.ones(2), np.ones(2)
    answer = looptap.probe(Dicts(), {"x": x, "y": [1]}, more=torch.from_numpy(more))
    assert answer["logits"].tolist() == [0, 0]
    assert answer["more"][0] == [1]
    assert x.tolist() == more.tolist() == [1, 1]


# ---------------------------------------------------------------- what is refused, and what goes wrong


@pytest.mark.parametrize(
    ("model", "x", "said"),
    [
        ("cnn", 1, "torch.nn.Module, not str"),
        (nn.Sequential(nn.LazyLinear(3)), torch.ones(2, 4), "'weight' does not exist before"),
        (nn.Linear(4, 4), torch.ones(2, 4, device="meta"), r"model is on cpu and its input on meta.\nAsk with x.to"),
        (Doing(lambda m, x: m.linear(x).sum().backward()), torch.ones(2, 4), "would change a tensor or its graph"),
        (Doing(lambda m, x: m.linear.weight.data.add_(0)), torch.ones(2, 4), "would write to a tensor of the job"),
        (Doing(lambda m, x: m.linear.weight.detach().add_(0)), torch.ones(2, 4), "would write to a tensor of the job"),
        (Doing(lambda m, x: random.random()), torch.ones(2, 4), "not known to be harmless"),
        (Doing(lambda m, x: np.random.rand()), torch.ones(2, 4), "not known to be harmless"),
        (Doing(lambda m, x: torch.rand(1, generator=DRAWS)), torch.ones(2, 4), "of the job would be advanced"),
        (Doing(lambda m, x: x.normal_(generator=DRAWS)), torch.ones(2, 4), "of the job would be advanced"),
        (Drawing(), torch.ones(2, 4), "not known to be harmless"),
    ],
)
@pytest.mark.parametrize("gradient", [False, True])
def test_an_invalid_probe_is_refused(model, x, said, gradient):
    before = everything(model) if isinstance(model, nn.Module) else None
    of_all, draws = globals_of_the_process(), DRAWS.get_state().tolist()
    with pytest.raises(looptap.QueryError, match=said):
        looptap.probe(model, x, gradient=gradient)
    if before is not None:
        assert everything(model) == before
    assert (globals_of_the_process(), DRAWS.get_state().tolist()) == (of_all, draws)


@pytest.mark.parametrize("error", [ValueError, SystemExit, KeyboardInterrupt, StopIteration])
def test_a_model_that_raises_is_unchanged_and_the_query_gets_the_error(error):
    def fail(model, x):
        model.calls = 1
        torch.rand(3)
        torch.set_grad_enabled(True)
        raise error("from the model")

    model = Doing(fail)
    before, of_all = everything(model), globals_of_the_process()
    with pytest.raises(error, match="from the model"):
        looptap.probe(model, torch.ones(2, 4))
    assert everything(model) == before
    assert globals_of_the_process() == of_all


@pytest.fixture
def group(tmp_path):
    import torch.distributed as dist

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dist.init_process_group("gloo", init_method=f"file://{tmp_path}/group", rank=0, world_size=1)
        yield dist
    dist.destroy_process_group()


def test_no_rank_waits_while_a_model_is_probed(group):
    from torch.distributed.fsdp import fully_shard

    x = torch.randn(3, 4)
    model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)))
    loss = model(x).sum()
    outer = nn.Sequential(model)
    before = everything(outer)
    answers = looptap.probe(model, x), looptap.probe(outer, x)
    assert torch.equal(*answers)
    looptap.probe(model, x, gradient=True).sum().backward()
    assert everything(outer) == before
    loss.backward()
    for what in (lambda m, x: group.all_reduce(x.clone()), lambda m, x: group.barrier()):
        with pytest.raises(looptap.QueryError, match="not known to be harmless"):
            looptap.probe(Doing(what), x)
    mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (1,))
    sharded = fully_shard(nn.Sequential(nn.Linear(4, 4)), mesh=mesh)
    for one in (sharded, nn.Sequential(nn.Linear(4, 4), sharded)):
        with pytest.raises(looptap.QueryError, match="all ranks would have to meet"):
            looptap.probe(one, x)
    assert torch._C._len_torch_dispatch_stack() == 0


def test_a_large_buffer_is_not_copied_and_a_write_to_it_is_refused(monkeypatch):
    model = Doing(lambda m, x: m.large.add_(1))
    model.register_buffer("large", torch.zeros(1000))
    looptap.probe(model, torch.ones(2, 4))
    monkeypatch.setattr(module_state, "MOST_BYTES", 100)
    with pytest.raises(looptap.QueryError, match="would write to a tensor of the job"):
        looptap.probe(model, torch.ones(2, 4))
    assert not model.large.any()


# ---------------------------------------------------------------- Ctrl-C


@pytest.mark.long
@pytest.mark.parametrize("fraction", [211, pytest.param(11, marks=[pytest.mark.soak, pytest.mark.timeout(900)])])
def test_ctrl_c_at_any_instruction_leaves_the_model_intact(fraction):
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), Odd())
    x = torch.randn(3, 4)

    def ask():
        looptap.probe(model, x)

    ask()
    count, _ = interrupted(ask, 0)
    assert count > 2000
    before, of_all = everything(model), globals_of_the_process()
    for number in range(random.Random(count).randrange(fraction) + 1, count + 1, fraction):
        _, pressed = interrupted(ask, number)
        assert isinstance(pressed, KeyboardInterrupt) or number > count - 50
        assert everything(model) == before, number
        assert globals_of_the_process() == of_all, number


# ---------------------------------------------------------------- random numbers


def test_random_numbers_can_be_restored_repeatedly():
    np.random.randn()  # a second one waits
    random.gauss(0, 1)
    state, before = RandomState(), globals_of_the_process()
    for _ in range(2):
        torch.rand(3), np.random.randn(3000), random.random(), random.gauss(0, 1), torch.randn(7)
        state.put_back()
        assert globals_of_the_process() == before


@pytest.mark.parametrize("generator", [np.random.MT19937, np.random.PCG64])
def test_the_state_of_numpy_is_exact(generator):
    one = np.random.RandomState(generator(3))
    one.randn()
    put_back = numpy_state(one)
    drawn = one.randn(3001).tolist()
    put_back()
    assert one.randn(3001).tolist() == drawn


# ---------------------------------------------------------------- whatever runs, not asked by `probe`


def test_the_modules_work_on_copies_while_a_model_trains():
    model = model_of_all_kinds()
    before = everything(model)
    with untouched(model) as kept:
        model.eval()
        model.train()
        model(torch.randn(8, 4))
    assert everything(model) == before
    assert kept.changed() == ""
