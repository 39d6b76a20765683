"""Code of libraries is followed by its source: what a job has replaced is found."""

from __future__ import annotations

import functools

import pytest
import torch
from guarded_jobs import ask
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import looptap
from looptap.streams.errors import QueryError

LOG: list[str] = []


def noted(function):
    """Return a function that is named as ``function`` is, and leaves a trace."""

    @functools.wraps(function)
    def run(*given, **named):
        LOG.append(function.__name__)
        return function(*given, **named)

    return run


def _linear(monkeypatch):
    monkeypatch.setattr(nn.Linear, "forward", noted(nn.Linear.forward))
    return nn.Linear(4, 4)


def _function(name):
    def patched(monkeypatch):
        monkeypatch.setattr(functional, name, noted(getattr(functional, name)))
        return nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Dropout(0.1), nn.Softmax(1))

    return patched


class Posing(nn.Linear):
    """A class of the job that says it is torch's."""

    def forward(self, x):
        LOG.append("posing")
        return super().forward(x)


Posing.__module__ = Posing.forward.__module__ = "torch.nn.modules.linear"
Posing.forward.__qualname__ = "Linear.forward"


def _bound(monkeypatch):
    model = nn.Linear(4, 4)
    model.forward = noted(model.forward)
    return model


def _parametrization(monkeypatch):
    class Noted(nn.Module):
        def forward(self, weight):
            LOG.append("parametrization")
            return weight

    model = nn.Linear(4, 4)
    nn.utils.parametrize.register_parametrization(model, "weight", Noted(), unsafe=True)
    LOG.clear()
    return model


def _norm_hook(monkeypatch):
    model = nn.utils.spectral_norm(nn.Linear(4, 4))
    hook = next(iter(model._forward_pre_hooks.values()))
    monkeypatch.setattr(type(hook), "compute_weight", noted(type(hook).compute_weight))
    return model


class Straight(torch.autograd.Function):
    """Notes each forward pass."""

    @staticmethod
    def forward(ctx, x):
        LOG.append("function")
        return x.round()

    @staticmethod
    def backward(ctx, grad):
        return grad


class Rounding(nn.Module):
    def forward(self, x):
        return Straight.apply(x)


CHANGED = {
    "a class": _linear,
    "a function of torch": _function("linear"),
    "another": _function("relu"),
    "one that torch calls": _function("batch_norm"),
    "a class that poses as torch's": lambda monkeypatch: Posing(4, 4),
    "a module": _bound,
    "a parametrization": _parametrization,
    "a hook of torch's": _norm_hook,
    "a function with a gradient of its own": lambda monkeypatch: Rounding(),
    "an activation": lambda monkeypatch: nn.TransformerEncoderLayer(4, 1, 4, activation=noted(functional.relu)),
}


@pytest.mark.filterwarnings("ignore:.*deprecated")
@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("what", CHANGED)
def test_code_that_a_job_has_put_into_a_library_does_not_run(what, train, monkeypatch):
    model, x = CHANGED[what](monkeypatch), torch.randn(3, 4)
    LOG.clear()
    with pytest.raises(QueryError, match="would change a list of the job"):
        looptap.probe(model, x, train=train)
    assert LOG == []


@pytest.mark.parametrize(
    ("owner", "name", "query"),
    [
        (torch.Tensor, "norm", "x.norm()"),
        (torch.Tensor, "__rsub__", "(1 - x).sum()"),
        (torch.Tensor, "__add__", "(x + 1).sum()"),
        (torch.Tensor, "__repr__", "f'{x}'"),
        (torch.Tensor, "__repr__", "str([x])"),
        (torch.Tensor, "cuda", "x.cuda().sum()"),
        (torch, "norm", "torch.norm(x)"),
        (torch, "is_tensor", "torch.is_tensor(x)"),
        (functional, "mse_loss", "torch.nn.functional.mse_loss(x, x)"),
        (functional, "mse_loss", "torch.nn.MSELoss()(x, x)"),
        (nn.Module, "named_parameters", "len(list(model.parameters()))"),
        (nn.Module, "modules", "len(list(model.modules()))"),
        (torch.optim.SGD, "state_dict", "optimizer.state_dict()['state']"),
    ],
)
def test_a_method_that_a_job_has_replaced_is_followed(owner, name, query, monkeypatch):
    monkeypatch.setattr(owner, name, noted(getattr(owner, name)))
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    LOG.clear()
    stream = ask(query, {"x": torch.randn(3, 4)}, model=model, optimizer=optimizer)
    assert LOG == []
    assert "Refused" in stream.traceback


@pytest.mark.parametrize(("name", "runs"), [("__array_eq__", True), ("__getattr__", False), ("__radd__", False)])
def test_a_method_that_is_only_named_like_an_operator_is_none(name, runs, monkeypatch):
    """Libraries give tensors such methods, as fastcore does."""
    monkeypatch.setattr(torch.Tensor, name, noted(lambda self, other: NotImplemented), raising=False)
    LOG.clear()
    stream = ask("x.sum()", {"x": torch.ones(3)})
    assert (stream.values == [3.0], "Refused" in stream.traceback) == (runs, not runs)
    assert LOG == []


