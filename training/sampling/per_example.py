"""Losses and gradient norms of single examples, from the model's outputs."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol


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


class CrossEntropy:
    """Cross-entropy of logits with class indices, or with probabilities, as targets.

    Logits are (n, classes) or (n, classes, ...). ``ignore_index`` marks padding. A loss is the mean over the tokens of
    an example that are not padding; its score is the root of the mean of ``|softmax(z) - y|**2`` over them, y with the
    smoothing in it.

    >>> import torch
    >>> found = CrossEntropy()(torch.tensor([[0.0, 0.0]]), torch.tensor([1]))
    >>> print(found.losses, found.scores)
    tensor([0.6931]) tensor([0.7071])
    """

    def __init__(self, *, label_smoothing: float = 0.0, ignore_index: int = -100, weight: Any = None) -> None:
        if not 0.0 <= label_smoothing <= 1.0:
            raise ValueError(f"label_smoothing={label_smoothing!r} must be from 0 to 1.")
        self.label_smoothing, self.ignore_index, self.weight = label_smoothing, ignore_index, weight

    def __call__(self, outputs: Any, targets: Any) -> PerExample:
        """Return the losses and scores of a batch."""
        import torch

        with torch.no_grad():
            logits, smooth = outputs.detach().float(), self.label_smoothing
            if logits.ndim < 2:
                raise ValueError(f"logits of shape {tuple(logits.shape)} must be (n, classes) or (n, classes, ...).")
            log_p = logits.log_softmax(1)
            p = log_p.exp()
            if targets.is_floating_point():
                if targets.shape != logits.shape:
                    raise ValueError(f"targets of shape {tuple(targets.shape)} for logits of {tuple(logits.shape)}.")
                classes = logits.shape[1]
                wanted = targets.float() * (1 - smooth) + smooth / classes
                scale = 1.0 if self.weight is None else self.weight.view(-1, *[1] * (logits.ndim - 2))
                pull = wanted * scale
                losses = -(pull * log_p).sum(1)
                squares = (p * pull.sum(1, keepdim=True) - pull).square_().sum(1)
                return _averaged(losses, squares, None)
            if targets.shape != logits.shape[:1] + logits.shape[2:]:
                raise ValueError(f"targets of shape {tuple(targets.shape)} for logits of {tuple(logits.shape)}.")
            valid = targets != self.ignore_index
            index = targets.where(valid, torch.zeros_like(targets)).unsqueeze(1)
            losses = -log_p.gather(1, index).squeeze(1)
            of_target = p.gather(1, index).squeeze(1)
            if smooth and self.weight is not None:
                raise ValueError("label_smoothing= and weight= together are not scored: give losses= instead.")
            squares = p.square().sum(1) - 2 * of_target + 1
            if smooth:
                classes = logits.shape[1]
                losses = (1 - smooth) * losses - smooth * log_p.mean(1)
                pull = (1 - smooth) * of_target + smooth / classes
                squares = p.square().sum(1) - 2 * pull + (1 - smooth) ** 2 + (2 - smooth) * smooth / classes
            if self.weight is not None:
                scale = self.weight[index.squeeze(1)]
                losses, squares = losses * scale, squares * scale**2
            whole = logits.ndim == 2 and bool(valid.all())
            return _averaged(losses, squares, None if whole else valid)


class BinaryCrossEntropy:
    """Binary cross-entropy of logits with targets from 0 to 1, both (n,) or (n, ...)."""

    def __init__(self, *, pos_weight: Any = None) -> None:
        self.pos_weight = pos_weight

    def __call__(self, outputs: Any, targets: Any) -> PerExample:
        """Return the losses and scores of a batch."""
        import torch

        with torch.no_grad():
            z, y = _alike(outputs, targets)
            weight = 1.0 if self.pos_weight is None else self.pos_weight
            softplus = torch.nn.functional.softplus
            losses = weight * y * softplus(-z) + (1 - y) * softplus(z)
            p = z.sigmoid()
            slopes = (1 - y) * p - weight * y * (1 - p)
            return _averaged(losses, slopes.square(), None)


class SquaredError:
    """The squared error of predictions and targets, both (n,) or (n, ...)."""

    def __call__(self, outputs: Any, targets: Any) -> PerExample:
        """Return the losses and scores of a batch."""
        import torch

        with torch.no_grad():
            z, y = _alike(outputs, targets)
            squares = (z - y).square()
            return _averaged(squares, squares, None)


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
        case torch.nn.BCEWithLogitsLoss() if loss.weight is None:
            return BinaryCrossEntropy(pos_weight=loss.pos_weight)
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


def _averaged(losses: Any, squares: Any, valid: Any) -> PerExample:
    """Average over all dimensions but the first, where ``valid``."""
    losses, squares = losses.flatten(1) if losses.ndim > 1 else losses[:, None], squares.reshape(len(squares), -1)
    if valid is None:
        losses, squares = losses.mean(1), squares.mean(1)
    else:
        valid = valid.reshape(len(valid), -1)
        count = valid.sum(1).clamp_(min=1)
        losses, squares = (losses * valid).sum(1) / count, (squares * valid).sum(1) / count
    return PerExample(losses, squares.clamp_(min=0).sqrt_())
