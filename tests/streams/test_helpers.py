from __future__ import annotations

import gc
import math
import random
import subprocess
import sys
import weakref

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from looptap.streams.values.checks import (
    HELPERS,
    activation_stats,
    batch_bottomk,
    batch_sample,
    batch_topk,
    confusion,
    isfinite,
    isinf,
    isnan,
    layer_histograms,
    layer_norms,
    lr,
    mean_abs,
    norm,
    shape,
    thumbnail,
)
from looptap.streams.values.described import summary
from looptap.streams.values.memory import cuda_memory, cuda_peak, peak_rss, rss
from looptap.streams.values.model_helpers import embedding, saliency, update_ratio
from looptap.testing import pair


@pytest.fixture
def model():
    """Return a model with gradients, and a frozen, a reused and a large layer."""
    shared = nn.Linear(3, 3)
    model = nn.Sequential(nn.Linear(4, 3), shared, nn.BatchNorm1d(3), shared, nn.Linear(3, 2), nn.Linear(2, 300))
    model[4].requires_grad_(False)
    model(torch.randn(8, 4)).square().sum().backward()
    return model


KINDS = {
    "l2": lambda t: t.norm().item(),
    "mean_abs": lambda t: t.abs().mean().item(),
    "max": lambda t: t.abs().max().item(),
    "std": lambda t: t.std(correction=0).item(),
}


@pytest.mark.parametrize("kind", KINDS)
def test_layer_norms_agree_with_a_loop_over_the_parameters(model, kind):
    weights = {name: KINDS[kind](p.detach()) for name, p in model.named_parameters()}
    grads = {name: KINDS[kind](p.grad) for name, p in model.named_parameters() if p.grad is not None}
    assert layer_norms(model, "weight", kind) == pytest.approx(weights, rel=1e-6)
    assert layer_norms(model, "grad", kind) == pytest.approx(grads, rel=1e-6)
    assert list(layer_norms(model, "weight")) == list(weights)
    assert "4.weight" not in grads


@pytest.mark.parametrize("kind", KINDS)
def test_layer_norms_show_a_nan_in_a_small_and_in_a_large_layer(model, kind):
    for layer in (0, 5):
        model[layer].weight.grad.view(-1)[1] = math.nan
    norms = layer_norms(model, kind=kind)
    assert [name for name, value in norms.items() if math.isnan(value)] == ["0.weight", "5.weight"]


CHANGES = {
    "a layer more": lambda model: model.append(nn.Linear(2, 2)),
    "a layer less": lambda model: model.pop(5),
    "another layer": lambda model: setattr(model, "3", nn.Linear(3, 3)),
    "another parameter": lambda model: setattr(model[0], "weight", nn.Parameter(torch.ones(3, 4))),
    "a parameter removed": lambda model: setattr(model[0], "bias", None),
    "a shared parameter": lambda model: setattr(model[3], "bias", model[0].bias),
    "another name": lambda model: model[0].register_parameter("scale", model[0]._parameters.pop("bias")),
    "a layer deep inside": lambda model: model[2].add_module("inner", nn.Linear(1, 1)),
}


@pytest.mark.parametrize("change", CHANGES)
def test_layer_norms_follow_a_model_that_changes(model, change):
    layer_norms(model, "weight")
    CHANGES[change](model)
    expected = {name: p.detach().norm().item() for name, p in model.named_parameters()}
    assert layer_norms(model, "weight") == pytest.approx(expected, rel=1e-6)


def test_layer_norms_keep_no_model_alive():
    model = nn.Sequential(*(nn.Linear(2, 2) for _ in range(40)))
    layer_norms(model, "weight")
    seen = weakref.ref(model)
    del model
    gc.collect()
    assert seen() is None


@pytest.mark.parametrize("layers", [1, 5, 20])
def test_layer_norms_of_few_and_of_many_layers_agree_with_a_loop(layers):
    model = nn.Sequential(*(nn.Linear(width, width) for width in [3, 40] * layers))
    expected = {name: p.detach().norm().item() for name, p in model.named_parameters()}
    found = layer_norms(model, "weight")
    assert found == pytest.approx(expected, rel=1e-6)
    assert list(found) == list(expected)


def test_layer_norms_say_when_there_is_no_gradient(model):
    model.zero_grad()
    with pytest.raises(ValueError, match="Emit after backward"):
        layer_norms(model)