def test_hooks_of_all_modules_do_not_see_the_question():
    model, x = nn.Sequential(nn.Linear(4, 4), nn.ReLU()), torch.randn(3, 4)
    handles = [
        nn.modules.module.register_module_forward_hook(lambda m, given, out: LOG.append("forward")),
        nn.modules.module.register_module_forward_pre_hook(lambda m, given: LOG.append("before")),
    ]
    LOG.clear()
    try:
        looptap.probe(model, x)
        assert not ask("model(x).sum()", {"x": x}, model=model).error_count
        assert LOG == []
    finally:
        for handle in handles:
            handle.remove()


class Doubled(torch.autograd.Function):
    """Keeps its input for a backward pass."""

    @staticmethod
    def forward(ctx, x, by):
        ctx.save_for_backward(x)
        ctx.by = by
        return x * by

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.by, None


class Separate(torch.autograd.Function):
    """Has a context apart."""

    @staticmethod
    def forward(x):
        return x * 3

    @staticmethod
    def setup_context(ctx, inputs, output):
        LOG.append("context")

    @staticmethod
    def backward(ctx, grad):
        return grad


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.settings = nn.Linear(4, 4), Settings()

    def forward(self, x):
        self.settings.calls += 1
        return Separate.apply(Doubled.apply(self.inner(x), 2)) + self.settings.calls


class Settings:
    def __init__(self):
        self.calls, self.names = 0, ["a"]


def test_functions_with_gradients_of_their_own_give_what_they_compute():
    model, x = Model(), torch.randn(3, 4)
    assert torch.allclose(looptap.probe(model, x), model.inner(x) * 6 + 1)
    assert model.settings.calls == 0
    assert LOG == [] or "context" not in LOG


def test_a_model_changes_the_settings_of_the_copy_alone():
    model, x = Model(), torch.randn(3, 4)
    assert torch.equal(looptap.probe(model, x), looptap.probe(model, x))
    assert vars(model.settings) == {"calls": 0, "names": ["a"]}


class Checkpointed(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x):
        return checkpoint(self.inner, x, use_reentrant=False)


@pytest.mark.parametrize(
    ("model", "given"),
    [
        (nn.SyncBatchNorm(4), (torch.randn(3, 4, 2),)),
        (nn.LSTM(4, 3, 2, bidirectional=True, dropout=0.5), (torch.randn(3, 2, 4),)),
        (nn.TransformerEncoderLayer(4, 2, 8, batch_first=True), (torch.randn(3, 2, 4),)),
        (nn.MultiheadAttention(4, 2), (torch.randn(3, 2, 4),) * 3),
        (nn.utils.parametrizations.orthogonal(nn.Linear(4, 4)), (torch.randn(3, 4),)),
        (nn.CTCLoss(), (torch.randn(9, 2, 5).log_softmax(2), torch.ones(2, 3).long(), torch.tensor([9, 9]),
                        torch.tensor([3, 3]))),
        (nn.AdaptiveLogSoftmaxWithLoss(4, 9, [3]), (torch.randn(3, 4), torch.tensor([0, 4, 8]))),
        (nn.FractionalMaxPool2d(2, output_size=2), (torch.randn(1, 2, 6, 6),)),
        (nn.RReLU(), (torch.randn(3, 4),)),
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
@pytest.mark.parametrize("train", [False, True])
def test_modules_of_torch_with_a_state_run_on_the_copy(model, given, train):
    before, drawn = {k: v.clone() for k, v in model.state_dict().items()}, torch.get_rng_state()
    looptap.probe(model, *given, train=train)
    assert torch.equal(torch.get_rng_state(), drawn)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_the_settings_of_a_library_model_stay_as_they_are():
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = dict(vocab_size=50, num_attention_heads=2, num_hidden_layers=1, hidden_size=8, intermediate_size=8)
    model = transformers.BertForSequenceClassification(transformers.BertConfig(**sizes))
    before = dict(vars(model.config))
    looptap.probe(model, torch.randint(0, 50, (2, 4)), labels=torch.tensor([0, 1]))  # it writes the kind of problem
    assert vars(model.config) == before


class Loss(nn.Module):
    """Makes a module at each pass, as the models of transformers do with labels."""

    def forward(self, output, y):
        return nn.CrossEntropyLoss()(output, y)


def test_a_model_that_makes_modules_runs_after_torch_has_compiled_in_the_process(monkeypatch):
    from torch._dynamo import mutation_guard

    for name in ("__init__", "__setstate__"):
        monkeypatch.setattr(nn.Module, name, getattr(nn.Module, name))
    monkeypatch.setattr(nn.Module, "___needs_generation_tag_patch", True, raising=False)
    mutation_guard.install_generation_tagging_init()  # as torch.compile does
    loss, tagged = Loss(), mutation_guard.GenerationTracker.generation_values.values
    before = list(tagged)
    looptap.probe(loss, torch.randn(3, 4), torch.tensor([0, 1, 2]))
    assert list(tagged) == before
