"""Functions that a query may call by name: statistics of layers, choice of samples, checks of numbers.

None of them changes anything: no gradient, no graph, no global random numbers, no collective. A sharded tensor
stands for its local shard. What lives on the host gives Python numbers and numpy arrays; what lives on an
accelerator gives tensors there, so that no query waits for the device. Torch is never imported here: whoever
hands in a tensor has done so.
"""

from __future__ import annotations

import contextlib
import math
import random
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from looptap.streams.items import is_tensor

What = Literal["grad", "weight"]
_CHOOSE = random.Random()


def _no_grad() -> contextlib.AbstractContextManager[Any]:
    torch = sys.modules.get("torch")
    return contextlib.nullcontext() if torch is None else torch.no_grad()  # type: ignore[no-any-return]


def _local(tensor: Any) -> Any:
    """The tensor without its graph; of a sharded one the local shard, which needs no communication."""
    return tensor.to_local().detach() if hasattr(tensor, "to_local") else tensor.detach()


# ---------------------------------------------------------------- layers


def _parameters(model: Any) -> tuple[list[str], list[Any]]:
    """Names and parameters as ``named_parameters()`` gives them, in half its time."""
    names: list[str] = []
    parameters: list[Any] = []
    seen: set[int] = set()

    def walk(module: Any, prefix: str) -> None:
        if id(module) in seen:
            return
        seen.add(id(module))
        for name, parameter in module._parameters.items():
            if parameter is not None and id(parameter) not in seen:
                seen.add(id(parameter))
                names.append(prefix + name)
                parameters.append(parameter)
        for name, child in module._modules.items():
            if child is not None:
                walk(child, f"{prefix}{name}.")

    if not hasattr(model, "_parameters"):
        raise TypeError(f"A model is a torch.nn.Module, and this one is a {type(model).__name__}.")
    walk(model, "")
    return names, parameters


def _layers(model: Any, what: str) -> tuple[list[str], list[Any]]:
    if what not in ("grad", "weight"):
        raise ValueError(f"what is 'grad' or 'weight', not {what!r}.")
    names, tensors = _parameters(model)
    if what == "grad":
        found = [(name, p.grad) for name, p in zip(names, tensors, strict=True) if p.grad is not None]
        if not found:
            raise ValueError(
                "No parameter has a gradient at this event. Emit after backward() and before zero_grad()."
            )
        names, tensors = [name for name, _ in found], [grad for _, grad in found]
    return names, [_dense(_local(tensor)) for tensor in tensors]


def _dense(tensor: Any) -> Any:
    return tensor.to_dense() if tensor.layout != sys.modules["torch"].strided else tensor


def _full(tensor: Any) -> Any:
    """A tensor of at least single precision: the norm of a large half-precision one is infinite."""
    return tensor.float() if tensor.is_floating_point() and tensor.element_size() < 4 else tensor


def _norms(tensors: list[Any], kind: str) -> Any:
    """One tensor of a number per tensor; all are on one device and have elements."""
    torch = sys.modules["torch"]
    if kind == "std":
        return torch.stack([tensor.std(correction=0) for tensor in tensors])
    norms = torch.stack(torch._foreach_norm(tensors, {"l2": 2, "max": math.inf, "mean_abs": 1}[kind]))
    if kind != "mean_abs":
        return norms
    # Made on the device: a copy from the host would wait for it.
    counts = torch.stack([norms.new_full((), tensor.numel()) for tensor in tensors])
    return norms / counts


def layer_norms(
    model: Any, what: What = "grad", kind: Literal["l2", "mean_abs", "max", "std"] = "l2"
) -> dict[str, Any]:
    """Return a number per parameter, by name: the norm of its gradient or of its weight.

    ``kind``: ``l2`` the Euclidean norm, ``mean_abs`` the mean magnitude, ``max`` the largest magnitude, ``std``
    the standard deviation (divisor n). All of a device in one fused pass, at least in single precision.
    A parameter without a gradient is left out. On an accelerator the numbers are scalars of one tensor there.

    Raises ``ValueError`` where no parameter has a gradient, and for an unknown ``what`` or ``kind``.
    """
    if kind not in ("l2", "mean_abs", "max", "std"):
        raise ValueError(f"kind is 'l2', 'mean_abs', 'max' or 'std', not {kind!r}.")
    with _no_grad():
        names, tensors = _layers(model, what)
        found: dict[str, Any] = dict.fromkeys(names, math.nan)
        groups: dict[Any, list[tuple[str, Any]]] = {}
        for name, tensor in zip(names, tensors, strict=True):
            tensor = _full(tensor)
            if tensor.numel():  # an empty shard has no norm
                groups.setdefault((tensor.device, tensor.dtype), []).append((name, tensor))
        for group in groups.values():
            norms = _norms([tensor for _, tensor in group], kind)
            values = norms.tolist() if norms.is_cpu else norms.unbind()
            found.update(zip((name for name, _ in group), values, strict=True))
        return found


