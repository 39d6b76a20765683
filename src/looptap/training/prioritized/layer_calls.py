"""Calls of layers, which hold inputs until the gradients of the outputs come."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

from looptap.training.prioritized.layer_plan import PlannedLayer, PriorityError

MAX_NODES = 500
"""Of a graph, that are searched for the projections of an attention."""


class ModelHook:
    """A hook of one model: in copies and pickles of the model it does nothing."""

    __slots__ = ("_act",)

    def __init__(self, act: Callable[..., Any]) -> None:
        self._act = act

    def __call__(self, *given: Any) -> Any:
        """Act on what the module hands to its hooks."""
        return self._act(*given)

    def __reduce__(self) -> Any:
        return ModelHook, (do_nothing,)


def do_nothing(*given: Any) -> None:
    """Do nothing: a hook in a copy of a model."""


class LayerCall:
    """One call of a layer."""

    __slots__ = ("__weakref__", "place", "planned", "shape", "time_first", "version", "x")

    def __init__(self, planned: PlannedLayer, x: Any, shape: Any, place: int, *, time_first: bool = False) -> None:
        self.planned, self.shape, self.time_first = planned, shape, time_first
        self.place = place
        """Of the output among those of its node."""
        self.x = x
        """The layer's input; under hooks of saved tensors, as of a checkpoint: the node that holds it."""
        self.version: int | None = None
        if saves_elsewhere():
            self.x = _holder().apply(x, _one_that_requires_grad()).grad_fn
        elif not x.is_inference():
            self.version = x._version

    def pair(self, g: Any) -> tuple[Any, Any]:
        """Return the layer's input as it was and the output's gradient, examples first."""
        import torch

        x = self.x
        if not isinstance(x, torch.Tensor):
            (x,) = x.saved_tensors
        elif self.version is not None and x._version != self.version:
            name = type(self.planned.layer).__name__
            raise PriorityError(f"the input of a {name} was changed in place after its call: use method='jvp'.")
        if g.shape != self.shape:
            g = g.reshape(self.shape)
        if not self.time_first:
            return x, g
        return x.view(*self.shape[:2], -1).transpose(0, 1), g.transpose(0, 1)


def saves_elsewhere() -> bool:
    """Return True where hooks take the tensors that autograd saves."""
    import torch

    return torch._C._autograd._top_saved_tensors_default_hooks(True) is not None


def learns_static_graph(losses: Any) -> bool:
    """Return True where the next backward pass shows DDP its static graph.

    It must be that of the step: after another one, DDP would reduce nothing from there on, and the ranks part.
    """
    import torch

    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return False
    todo, seen = [losses.grad_fn], {losses.grad_fn, None}
    for node in todo:
        reference = getattr(node, "ddp_weakref", None)
        if reference is not None:
            model = reference()
            return bool(model.static_graph and not getattr(model, "_static_graph_delay_allreduce_enqueued", True))
        if node is not None:
            following = {one for one, _ in node.next_functions} - seen
            todo += following
            seen |= following
    return False


@cache
def _holder() -> Any:
    import torch

    class Holder(torch.autograd.Function):  # type: ignore[misc]  # torch is not imported by mypy
        """Holds a tensor as a layer does: checkpoints drop and recompute it."""

        @staticmethod
        def forward(ctx: Any, x: Any, one: Any) -> Any:
            ctx.save_for_backward(x)
            return one.detach()

        @staticmethod
        def backward(ctx: Any, g: Any) -> tuple[None, None]:
            return None, None  # it is no part of the graph of a loss

    return Holder


@cache
def _one_that_requires_grad() -> Any:
    import torch

    return torch.zeros((), requires_grad=True, device="cpu")


# ---------------------------------------------------------------- attention


class Projection(NamedTuple):
    """A product with a weight of a MultiheadAttention, in the graph of its output."""

    node: Any
    call: LayerCall


def projections(parts: list[PlannedLayer], layer: Any, query: Any, output: Any) -> list[Projection]:
    """Return the two projections of a MultiheadAttention that has just run.

    It uses its weights without calling a layer: they are found in the graph of its output. Raises PriorityError if they
    are not there, as with keys that are not the queries.
    """
    waiting = {id(part.layer.weight): part for part in parts}
    found, todo, seen = [], [output.grad_fn], {output.grad_fn}
    if query.ndim == 3 and not saves_elsewhere():
        n, t = query.shape[:2] if layer.batch_first else (query.shape[1], query.shape[0])
        for node in todo:
            if len(seen) > MAX_NODES or not waiting:
                break
            next_nodes = [one for one, _ in node.next_functions if one is not None]
            if (name := _INPUTS.get(node.name())) and (part := waiting.pop(id(_leaf(next_nodes[-1])), None)):
                shape = (t, n, part.layer.weight.shape[0])
                found.append(Projection(node, LayerCall(part, getattr(node, name), shape, 0, time_first=True)))
            todo += [one for one in next_nodes if one not in seen]
            seen.update(next_nodes)
    if waiting:
        raise PriorityError(
            "a MultiheadAttention is no plain self-attention over (n, tokens, width), or runs in a checkpoint: take "
            "method='jvp'."
        )
    return found


_INPUTS = {"AddmmBackward0": "_saved_mat1", "MmBackward0": "_saved_self"}
"""Nodes of a product with a weight, and their attributes that are its input."""


def _leaf(node: Any) -> Any:
    """Return the parameter whose transpose, or its cast, a node is; else None."""
    while node is not None and node.name() in ("TBackward0", "ToCopyBackward0"):
        node = node.next_functions[0][0]
    return getattr(node, "variable", None)
