"""Linear layers over sequences whose gradient is a sum of single gradients.

A plain backward pass multiplies the gradient of a layer's output with its input, over all examples at once. Where an
example has many positions, the same product for each of them costs hardly more: its sum over the examples is the
weight's gradient, and its products with gbar are priorities. So these need no product of matrices of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

MIN_POSITIONS = 32
"""Of an example, from which on the sums cost less than products of their own."""
MIN_MULTIPLICATIONS = 10_000_000
"""Of the weight's gradient: below, starting the operations takes longer than they do."""
PART_BYTES = 2**19
"""Of single gradients at a time, so that they stay in a core's cache."""


class Sums(NamedTuple):
    """What a layer's backward pass finds besides the gradient of its input."""

    products: Any
    """(n,) its share of gbar · g_i."""
    weight: Any
    """The gradient of its weight, and of its bias (None: it has none)."""
    bias: Any


Add = Callable[[Any, Any], Sums | None]
"""Takes a layer's input and its output's gradient; None: the gradients are to be the plain ones."""


def fused_output(layer: Any, x: Any, output: Any, add: Add) -> Any:
    """Return a layer's output in a graph that asks ``add`` for its gradients.

    None where that does not pay, or where autograd does more than the layer itself: autocast, checkpoints. It was
    measured on the CPU.
    """
    import torch

    if type(layer) is not torch.nn.Linear or not layer.weight.requires_grad or output.ndim < 3:
        return None
    if not all(map(_is_plain, (x, output, layer.weight))) or torch.is_autocast_enabled("cpu"):
        return None
    positions = output.shape[1:-1].numel()
    if positions < MIN_POSITIONS or len(output) * positions * layer.weight.numel() < MIN_MULTIPLICATIONS:
        return None
    if torch._C._autograd._top_saved_tensors_default_hooks(True) is not None:
        return None
    if torch._C._functorch.peek_interpreter_stack() is not None:
        return None
    return _function().apply(add, (output,), x, layer.weight, layer.bias)


def linear_sums(x: Any, g: Any, weight: Any, bias: Any) -> Sums:
    """Return the sums of a layer; ``weight`` and ``bias`` are gbar's."""
    import torch

    n, (rows, columns) = len(g), weight.shape
    x, g, along = x.view(n, -1, columns), g.contiguous().view(n, -1, rows), weight.reshape(-1)
    size = min(n, max(1, PART_BYTES // (weight.numel() * weight.element_size())))
    products, total, buffer = g.new_empty(n), g.new_zeros(len(along)), g.new_empty(size, rows, columns)
    for start in range(0, n, size):
        count = min(size, n - start)
        part, single = slice(start, start + count), buffer[:count]
        torch.bmm(g[part].transpose(1, 2), x[part], out=single)
        single = single.view(count, -1)
        torch.mv(single, along, out=products[part])
        total.addmv_(single.t(), single.new_ones(count))
    if bias is None:
        return Sums(products, total.view(rows, columns), None)
    of_bias = g.sum(1)
    return Sums(products.add_(of_bias @ bias), total.view(rows, columns), of_bias.sum(0))


def _is_plain(one: Any) -> bool:
    import torch

    cpu_floats = isinstance(one, torch.Tensor) and one.device.type == "cpu" and one.dtype == torch.float32
    return cpu_floats and one.is_contiguous() and not one.is_inference()


def _plain_gradients(x: Any, weight: Any, g: Any, needed: Sequence[bool]) -> list[Any]:
    """Return the gradients of input, weight and bias as autograd computes them."""
    rows, columns = g.reshape(-1, g.shape[-1]), x.reshape(-1, x.shape[-1])
    return [
        g @ weight if needed[0] else None,
        rows.t() @ columns if needed[1] else None,
        rows.sum(0) if needed[2] else None,
    ]


@cache
def _function() -> Any:
    import torch

    class FusedLinear(torch.autograd.Function):  # type: ignore[misc]  # torch is not imported by mypy
        """Takes the output of a layer that has run, and goes back for it."""

        @staticmethod
        def forward(ctx: Any, add: Add, outputs: tuple[Any], x: Any, weight: Any, bias: Any) -> Any:
            ctx.add = add
            ctx.save_for_backward(x, weight)
            return outputs[0].data  # no view of the layer's own output, whose graph ends here

        @staticmethod
        def backward(ctx: Any, g: Any) -> tuple[Any, ...]:
            x, weight = ctx.saved_tensors
            needed = ctx.needs_input_grad[2:]
            more = torch.is_grad_enabled() or torch.is_autocast_enabled("cpu")  # than the layer itself
            sums = None if more else ctx.add(x, g)
            if sums is None:
                return None, None, *_plain_gradients(x, weight, g, needed)
            of_input, *_ = _plain_gradients(x, weight, g, [needed[0], False, False])
            return None, None, of_input, sums.weight, sums.bias if needed[2] else None

    return FusedLinear
