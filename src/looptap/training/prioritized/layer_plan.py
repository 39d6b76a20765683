"""Which layers of a model take part, found once and checked again at each use."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any, NamedTuple

from looptap.streams.preserving.module_state import unwrapped
from looptap.training.prioritized.layer_rules import LayerRule, linear_products, mixes_examples, rule_of, trained

_COMPILED = (
    "{} is compiled, and what torch.compile makes runs no hooks: compute the priorities in a pass of their own, "
    "ExactPriorities(model, loss)(inputs, targets, direction), which runs the module inside."
)


class PriorityError(ValueError):
    """Priorities that cannot be computed this way; the message says why."""


class ShardedModelError(PriorityError):
    """No rank has whole gradients of the model, as under FSDP."""


class PlannedLayer(NamedTuple):
    """A layer with trained parameters."""

    layer: Any
    rule: LayerRule
    weight: int | None
    """The place of its weight among the model's parameters; None: it has none."""
    bias: int | None


class LayerPlan:
    """The layers of a model that take part, and why hooks cannot do it.

    Holds for as long as `is_current`: modules, parameters, which of them are trained, and modes of BatchNorm.
    """

    def __init__(self, model: Any) -> None:
        self._parts = [part for one in model.modules() for part in (one._modules, one._parameters)]
        self.why = ""
        """Why hooks cannot compute the priorities; "": they can."""
        self.parameters: list[Any] = list(model.parameters())
        """All of the model's parameters, in its order."""
        self.names = [name for name, _ in model.named_parameters()]
        self.layers: list[PlannedLayer] = []
        self.checked = False
        """Whether a batch has shown that the layers account for all of the gradient."""
        self.folded: set[Any] = set()
        """Layers whose first dimension is a multiple of the batch, as a check has allowed."""
        self._normalizing = {path: one for path, one in model.named_modules() if _is_batch_norm(one)}
        place = {id(one): number for number, one in enumerate(self.parameters)}
        self.attentions: list[tuple[Any, list[PlannedLayer]]] = []
        """Each MultiheadAttention, and its projections in place of layers."""
        inside = set()
        for path, layer in model.named_modules():
            if is_attention(layer):
                inside.add(layer.out_proj)
                self.attentions.append((layer, _projections(layer, place)))
                continue
            if layer in inside:
                continue
            self.why = self.why or _why_not(path, layer)
            if not self.why and trained(layer) and (rule := rule_of(layer)):
                weight, bias = (place.get(id(getattr(layer, name, None))) for name in ("weight", "bias"))
                self.layers.append(PlannedLayer(layer, rule, weight, bias))
        self.places = [place for place, one in enumerate(self.parameters) if one.requires_grad]
        self.trained = [self.parameters[place] for place in self.places]
        """The parameters that are trained, and their places among all."""
        self._signature = self._seen()

    def is_current(self) -> bool:
        """Return True if the model is still what it was."""
        return self._seen() == self._signature

    def _seen(self) -> list[Any]:
        return [
            *map(id, chain.from_iterable(map(dict.values, self._parts))),
            *[one.requires_grad for one in self.parameters],
            *[(one.training, one.running_mean is None) for one in self._normalizing.values()],
        ]

    def random_direction(self) -> list[Any]:
        """Return a random direction, always the same; draws no number of the job."""
        import torch

        source = torch.Generator().manual_seed(1)
        return self.matched(
            [
                torch.randn(one.shape, generator=source, dtype=torch.float32, device="cpu").to(one.device, one.dtype)
                for one in self.parameters
            ]
        )

    def matched(self, direction: Sequence[Any]) -> list[Any]:
        """Return a direction as one detached tensor for each parameter.

        Raises PriorityError for another number or shape of tensors.
        """
        given = list(direction)
        if len(given) != len(self.parameters):
            raise PriorityError(f"direction has {len(given)} tensors; the model has {len(self.parameters)} parameters.")
        for place, (parameter, along) in enumerate(zip(self.parameters, given, strict=True)):
            if along is None or not parameter.requires_grad:
                given[place] = parameter.detach().new_zeros(parameter.shape)
            elif along.shape != parameter.shape:
                raise PriorityError(
                    f"direction is of {tuple(along.shape)} for {self.names[place]!r} of {tuple(parameter.shape)}."
                )
            elif along.requires_grad:
                given[place] = along.detach()
        return given


class AttentionPart:
    """A projection of a MultiheadAttention, with the names of a Linear's parameters."""

    def __init__(self, weight: Any, bias: Any) -> None:
        self.weight, self.bias = weight, bias