def layer_histograms(model: Any, what: What = "grad", bins: int = 32) -> dict[str, tuple[Any, Any]]:
    """Return ``(counts, edges)`` per parameter, by name, of its gradient or its weight.

    The ``bins`` are equal, from the smallest to the largest finite number; others are not counted. A parameter
    without a gradient is left out. Arrays of int64 and float64; on an accelerator tensors there.
    """
    with _no_grad():
        names, tensors = _layers(model, what)
        return {n: _histogram(t, bins) for n, t in zip(names, tensors, strict=True) if t.numel()}


def _histogram(tensor: Any, bins: int) -> tuple[Any, Any]:
    torch = sys.modules["torch"]
    numbers = _full(tensor).flatten()
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
    """Return mean, std (divisor n), max_abs, zeros and nonfinite (fractions) of a tensor or an array.

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
    with _no_grad():
        x = _full(_dense(_local(tensor)))
        x = x if x.is_floating_point() else x.float()
        odd = ~torch.isfinite(x)
        parts = (x.mean(), x.std(correction=0), x.abs().amax(), (x == 0).to(x).mean(), odd.to(x).mean())
        values = torch.stack(parts)
        return dict(zip(names, values.tolist() if values.is_cpu else values.unbind(), strict=True))


# ---------------------------------------------------------------- samples of a batch


def batch_topk(k: int, by: Any, **columns: Any) -> list[dict[str, Any]]:
    """Return a row for each of the k samples of the batch with the largest ``by``, the largest first.

    ``by`` has a number per sample (a loss with ``reduction="none"``); each column a sample per place of its first
    dimension, or one number or text for all. A row is ``{"by": number, column: sample, ...}``; samples are
    copies. NaN counts as the largest. Fewer than k samples give fewer rows.

    >>> batch_topk(1, np.array([0.1, 0.9]), label=["cat", "dog"])
    [{'by': 0.9, 'label': 'dog'}]
    """
    return _ranked(k, by, columns, largest=True)


def batch_bottomk(k: int, by: Any, **columns: Any) -> list[dict[str, Any]]:
    """Return a row for each of the k samples with the smallest ``by``, the smallest first; see ``batch_topk``."""
    return _ranked(k, by, columns, largest=False)


def batch_sample(k: int, **columns: Any) -> list[dict[str, Any]]:
    """Return a row for each of k samples of the batch, chosen at random, in their order.

    The choice uses a generator of its own, so that the job's random numbers stay as they are.
    """
    size = next((len(column) for column in columns.values() if _per_sample(column)), None)
    if size is None:
        raise ValueError("batch_sample needs a column with a sample per place, as in batch_sample(4, x=e.x).")
    with _no_grad():
        places = sorted(_CHOOSE.sample(range(size), min(k, size)))
        picked = {name: _pick(name, column, size, places, None) for name, column in columns.items()}
        return [{name: column[row] for name, column in picked.items()} for row in range(len(places))]


def _ranked(k: int, by: Any, columns: dict[str, Any], largest: bool) -> list[dict[str, Any]]:
    if not is_tensor(by):
        by = np.asarray(by)
    if by.ndim != 1:
        raise ValueError(
            f"by has shape {tuple(by.shape)}, and needs one number per sample. Compute the loss with "
            'reduction="none", and average what dimensions remain: .mean(dim=(1, 2)).'
        )
    size = len(by)
    k = min(k, size)
    with _no_grad():
        device = None
        if is_tensor(by):
            values, order = _local(by).topk(k, largest=largest)
            if by.is_cpu:
                values, places = values.tolist(), order.tolist()
            else:
                device, places = order, None
        else:
            places = np.argsort(by, kind="stable")[::-1 if largest else 1][:k].tolist()
            values = by[places].tolist()
        picked = {name: _pick(name, column, size, places, device) for name, column in columns.items()}
        return [
            {"by": values[row], **{name: column[row] for name, column in picked.items()}} for row in range(k)
        ]


def _per_sample(column: Any) -> bool:
    return getattr(column, "ndim", 0) > 0 or isinstance(column, list | tuple)


def _pick(name: str, column: Any, size: int, places: list[int] | None, device: Any) -> Sequence[Any]:
    """The samples at the places; these may be known on the device only."""
    if not _per_sample(column):
        return [column] * size
    if len(column) != size:
        raise ValueError(f"The column {name!r} has {len(column)} samples, and the batch has {size}.")
    if is_tensor(column):
        column = _local(column)
        if device is not None:
            rows = column.index_select(0, device.to(column.device))
        else:
            rows = [column[place].clone() for place in places or ()]
        return [row.item() if row.ndim == 0 and row.is_cpu else row for row in rows]
    if places is None:
        places = device.tolist()  # samples on the host, chosen on the device: this waits for it
    return [value.copy() if isinstance(value := column[place], np.ndarray) else value for place in places]


def confusion(target: Any, output: Any, classes: int) -> Any:
    """Return the confusion counts, int64, ``classes`` × ``classes``: rows are targets, columns predictions.

    ``output`` holds class numbers like ``target``, or scores in one dimension more (the second): then the class
    with the highest score counts. Targets out of range (``ignore_index``) are left out.

    >>> confusion([0, 1, 1], [0, 1, 0], 2).tolist()
    [[1, 0], [1, 1]]
    """
    if not (is_tensor(target) or is_tensor(output)):
        target, output = np.asarray(target), np.asarray(output)
        chosen = (output.argmax(1) if output.ndim > target.ndim else output).ravel().astype(np.int64)
        wanted = target.ravel().astype(np.int64)
        valid = (wanted >= 0) & (wanted < classes) & (chosen >= 0) & (chosen < classes)
        cells = wanted[valid] * classes + chosen[valid]
        return np.bincount(cells, minlength=classes * classes).reshape(classes, classes)
    torch = sys.modules["torch"]
    with _no_grad():
        target, output = (_local(torch.as_tensor(x)) for x in (target, output))
        chosen = (output.argmax(1) if output.ndim > target.ndim else output).flatten().long()
        wanted = target.flatten().to(chosen.device).long()
        valid = (wanted >= 0) & (wanted < classes) & (chosen >= 0) & (chosen < classes)
        cells = torch.where(valid, wanted * classes + chosen, 0)
        counts = torch.zeros(classes * classes, dtype=torch.int64, device=cells.device)
        matrix = counts.scatter_add(0, cells, valid.long()).view(classes, classes)
        return matrix.numpy() if matrix.is_cpu else matrix


# ---------------------------------------------------------------- numbers


def isnan(x: Any) -> Any:
    """Return whether x is NaN, or has a NaN in it: an array, a tensor, or tuples, lists and dicts of them.

    >>> isnan([1.0, float("nan")])
    True
    """
    return _any(x, math.isnan, "isnan")


def isinf(x: Any) -> Any:
    """Return whether x is infinite, or has an infinity in it; see ``isnan``."""
    return _any(x, math.isinf, "isinf")


def isfinite(x: Any) -> Any:
    """Return whether every number in x is finite; see ``isnan``.

    >>> isfinite({"loss": 0.5, "norm": float("inf")})
    False
    """
    found = _any(x, lambda number: not math.isfinite(number), "isfinite")
    return ~found if is_tensor(found) else not found


def _any(x: Any, test: Callable[[Any], bool], name: str) -> Any:
    if isinstance(x, float | int):
        return test(x) if isinstance(x, float) else False
    if is_tensor(x):
        with _no_grad():
            x = _local(x)
            x = _full(x._values() if x.layout != sys.modules["torch"].strided else x)
            found = getattr(sys.modules["torch"], name)(x)
            found = (~found if name == "isfinite" else found).any()
            return bool(found) if found.is_cpu else found
    if isinstance(x, np.ndarray | np.generic):
        if x.dtype.kind not in "fc":
            return False
        marked = getattr(np, name)(x)
        return bool((~marked if name == "isfinite" else marked).any())
    if isinstance(x, complex):
        return test(x.real) or test(x.imag)
    if isinstance(x, Mapping):
        x = x.values()
    elif not isinstance(x, list | tuple | set | frozenset):
        return False
    found = False
    for part in x:
        answer = _any(part, test, name)
        # `or` would ask a tensor of a device for its truth, and wait for it.
        found = (found | answer) if is_tensor(answer) or is_tensor(found) else (found or answer)
    return found


def _flat(x: Any) -> Iterable[Any]:
    if isinstance(x, Mapping):
        x = x.values()
    if isinstance(x, list | tuple) or hasattr(x, "__next__") or not (hasattr(x, "ndim") or np.isscalar(x)):
        for part in x:
            yield from _flat(part)
    elif x is not None:
        yield x


def norm(x: Any) -> Any:
    """Return the Euclidean norm of a number, an array, a tensor, or of all in a list, dict or generator.

    >>> norm([3.0, np.array([0.0, 4.0])])
    5.0
    """
    parts = [_power(part) for part in _flat(x)]
    total = sum(parts[1:], start=parts[0]) if parts else 0.0
    return total**0.5 if is_tensor(total) else math.sqrt(total)


def _power(part: Any) -> Any:
    if is_tensor(part):
        with _no_grad():
            square = sys.modules["torch"].linalg.vector_norm(_full(_dense(_local(part)))) ** 2
            return square.item() if square.is_cpu else square
    return float(np.square(np.abs(np.asarray(part, dtype=np.float64))).sum())


def mean_abs(x: Any) -> Any:
    """Return the mean magnitude of the elements of a number, an array or a tensor.

    >>> mean_abs([1, -3])
    2.0
    """
    if is_tensor(x):
        with _no_grad():
            mean = _full(_dense(_local(x))).abs().to(sys.modules["torch"].float32).mean()
            return mean.item() if mean.is_cpu else mean
    return float(np.abs(np.asarray(x, dtype=np.float64)).mean())


def shape(x: Any) -> Any:
    """Return the shape of an array or a tensor as a tuple, of each in a tuple, list or dict; () of a number.

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
    """Return the learning rate of an optimizer; a tuple where its parameter groups have different ones."""
    rates = []
    for group in optimizer.param_groups:
        rate = group["lr"]
        rates.append(rate.item() if is_tensor(rate) and rate.is_cpu else rate)
    if any(is_tensor(rate) for rate in rates):
        return rates[0].detach() if len(rates) == 1 else tuple(rates)
    return rates[0] if len(set(rates)) == 1 else tuple(rates)


