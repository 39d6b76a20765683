"""Query helpers: statistics of the layers of a model."""

from __future__ import annotations

import math
import sys
import weakref
from collections.abc import Iterator
from itertools import chain, compress
from operator import attrgetter, not_
from typing import Any, Literal

import numpy as np

from looptap.streams.values.held import held_modules, held_parameters
from looptap.streams.values.torch_interop import dense, full, is_tensor, local_shard, no_grad

What = Literal["grad", "weight"]

_MAX_INLINE_ELEMENTS = 256
"""Elements up to which calling torch costs more than computing."""
_MAX_SINGLE_TENSORS = 32
"""Tensors up to which sorting them by kind costs more than a call for each."""
_DTYPE, _LAYOUT, _IS_CPU = attrgetter("dtype"), attrgetter("layout"), attrgetter("is_cpu")


class _ParameterNames:
    """Names of a model's parameters, kept while it holds the same objects.

    A walk over a model takes as long as half its norms.
    """

    def __init__(self, model: Any) -> None:
        self._modules = [weakref.ref(module) for _, module in held_modules(model)]
        keys, objects = self._held()
        self._keys, self._identities = keys, list(map(id, objects))
        place_of = {identity: place for place, identity in enumerate(self._identities)}
        named = dict(held_parameters(model))
        self.names = list(named)
        self._places = [place_of[id(parameter)] for parameter in named.values()]

    def parameters(self) -> list[Any] | None:
        """Return the parameters, or None if the model has changed."""
        keys, objects = self._held()
        if keys != self._keys or list(map(id, objects)) != self._identities:
            return None
        return [objects[place] for place in self._places]

    def _held(self) -> tuple[list[str], list[Any]]:
        """Return the names and objects that the modules hold, in their order."""
        modules = [reference() for reference in self._modules]
        held = [module._parameters for module in modules if module is not None]
        held += [module._modules for module in modules if module is not None]
        return list(chain.from_iterable(held)), list(chain.from_iterable(map(dict.values, held)))


_NAMES_OF: weakref.WeakKeyDictionary[Any, _ParameterNames] = weakref.WeakKeyDictionary()


def _parameters(model: Any) -> tuple[list[str], list[Any]]:
    """Return names and parameters like ``named_parameters()``, at less cost."""
    if not hasattr(model, "_parameters"):
        raise TypeError(f"The model must be a torch.nn.Module, not a {type(model).__name__}.")
    known = _NAMES_OF.get(model)
    parameters = known.parameters() if known else None
    if known is None or parameters is None:
        known = _NAMES_OF[model] = _ParameterNames(model)
        parameters = known.parameters() or []
    return known.names, parameters


def _layers(model: Any, what: str) -> tuple[list[str], list[Any]]:
    """Return names and local dense tensors, which may still have a graph."""
    if what not in ("grad", "weight"):
        raise ValueError(f"what is 'grad' or 'weight', not {what!r}.")
    torch = sys.modules["torch"]
    names, tensors = _parameters(model)
    if what == "grad":
        tensors = [parameter.grad for parameter in tensors]
    types = set(map(type, tensors))
    if type(None) in types:
        types.discard(type(None))
        names = [name for name, tensor in zip(names, tensors, strict=True) if tensor is not None]
        tensors = [tensor for tensor in tensors if tensor is not None]
    if what == "grad" and not tensors:
        raise ValueError("No parameter has a gradient at this event. Emit after backward() and before zero_grad().")
    if not types <= {torch.Tensor, torch.nn.Parameter}:
        tensors = [local_shard(tensor) for tensor in tensors]
    if set(map(_LAYOUT, tensors)) != {torch.strided}:
        tensors = [dense(tensor) for tensor in tensors]
    return names, tensors


