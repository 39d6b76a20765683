"""Losses and gradient norms of single examples, against torch and autograd."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.nn import functional

from looptap.training.sampling.per_example import CrossEntropy, PerExample, criterion_of

N, CLASSES = 7, 5


def randn(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(len(shape)))


def classes(*shape, padded=False):
    found = torch.randint(0, CLASSES, shape, generator=torch.Generator().manual_seed(1))
    if padded:
        found[torch.rand(*shape, generator=torch.Generator().manual_seed(2)) < 0.4] = -100
        found[0] = -100  # an example that is all padding
        found[1] = 3
    return found


def soft(*shape):
    return (3 * randn(*shape)).softmax(1)


WEIGHT = torch.tensor([0.5, 1.0, 2.0, 3.0, 0.1])
POSITIVE = torch.tensor([0.5, 1.0, 4.0])
CASES = {
    "name": ("cross_entropy", randn(N, CLASSES), classes(N)),
    "classes": (nn.CrossEntropyLoss(), randn(N, CLASSES), classes(N)),
    "sum": (nn.CrossEntropyLoss(reduction="sum"), randn(N, CLASSES), classes(N)),
    "padded classes": (nn.CrossEntropyLoss(), randn(N, CLASSES), classes(N, padded=True)),
    "int32 classes": (nn.CrossEntropyLoss(), randn(N, CLASSES), classes(N).int()),
    "smoothed": (nn.CrossEntropyLoss(label_smoothing=0.2), randn(N, CLASSES), classes(N)),
    "all smooth": (nn.CrossEntropyLoss(label_smoothing=1.0), randn(N, CLASSES), classes(N)),
    "weighted": (nn.CrossEntropyLoss(weight=WEIGHT), randn(N, CLASSES), classes(N)),
    "weighted, smoothed": (nn.CrossEntropyLoss(WEIGHT, label_smoothing=0.1), randn(N, CLASSES), classes(N)),
    "soft": (nn.CrossEntropyLoss(), randn(N, CLASSES), soft(N, CLASSES)),
    "soft, smoothed": (nn.CrossEntropyLoss(label_smoothing=0.3), randn(N, CLASSES), soft(N, CLASSES)),
    "soft, weighted": (nn.CrossEntropyLoss(WEIGHT, label_smoothing=0.3), randn(N, CLASSES), soft(N, CLASSES)),
    "soft sequences": (nn.CrossEntropyLoss(), randn(N, CLASSES, 4), soft(N, CLASSES, 4)),
    "sequences": (nn.CrossEntropyLoss(), randn(N, CLASSES, 9), classes(N, 9)),
    "padded": (nn.CrossEntropyLoss(), randn(N, CLASSES, 9), classes(N, 9, padded=True)),
    "padded with 0": (nn.CrossEntropyLoss(ignore_index=0), randn(N, CLASSES, 9), classes(N, 9)),
    "padded, smoothed, weighted": (
        nn.CrossEntropyLoss(WEIGHT, label_smoothing=0.1), randn(N, CLASSES, 9), classes(N, 9, padded=True),
    ),
    "images": (nn.CrossEntropyLoss(), randn(N, CLASSES, 3, 4), classes(N, 3, 4)),
    "padded images": (nn.CrossEntropyLoss(), randn(N, CLASSES, 3, 4), classes(N, 3, 4, padded=True)),
    "far logits": (nn.CrossEntropyLoss(), 200 * randn(N, CLASSES), classes(N)),
    "one example": (nn.CrossEntropyLoss(), randn(1, CLASSES), classes(1)),
    "bce name": ("bce", randn(N), soft(N, 2)[:, 0]),
    "bce": (nn.BCEWithLogitsLoss(), randn(N), classes(N) % 2),
    "bce, labels": (nn.BCEWithLogitsLoss(), randn(N, 3), soft(N, 3)),
    "bce, positive": (nn.BCEWithLogitsLoss(pos_weight=POSITIVE), randn(N, 3), classes(N, 3) % 2),
    "bce, weight": (nn.BCEWithLogitsLoss(POSITIVE, pos_weight=POSITIVE), randn(N, 3), soft(N, 3)),
    "bce, images": (nn.BCEWithLogitsLoss(), 30 * randn(N, 1, 3, 4), classes(N, 1, 3, 4) % 2),
    "mse name": ("mse", randn(N), soft(N, 2)[:, 0]),
    "mse": (nn.MSELoss(), randn(N, 3), soft(N, 3)),
}  # fmt: skip


def of_torch(loss, outputs, targets):
    """Return torch's own loss of each token, and which are not padding."""
    kind = {"cross_entropy": nn.CrossEntropyLoss(), "bce": nn.BCEWithLogitsLoss(), "mse": nn.MSELoss()}.get(loss, loss)
    if isinstance(kind, nn.CrossEntropyLoss):
        hard = not targets.is_floating_point()
        found = functional.cross_entropy(
            outputs, targets.long() if hard else targets, kind.weight, ignore_index=kind.ignore_index,
            label_smoothing=kind.label_smoothing, reduction="none",
        )  # fmt: skip
        return found, targets != kind.ignore_index if hard else torch.ones_like(found, dtype=torch.bool)
    if isinstance(kind, nn.BCEWithLogitsLoss):
        found = functional.binary_cross_entropy_with_logits(
            outputs, targets.float(), kind.weight, pos_weight=kind.pos_weight, reduction="none"
        )
    else:
        found = functional.mse_loss(outputs, targets, reduction="none")
    return found, torch.ones_like(found, dtype=torch.bool)