def thumbnail(image: Any, size: int = 64) -> Any:
    """Return a small copy of one image, uint8, height × width (× 3 or 4), no side longer than ``size``.

    ``image`` is height × width, channels × height × width, or height × width × channels, or a PIL image (which
    gives one). Floats in 0..1 keep their brightness, others are stretched from lowest to highest.
    """
    if hasattr(image, "thumbnail"):
        small = image.copy()
        small.thumbnail((size, size))
        return small
    tensor = is_tensor(image)
    if not tensor:
        image = np.asarray(image)
    if image.ndim == 3 and image.shape[0] not in (1, 3, 4) and image.shape[2] in (1, 3, 4):
        image = image.permute(2, 0, 1) if tensor else image.transpose(2, 0, 1)
    if image.ndim == 2:
        image = image[None]
    if image.ndim != 3 or image.shape[0] not in (1, 3, 4) or not min(image.shape):
        raise ValueError(
            f"thumbnail takes one image, and this has shape {tuple(image.shape)}. Choose one of a batch: "
            "thumbnail(e.x[0])."
        )
    scale = min(1.0, size / max(image.shape[1:]))
    height, width = (max(1, round(side * scale)) for side in image.shape[1:])
    if tensor:
        with _no_grad():
            image = _local(image)
            if not image.is_cpu:
                return _shrink_on_device(image, height, width)
            image = _full(image).numpy()
    return _shrink(image, height, width)


