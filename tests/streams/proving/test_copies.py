"""Models run on a copy: `forward` changes the copy alone, or is refused."""

from __future__ import annotations

import collections
import functools
import subprocess
import sys
import warnings

import numpy as np
import pytest
import torch
import torch.nn.utils.prune
from guarded_jobs import ask
from torch import nn

import looptap
from looptap.streams.errors import QueryError

LOG, TABLE, DRAWS = [], {"n": 0}, np.random.default_rng(1)
count = 0
WEIGHT = torch.ones(4)


def deeper():
    LOG.append(1)


def elsewhere():
    deeper()


@functools.cache
def remembered(n):
    LOG.append(n)
    return n


class Kept:
    seen = 0


def _global(m, x):
    global count
    count += 1


def _closure(log):
    def append(m, x):
        log.append(x)

    return append


def _module(m, x):
    Kept.seen += 1


WRITES = {
    "a list of the module": lambda m, x: LOG.append(x),
    "a dict of the module": lambda m, x: TABLE.update(n=1),
    "a global": _global,
    "a class": _module,
    "a closure": _closure(LOG),
    "two functions on": lambda m, x: elsewhere(),
    "a cached function": lambda m, x: remembered(3),
    "a generator": lambda m, x: DRAWS.normal(),
    "a random number of torch": lambda m, x: torch.manual_seed(1),
    "a tensor elsewhere": lambda m, x: WEIGHT.add_(1),
    "its memory": lambda m, x: WEIGHT.data.mul_(2),
    "a weight": lambda m, x: m.linear.weight.data.add_(1),
    "a weight, detached": lambda m, x: m.linear.weight.detach().zero_(),
    "a backward pass": lambda m, x: x.sum().backward(),
    "an item of a table": lambda m, x: TABLE.__setitem__("n", 2),
    "a print": lambda m, x: print(x),
    "an initializer": lambda m, x: nn.init.zeros_(m.linear.weight),
    "a file": lambda m, x: open("x", "w"),  # noqa: SIM115
    "an exception": lambda m, x: TABLE.pop("nothing"),
    "a hook": lambda m, x: m.linear.register_forward_hook(print),
}


class Doing(nn.Module):
    """A model that does ``what`` at each forward pass."""

    def __init__(self, what):
        super().__init__()
        self.linear, self.norm, self.what = nn.Linear(4, 4), nn.BatchNorm1d(4), what

    def forward(self, x):
        self.what(self, x)
        return self.linear(self.norm(x))


def everything(model):
    return [
        (
            name,
            type(m),
            m.training,
            sorted(vars(m)),
            len(m._forward_hooks),
            len(m._forward_pre_hooks),
            [
                (t.tolist(), t._version, t.requires_grad)
                for t in (*m._parameters.values(), *m._buffers.values())
                if t is not None
            ],
        )
        for name, m in model.named_modules()
    ]


def outside():
    return (
        LOG[:],
        dict(TABLE),
        count,
        WEIGHT.tolist(),
        str(DRAWS.bit_generator.state),
        torch.get_rng_state().tolist(),
        Kept.seen,
    )


@pytest.mark.parametrize("query", ["model(x).sum()", "probe(model, x).sum()", "probe(model, x, train=True).sum()"])
@pytest.mark.parametrize("what", WRITES)
def test_what_forward_would_write_elsewhere_is_refused_before_it_happens(what, query):
    model, x = Doing(WRITES[what]), torch.randn(3, 4)
    before, around = everything(model), outside()
    stream = ask(query, {"x": x}, model=model)
    assert everything(model) == before
    assert outside() == around
    assert stream.error_count == 1
    assert "Refused" in stream.traceback
    assert "unsafe=True" in stream.traceback


def _attribute(m, x):
    m.calls = getattr(m, "calls", 0) + 1


def _replaced(m, x):
    m.norm.running_mean = m.norm.running_mean + 1


KEEPS = {
    "an attribute": _attribute,
    "a buffer": lambda m, x: m.norm.running_mean.add_(1),
    "its flags": lambda m, x: m.norm.eval(),
    "a new buffer": lambda m, x: m.linear.register_buffer("more", x),
    "a buffer replaced": _replaced,
    "its input": lambda m, x: x.mul_(1),
    "its noise": lambda m, x: x.clone().normal_(),
    "its dropout": lambda m, x: nn.functional.dropout(x),
}


@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("what", KEEPS)
def test_what_forward_writes_to_itself_stays_in_the_copy(what, train):
    model, x = Doing(KEEPS[what]), torch.randn(3, 4)
    before, around, given = everything(model), outside(), x.tolist()
    stream = ask(f"probe(model, x, train={train}).sum()", {"x": x}, model=model)
    assert not stream.error_count or "would write to a tensor of the job" in stream.traceback
    assert (everything(model), outside(), x.tolist()) == (before, around, given)


class Called(nn.Linear):
    def __call__(self, x):
        LOG.append(x)
        return super().__call__(x)


class Ended(nn.Linear):
    def __del__(self):
        TABLE["ended"] = True


class Set(nn.Linear):
    def __setattr__(self, name, value):
        LOG.append(name) if name == "last" else None
        super().__setattr__(name, value)

    def forward(self, x):
        self.last = x
        return super().forward(x)


class Walked(nn.Linear):
    def named_parameters(self, *given, **named):
        LOG.append(1)
        return super().named_parameters(*given, **named)