def _few(tensors: list[Any]) -> list[float] | None:
    """Return Euclidean norms of a few tensors; None for an unusual dtype or device."""
    if not tensors:
        return []
    torch = sys.modules["torch"]
    dtypes = set(map(_DTYPE, tensors))
    wide = dtypes <= {torch.float32, torch.float64}
    if not (wide or dtypes <= {torch.float32, torch.float16, torch.bfloat16}) or not all(map(_IS_CPU, tensors)):
        return None
    norms = torch._foreach_norm(tensors) if wide else torch._foreach_norm(tensors, 2, torch.float32)
    if not all(map(torch.Tensor.numel, tensors)):
        return [norm.item() if tensor.numel() else math.nan for norm, tensor in zip(norms, tensors, strict=True)]
    return [norm.item() for norm in norms]


def _alike(names: list[str], tensors: list[Any]) -> Iterator[tuple[list[str], list[Any]]]:
    """Group non-empty tensors and their names by device, dtype and smallness."""
    sizes = [tensor.numel() for tensor in tensors]
    one_device = all(map(_IS_CPU, tensors)) or len({tensor.device for tensor in tensors}) == 1
    if one_device and len(set(map(_DTYPE, tensors))) == 1 and 0 not in sizes:  # as almost always
        small = [size <= _MAX_INLINE_ELEMENTS for size in sizes]
        groups = [small, list(map(not_, small))]
    else:
        kinds = [
            size and (tensor.device, tensor.dtype, size <= _MAX_INLINE_ELEMENTS)
            for tensor, size in zip(tensors, sizes, strict=True)
        ]
        groups = [[one == kind for one in kinds] for kind in set(kinds) - {0}]
    for members in groups:
        if any(members):
            yield list(compress(names, members)), list(compress(tensors, members))


def _norms(tensors: list[Any], kind: str) -> list[Any]:
    """Return a number per tensor; all are of one device, dtype and smallness."""
    if tensors[0].is_complex():
        tensors = [tensor.abs() for tensor in tensors]
    elif tensors[0].itemsize < 4:
        tensors = [full(tensor) for tensor in tensors]
    if not tensors[0].is_cpu:
        return list(_fused(tensors, kind).unbind())
    # For small tensors a call of torch costs more than its work: process them all at once.
    if tensors[0].numel() <= _MAX_INLINE_ELEMENTS:
        return _norms_at_once(tensors, kind)
    return _fused(tensors, kind).tolist()  # type: ignore[no-any-return]


def _fused(tensors: list[Any], kind: str) -> Any:
    """Return a tensor of a number per tensor."""
    torch = sys.modules["torch"]
    if kind == "std":
        norms = [tensor.std(correction=0) for tensor in tensors]
    else:
        norms = torch._foreach_norm(tensors, {"l2": 2, "max": math.inf, "mean_abs": 1}[kind])
    if kind == "mean_abs":
        norms = torch._foreach_div(norms, [float(tensor.numel()) for tensor in tensors])
    return torch.stack(norms)


def _norms_at_once(tensors: list[Any], kind: str) -> list[float]:
    torch = sys.modules["torch"]
    lines = set(map(torch.Tensor.dim, tensors)) == {1}  # biases, say: joining them needs no view of each
    joined = torch.cat(tensors) if lines else torch._utils._flatten_dense_tensors(tensors)
    flat = joined.detach().numpy().astype(np.float64)
    sizes = np.array([tensor.numel() for tensor in tensors])
    starts = sizes.cumsum() - sizes
    if kind in ("max", "mean_abs"):
        flat = np.abs(flat)
        norms = np.maximum.reduceat(flat, starts) if kind == "max" else np.add.reduceat(flat, starts) / sizes
    elif kind == "std":
        flat -= np.repeat(np.add.reduceat(flat, starts) / sizes, sizes)
        norms = np.sqrt(np.add.reduceat(flat * flat, starts) / sizes)
    else:
        norms = np.sqrt(np.add.reduceat(flat * flat, starts))
    found: list[float] = norms.tolist()
    return found