@pytest.mark.parametrize("case", CASES)
def test_losses_and_scores_are_those_of_torch_and_autograd(case):
    loss, outputs, targets = CASES[case]
    found = criterion_of(loss)(outputs.clone().requires_grad_(), targets)
    assert not found.losses.requires_grad
    assert not found.scores.requires_grad
    assert found.losses.shape == found.scores.shape == (len(outputs),)

    z = outputs.clone().requires_grad_()
    tokens, valid = of_torch(loss, z, targets)
    (slopes,) = torch.autograd.grad(tokens.sum(), z)  # each token's loss depends on its own outputs alone
    counts = valid.reshape(len(outputs), -1).sum(1).clamp(min=1)
    wanted = (tokens * valid).reshape(len(outputs), -1).sum(1) / counts
    norms = (slopes.reshape(len(outputs), -1).square().sum(1) / counts).sqrt()
    if "mse" in case:
        norms = norms / 2  # |z - y|, of which the slope is twice
    torch.testing.assert_close(found.losses, wanted.detach(), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(found.scores, norms, rtol=1e-4, atol=1e-3 if "far" in case else 2e-4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("case", CASES)
def test_outputs_of_any_precision_are_computed_in_single(case, dtype):
    loss, outputs, targets = CASES[case]
    low = outputs.to(dtype)
    found, wanted = criterion_of(loss)(low, targets), criterion_of(loss)(low.float(), targets)
    assert found.losses.dtype == found.scores.dtype == torch.float32
    assert torch.equal(found.losses, wanted.losses)
    assert torch.equal(found.scores, wanted.scores)


def test_under_autocast_and_without_gradients_it_is_the_same():
    outputs, targets = randn(N, CLASSES), classes(N)
    wanted = CrossEntropy()(outputs, targets)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed = CrossEntropy()(outputs, targets)
    with torch.inference_mode():
        inferred = CrossEntropy()(outputs, targets)
    for found in (mixed, inferred):
        torch.testing.assert_close(found, wanted)


def test_masked_classes_and_certain_examples_are_finite():
    logits = torch.tensor([[0.0, -math.inf, 1.0], [1000.0, 0.0, 0.0], [0.0, 1000.0, 0.0]])
    found = CrossEntropy()(logits, torch.tensor([0, 0, 0]))
    assert torch.isfinite(found.losses).all()
    assert torch.isfinite(found.scores).all()
    assert found.scores[1] == 0
    assert found.scores[2] == pytest.approx(math.sqrt(2))


def test_nan_and_empty_batches_are_passed_on():
    found = CrossEntropy()(torch.tensor([[math.nan, 0.0], [0.0, 0.0]]), torch.tensor([0, 1]))
    assert found.losses.isnan().tolist() == found.scores.isnan().tolist() == [True, False]
    assert criterion_of("mse")(torch.empty(0, 2), torch.empty(0, 2)).losses.shape == (0,)
    assert CrossEntropy()(torch.empty(0, 3), torch.empty(0, dtype=torch.long)).scores.shape == (0,)


def test_the_job_keeps_its_tensors_and_its_random_numbers():
    outputs, targets = randn(N, CLASSES, 9), classes(N, 9, padded=True)
    kept, state = (outputs.clone(), targets.clone()), torch.get_rng_state()
    CrossEntropy(label_smoothing=0.1)(outputs, targets)
    CrossEntropy()(outputs, targets)
    assert torch.equal(outputs, kept[0])
    assert torch.equal(targets, kept[1])
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(
    ("loss", "outputs", "targets"),
    [
        ("cross_entropy", randn(N), classes(N)),
        ("cross_entropy", randn(N, CLASSES), classes(N, 1)),
        ("cross_entropy", randn(N, CLASSES), soft(N, 4)),
        ("cross_entropy", randn(N, 9, CLASSES), classes(N, 9)),
        ("bce", randn(N, 1), soft(N, 2)[:, 0]),
        ("mse", randn(N, 1), soft(N, 2)[:, 0]),
    ],
)
def test_shapes_that_do_not_fit_are_refused_with_both_shapes(loss, outputs, targets):
    with pytest.raises(ValueError, match=r"shape \(7"):
        criterion_of(loss)(outputs, targets)


def test_an_unknown_loss_is_refused():
    with pytest.raises(ValueError, match="must be one of cross_entropy, bce, mse"):
        criterion_of("entropy")
    with pytest.raises(TypeError, match="no known gradient norm"):
        criterion_of(nn.HuberLoss())
    with pytest.raises(TypeError, match="no known gradient norm"):
        criterion_of(None)
    with pytest.raises(ValueError, match="label_smoothing=2"):
        CrossEntropy(label_smoothing=2)


def test_a_function_is_taken_as_it_is():
    def own(outputs, targets):
        return PerExample(outputs, targets)

    assert criterion_of(own) is own


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_it_is_the_same_and_waits_for_nothing():
    for loss, outputs, targets in CASES.values():
        wanted, criterion = criterion_of(loss)(outputs, targets), criterion_of(loss)
        on_gpu = outputs.cuda(), targets.cuda()
        given = getattr(loss, "weight", None) is not None or getattr(loss, "pos_weight", None) is not None
        torch.cuda.set_sync_debug_mode("default" if given else "error")  # weights of the CPU are copied
        try:
            found = criterion(*on_gpu)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        torch.testing.assert_close(found.losses.cpu(), wanted.losses, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(found.scores.cpu(), wanted.scores, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("name", CASES)
def test_the_loss_of_a_batch_is_that_of_torch_and_so_is_the_mean_of_single_ones(name):
    loss, outputs, targets = CASES[name]
    kind = {"cross_entropy": nn.CrossEntropyLoss(), "bce": nn.BCEWithLogitsLoss(), "mse": nn.MSELoss()}.get(loss, loss)
    if not isinstance(kind, nn.CrossEntropyLoss):
        targets = targets.float()
    elif not targets.is_floating_point():
        targets = targets.long()
    kind.reduction = "mean"
    criterion, gradients = criterion_of(loss), []
    for compute in (kind, criterion.mean, lambda *given: criterion.each(*given).mean()):
        given = outputs.clone().requires_grad_()
        found = compute(given, targets)
        found.backward()
        gradients.append((found.detach(), given.grad))
    assert torch.equal(gradients[1][0], gradients[0][0])
    assert torch.equal(gradients[1][1], gradients[0][1])
    torch.testing.assert_close(gradients[2], gradients[0])
    assert criterion.each(outputs, targets).shape == (len(outputs),)


@pytest.mark.parametrize("name", CASES)
def test_small_batches_in_memory_have_the_same_losses_and_scores(name):
    loss, outputs, targets = CASES[name]
    criterion = criterion_of(loss)
    found = criterion.small(outputs, targets) if isinstance(criterion, CrossEntropy) else None
    assert (found is not None) == (name in ("name", "classes", "sum", "int32 classes", "far logits", "one example"))
    if found is not None:
        wanted = criterion(outputs, targets)
        torch.testing.assert_close(torch.from_numpy(found.losses), wanted.losses)
        torch.testing.assert_close(torch.from_numpy(found.scores), wanted.scores, atol=1e-3, rtol=1e-4)


@pytest.mark.parametrize(
    ("outputs", "targets"),
    [
        (randn(N, CLASSES).double(), classes(N)), (randn(N, CLASSES).bfloat16(), classes(N)),
        (randn(N, CLASSES), classes(N).tolist()), (randn(N, CLASSES), classes(N - 1)), (randn(9000, 2), classes(9000)),
        (randn(0, CLASSES), classes(0)), (randn(N, CLASSES).tolist(), classes(N)),
    ],
    ids=["double", "bfloat16", "list", "another length", "large", "empty", "no tensor"],
)  # fmt: skip
def test_what_is_no_small_batch_is_left_to_torch(outputs, targets):
    assert CrossEntropy().small(outputs, targets) is None
