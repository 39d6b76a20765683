"""Functions that a query may call by name: layers, samples, numbers, memory.

None of them has side effects: no gradient, graph, global random numbers or collective. A sharded tensor stands for its
local shard. Host data gives Python numbers and numpy arrays; accelerator data gives tensors there, so that no query
waits for the device.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from looptap.streams.values.batch_helpers import batch_bottomk, batch_sample, batch_topk, confusion, thumbnail
from looptap.streams.values.described import summary
from looptap.streams.values.layer_stats import activation_stats, layer_histograms, layer_norms
from looptap.streams.values.memory import cuda_memory, cuda_peak, peak_rss, rss
from looptap.streams.values.model_helpers import embedding, saliency, update_ratio
from looptap.streams.values.torch_interop import array_of, dense, full, is_tensor, local_shard, no_grad


def isnan(x: Any) -> Any:
    """Return True if x is NaN or contains one: array, tensor, tuple, list or dict.

    >>> isnan([1.0, float("nan")])
    True
    """
    return _any(x, math.isnan, "isnan")


def isinf(x: Any) -> Any:
    """Return True if x is infinite or contains an infinity; see ``isnan``."""
    return _any(x, math.isinf, "isinf")


def isfinite(x: Any) -> Any:
    """Return True if every number in x is finite; see ``isnan``.

    >>> isfinite({"loss": 0.5, "norm": float("inf")})
    False
    """
    found = _any(x, lambda number: not math.isfinite(number), "isfinite")
    return ~found if is_tensor(found) else not found


def _any(x: Any, test: Callable[[Any], bool], name: str) -> Any:
    if isinstance(x, float | int):
        return test(x) if isinstance(x, float) else False
    if is_tensor(x):
        return _any_of_tensor(x, name)
    if isinstance(x, np.ndarray | np.generic):
        return _any_of_array(x, name)
    if isinstance(x, complex):
        return test(x.real) or test(x.imag)
    if isinstance(x, Mapping):
        x = x.values()
    elif not isinstance(x, list | tuple | set | frozenset):
        _refuse_model(x, name)
        return False
    found = False
    for part in x:
        answer = _any(part, test, name)
        # `or` would test the truth of a device tensor, and wait for it.
        found = (found | answer) if is_tensor(answer) or is_tensor(found) else (found or answer)
    return found


def _any_of_tensor(x: Any, name: str) -> Any:
    torch = sys.modules["torch"]
    with no_grad():
        x = local_shard(x)
        found = getattr(torch, name)(full(x._values() if x.layout != torch.strided else x))
        found = (~found if name == "isfinite" else found).any()
        return bool(found) if found.is_cpu else found


def _any_of_array(x: Any, name: str) -> bool:
    if x.dtype.kind not in "fc":
        return False
    marked = getattr(np, name)(x)
    return bool((~marked if name == "isfinite" else marked).any())


def _refuse_model(x: Any, name: str) -> None:
    """Raise TypeError for a model, which is no number."""
    if hasattr(type(x), "named_parameters"):
        raise TypeError(
            f"{name} takes numbers, arrays and tensors, not a model ({type(x).__name__}). layer_norms(model, 'grad') "
            "has a norm for each parameter, and model.parameters() has the parameters."
        )


def _flat(x: Any) -> Iterable[Any]:
    _refuse_model(x, "norm")
    if isinstance(x, Mapping):
        x = x.values()
    if not hasattr(x, "ndim") and (array := array_of(x)) is not None:
        x = array
    if isinstance(x, list | tuple) or hasattr(x, "__next__") or not (hasattr(x, "ndim") or np.isscalar(x)):
        for part in x:
            yield from _flat(part)
    elif x is not None:
        yield x


def norm(x: Any) -> Any:
    """Return the Euclidean norm of a number, array, tensor, or all in a collection.

    >>> norm([3.0, np.array([0.0, 4.0])])
    5.0
    """
    if is_tensor(x):
        return _magnitude(x)
    parts = [_magnitude(part) ** 2 for part in _flat(x)]
    total = sum(parts[1:], start=parts[0]) if parts else 0.0
    return total**0.5 if is_tensor(total) else math.sqrt(total)


def _magnitude(part: Any) -> Any:
    if is_tensor(part):  # detached, so that nothing is recorded
        magnitude = sys.modules["torch"].linalg.vector_norm(full(dense(local_shard(part))))
        return magnitude.item() if magnitude.is_cpu else magnitude
    return math.sqrt(np.square(np.abs(part), dtype=np.float64).sum())


def mean_abs(x: Any) -> Any:
    """Return the mean magnitude of the elements of a number, an array or a tensor.

    >>> mean_abs([1, -3])
    2.0
    """
    if is_tensor(x):
        with no_grad():
            x = full(dense(local_shard(x))).abs()
            mean = (x if x.is_floating_point() else x.float()).mean()
            return mean.item() if mean.is_cpu else mean
    _refuse_model(x, "mean_abs")
    return float(np.mean(np.abs(x), dtype=np.float64))


def shape(x: Any) -> Any:
    """Return the shape of an array or tensor, or of each in a collection.

    >>> shape({"x": np.zeros((2, 3)), "n": 1})
    {'x': (2, 3), 'n': ()}
    """
    if hasattr(x, "shape"):
        return tuple(x.shape)
    if isinstance(x, Mapping):
        return {key: shape(value) for key, value in x.items()}
    if isinstance(x, list | tuple):
        return [shape(value) for value in x]
    return ()


def lr(optimizer: Any) -> Any:
    """Return an optimizer's learning rate; a tuple if its parameter groups differ.

    An optimizer of Keras has no groups, and one rate.
    """
    rates, groups = [], getattr(optimizer, "param_groups", None)
    for rate in [_keras_rate(optimizer)] if groups is None else [group["lr"] for group in groups]:
        rates.append(rate.item() if is_tensor(rate) and rate.is_cpu else rate)
    if any(is_tensor(rate) for rate in rates):
        return rates[0].detach() if len(rates) == 1 else tuple(rates)
    return rates[0] if len(set(rates)) == 1 else tuple(rates)


def _keras_rate(optimizer: Any) -> Any:
    rate = optimizer.learning_rate
    return getattr(rate, "value", rate)


HELPERS: dict[str, Callable[..., Any]] = {
    function.__name__: function
    for function in (
        layer_norms,
        layer_histograms,
        activation_stats,
        summary,
        update_ratio,
        saliency,
        embedding,
        batch_topk,
        batch_bottomk,
        batch_sample,
        confusion,
        isnan,
        isinf,
        isfinite,
        norm,
        mean_abs,
        shape,
        lr,
        thumbnail,
        rss,
        peak_rss,
        cuda_memory,
        cuda_peak,
    )
}
"""The helpers by name, as queries see them."""
