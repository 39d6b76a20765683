"""Exact priorities of a batch, by the cheapest way that its model allows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from looptap.streams.preserving.probing import untouched
from looptap.training.prioritized.directional import Losses, along_by_difference, along_by_jvp
from looptap.training.prioritized.ghost_products import (
    GhostPass,
    PriorityError,
    checked_losses,
    matched,
    why_not,
)
from looptap.training.prioritized.layer_rules import mixes_examples

METHODS = ("ghost", "jvp", "finite_difference")
"""The ways to compute priorities."""

__all__ = ["METHODS", "BatchPriorities", "ExactPriorities", "PriorityError"]


class BatchPriorities(NamedTuple):
    """What is known of a batch's examples: tensors (n,) on the losses' device."""

    priorities: Any
    """gbar · g_i: how fast the example's loss grows along gbar, and falls against it."""
    losses: Any
    """The losses of single examples; None: not known."""
    norms: Any
    """The norms of g_i over all trained parameters; None: not asked for."""
    gradients: Any
    """The gradient of the mean loss, by parameter; None: not computed by this method."""


class ExactPriorities:
    """Computes `p_i = gbar · g_i` for the examples of a batch.

    g_i is the gradient of example i's loss.
    ``loss(outputs, targets)`` returns the losses of single examples, (n,), for example
    ``torch.nn.CrossEntropyLoss(reduction="none")``. ``method``:

    - ``"ghost"``: inner products in hooks of the layers, with the gradient of the batch in the same backward pass; the
      only one with ``norms``. See `GhostPass`, which is the same for a loop's own backward pass.
    - ``"jvp"``: forward-mode differentiation, for any layer that has it. Neither BatchNorm in training mode nor
      `torch.utils.checkpoint`.
    - ``"finite_difference"``: one more forward pass, for any model; ranks are right (0.995 and more), digits are not.
      With BatchNorm in training mode a priority is the change of an example's loss as the whole batch moves.
    - ``"auto"``: the first of these that the model's layers allow.

    Under autocast ``"ghost"`` computes in its precision, the others in that of the parameters.

    Parameters, gradients, buffers, modes and random numbers of the job stay as they are. The priorities of prioritized
    gradient descent (PGD) are these, with gbar an average of recent gradients; its paper has the opposite sign.

    Raises PriorityError for a model that the method cannot treat; the text says which can.

    >>> import torch
    >>> _ = torch.manual_seed(0)
    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
    >>> exact = ExactPriorities(model, torch.nn.CrossEntropyLoss(reduction="none"))
    >>> exact.method
    'ghost'
    >>> gbar = [torch.ones_like(one) for one in model.parameters()]
    >>> x, y = torch.randn(5, 4), torch.tensor([0, 1, 2, 0, 1])
    >>> exact(x, y, gbar).priorities.shape
    torch.Size([5])
    """

    def __init__(self, model: Any, loss: Callable[[Any, Any], Any], *, method: str = "auto") -> None:
        import torch

        if not isinstance(model, torch.nn.Module):
            raise TypeError(f"model is a torch.nn.Module, not {type(model).__name__}.")
        if not callable(loss):
            raise TypeError(f"loss={loss!r:.80} must be a function of outputs and targets.")
        if method not in (*METHODS, "auto"):
            raise ValueError(f"method={method!r} must be 'auto' or one of {', '.join(METHODS)}.")
        if method == "ghost" and (why := why_not(model)):
            raise PriorityError(why)
        self.model, self.loss, self._asked = model, loss, method
        self._unchecked = True

    @property
    def method(self) -> str:
        """The method that a batch takes with the model in its present modes."""
        if self._asked != "auto":
            return self._asked
        if not why_not(self.model):
            return "ghost"
        return "finite_difference" if any(map(mixes_examples, self.model.modules())) else "jvp"

    def __call__(
        self, inputs: Any, targets: Any, direction: Sequence[Any], *, norms: bool = False, losses: Any = None
    ) -> BatchPriorities:
        """Return the priorities of a batch along a direction.

        ``inputs`` is the model's argument, or a tuple of them, (n, ...). ``direction`` has one tensor for each of
        ``model.parameters()`` (None: zero). ``losses`` (n,) of the same model, batch and random numbers save a finite
        difference one of its passes.
        """
        method, along = self.method, matched(self.model, direction)
        if norms and method != "ghost":
            raise PriorityError(f"norms need method='ghost'; here it is {method!r}. {why_not(self.model)}".rstrip())
        given = inputs if isinstance(inputs, tuple) else (inputs,)

        def of(parameters: dict[str, Any]) -> Any:
            from torch.func import functional_call

            outputs = functional_call(self.model, parameters, given) if parameters else self.model(*given)
            return checked_losses(self.loss(outputs, targets))

        with untouched(self.model):
            if method == "ghost":
                return self._ghost(of, along, norms)
            parameters = {name: one.detach() for name, one in self.model.named_parameters()}
            along = _without_padding(self.model, along)
            if method == "finite_difference":
                found = along_by_difference(of, parameters, along, losses)
            else:
                found = _forward_mode(of, parameters, along)
        return BatchPriorities(found, losses, None, None)

    def _ghost(self, of: Losses, along: list[Any], norms: bool) -> BatchPriorities:
        import torch

        with torch.enable_grad(), GhostPass(self.model, along, norms=norms, check=self._unchecked) as ghost:
            losses = of({})
            gradients = ghost.gradients(losses)
        self._unchecked = False
        return BatchPriorities(ghost.priorities, losses.detach(), ghost.norms, gradients)


def _without_padding(model: Any, along: list[Any]) -> list[Any]:
    """Return a direction that is 0 in the rows of a ``padding_idx``."""
    import torch

    layers = [one for one in model.modules() if any(True for _ in one.parameters(recurse=False))]
    place = {id(one): number for number, one in enumerate(model.parameters())}
    found = list(along)
    for layer in layers:
        if isinstance(layer, torch.nn.Embedding) and layer.padding_idx is not None:
            if any(one.weight is layer.weight for one in layers if one is not layer and hasattr(one, "weight")):
                raise PriorityError("an Embedding with padding_idx shares its weight: take method='ghost'.")
            found[place[id(layer.weight)]] = kept = found[place[id(layer.weight)]].clone()
            kept[layer.padding_idx] = 0
    return found


def _forward_mode(of: Losses, parameters: dict[str, Any], along: list[Any]) -> Any:
    try:
        return along_by_jvp(of, parameters, along)
    except PriorityError:
        raise
    except RuntimeError as error:  # NotImplementedError is one
        raise PriorityError(
            f"forward-mode differentiation fails in this model ({str(error).partition(chr(10))[0]:.200}): take "
            "method='finite_difference', or 'ghost' where all layers are known."
        ) from error
