"""What a layer contributes to the gradients of single examples.

Each layer here is linear in its parameters. So its share of `gbar · g_i` is the dot product of the gradient of its
output for example i with the layer applied to the same input, with gbar in place of its parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, NamedTuple

from looptap.training.prioritized.gradient_norms import OuterProduct

WIDE_INPUT_FACTOR = 100
"""How many times a Linear's output its input must be for the product with vectors to be cheaper from the input's side;
with sequences, whose other factor is larger, it is 1."""
PART_BYTES = 2**22
"""Of an output, on the CPU: what is larger comes from the system with pages to be cleared."""
MIN_PART_EXAMPLES = 8


class LayerRule(NamedTuple):
    """How a kind of layer takes part. Shapes are the layer's own, n examples first."""

    products: Callable[[Any, Any, Any, Any, Any], Any]
    """Of layer, input, gradient of its output, and gbar of weight and bias: its share (n,) of the priorities."""
    gradients: Callable[[Any, Any, Any], Iterator[tuple[str, Any]]]
    """Of layer, input and gradient of its output: "weight" and "bias" with the gradients (n, ...) of single examples,
    or with their `OuterProduct`."""


def rule_of(layer: Any) -> LayerRule | None:
    """Return the rule of a layer; None: it has parameters and no rule."""
    if not trained(layer).keys() <= {"weight", "bias"}:
        return None
    kind: Any = type(layer)
    return _rule_of_class(kind)


