"""Query helpers that ask a model: saliency, embedding, and the size of updates."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from looptap.streams.proving.probing import probe
from looptap.streams.values.held import held_parameters
from looptap.streams.values.torch_interop import dense, full, is_tensor, local_shard, no_grad

SALIENCY = ("gradient", "input", "integrated", "smooth")
"""The methods of `saliency`."""
MAX_EMBEDDED_SAMPLES = 2_000
"""Samples of an embedding; of more, every n-th is taken."""
_ITERATIONS = 24  # for the principal components of features on a device
_NOISE_SHARE = 0.1  # of the range of the inputs, the deviation of a noisy copy


def saliency(model: Any, x: Any, y: Any = None, method: str = "gradient", steps: int = 8) -> Any:
    """Return how much each input pixel moves the score of its class, by `probe`.

    ``x`` is a batch, ``y`` its classes, by default those that the model predicts. A map has the shape of an input
    without channels. ``method``: ``gradient`` is the magnitude of the gradient, ``input`` of gradient times input,
    ``integrated`` of its mean over ``steps`` from zero to the input times the input, ``smooth`` of its mean over
    ``steps`` noisy copies, whose noise has a generator of its own.

    >>> import torch
    >>> saliency(torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(12, 2)), torch.ones(5, 3, 2, 2)).shape
    torch.Size([5, 2, 2])
    """
    if method not in SALIENCY:
        raise ValueError(f"method is one of {', '.join(SALIENCY)}, not {method!r:.80}.")
    torch = sys.modules["torch"]
    x = x.detach()
    if not x.is_floating_point():
        raise ValueError(f"saliency takes floating-point inputs, and x is {x.dtype}: ask for the embedding's output.")
    if method == "integrated":
        mean = sum(_gradient(model, x * ((step + 0.5) / steps), y) for step in range(steps)) / steps
    elif method == "smooth":
        noise = torch.Generator(device=x.device).manual_seed(0)
        spread = _NOISE_SHARE * (x.max() - x.min())
        copies = (x + spread * torch.empty_like(x).normal_(generator=noise) for _ in range(steps))
        mean = sum(_gradient(model, copy, y) for copy in copies) / steps
    else:
        mean = _gradient(model, x, y)
    found = (mean * x if method in ("input", "integrated") else mean).abs()
    return found.amax(1) if found.ndim > 2 else found


def _gradient(model: Any, x: Any, y: Any) -> Any:
    """Return the gradient of the classes' scores by the inputs."""
    torch = sys.modules["torch"]
    with torch.enable_grad():
        asked = x.detach().clone().requires_grad_()
        output = probe(model, asked, gradient=True)
        if not is_tensor(output) or output.ndim < 1 or len(output) != len(x):
            raise ValueError("saliency needs a model whose output is a tensor with a row of scores for each input.")
        scores = output.flatten(1) if output.ndim > 1 else output[:, None]
        classes = scores.detach().argmax(1) if y is None else torch.as_tensor(y, device=scores.device).long()
        if scores.shape[1] == 1:
            classes = torch.zeros_like(classes)
        (found,) = torch.autograd.grad(scores.gather(1, classes[:, None]).sum(), asked)
    return found.detach()