def _shrink(image: np.ndarray[Any, Any], height: int, width: int) -> np.ndarray[Any, Any]:
    bytes_ = image.dtype == np.uint8
    x = np.nan_to_num(image.astype(np.float64))
    for axis, side in ((1, height), (2, width)):
        starts = np.arange(side) * x.shape[axis] // side
        counts = np.diff(np.append(starts, x.shape[axis]))
        x = np.add.reduceat(x, starts, axis=axis) / (counts[:, None] if axis == 1 else counts)
    if not bytes_:
        lowest, highest = x.min(), x.max()
        if lowest < 0 or highest > 1:
            x = (x - lowest) / ((highest - lowest) or 1.0)
        x = x * 255
    x = x.round().astype(np.uint8)
    return x[0] if len(x) == 1 else np.ascontiguousarray(x.transpose(1, 2, 0))


def _shrink_on_device(image: Any, height: int, width: int) -> Any:
    torch = sys.modules["torch"]
    bytes_ = image.dtype == torch.uint8
    x = torch.nan_to_num(image.float())
    x = torch.nn.functional.adaptive_avg_pool2d(x[None], (height, width))[0]
    if not bytes_:
        lowest, highest = x.amin(), x.amax()
        inside = (lowest >= 0) & (highest <= 1)
        lowest, highest = torch.where(inside, 0.0, lowest), torch.where(inside, 1.0, highest)
        x = (x - lowest) / (highest - lowest).clamp(min=1e-30) * 255
    x = x.round().to(torch.uint8)
    return x[0] if len(x) == 1 else x.permute(1, 2, 0).contiguous()


HELPERS: dict[str, Callable[..., Any]] = {
    function.__name__: function
    for function in (
        layer_norms,
        layer_histograms,
        activation_stats,
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
    )
}
"""The helpers by name, as queries see them."""