def linear_rule() -> LayerRule:
    """Return the rule of a Linear."""
    return LayerRule(_linear, _linear_gradients)


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

    convolution = LayerRule(_in_parts(_convolution), _convolution_gradients)
    batch = LayerRule(_after(_batch_norm), _channel_gradients)
    return {
        nn.Linear: linear_rule(),
        nn.Embedding: LayerRule(_embedding, _embedding_gradients),
        nn.Conv1d: convolution,
        nn.Conv2d: convolution,
        nn.Conv3d: convolution,
        nn.LayerNorm: LayerRule(_after(_layer_norm), _feature_gradients),
        nn.RMSNorm: LayerRule(_after(_rms_norm), _feature_gradients),
        nn.GroupNorm: LayerRule(_after(_group_norm), _channel_gradients),
        nn.BatchNorm1d: batch,
        nn.BatchNorm2d: batch,
        nn.BatchNorm3d: batch,
        nn.PReLU: LayerRule(_prelu, _prelu_gradients),
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


def _in_parts(products: Callable[[Any, Any, Any, Any, Any], Any]) -> Callable[[Any, Any, Any, Any, Any], Any]:
    """Return products that take large batches in parts, whose memory is used again."""

    def in_parts(layer: Any, x: Any, g: Any, weight: Any, bias: Any) -> Any:
        import torch

        parts = -(-g.numel() * g.element_size() // PART_BYTES) if g.device.type == "cpu" else 1
        if parts == 1:
            return products(layer, x, g, weight, bias)
        size = max(MIN_PART_EXAMPLES, -(-len(g) // parts))
        pairs = zip(x.split(size), g.split(size), strict=True)
        return torch.cat([products(layer, some, own, weight, bias) for some, own in pairs])

    return in_parts


# ---------------------------------------------------------------- linear, embedding


def _linear(layer: Any, x: Any, g: Any, weight: Any, bias: Any) -> Any:
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


def _positions(g: Any, channels: int) -> Any:
    """Return the sums (n, channels) of a gradient over all positions."""
    import torch

    if g.ndim == 2:
        return g
    others = [place for place in range(1, g.ndim) if place != channels % g.ndim]
    return g.sum(others, dtype=torch.float32 if g.element_size() < 4 else None)


def _linear_gradients(layer: Any, x: Any, g: Any) -> Iterator[tuple[str, Any]]:
    yield "weight", OuterProduct(g.reshape(len(g), -1, g.shape[-1]), x.reshape(len(x), -1, x.shape[-1]))
    if layer.bias is not None:
        yield "bias", g.reshape(len(g), -1, g.shape[-1]).sum(1)


def _embedding(layer: Any, x: Any, g: Any, weight: Any, bias: Any) -> Any:
    from torch.nn import functional

    return _dot(functional.embedding(x, weight), _counted(layer, x, g))


def _embedding_gradients(layer: Any, x: Any, g: Any) -> Iterator[tuple[str, Any]]:
    g = _counted(layer, x, g)
    yield "weight", OuterProduct(x.reshape(len(x), -1), g.reshape(len(g), -1, g.shape[-1]), layer.num_embeddings)


def _counted(layer: Any, x: Any, g: Any) -> Any:
    """Return what an Embedding adds to its weight's gradient: no padding."""
    if layer.padding_idx is not None:
        g = g * (x != layer.padding_idx).unsqueeze(-1)
    return g / x.flatten().bincount()[x].unsqueeze(-1) if layer.scale_grad_by_freq else g


# ---------------------------------------------------------------- convolution


def _padded(layer: Any, x: Any) -> Any:
    from torch.nn import functional

    mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
    return functional.pad(x, layer._reversed_padding_repeated_twice, mode=mode)


def _convolution(layer: Any, x: Any, g: Any, weight: Any, bias: Any) -> Any:
    return _dot(layer._conv_forward(x, weight, bias), g)


def _convolution_gradients(layer: Any, x: Any, g: Any) -> Iterator[tuple[str, Any]]:
    import torch
    from torch.nn import functional

    n, groups = len(x), layer.groups
    x, kernel, dilation, stride = _padded(layer, x), layer.kernel_size, layer.dilation, layer.stride
    if x.ndim == 5:
        how = {"stride": stride, "dilation": dilation, "groups": groups}
        single = [torch.nn.grad.conv3d_weight(x[i : i + 1], layer.weight.shape, g[i : i + 1], **how) for i in range(n)]
        yield "weight", torch.stack(single)
        if layer.bias is not None:
            yield "bias", _positions(g, 1)
        return
    if x.ndim == 3:
        x, kernel, dilation, stride = x.unsqueeze(2), (1, *kernel), (1, *dilation), (1, *stride)
    patches = functional.unfold(x, kernel, dilation=dilation, stride=stride)
    g = g.reshape(n, groups, g.shape[1] // groups, -1)
    patches = patches.reshape(n, groups, patches.shape[1] // groups, -1)
    yield "weight", (g @ patches.transpose(2, 3)).reshape(n, *layer.weight.shape)
    if layer.bias is not None:
        yield "bias", g.sum(3).reshape(n, -1)


# ---------------------------------------------------------------- normalization


def _wide(*tensors: Any) -> Iterator[Any]:
    """Yield tensors in at least 32 bits: layers under autocast mix them."""
    for one in tensors:
        yield one if one is None or one.element_size() >= 4 else one.float()


def _after(normalize: Callable[[Any, Any, Any, Any], Any]) -> Callable[[Any, Any, Any, Any, Any], Any]:
    """Return the products of a layer that scales and shifts what it has normalized."""
    return _in_parts(lambda layer, x, g, weight, bias: _dot(normalize(layer, x, weight, bias), g))


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


def _feature_gradients(layer: Any, x: Any, g: Any) -> Iterator[tuple[str, Any]]:
    """Yield those of a LayerNorm or RMSNorm: their parameters are of the last sizes."""
    shape = (len(g), -1, *layer.normalized_shape)
    normal = (_layer_norm if hasattr(layer, "bias") else _rms_norm)(layer, x, None, None)
    yield "weight", (g * normal).reshape(shape).sum(1)
    if getattr(layer, "bias", None) is not None:
        yield "bias", g.reshape(shape).sum(1)


def _channel_gradients(layer: Any, x: Any, g: Any) -> Iterator[tuple[str, Any]]:
    """Yield those of a layer with a weight and a bias for each channel."""
    normalize = _group_norm if hasattr(layer, "num_groups") else _batch_norm
    shape = (*g.shape[:2], -1)
    yield "weight", (g * normalize(layer, x, None, None)).reshape(shape).sum(2)
    if layer.bias is not None:
        yield "bias", g.reshape(shape).sum(2)


# ---------------------------------------------------------------- activation


def _prelu(layer: Any, x: Any, g: Any, weight: Any, bias: Any) -> Any:
    if len(weight) > 1:
        weight = weight.view(-1, *[1] * (x.ndim - 2))
    return _dot(x.clamp(max=0) * weight, g)


def _prelu_gradients(layer: Any, x: Any, g: Any) -> Iterator[tuple[str, Any]]:
    found = (x.clamp(max=0) * g).float().flatten(2) if x.ndim > 2 else (x.clamp(max=0) * g).float().unsqueeze(-1)
    yield "weight", found.sum(2) if len(layer.weight) > 1 else found.sum((1, 2)).unsqueeze(1)
