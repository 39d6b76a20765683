"""Layers over many positions, whose gradient is a sum of single gradients.

A plain backward pass computes the gradient of a layer's weight over all examples at once. Where an example has many
positions, one gradient for each of them costs hardly more: their sum is the weight's gradient, and their products with
gbar are priorities. So these need no pass of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from math import prod
from typing import Any, NamedTuple

MIN_POSITIONS = 32
"""Of an example in a Linear, from which on the sums cost less than products of their own."""
MIN_POSITIONS_PER_KERNEL_WEIGHT = 28
"""The same of a convolution, for each of its kernel's positions: 252 for 3 x 3."""
MIN_MULTIPLICATIONS = 10_000_000
"""Of the weight's gradient: below, starting the operations takes longer than they do."""
PART_BYTES = 2**19
"""Of a Linear's single gradients at a time, so that they stay in a core's cache."""
CONVOLUTION_PART_BYTES = 2**21
"""The same of a convolution, which takes longer to start."""


class Sums(NamedTuple):
    """What a layer's backward pass finds besides the gradient of its input."""

    products: Any
    """(n,) its share of gbar · g_i."""
    weight: Any
    """The gradient of its weight, and of its bias (None: it has none)."""
    bias: Any


class Fusion(NamedTuple):
    """How a kind of layer sums its gradients."""

    pays: Callable[[Any, Any], bool]
    """Of layer and output: True where the sums cost less than products of their own."""
    singles: Callable[[Any, Any, Any, Any], tuple[Any, Any]]
    """Of layer, input, output's gradient and an empty buffer: the gradients (n, ...) of weight and bias."""
    gradients: Callable[[Any, Any, Any, Any, Sequence[bool]], Sequence[Any]]
    """Of layer, input, weight, output's gradient, and which are needed: the plain gradients of input, weight, bias."""
    part_bytes: int
    """Of single gradients at a time."""


Add = Callable[[Any, Any], Sums | None]
"""Takes a layer's input and its output's gradient; None: the gradients are to be the plain ones."""


def fused_output(layer: Any, x: Any, output: Any, add: Add) -> Any:
    """Return a layer's output in a graph that asks ``add`` for its gradients.

    None where that does not pay, or where autograd does more than the layer itself: autocast, checkpoints. It was
    measured on the CPU.
    """
    import torch

    fusion = _fusions().get(type(layer))
    if fusion is None or not layer.weight.requires_grad or not fusion.pays(layer, output):
        return None
    if not all(map(_is_plain, (x, output, layer.weight))) or torch.is_autocast_enabled("cpu"):
        return None
    if torch._C._autograd._top_saved_tensors_default_hooks(True) is not None:
        return None
    if torch._C._functorch.peek_interpreter_stack() is not None:
        return None
    plain = partial(fusion.gradients, layer)
    return _function().apply(add, plain, (output,), x, layer.weight, layer.bias)