def embedding(features: Any, labels: Any = None, images: Any = None, dimensions: int = 2) -> dict[str, Any]:
    """Return the features (n, …) of a batch in few dimensions, for a scatter.

    The dimensions are the principal components, whose signs are fixed so that a point stays where it is while the
    features do. ``labels`` name the classes, ``images`` are the samples, with one for each point. With
    ``dimensions=30`` a client can draw them with ``chart="umap"`` or ``chart="tsne"``.

    >>> embedding(np.eye(3, 5), labels=[7, 8, 9])["embedding"].shape
    (3, 2)
    """
    with no_grad():
        if is_tensor(features):
            features = full(dense(local_shard(features))).float()
            features = features.numpy() if features.is_cpu else features
        rows = features if is_tensor(features) else np.asarray(features, np.float64)
        if rows.ndim < 2:
            raise ValueError(f"embedding takes features (n, …), and these have the shape {tuple(rows.shape)}.")
        rows = rows.reshape(len(rows), -1)
        step = -(-len(rows) // MAX_EMBEDDED_SAMPLES) or 1
        components = _components_on_device if is_tensor(rows) else _components
        found: dict[str, Any] = {"embedding": components(rows[::step], dimensions)}
        for name, column in (("labels", labels), ("images", images)):
            if column is not None:
                if len(column) != len(rows):
                    raise ValueError(f"There are {len(column)} {name} for {len(rows)} features.")
                found[name] = column[::step]
        return found


def _components(rows: Any, dimensions: int) -> Any:
    """Return the coordinates along the principal components (n, dimensions)."""
    rows = np.nan_to_num(rows)
    rows = rows - rows.mean(axis=0)
    if rows.shape[1] <= rows.shape[0]:
        _, axes = np.linalg.eigh(rows.T @ rows)
        found = rows @ axes[:, ::-1][:, :dimensions]
    else:
        values, axes = np.linalg.eigh(rows @ rows.T)
        found = (axes * np.sqrt(np.maximum(values, 0.0)))[:, ::-1][:, :dimensions]
    found = np.pad(found, ((0, 0), (0, max(0, dimensions - found.shape[1]))))
    largest = np.abs(found).argmax(axis=0)
    return found * np.where(found[largest, np.arange(found.shape[1])] < 0, -1.0, 1.0)


def _components_on_device(rows: Any, dimensions: int) -> Any:
    """Return the same by iteration, which does not wait for the device."""
    torch = sys.modules["torch"]
    rows = torch.nan_to_num(rows)
    rows = rows - rows.mean(0)
    width = rows.shape[1]
    places = torch.arange(width * dimensions, device=rows.device, dtype=rows.dtype).reshape(width, dimensions)
    axes = torch.cos(places)
    for _ in range(_ITERATIONS):
        axes, _ = torch.linalg.qr(rows.T @ (rows @ axes))
    found = rows @ axes
    largest = found.gather(0, found.abs().argmax(0, keepdim=True))
    return torch.nn.functional.pad(found * torch.where(largest < 0, -1.0, 1.0), (0, dimensions - found.shape[1]))


def update_ratio(model: Any, optimizer: Any) -> dict[str, Any]:
    """Return the size of the last update of each parameter, by its weight's.

    About 1e-3 is usual. Read from the optimizer's state after its step: of SGD, Adam, AdamW and RMSprop, and those
    with the same state. A parameter without a gradient is left out.
    """
    torch = sys.modules["torch"]
    with no_grad():
        names = {id(parameter): name for name, parameter in held_parameters(model)}
        held = [(one, group) for group in optimizer.param_groups for one in group["params"] if id(one) in names]
        if not held:
            raise ValueError("The optimizer has no parameter of this model: name the model that it updates.")
        alike: dict[Any, tuple[dict[str, Any], list[Any]]] = {}  # of one group, with the same state
        for one, group in held:
            if one.grad is not None:
                alike.setdefault((id(group), frozenset(optimizer.state.get(one, ()))), (group, []))[1].append(one)
        if not alike:
            raise ValueError("No parameter has a gradient at this event. Emit after step() and before zero_grad().")
        found: dict[str, Any] = {}
        for group, parameters in alike.values():
            weights = [local_shard(one) for one in parameters]
            updates = _updates(group, parameters, weights, [optimizer.state.get(one, {}) for one in parameters])
            sizes = zip(torch._foreach_norm(updates), torch._foreach_norm(weights), strict=True)
            for one, (update, weight) in zip(parameters, sizes, strict=True):
                on_host = update.is_cpu
                found[names[id(one)]] = (
                    update.item() / max(weight.item(), 1e-12) if on_host else update / weight.clamp(min=1e-12)
                )
        return {name: found[name] for name in names.values() if name in found}


def _updates(group: dict[str, Any], parameters: list[Any], weights: list[Any], states: list[Any]) -> list[Any]:
    """Return the last update of each parameter, by the state that the step has left."""
    torch, state, decay = sys.modules["torch"], states[0], group.get("weight_decay", 0.0) or 0.0
    gradients = [local_shard(one.grad) for one in parameters]
    if "exp_avg" in state and "exp_avg_sq" in state:
        updates = _scaled_averages(group, states)
        if decay and group.get("decoupled_weight_decay"):
            torch._foreach_add_(updates, weights, alpha=decay)
    elif "square_avg" in state:
        updates = _divided_by_root(gradients, _of_states(states, "square_avg"), group)
    else:
        updates = torch._foreach_add(gradients, weights, alpha=decay) if decay else gradients
        momentum = group.get("momentum", 0.0) or 0.0
        if momentum and state.get("momentum_buffer") is not None:
            buffers = _of_states(states, "momentum_buffer")
            updates = torch._foreach_add(updates, buffers, alpha=momentum) if group.get("nesterov") else buffers
    return list(torch._foreach_mul(updates, group["lr"]))


def _of_states(states: list[Any], name: str) -> list[Any]:
    return [local_shard(one[name]) for one in states]


def _scaled_averages(group: dict[str, Any], states: list[Any]) -> Any:
    """Return Adam's averages of gradients by the root of those of their squares."""
    torch = sys.modules["torch"]
    first, second = group.get("betas", (0.9, 0.999))
    steps = [one["step"] for one in states]
    counts = [count if getattr(count, "is_cuda", False) else float(count) for count in steps]
    updates = torch._foreach_div(_of_states(states, "exp_avg"), [1 - first**count for count in counts])
    squares = torch._foreach_div(_of_states(states, "exp_avg_sq"), [1 - second**count for count in counts])
    return _divided_by_root(updates, squares, group)


def _divided_by_root(updates: Any, squares: Any, group: dict[str, Any]) -> Any:
    torch = sys.modules["torch"]
    spreads = torch._foreach_sqrt(squares)
    torch._foreach_add_(spreads, group.get("eps", 1e-8))
    return torch._foreach_div(updates, spreads)