def is_attention(layer: Any) -> bool:
    """Return True for a MultiheadAttention whose projections can be followed.

    One weight for queries, keys and values; both weights are trained, or nothing is.
    """
    from torch import nn

    if not isinstance(layer, nn.MultiheadAttention) or type(layer).forward is not nn.MultiheadAttention.forward:
        return False
    weights, biases = (layer.in_proj_weight, layer.out_proj.weight), (layer.in_proj_bias, layer.out_proj.bias)
    if weights[0] is None or layer.bias_k is not None:
        return False
    return all(one.requires_grad for one in weights) or not any(
        one is not None and one.requires_grad for one in (*weights, *biases)
    )


def _projections(layer: Any, place: dict[int, int]) -> list[PlannedLayer]:
    given = [(layer.in_proj_weight, layer.in_proj_bias), (layer.out_proj.weight, layer.out_proj.bias)]
    return [
        PlannedLayer(AttentionPart(weight, bias), linear_products, place[id(weight)], place.get(id(bias)))
        for weight, bias in (given if layer.in_proj_weight.requires_grad else [])
    ]


def why_compiled(model: Any) -> str:
    """Return why a loop's own passes cannot run hooks; "": they can."""
    for path, module in model.named_modules():
        if type(module).__name__ == "OptimizedModule" or getattr(module, "_compiled_call_impl", None) is not None:
            return _COMPILED.format(f"{type(module).__name__} {path!r}" if path else "the model")
    return ""


def _is_batch_norm(layer: Any) -> bool:
    from torch import nn

    return isinstance(layer, nn.modules.batchnorm._BatchNorm)


def _why_not(path: str, layer: Any) -> str:
    """Return why hooks cannot treat a layer; "": they can."""
    name = f"{type(layer).__name__} {path!r}"
    if mixes_examples(layer):
        return (
            f"{name} is in training mode, where an example's loss depends on the others: take "
            "method='jvp' or 'finite_difference', or call model.eval()."
        )
    if trained(layer) and rule_of(layer) is None:
        return f"{name} has parameters that no hook knows: use method='jvp' or 'finite_difference'."
    return ""


def why_not(model: Any) -> str:
    """Return why hooks cannot compute a model's priorities; "": they can."""
    return LayerPlan(checked_model(model)).why


def checked_model(model: Any) -> Any:
    """Return the module inside the wrappers, of which priorities can be computed.

    Raises TypeError for what is not a module, PriorityError for one that allows no method; ShardedModelError is one.
    """
    import torch

    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"model is a torch.nn.Module, not {type(model).__name__}.")
    inner = unwrapped(model)
    for path, module in inner.named_modules():
        name = f"{type(module).__name__} {path!r}" if path else f"{type(module).__name__}"
        if isinstance(module, torch.jit.ScriptModule):
            raise PriorityError(f"{name} is compiled by torch.jit: pass the module it was made from.")
        if isinstance(module, torch.nn.modules.lazy.LazyModuleMixin) and module.has_uninitialized_params():
            raise PriorityError(f"{name} has no shape yet: run the model on a batch first.")
    if why := why_sharded(inner):
        raise ShardedModelError(why)
    if not any(one.requires_grad for one in inner.parameters()):
        raise PriorityError("model has no trainable parameter: call requires_grad_(True) on some of them.")
    return inner


def why_sharded(model: Any) -> str:
    """Return why no rank has whole gradients of a model; "": each has."""
    text = (
        "{!r} is sharded over ranks (FSDP or DTensor), and no rank has a whole gradient to compare with: take "
        "method='norm', which uses the norms of the gradients at the outputs, or DistributedDataParallel."
    )
    for path, module in model.named_modules():  # between a forward and a backward pass its parameters may be whole
        if any(kind.__name__ in ("FSDPModule", "FullyShardedDataParallel") for kind in type(module).__mro__):
            return text.format(path or type(module).__name__)
    for name, one in model.named_parameters():
        if type(one.data).__name__ == "DTensor" or type(one).__name__ == "FlatParameter":
            return text.format(name)
    return ""


def checked_losses(losses: Any) -> Any:
    """Return losses that are one for each example; raises PriorityError."""
    if losses.ndim != 1:
        raise PriorityError(
            f"losses of shape {tuple(losses.shape)} must be (n,), one for each example: take reduction='none', and the "
            "mean over other dimensions."
        )
    return losses