@pytest.mark.parametrize("wrong", [{"what": "grads"}, {"kind": "l1"}])
def test_layer_norms_refuse_an_unknown_choice(model, wrong):
    with pytest.raises(ValueError, match=r"not '(grads|l1)'"):
        layer_norms(model, **wrong)


def test_a_model_must_be_a_module():
    with pytest.raises(TypeError, match=r"torch\.nn\.Module, not a dict"):
        layer_norms({})


def test_layer_norms_of_half_precision_do_not_overflow():
    model = nn.Linear(100, 100, bias=False, dtype=torch.float16)
    with torch.no_grad():
        model.weight.fill_(60000.0)
    assert layer_norms(model, "weight")["weight"] == pytest.approx(6e6, rel=1e-3)


def test_layer_norms_of_mixed_and_sparse_and_empty_parameters():
    model = nn.ModuleDict({"e": nn.Embedding(9, 2, sparse=True), "d": nn.Linear(2, 2, dtype=torch.float64)})
    model.register_parameter("empty", nn.Parameter(torch.zeros(0)))
    model["d"](model["e"](torch.tensor([1, 1, 3])).double()).sum().backward()
    norms = layer_norms(model)
    assert norms["e.weight"] == pytest.approx(model["e"].weight.grad.to_dense().norm().item())
    assert norms["d.bias"] == pytest.approx(3 * math.sqrt(2))
    assert math.isnan(layer_norms(model, "weight", "max")["empty"])


@pytest.mark.parametrize("layers", [1, 20])
@pytest.mark.parametrize(
    "dtypes",
    [(torch.float16,), (torch.bfloat16, torch.float32), (torch.float64, torch.float32), (torch.float16, torch.float64)],
    ids=str,
)
def test_layer_norms_keep_the_precision_of_each_layer(layers, dtypes):
    model = nn.Sequential(*(nn.Linear(3, 3, dtype=dtype) for dtype in dtypes * layers))
    model.register_parameter("empty", nn.Parameter(torch.zeros(0)))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.uniform_(30000.0, 60000.0)
    found = layer_norms(model, "weight")
    assert math.isnan(found.pop("empty"))
    for name, parameter in model.named_parameters():
        if name in found:
            rel = 1e-12 if parameter.dtype is torch.float64 else 1e-6
            assert found.pop(name) == pytest.approx(parameter.detach().double().norm().item(), rel=rel), name
    assert not found


def test_a_model_without_parameters_has_no_norms():
    assert layer_norms(nn.ReLU(), "weight") == {}


def test_a_sharded_parameter_stands_for_its_local_shard():
    import torch.distributed.tensor

    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        mesh = torch.distributed.init_device_mesh("cpu", (1,))
        model = nn.Linear(2, 2, bias=False)
        expected = layer_norms(model, "weight")
        shard = torch.distributed.tensor.distribute_tensor(model.weight.detach(), mesh)
        model.weight = nn.Parameter(shard)
        assert layer_norms(model, "weight") == expected
        assert norm(model.parameters()) == pytest.approx(expected["weight"])
        assert not isnan(model.weight)
    finally:
        torch.distributed.destroy_process_group()


def test_layer_histograms_agree_with_numpy_and_leave_out_what_is_not_finite(model):
    weight = model[0].weight.detach().numpy()
    counts, edges = layer_histograms(model, "weight", bins=5)["0.weight"]
    assert counts.tolist() == np.histogram(weight, 5)[0].tolist()
    assert edges == pytest.approx(np.histogram(weight, 5)[1])
    model[0].weight.grad.view(-1)[0] = math.nan
    assert layer_histograms(model)["0.weight"][0].sum() == weight.size - 1


def test_activation_stats_of_tensors_and_arrays():
    x = np.array([[0.0, 0.0], [3.0, -5.0]])
    expected = {"mean": -0.5, "std": x.std(), "max_abs": 5, "zeros": 0.5, "nonfinite": 0}
    assert activation_stats(x) == pytest.approx(expected)
    assert activation_stats(torch.tensor(x, requires_grad=True)) == pytest.approx(expected)
    assert activation_stats(torch.tensor([1.0, math.inf]))["nonfinite"] == 0.5


