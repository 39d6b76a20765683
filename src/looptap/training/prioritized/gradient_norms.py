"""Norms of single examples' gradients, and gradients to compare them with."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from looptap.streams.preserving.module_state import unwrapped
from looptap.streams.preserving.untouched import untouched


class OuterProduct(NamedTuple):
    """Gradients of a matrix as sums of outer products over t positions."""

    rows: Any
    """(n, t, rows); or (n, t) of whole numbers, the one row of each position."""
    columns: Any
    """(n, t, columns)"""
    number_of_rows: int = 0
    """Of the matrix, where `rows` are whole numbers."""

    def squares(self) -> Any:
        """Return the squared norms (n,), by the cheaper of two ways."""
        t, columns = self.columns.shape[1:]
        rows = self.rows.shape[2] if self.rows.ndim == 3 else columns
        if t == 1 and self.rows.ndim == 3:
            return self.rows.float().square().sum((1, 2)) * self.columns.float().square().sum((1, 2))
        if self.rows.ndim == 2 or t * (rows + columns) <= rows * columns:
            return self.dot(self)
        return self.gradients().flatten(1).square().sum(1)

    def dot(self, other: OuterProduct) -> Any:
        """Return the inner products (n,) with another one of the same matrix.

        Takes t x t numbers an example.
        """
        columns = self.columns.float() @ other.columns.float().transpose(1, 2)
        if self.rows.ndim == 3 and other.rows.ndim == 3:
            rows = self.rows.float() @ other.rows.float().transpose(1, 2)
        elif self.rows.ndim == 3:
            rows = self.rows.float().gather(2, other.rows.unsqueeze(1).expand(-1, self.rows.shape[1], -1))
        elif other.rows.ndim == 3:
            rows = other.rows.float().gather(2, self.rows.unsqueeze(1).expand(-1, other.rows.shape[1], -1))
            rows = rows.transpose(1, 2)
        else:
            rows = self.rows.unsqueeze(2) == other.rows.unsqueeze(1)
        return (rows * columns).sum((1, 2))

    def gradients(self) -> Any:
        """Return the gradients (n, rows, columns)."""
        if self.rows.ndim == 3:
            return self.rows.float().transpose(1, 2) @ self.columns.float()
        n, _, columns = self.columns.shape
        index = self.rows.unsqueeze(2).expand(-1, -1, columns)
        zeros = self.columns.new_zeros((n, self.number_of_rows, columns)).float()
        return zeros.scatter_add_(1, index, self.columns.float())


def squares_of(uses: list[Any]) -> Any:
    """Return the squared norms (n,) of the sum of a parameter's several gradients."""
    if all(isinstance(one, OuterProduct) for one in uses):
        total = sum(one.squares() for one in uses)
        for place, one in enumerate(uses):
            for other in uses[:place]:
                total = total + 2 * one.dot(other)
        return total.clamp_(min=0)
    found = sum((one.gradients() if isinstance(one, OuterProduct) else one).float().flatten(1) for one in uses)
    return found.square().sum(1)


def output_gradient_norms(loss: Callable[[Any, Any], Any], outputs: Any, targets: Any) -> Any:
    """Return the norms (n,) of the gradients of single losses at a model's outputs.

    In units of loss / output. For classes it is ``|softmax(z) - onehot(y)|``, which ranks examples nearly as the norms
    of their whole gradients do, and costs no backward pass of the model. From the outputs of a training step it is
    free, and stale as soon as the step is done; a forward pass of the present model gives fresh ones.

    >>> import torch
    >>> loss = torch.nn.CrossEntropyLoss(reduction="none")
    >>> print(output_gradient_norms(loss, torch.zeros(2, 2), torch.tensor([0, 1])))
    tensor([0.7071, 0.7071])
    """
    import torch

    with torch.enable_grad():
        leaf = outputs.detach().requires_grad_()
        losses = loss(leaf, targets)
        if losses.ndim != 1:
            raise ValueError(f"losses of shape {tuple(losses.shape)} must be (n,): take reduction='none'.")
        (found,) = torch.autograd.grad(losses.sum(), leaf)
    return torch.linalg.vector_norm(found.flatten(1), dim=1, dtype=torch.promote_types(found.dtype, torch.float32))


def validation_gradient(model: Any, loss: Callable[[Any, Any], Any], batches: Iterable[tuple[Any, Any]]) -> list[Any]:
    """Return the gradient of the mean loss over batches, by parameter of the model.

    As a direction of `ExactPriorities` it gives the alignment of each example with a validation set,
    ``g_val · g_i``: how fast a step along the example lowers the validation loss. ``loss`` returns those of single
    examples. The model runs in its present modes and keeps its state; parameters without a gradient have zeros.
    """
    import torch

    model = unwrapped(model)  # no rank waits for another
    parameters, total, count = list(model.parameters()), None, 0
    trained = [one for one in parameters if one.requires_grad]
    with untouched(model), torch.enable_grad():
        for inputs, targets in batches:
            losses = loss(model(*inputs) if isinstance(inputs, tuple) else model(inputs), targets)
            found = torch.autograd.grad(losses.sum(), trained, allow_unused=True)
            found = [torch.zeros_like(p) if g is None else g for p, g in zip(trained, found, strict=True)]
            total = found if total is None else torch._foreach_add(total, found)
            count += len(losses)
    if total is None:
        raise ValueError("batches is empty: pass at least one pair of inputs and targets.")
    mean = iter(torch._foreach_div(total, count))
    return [next(mean) if one.requires_grad else torch.zeros_like(one) for one in parameters]
