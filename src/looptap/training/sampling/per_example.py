"""Losses and gradient norms of single examples, from the model's outputs."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol, runtime_checkable

from looptap.training.sampling.small_batches import small_cross_entropy


class PerExample(NamedTuple):
    """Losses and scores of a batch's examples: tensors (n,) on the outputs' device."""

    losses: Any
    scores: Any
    """The norm of the gradient of the loss with respect to the model's output, the root of the mean over tokens; None:
    not known."""


class Criterion(Protocol):
    """A function that computes the losses and scores of single examples."""

    def __call__(self, outputs: Any, targets: Any) -> PerExample:
        """Return them. Raises ValueError for shapes that do not match."""


@runtime_checkable
class ReducedLoss(Protocol):
    """A criterion that is a loss of torch, too; its gradient is that of torch."""

    def mean(self, outputs: Any, targets: Any) -> Any:
        """Return the loss of a batch, as torch reduces it."""

    def each(self, outputs: Any, targets: Any) -> Any:
        """Return one loss for each example, shape (n,), whose mean is `mean`."""

    def single(self, outputs: Any, targets: Any) -> Any:
        """Return the losses (n,) that a call returns, with their graph."""


class CrossEntropy:
    """Cross-entropy of logits with class indices, or with probabilities, as targets.

    Logits are (n, classes) or (n, classes, ...). ``weight`` has one factor for each class; ``ignore_index`` marks
    padding. A loss is the mean over the tokens of an example that are not padding; its score is the root of the mean of
    ``|softmax(z) - y|**2`` over them, y with the smoothing in it. An example that is all padding has a loss of 0.

    >>> import torch
    >>> found = CrossEntropy()(torch.tensor([[0.0, 0.0]]), torch.tensor([1]))
    >>> print(found.losses, found.scores)
    tensor([0.6931]) tensor([0.7071])
    """

    def __init__(self, *, label_smoothing: float = 0.0, ignore_index: int = -100, weight: Any = None) -> None:
        if not 0.0 <= label_smoothing <= 1.0:
            raise ValueError(f"label_smoothing={label_smoothing!r} must be from 0 to 1.")
        from torch.nn import functional

        self.label_smoothing, self.ignore_index, self.weight = label_smoothing, ignore_index, weight
        self._function = functional.cross_entropy

    def __call__(self, outputs: Any, targets: Any) -> PerExample:
        """Return the losses and scores of a batch."""
        import torch
        from torch.nn import functional

        with torch.no_grad():
            logits = outputs.detach().float()
            soft = targets.is_floating_point()
            if logits.ndim < 2:
                raise ValueError(f"logits of shape {tuple(logits.shape)} must be (n, classes) or (n, classes, ...).")
            if targets.shape != (logits.shape if soft else logits.shape[:1] + logits.shape[2:]):
                raise ValueError(f"targets of shape {tuple(targets.shape)} for logits of {tuple(logits.shape)}.")
            log_p = logits.log_softmax(1)
            if soft:
                pull, valid = targets.float(), None
            else:
                targets = targets.long()
                if not self.label_smoothing and self.weight is None:  # without a second tensor of all classes
                    losses = functional.nll_loss(log_p, targets, ignore_index=self.ignore_index, reduction="none")
                    squares = log_p.exp_().square_().sum(1).sub_(losses.neg().exp_(), alpha=2).add_(1)  # padding: <= 0
                    return _averaged(losses, squares, None if targets.ndim == 1 else targets != self.ignore_index)
                valid = targets != self.ignore_index
                index = targets.where(valid, torch.zeros_like(targets)).unsqueeze(1)
                pull = torch.zeros_like(log_p).scatter_(1, index, 1.0)
            pull = pull * (1 - self.label_smoothing) + self.label_smoothing / logits.shape[1]
            if self.weight is not None:
                pull = pull * _like(self.weight, logits).view(-1, *[1] * (logits.ndim - 2))
            losses = -(pull * log_p).sum(1)
            squares = (log_p.exp() * pull.sum(1, keepdim=True) - pull).square_().sum(1)
            return _averaged(losses, squares, valid)

    def small(self, outputs: Any, targets: Any) -> PerExample | None:
        """Return them as arrays where that is quicker, else None."""
        if self.label_smoothing or self.weight is not None:
            return None
        found = small_cross_entropy(outputs, targets, self.ignore_index)
        return None if found is None else PerExample(*found)

    def mean(self, outputs: Any, targets: Any) -> Any:
        """Return the loss of a batch: the mean over tokens that are not padding."""
        return self._loss(outputs, targets, "mean")

    def each(self, outputs: Any, targets: Any) -> Any:
        """Return one loss for each example, whose mean is `mean`."""
        losses = self._loss(outputs, targets, "none")
        if targets.is_floating_point():
            return _by_example(losses)
        counted = targets != self.ignore_index
        if self.weight is not None:
            counted = counted * _like(self.weight, outputs)[targets * counted]
        elif losses.ndim == 1 and counted.is_cpu and counted.numpy().all():
            return losses
        return (losses.flatten(1).sum(1) if losses.ndim > 1 else losses) * (len(losses) / counted.sum())

    def single(self, outputs: Any, targets: Any) -> Any:
        """Return the losses that a call returns, with their graph."""
        losses = self._loss(outputs, targets, "none")
        if targets.is_floating_point() or losses.ndim == 1:
            return _by_example(losses)
        return losses.flatten(1).sum(1) / (targets != self.ignore_index).flatten(1).sum(1).clamp(min=1)

    def _loss(self, outputs: Any, targets: Any, reduction: str) -> Any:
        weight = None if self.weight is None else _like(self.weight, outputs)
        return self._function(
            outputs,
            targets,
            weight,
            ignore_index=self.ignore_index,
            reduction=reduction,
            label_smoothing=self.label_smoothing,
        )


class BinaryCrossEntropy:
    """Binary cross-entropy of logits with targets from 0 to 1.

    Both are (n,) or (n, ...).
    """

    def __init__(self, *, weight: Any = None, pos_weight: Any = None) -> None:
        self.weight, self.pos_weight = weight, pos_weight

    def __call__(self, outputs: Any, targets: Any) -> PerExample:
        """Return the losses and scores of a batch."""
        import torch
        from torch.nn import functional

        with torch.no_grad():
            z, y = _alike(outputs, targets)
            weight, positive = _like(self.weight, z), _like(self.pos_weight, z)
            losses = functional.binary_cross_entropy_with_logits(z, y, weight, pos_weight=positive, reduction="none")
            slopes = z.sigmoid() - y if positive is None else (1 - y) * z.sigmoid() - positive * y * (-z).sigmoid()
            return _averaged(losses, (slopes if weight is None else slopes * weight).square(), None)

    def mean(self, outputs: Any, targets: Any) -> Any:
        """Return the loss of a batch: the mean over all its elements."""
        return self._loss(outputs, targets, "mean")

    def each(self, outputs: Any, targets: Any) -> Any:
        """Return one loss for each example, whose mean is `mean`."""
        return _by_example(self._loss(outputs, targets, "none"))

    single = each

    def _loss(self, outputs: Any, targets: Any, reduction: str) -> Any:
        from torch.nn import functional

        weight, positive = _like(self.weight, outputs), _like(self.pos_weight, outputs)
        return functional.binary_cross_entropy_with_logits(
            outputs, targets, weight, pos_weight=positive, reduction=reduction
        )


class SquaredError:
    """The squared error of predictions; the score is the absolute error.

    Predictions and targets are (n,) or (n, ...).
    """

    def __call__(self, outputs: Any, targets: Any) -> PerExample:
        """Return the losses and scores of a batch."""
        import torch

        with torch.no_grad():
            z, y = _alike(outputs, targets)
            squares = (z - y).square()
            return _averaged(squares, squares, None)

    def mean(self, outputs: Any, targets: Any) -> Any:
        """Return the loss of a batch: the mean over all its elements."""
        from torch.nn import functional

        return functional.mse_loss(outputs, targets)

    def each(self, outputs: Any, targets: Any) -> Any:
        """Return one loss for each example, whose mean is `mean`."""
        from torch.nn import functional

        return _by_example(functional.mse_loss(outputs, targets, reduction="none"))

    single = each


NAMES = ("cross_entropy", "bce", "mse")
"""The criteria with a name."""


def criterion_of(loss: Any) -> Criterion:
    """Return the criterion for a name, a torch loss module, or a function.

    The function takes outputs and targets. Raises ValueError or TypeError for anything else.
    """
    import torch

    match loss:
        case "cross_entropy":
            return CrossEntropy()
        case "bce":
            return BinaryCrossEntropy()
        case "mse":
            return SquaredError()
        case torch.nn.CrossEntropyLoss():
            return CrossEntropy(
                label_smoothing=loss.label_smoothing, ignore_index=loss.ignore_index, weight=loss.weight
            )
        case torch.nn.BCEWithLogitsLoss():
            return BinaryCrossEntropy(weight=loss.weight, pos_weight=loss.pos_weight)
        case torch.nn.MSELoss():
            return SquaredError()
        case str():
            raise ValueError(f"loss={loss!r} must be one of {', '.join(NAMES)}, a loss of torch.nn, or a function.")
        case _ if callable(loss) and not isinstance(loss, torch.nn.Module):
            return loss  # type: ignore[no-any-return]
    raise TypeError(
        f"loss={loss!r:.80} has no known gradient norm: give one of {', '.join(NAMES)}, or a function of the outputs "
        "and targets that returns PerExample(losses, scores)."
    )


def _alike(outputs: Any, targets: Any) -> tuple[Any, Any]:
    if outputs.shape != targets.shape:
        raise ValueError(f"targets of shape {tuple(targets.shape)} for outputs of {tuple(outputs.shape)}.")
    return outputs.detach().float(), targets.float()


def _like(weight: Any, values: Any) -> Any:
    """Return a weight on the device and of the type of ``values``; None for None."""
    if weight is None:
        return None
    import torch

    return torch.as_tensor(weight, device=values.device, dtype=values.dtype)


def _by_example(losses: Any) -> Any:
    """Average over all dimensions but the first."""
    return losses.flatten(1).mean(1) if losses.ndim > 1 else losses


def _averaged(losses: Any, squares: Any, valid: Any) -> PerExample:
    """Average over all dimensions but the first, where ``valid``; never waits."""
    if valid is not None:
        losses, squares = losses * valid, squares * valid
    if losses.ndim > 1:
        losses, squares = losses.flatten(1), squares.flatten(1)
        if valid is None:
            losses, squares = losses.mean(1), squares.mean(1)
        else:
            count = valid.flatten(1).sum(1).clamp_(min=1)
            losses, squares = losses.sum(1) / count, squares.sum(1) / count
    return PerExample(losses, squares.clamp(min=0).sqrt_())