@pytest.mark.parametrize("make", [np.array, torch.tensor])
def test_batch_topk_gives_rows_of_the_worst_samples(make):
    loss, x = make([0.1, 0.9, 0.5]), make([[1], [2], [3]])
    rows = batch_topk(2, loss, x=x, y=["a", "b", "c"], step=7)
    assert [(row["by"], row["x"].tolist(), row["y"], row["step"]) for row in rows] == [
        (pytest.approx(0.9), [2], "b", 7),
        (pytest.approx(0.5), [3], "c", 7),
    ]
    assert [row["by"] for row in batch_bottomk(9, loss)] == pytest.approx([0.1, 0.5, 0.9])


def test_rows_of_a_batch_are_copies_without_a_graph():
    x, loss = torch.ones(3, 2, requires_grad=True), torch.tensor([1.0, math.nan, 2.0], requires_grad=True)
    array = np.zeros((3, 1))
    row = batch_topk(1, loss, x=x, a=array)[0]
    with torch.no_grad():
        x.zero_()
    array += 1
    assert math.isnan(row["by"])
    assert (row["x"].tolist(), row["x"].requires_grad, row["a"].tolist()) == ([1, 1], False, [0])


def test_batch_topk_wants_a_number_per_sample():
    with pytest.raises(ValueError, match=r'shape \(\).*reduction="none"'):
        batch_topk(1, torch.tensor(1.0))
    with pytest.raises(ValueError, match="The column 'x' has 2 samples, and the batch has 3"):
        batch_topk(1, torch.zeros(3), x=[1, 2])


def test_batch_sample_chooses_different_samples_in_order():
    for _ in range(50):
        rows = batch_sample(3, x=torch.arange(10), y=list(range(10)))
        assert [row["x"] for row in rows] == [row["y"] for row in rows] == sorted({row["y"] for row in rows})
        assert len(rows) == 3
    with pytest.raises(ValueError, match="needs a column"):
        batch_sample(3, step=1)


@pytest.mark.parametrize("make", [np.array, torch.tensor])
def test_confusion_counts_rows_of_targets_and_columns_of_predictions(make):
    target = make([0, 2, 2, -100])
    scores = make([[1.0, 0, 0], [0, 0, 9], [0, 4, 1], [1, 0, 0]])
    for output in (scores, make([0, 2, 1, 0])):
        found = confusion(target, output, 3)
        assert found.dtype == np.int64
        assert found.tolist() == [[1, 0, 0], [0, 0, 0], [0, 1, 1]]


def test_confusion_of_a_segmentation_takes_the_class_in_the_second_dimension():
    target = torch.randint(0, 3, (2, 4, 5))
    scores = nn.functional.one_hot(target, 3).movedim(-1, 1).float()
    assert confusion(target, scores, 3).trace() == 40


NUMBERS = [1, 1.0, np.float32(1), np.ones(2), np.array([1]), torch.ones(2), torch.tensor(1), "text", None]


@pytest.mark.parametrize("x", [*NUMBERS, NUMBERS, {"a": NUMBERS}, (), 1 + 1j])
def test_ordinary_numbers_are_finite(x):
    assert (isnan(x), isinf(x), isfinite(x)) == (False, False, True)


WRAPS = [
    float,
    np.float32,
    lambda v: np.array([0, v]),
    lambda v: torch.tensor([[0, v]], dtype=torch.bfloat16),
    lambda v: torch.tensor(v).to_sparse(),
    lambda v: [1, {"a": (v, 2)}],
    lambda v: complex(0, v),
]


@pytest.mark.parametrize("wrap", WRAPS)
def test_nan_and_infinity_are_found_wherever_they_hide(wrap):
    assert [f(wrap(math.nan)) for f in (isnan, isinf, isfinite)] == [True, False, False]
    assert [f(wrap(-math.inf)) for f in (isnan, isinf, isfinite)] == [False, True, False]


def test_norm_and_mean_abs_take_numbers_arrays_and_tensors():
    assert norm(-2) == mean_abs(-2) == 2
    assert norm(torch.tensor([3.0, 4.0], requires_grad=True)) == 5
    assert norm(p for p in (torch.full((2, 2), 2.0), np.zeros(3), 3.0)) == 5
    assert norm({}) == 0
    assert mean_abs(torch.tensor([1, -2, 3])) == mean_abs(np.array([1, -2, 3])) == 2
    assert norm(torch.full((4,), 60000.0, dtype=torch.float16)) == 120000