def layer_sums(layer: Any, x: Any, g: Any, weight: Any, bias: Any) -> Sums:
    """Return the sums of a layer that is fused; ``weight`` and ``bias`` are gbar's."""
    import torch

    fusion = _fusions()[type(layer)]
    n, along, g = len(g), weight.reshape(-1), g.contiguous()
    parts = max(1, -(-n * weight.numel() * weight.element_size() // fusion.part_bytes))
    size = -(-n // min(n, parts))
    products, buffer = g.new_empty(n), g.new_empty(size, *weight.shape)
    total, total_of_bias = g.new_zeros(len(along)), None if bias is None else torch.zeros_like(bias)
    for start in range(0, n, size):
        part = slice(start, min(n, start + size))
        single, of_bias = fusion.singles(layer, x[part], g[part], buffer[: part.stop - start])
        one = single.new_ones(len(single))
        torch.mv(single, along, out=products[part])
        total.addmv_(single.t(), one)
        if total_of_bias is not None:
            products[part].addmv_(of_bias, bias)
            total_of_bias.addmv_(of_bias.t(), one)
    return Sums(products, total.view_as(weight), total_of_bias)


def _is_plain(one: Any) -> bool:
    import torch

    cpu_floats = isinstance(one, torch.Tensor) and one.device.type == "cpu" and one.dtype == torch.float32
    return cpu_floats and one.is_contiguous() and not one.is_inference()


@cache
def _fusions() -> dict[Any, Fusion]:
    from torch import nn

    linear = Fusion(_linear_pays, _linear_singles, _linear_gradients, PART_BYTES)
    convolution = Fusion(_convolution_pays, _convolution_singles, _convolution_gradients, CONVOLUTION_PART_BYTES)
    return {nn.Linear: linear, nn.Conv1d: convolution, nn.Conv2d: convolution}


# ---------------------------------------------------------------- linear


def _linear_pays(layer: Any, output: Any) -> bool:
    positions: int = output.shape[1:-1].numel()
    enough = len(output) * positions * layer.weight.numel() >= MIN_MULTIPLICATIONS
    return output.ndim > 2 and positions >= MIN_POSITIONS and enough


def _linear_singles(layer: Any, x: Any, g: Any, buffer: Any) -> tuple[Any, Any]:
    import torch

    g = g.flatten(1, -2)
    torch.bmm(g.transpose(1, 2), x.flatten(1, -2), out=buffer)
    return buffer.flatten(1), None if layer.bias is None else g.sum(1)


def _linear_gradients(layer: Any, x: Any, weight: Any, g: Any, needed: Sequence[bool]) -> Sequence[Any]:
    """Return the gradients of input, weight and bias as autograd computes them."""
    rows, columns = g.reshape(-1, g.shape[-1]), x.reshape(-1, x.shape[-1])
    return [
        g @ weight if needed[0] else None,
        rows.t() @ columns if needed[1] else None,
        rows.sum(0) if needed[2] else None,
    ]


# ---------------------------------------------------------------- convolution


def _convolution_pays(layer: Any, output: Any) -> bool:
    import torch

    if layer.groups > 1 or output.ndim != layer.weight.ndim or _padding(layer) is None:
        return False
    positions: int = output.shape[2:].numel()
    enough = len(output) * positions * layer.weight.numel() >= MIN_MULTIPLICATIONS
    fast: bool = torch.backends.mkldnn.is_available() and torch.backends.mkldnn.enabled
    return fast and enough and positions >= MIN_POSITIONS_PER_KERNEL_WEIGHT * prod(layer.kernel_size)


def _padding(layer: Any) -> list[int] | None:
    """Return the padding by dimension; None: not zeros, or of two sizes."""
    around = layer._reversed_padding_repeated_twice[::-1]
    return around[::2] if layer.padding_mode == "zeros" and around[::2] == around[1::2] else None


def _backward(layer: Any, g: Any, x: Any, weight: Any, groups: int, needed: Sequence[bool]) -> Any:
    import torch

    geometry = layer.stride, _padding(layer), layer.dilation, False, [0] * len(layer.stride), groups
    return torch.ops.aten.convolution_backward(g, x, weight, [g.shape[1]], *geometry, needed)


def _convolution_singles(layer: Any, x: Any, g: Any, buffer: Any) -> tuple[Any, Any]:
    """Take the examples as groups of a single one, each with a weight."""
    n, weight = len(g), buffer.flatten(0, 1)  # of which only the shape counts
    x, g = (one.reshape(1, -1, *one.shape[2:]) for one in (x, g))
    _, weights, biases = _backward(layer, g, x, weight, n, [False, True, layer.bias is not None])
    return weights.reshape(n, -1), None if biases is None else biases.reshape(n, -1)


def _convolution_gradients(layer: Any, x: Any, weight: Any, g: Any, needed: Sequence[bool]) -> Sequence[Any]:
    found: Sequence[Any] = _backward(layer, g, x, weight, 1, needed)
    return found


# ---------------------------------------------------------------- in the graph


@cache
def _function() -> Any:
    import torch

    class FusedLayer(torch.autograd.Function):  # type: ignore[misc]  # torch is not imported by mypy
        """Takes the output of a layer that has run, and goes back for it."""

        @staticmethod
        def forward(ctx: Any, add: Add, plain: Any, outputs: tuple[Any], x: Any, weight: Any, bias: Any) -> Any:
            ctx.add, ctx.plain = add, plain
            ctx.save_for_backward(x, weight)
            return outputs[0].data  # no view of the layer's own output, whose graph ends here

        @staticmethod
        def backward(ctx: Any, g: Any) -> tuple[Any, ...]:
            x, weight = ctx.saved_tensors
            needed = ctx.needs_input_grad[3:]
            more = torch.is_grad_enabled() or torch.is_autocast_enabled("cpu")  # than the layer itself
            sums = None if more else ctx.add(x, g)
            if sums is None:
                return None, None, None, *ctx.plain(x, weight, g, needed)
            of_input = ctx.plain(x, weight, g, [True, False, False])[0] if needed[0] else None
            return None, None, None, of_input, sums.weight, sums.bias if needed[2] else None

    return FusedLayer