class Sliced(nn.Sequential):
    def __init__(self, *layers):
        super().__init__(*layers)
        LOG.append(1)


ODD = {
    "its call": (lambda: Called(4, 4), "model(x).sum()"),
    "its end": (lambda: Ended(4, 4), "model(x).sum()"),
    "its attributes": (lambda: Set(4, 4), "model(x).sum()"),
    "the call of a child": (lambda: nn.Sequential(Called(4, 4)), "model(x).sum()"),
    "the walk over a child": (lambda: nn.Sequential(Walked(4, 4)), "len(list(model.parameters()))"),
    "a slice of it": (lambda: Sliced(nn.Linear(4, 4)), "model[:1](x).sum()"),
    "a function that torch calls": (
        lambda: nn.TransformerEncoderLayer(4, 1, 4, activation=lambda v: (LOG.append(1), v)[1], batch_first=True),
        "probe(model, x[None], train=True).sum()",
    ),
    "a distance that torch calls": (
        lambda: nn.TripletMarginWithDistanceLoss(distance_function=lambda a, b: (LOG.append(1), a.sum())[1]),
        "model(x, x, x).sum()",
    ),
}


@pytest.mark.parametrize("what", ODD)
def test_a_model_whose_class_does_more_than_forward_is_refused(what):
    make, query = ODD[what]
    model, x = make(), torch.randn(3, 4)
    LOG.clear()
    before, around = everything(model), outside()
    stream = ask(query, {"x": x}, model=model)
    assert (everything(model), outside()) == (before, around)
    assert "Refused" in stream.traceback


def test_hooks_of_the_job_do_not_see_the_question():
    feats, model = {}, nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    model[0].register_forward_hook(lambda m, given, out: feats.update(fc=out))
    model.register_forward_pre_hook(lambda m, given: feats.update(seen=True))
    model[1].register_full_backward_hook(lambda m, a, b: feats.update(back=True))
    for query in ("model(x).sum()", "model[0](x).sum()", "probe(model, x, gradient=True).sum()"):
        assert not ask(query, {"x": torch.randn(2, 4)}, model=model).error_count
    assert feats == {}


def test_layers_that_a_model_shares_or_holds_in_lists_and_dicts_are_copied_too():
    class Holding(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(4)
            self.parts, self.named = [self.norm, nn.BatchNorm1d(4)], {"a": (self.norm, nn.BatchNorm1d(4))}
            self.queue, self.again = collections.deque([nn.BatchNorm1d(4)]), nn.Sequential(self.norm)

        def forward(self, x):
            for part in [*self.parts, *self.named["a"], *self.queue, self.again]:
                x = part(x)
            return x

    model = Holding()
    every = [model.norm, model.parts[1], model.named["a"][1], model.queue[0]]
    stream = ask("probe(model, x, train=True).sum()", {"x": torch.randn(3, 4)}, model=model)
    assert not stream.error_count, stream.traceback
    assert all(norm.running_mean.tolist() == [0] * 4 and norm.num_batches_tracked == 0 for norm in every)


@pytest.mark.filterwarnings("ignore:.*deprecated")
@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("how", ["weight_norm", "spectral_norm", "parametrized", "old", "pruned", "parallel"])
def test_weights_that_torch_computes_are_computed_in_the_copy(how, train):
    torch.manual_seed(1)
    layer = nn.Linear(4, 4)
    made = {
        "weight_norm": lambda: nn.utils.parametrizations.weight_norm(layer),
        "old": lambda: nn.utils.spectral_norm(layer),
        "spectral_norm": lambda: nn.utils.parametrizations.spectral_norm(layer),
        "parallel": lambda: nn.DataParallel(layer),
        "parametrized": lambda: nn.utils.parametrizations.orthogonal(layer),
        "pruned": lambda: nn.utils.prune.l1_unstructured(layer, "weight", 0.5),
    }[how]()
    model, x = nn.Sequential(made), torch.randn(3, 4)
    model(x)
    before, around = everything(model), outside()
    stream = ask(f"probe(model, x, train={train}).sum()", {"x": x}, model=model)
    assert (everything(model), outside()) == (before, around)
    assert not stream.error_count or "Refused" in stream.traceback
    if not stream.error_count and not train:
        assert stream.latest == pytest.approx(model.eval()(x).sum().item())


def test_an_answer_is_that_of_evaluation_mode():
    model, x = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5)), torch.randn(3, 4)
    answer = ask("model(x)", {"x": x}, model=model).latest
    assert model.training
    assert torch.equal(answer, model.eval()(x))


def test_a_collective_in_a_forward_pass_is_refused(tmp_path):
    import torch.distributed as dist

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dist.init_process_group("gloo", init_method=f"file://{tmp_path}/group", rank=0, world_size=1)
    try:
        x = torch.randn(3, 4)
        model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)))
        before = everything(model)
        assert torch.equal(ask("model(x)", {"x": x}, model=model).latest, looptap.probe(model, x))
        assert everything(model) == before
        with pytest.raises(QueryError, match="Refused"):
            looptap.probe(Doing(lambda m, x: dist.all_reduce(x)), x)
    finally:
        dist.destroy_process_group()


@pytest.mark.usefixtures("processes")
def test_a_model_is_probed_in_a_process_that_asks_nothing_else():
    code = "import looptap, torch; print(looptap.probe(torch.nn.Linear(2, 3), torch.ones(4, 2)).shape)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "torch.Size([4, 3])\n", done.stderr