def test_a_model_is_no_number_and_the_error_says_what_has_its_norms():
    for model in (nn.Linear(2, 2), nn.Sequential(nn.ReLU())):
        for function in (norm, mean_abs, isnan, isinf, isfinite):
            with pytest.raises(TypeError, match="layer_norms"):
                function(model)
    with pytest.raises(TypeError, match="layer_norms"):
        norm({"netG": nn.Linear(2, 2)})
    assert norm(nn.Linear(2, 2).parameters()) > 0


def test_shape_of_any_value():
    assert shape((torch.zeros(2, 3), [np.zeros(4)], {"n": 1.0})) == [(2, 3), [(4,)], {"n": ()}]


def test_lr_is_one_number_or_one_per_group():
    parameters = [nn.Parameter(torch.zeros(1)) for _ in range(2)]
    assert lr(torch.optim.SGD(parameters, lr=0.1)) == 0.1
    groups = [{"params": [parameters[0]], "lr": 0.5}, {"params": [parameters[1]]}]
    assert lr(torch.optim.SGD(groups, lr=0.1)) == (0.5, 0.1)
    assert lr(torch.optim.Adam(parameters, lr=torch.tensor(0.25))) == 0.25


@pytest.mark.parametrize("size", [(3, 100, 50), (100, 50, 3)])
def test_a_thumbnail_is_a_small_uint8_picture(size):
    for image in (np.full(size, 0.5), torch.full(size, 0.5, dtype=torch.bfloat16)):
        small = thumbnail(image, 20)
        assert (small.shape, small.dtype) == ((20, 10, 3), np.uint8)
        assert set(small.ravel()) == {128}


def test_a_thumbnail_stretches_what_is_no_brightness():
    image = np.array([[-2.0, 0.0], [math.nan, 2.0]])
    assert thumbnail(image).tolist() == [[0, 128], [128, 255]]
    assert thumbnail(np.array([[7, 9]], dtype=np.uint8)).tolist() == [[7, 9]]


def test_a_thumbnail_of_a_batch_is_refused_with_a_way_out():
    with pytest.raises(ValueError, match=r"shape \(8, 3, 9, 9\).*thumbnail\(e.x\[0\]\)"):
        thumbnail(torch.zeros(8, 3, 9, 9))


def test_a_thumbnail_of_a_pil_image_leaves_the_image_alone():
    image = Image.new("RGB", (100, 50))
    assert (thumbnail(image).size, image.size) == ((64, 32), (100, 50))


MEMORY = {"rss": rss, "peak_rss": peak_rss, "cuda_memory": cuda_memory, "cuda_peak": cuda_peak}


def everything(model):
    """Call each helper on tensors of the model's device."""
    x = next(model.parameters()).new_ones(6, 1)
    inputs = next(one.in_features for one in model.modules() if isinstance(one, nn.Linear))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return {
        "layer_norms": lambda: [layer_norms(model, w, k) for w in ("grad", "weight") for k in KINDS],
        "layer_histograms": lambda: layer_histograms(model),
        "activation_stats": lambda: activation_stats(x),
        "batch_topk": lambda: batch_topk(2, x[:, 0], x=x),
        "batch_bottomk": lambda: batch_bottomk(2, x[:, 0], x=x),
        "batch_sample": lambda: batch_sample(2, x=x),
        "confusion": lambda: confusion(x[:, 0].long(), x, 2),
        "isnan": lambda: isnan([1.0, x, x]),
        "isinf": lambda: isinf(x),
        "isfinite": lambda: isfinite({"x": x, "y": 1.0}),
        "norm": lambda: norm(model.parameters()),
        "mean_abs": lambda: mean_abs(x),
        "shape": lambda: shape(x),
        "lr": lambda: lr(optimizer),
        "thumbnail": lambda: thumbnail(x),
        "summary": lambda: summary(model),
        "update_ratio": lambda: update_ratio(model, optimizer),
        "saliency": lambda: saliency(model, x.new_ones(6, inputs)),
        "embedding": lambda: embedding(x.new_ones(6, 4), labels=x[:, 0]),
        **MEMORY,
    }


