"""What a layer contributes to the gradients of single examples.

Each layer here is linear in its parameters. So its share of `gbar · g_i` is the dot product of the gradient of its
output for example i with the layer applied to the same input, with gbar in place of its parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, TypeAlias

LayerRule: TypeAlias = Callable[[Any, Any, Any, Any, Any], Any]
"""Of a layer, its input, the gradient of its output, and gbar of weight and bias: its share (n,) of the priorities.
Shapes are the layer's own, n examples first."""

WIDE_INPUT_FACTOR = 100
"""How many times a Linear's output its input must be for the product with vectors to be cheaper from the input's side;
with sequences, whose other factor is larger, it is 1."""
PART_BYTES = 2**22
"""Bytes of a piece of output on the CPU: the system has to clear the pages of a larger one."""
MIN_PART_EXAMPLES = 8


def rule_of(layer: Any) -> LayerRule | None:
    """Return the rule of a layer; None: it has parameters and no rule."""
    if not trained(layer).keys() <= {"weight", "bias"}:
        return None
    kind: Any = type(layer)
    return _rule_of_class(kind)


def trained(layer: Any) -> dict[str, Any]:
    """Return a layer's own parameters that are trained, by name."""
    return {name: one for name, one in layer._parameters.items() if one is not None and one.requires_grad}


@cache
def _rule_of_class(kind: Any) -> LayerRule | None:
    rules = [rule for known, rule in _rules().items() if issubclass(kind, known) and kind.forward is known.forward]
    return rules[0] if rules else None


@cache
def _rules() -> dict[Any, LayerRule]:
    from torch import nn

    convolution, batch = _in_parts(_convolution), _in_parts(_batch_norm)
    return {
        nn.Linear: linear_products,
        nn.Embedding: _embedding,
        nn.Conv1d: convolution,
        nn.Conv2d: convolution,
        nn.Conv3d: convolution,
        nn.LayerNorm: _in_parts(_layer_norm),
        nn.RMSNorm: _in_parts(_rms_norm),
        nn.GroupNorm: _in_parts(_group_norm),
        nn.BatchNorm1d: batch,
        nn.BatchNorm2d: batch,
        nn.BatchNorm3d: batch,
        nn.PReLU: _in_parts(_prelu),
    }


def mixes_examples(layer: Any) -> bool:
    """Return True for a layer that makes an example's loss depend on the others."""
    from torch import nn

    batch_norm = isinstance(layer, nn.modules.batchnorm._BatchNorm)
    return batch_norm and (layer.training or layer.running_mean is None)


def _dot(change: Any, b: Any) -> Any:
    """Return the inner products (n,) of two tensors' examples; overwrites the first."""
    if change.element_size() < 4 or change.dtype != b.dtype:
        change, b = change.float(), b.float()
    change.mul_(b)
    return change.sum(1) if change.ndim == 2 else change.flatten(1).sum(1)


def _in_parts(applied: Callable[[Any, Any, Any, Any], Any]) -> LayerRule:
    """Return the rule of a layer whose output with gbar ``applied`` returns.

    Large batches are taken in parts, whose memory is used again.
    """

    def products(layer: Any, x: Any, g: Any, weight: Any, bias: Any) -> Any:
        import torch

        parts = -(-g.numel() * g.element_size() // PART_BYTES) if g.device.type == "cpu" else 1
        if parts == 1:
            return _dot(applied(layer, x, weight, bias), g)
        size = max(MIN_PART_EXAMPLES, -(-len(g) // parts))
        pairs = zip(x.split(size), g.split(size), strict=True)
        return torch.cat([_dot(applied(layer, some, weight, bias), own) for some, own in pairs])

    return products


# ---------------------------------------------------------------- linear, embedding


def linear_products(layer: Any, x: Any, g: Any, weight: Any, bias: Any) -> Any:
    """Return the share of a Linear."""
    from torch.nn import functional

    n, time_first = len(g), g.ndim == 3 and not g.is_contiguous() and g.transpose(0, 1).is_contiguous()
    if time_first:  # as attention has it; a product of other strides would take one matrix after the other
        x, g = x.transpose(0, 1), g.transpose(0, 1)
    rows, columns = (one if one.ndim == 2 else one.reshape(-1, one.shape[-1]) for one in (g, x))
    if x.shape[-1] > (WIDE_INPUT_FACTOR if len(rows) == n else 1) * g.shape[-1]:
        change, other, bias = functional.linear(columns, weight, bias), rows, None
    else:
        change, other = rows @ weight, columns  # the same product from its other side
    if len(rows) == n:
        found = _dot(change, other)
    elif time_first:
        found = _dot(change, other).view(-1, n).sum(0)
    else:
        found = _dot(change.view(n, -1), other.view(n, -1))
    if bias is None:
        return found
    share = rows @ bias
    if len(rows) > n:
        share = (share.view(-1, n).t() if time_first else share.view(n, -1)).sum(1, dtype=found.dtype)
    return found + share


def _embedding(layer: Any, x: Any, g: Any, weight: Any, bias: Any) -> Any:
    from torch.nn import functional

    return _dot(functional.embedding(x, weight), _counted(layer, x, g))


def _counted(layer: Any, x: Any, g: Any) -> Any:
    """Return what an Embedding adds to its weight's gradient: no padding."""
    if layer.padding_idx is not None:
        g = g * (x != layer.padding_idx).unsqueeze(-1)
    return g / x.flatten().bincount()[x].unsqueeze(-1) if layer.scale_grad_by_freq else g


# ---------------------------------------------------------------- convolution


def _convolution(layer: Any, x: Any, weight: Any, bias: Any) -> Any:
    return layer._conv_forward(x, weight, bias)


# ---------------------------------------------------------------- normalization


def _wide(*tensors: Any) -> Iterator[Any]:
    """Yield tensors in at least 32 bits: layers under autocast mix them."""
    for one in tensors:
        yield one if one is None or one.element_size() >= 4 else one.float()


def _layer_norm(layer: Any, x: Any, weight: Any, bias: Any) -> Any:
    from torch.nn import functional

    x, weight, bias = _wide(x, weight, bias)
    return functional.layer_norm(x, layer.normalized_shape, weight, bias, layer.eps)


def _rms_norm(layer: Any, x: Any, weight: Any, bias: Any) -> Any:
    from torch.nn import functional

    x, weight = _wide(x, weight)
    return functional.rms_norm(x, layer.normalized_shape, weight, layer.eps)


def _group_norm(layer: Any, x: Any, weight: Any, bias: Any) -> Any:
    from torch.nn import functional

    x, weight, bias = _wide(x, weight, bias)
    return functional.group_norm(x, layer.num_groups, weight, bias, layer.eps)


def _batch_norm(layer: Any, x: Any, weight: Any, bias: Any) -> Any:
    from torch.nn import functional

    x, mean, variance, weight, bias = _wide(x, layer.running_mean, layer.running_var, weight, bias)
    return functional.batch_norm(x, mean, variance, weight, bias, False, 0.0, layer.eps)


# ---------------------------------------------------------------- activation


def _prelu(layer: Any, x: Any, weight: Any, bias: Any) -> Any:
    return x.clamp(max=0) * (weight.view(-1, *[1] * (x.ndim - 2)) if len(weight) > 1 else weight)