def layer_norms(
    model: Any, what: What = "grad", kind: Literal["l2", "mean_abs", "max", "std"] = "l2"
) -> dict[str, Any]:
    """Return the norm of each parameter's gradient or weight, by name.

    ``kind``: ``l2`` the Euclidean norm, ``mean_abs`` the mean magnitude, ``max`` the largest magnitude, ``std`` the
    standard deviation (divisor n). One fused pass per device, at least in single precision. A parameter without a
    gradient is left out. On an accelerator the numbers are scalars of one tensor.

    Raises ``ValueError`` if no parameter has a gradient, and for an unknown ``what`` or ``kind``.
    """
    if kind not in ("l2", "mean_abs", "max", "std"):
        raise ValueError(f"kind is 'l2', 'mean_abs', 'max' or 'std', not {kind!r}.")
    names, tensors = _layers(model, what)
    if kind == "l2" and len(tensors) <= _MAX_SINGLE_TENSORS and (norms := _few(tensors)) is not None:
        return dict(zip(names, norms, strict=True))
    with no_grad():
        found: dict[str, Any] = dict.fromkeys(names, math.nan)
        for group, members in _alike(names, tensors):
            found.update(zip(group, _norms(members, kind), strict=True))
        return found


def layer_histograms(model: Any, what: What = "grad", bins: int = 32) -> dict[str, tuple[Any, Any]]:
    """Return ``(counts, edges)`` of each parameter's gradient or weight, by name.

    The ``bins`` are equal, from the smallest to the largest finite number; others are not counted. A parameter without
    a gradient is left out. Arrays are int64 and float64; on an accelerator they are tensors there.
    """
    with no_grad():
        names, tensors = _layers(model, what)
        return {n: _histogram(t, bins) for n, t in zip(names, tensors, strict=True) if t.numel()}


def _histogram(tensor: Any, bins: int) -> tuple[Any, Any]:
    torch = sys.modules["torch"]
    numbers = full(tensor.detach()).flatten()
    if numbers.is_cpu:
        numbers = numbers.numpy()
        finite = np.isfinite(numbers)
        counts, edges = np.histogram(numbers if finite.all() else numbers[finite], bins)
        return counts, edges.astype(np.float64)
    finite = torch.isfinite(numbers)
    lowest = torch.where(finite, numbers, math.inf).amin()
    highest = torch.where(finite, numbers, -math.inf).amax()
    flat = lowest >= highest
    lowest, highest = torch.where(flat, lowest - 0.5, lowest), torch.where(flat, highest + 0.5, highest)
    places = torch.nan_to_num((numbers - lowest) * (bins / (highest - lowest))).clamp(0, bins - 1).long()
    counts = torch.zeros(bins, dtype=torch.int64, device=numbers.device)
    steps = torch.arange(bins + 1, device=numbers.device) / bins
    return counts.scatter_add(0, places, finite.long()), lowest + (highest - lowest) * steps


def activation_stats(tensor: Any) -> dict[str, Any]:
    """Return mean, std (divisor n), max_abs, and fractions of zeros and nonfinite.

    >>> activation_stats(np.array([0.0, 3.0, -3.0]))["max_abs"]
    3.0
    """
    names = ("mean", "std", "max_abs", "zeros", "nonfinite")
    if not is_tensor(tensor):
        a = np.asarray(tensor, dtype=np.float64)
        finite = np.isfinite(a)
        found = (a.mean(), a.std(), np.abs(a).max(), (a == 0).mean(), (~finite).mean())
        return dict(zip(names, map(float, found), strict=True))
    torch = sys.modules["torch"]
    with no_grad():
        x = full(dense(local_shard(tensor)))
        x = x if x.is_floating_point() else x.float()
        odd = ~torch.isfinite(x)
        parts = (x.mean(), x.std(correction=0), x.abs().amax(), (x == 0).to(x).mean(), odd.to(x).mean())
        values = torch.stack(parts)
        return dict(zip(names, values.tolist() if values.is_cpu else values.unbind(), strict=True))