@pytest.mark.parametrize("name", HELPERS)
def test_no_helper_changes_gradients_weights_or_random_numbers(model, name):
    def state():
        tensors = [*model.state_dict().values(), *(p.grad for p in model.parameters() if p.grad is not None)]
        numpys = np.random.get_state()
        return [
            *(t.tolist() for t in tensors),
            torch.get_rng_state().tolist(),
            random.getstate(),
            numpys[1].tolist(),
        ]

    before = state()
    versions = [p._version for p in model.parameters()]
    result = everything(model)[name]()
    assert state() == before
    assert [p._version for p in model.parameters()] == versions
    assert torch.is_grad_enabled()
    assert "grad_fn" not in repr(result)


@pytest.mark.parametrize("name", HELPERS)
def test_no_helper_reads_a_tensor_of_a_device(name):
    model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2)).to("meta")  # looking at a meta tensor is an error
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    result = everything(model)[name]()
    assert name in ("lr", "shape", "summary", *MEMORY) or "device='meta'" in repr(result)


@pytest.mark.usefixtures("processes")
def test_helpers_do_not_import_torch():
    code = (
        "import sys, looptap.streams.values.checks as h; import numpy as np;"
        "h.norm([1.0, np.ones(3)]), h.isnan([1.0]), h.batch_topk(1, np.ones(2)), h.confusion([0], [0], 2);"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=300).returncode == 0


def test_memory_is_that_of_this_process():
    before = rss()
    held = np.ones(64 * 1024 * 1024, dtype=np.uint8)
    assert rss() - before > held.nbytes / 2
    assert peak_rss() >= before + held.nbytes / 2
    assert cuda_memory() == cuda_peak() == 0  # where there is a device: test_cuda.py


def test_memory_is_available_in_any_query():
    agent, run = pair("memory")
    queries = ("rss()", "max(rss() for e in events)", "step, cuda_memory(), cuda_peak(), peak_rss()")
    streams = [run.stream(query, on="batch", window=2) for query in queries]
    for step in range(4):
        agent.emit("batch", step=step)
    agent.close()
    assert [len(stream.values) for stream in streams] == [4, 2, 4]
    assert not any(stream.error_count for stream in streams)


class Wrapper(nn.Module):
    """Looks names up and lists parameters in a way of its own; both count."""

    def __init__(self, inside):
        super().__init__()
        self.inside, self.calls = inside, []

    def __getattr__(self, name):
        self.__dict__["calls"].append(name)
        return super().__getattr__(name)

    def named_parameters(self, *args, **kwargs):
        self.calls.append("named_parameters")
        return super().named_parameters(*args, **kwargs)


def asked_of(model, *queries):
    """Return the values of queries at a step, and the reasons of their ends."""
    agent, run = pair("helpers")
    agent.expose(model=model)
    streams = [run.stream(query, on="step", budget=float("inf")) for query in queries]
    agent.emit("step", step=1)
    agent.close()
    return [[*stream.values] for stream in streams], [stream.reason for stream in streams]


def test_helpers_read_what_a_model_holds_and_run_no_code_of_its_class(model):
    wrapped = Wrapper(model)
    expected = {name: p.detach().norm().item() for name, p in nn.Module.named_parameters(wrapped)}
    wrapped.calls.clear()
    (norms, rows), reasons = asked_of(wrapped, "layer_norms(model, 'weight')", "summary(model)")
    assert norms == [pytest.approx(expected, rel=1e-6)], reasons
    assert [row[-1]["parameters"] for row in rows] == [sum(p.numel() for p in model.parameters())], reasons
    assert wrapped.calls == []
    (_,), (refused,) = asked_of(wrapped, "len(list(model.parameters()))")
    assert "Refused" in refused
    assert "named_parameters" not in wrapped.calls


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch.jit, as the compiler is loaded
def test_helpers_and_parameters_of_a_compiled_model_and_of_a_wrapper_that_forwards_names(model):
    class Forwards(nn.Module):
        def __init__(self, inside):
            super().__init__()
            self.inside = inside

        def __getattr__(self, name):
            try:
                return super().__getattr__(name)
            except AttributeError:
                return getattr(super().__getattr__("inside"), name)

    for wrapped in (torch.compile(model), Forwards(model)):
        values, reasons = asked_of(wrapped, "len(layer_norms(model, 'grad'))", "sum(1 for p in model.parameters())")
        assert values == [[8], [10]], reasons
