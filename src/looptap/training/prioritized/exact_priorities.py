"""Exact priorities of a batch, by the cheapest way that its model allows."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from looptap.streams.preserving.random_state import RandomState
from looptap.streams.preserving.untouched import untouched
from looptap.training.prioritized.directional import Losses, along_by_difference, along_by_jvp
from looptap.training.prioritized.ghost_products import GhostPass
from looptap.training.prioritized.layer_plan import (
    LayerPlan,
    PriorityError,
    checked_losses,
    checked_model,
    why_compiled,
)

__all__ = ["METHODS", "BatchPriorities", "ExactPriorities", "PriorityError"]

METHODS = ("ghost", "jvp", "finite_difference")
"""The ways to compute priorities."""


class BatchPriorities(NamedTuple):
    """What is known of a batch's examples: tensors (n,) on the losses' device."""

    priorities: Any
    """gbar · g_i: how fast the example's loss grows along gbar, and falls against it."""
    losses: Any
    """The losses of single examples."""
    gradients: Any
    """The gradient of the mean loss, by trained parameter; None: not computed by this method."""


class ExactPriorities:
    """Computes `p_i = gbar · g_i` for the examples of a batch.

    g_i is the gradient of example i's loss.
    ``loss(outputs, targets)`` returns the losses of single examples, (n,), for example
    ``torch.nn.CrossEntropyLoss(reduction="none")``. ``method``:

    - ``"ghost"``: inner products in hooks of the layers, with the gradient of the batch in the same backward pass.
      `ghost_pass` is the same for a loop's own backward pass.
    - ``"jvp"``: forward-mode differentiation, for any layer that has it.
    - ``"finite_difference"``: one more forward pass, for any model; ranks are right (0.995 and more), digits are not.
    - ``"auto"``: the first of these that the model's layers allow; `refused` says why not those before it.

    With BatchNorm in training mode a priority is the change of an example's loss as the whole batch moves. What a model
    computes under ``torch.no_grad()`` counts with ``"jvp"``, and what it detaches with ``"finite_difference"``. Under
    autocast ``"ghost"`` computes in its precision, the others in that of the parameters.

    Parameters, gradients, buffers, modes and random numbers of the job stay as they are. The priorities of prioritized
    gradient descent (PGD) are these, with gbar an average of recent gradients; its paper has the opposite sign.

    ``model`` may be wrapped by DistributedDataParallel or torch.compile; the module inside runs. Raises PriorityError
    for a model that the method cannot treat; the text says which can.

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
        self.model, self.loss, self._asked = checked_model(model), loss, method
        """The module inside all wrappers."""
        if not callable(loss):
            raise TypeError(f"loss={loss!r:.80} must be a function of outputs and targets.")
        if method not in (*METHODS, "auto"):
            raise ValueError(f"method={method!r} must be 'auto' or one of {', '.join(METHODS)}.")
        self._compiled = why_compiled(model)
        self._plan = LayerPlan(self.model)
        self._failed: dict[str, str] = {}
        """Methods that have failed with this plan."""
        if method == "ghost" and self._plan.why:
            raise PriorityError(self._plan.why)

    @property
    def method(self) -> str:
        """The method that a batch takes with the model in its present modes."""
        if self._asked != "auto":
            return self._asked
        return self._first_but(self.refused)

    @property
    def refused(self) -> dict[str, str]:
        """The methods that the model does not allow, and why."""
        plan = self._current()
        return {**({"ghost": plan.why} if plan.why else {}), **self._failed}

    def ghost_pass(self, direction: Sequence[Any]) -> GhostPass:
        """Return the context for a loop's own forward and backward pass.

        The layers are looked for once, and the first batch is checked. Raises PriorityError where `method` is not
        ``"ghost"``, and for what torch.compile makes.

        >>> import torch
        >>> model, loss = torch.nn.Linear(4, 3), torch.nn.CrossEntropyLoss(reduction="none")
        >>> exact, x, y = ExactPriorities(model, loss), torch.randn(5, 4), torch.tensor([0, 1, 2, 0, 1])
        >>> with exact.ghost_pass([torch.ones(3, 4), torch.ones(3)]) as ghost:
        ...     ghost.backward(loss(model(x), y))
        >>> ghost.priorities.shape, model.weight.grad.shape
        (torch.Size([5]), torch.Size([3, 4]))
        """
        if why := self._current().why or self._failed.get("ghost") or self._compiled:
            raise PriorityError(why)
        return self._ghost_pass(direction)

    def __call__(self, inputs: Any, targets: Any, direction: Sequence[Any], *, losses: Any = None) -> BatchPriorities:
        """Return the priorities of a batch along a direction.

        ``inputs`` is the model's argument, or a tuple of them, (n, ...). ``direction`` has one tensor for each of
        ``model.parameters()`` (None: zero). ``losses`` (n,) of the same model, buffers, batch and random numbers save a
        finite difference one of its passes.
        """
        along, given = self._current().matched(direction), inputs if isinstance(inputs, tuple) else (inputs,)

        def of(parameters: dict[str, Any]) -> Any:
            from torch.func import functional_call

            outputs = functional_call(self.model, parameters, given) if parameters else self.model(*given)
            return checked_losses(self.loss(outputs, targets))

        failed: dict[str, str] = {}
        before = RandomState()
        with untouched(self.model), _eagerly():
            while True:
                method = self._asked if self._asked in METHODS else self._first_but({**self.refused, **failed})
                try:
                    found = self._by(method, of, along, losses)
                except PriorityError as error:
                    if self._asked != "auto" or method == METHODS[-1]:
                        raise
                    failed[method] = str(error)
                    before.put_back()
                    continue
                self._failed.update(failed)
                return found

    def _by(self, method: str, of: Losses, along: list[Any], losses: Any) -> BatchPriorities:
        import torch

        if method == "ghost":
            with torch.enable_grad(), self._ghost_pass(along) as ghost:
                losses = of({})
                gradients = ghost.gradients(losses)
            return BatchPriorities(ghost.priorities, losses.detach(), gradients)
        parameters = {name: one.detach() for name, one in self.model.named_parameters()}
        along, buffers = _without_padding(self.model, along), dict(self.model.named_buffers())
        if method == "finite_difference":
            found, losses = along_by_difference(of, parameters, along, buffers, losses)
        else:
            found, losses = _forward_mode(of, parameters, along, buffers)
        return BatchPriorities(found, losses, None)

    def _ghost_pass(self, direction: Sequence[Any]) -> GhostPass:
        return GhostPass(self.model, direction, check=not self._plan.checked, plan=self._plan)

    def _first_but(self, refused: dict[str, str]) -> str:
        return next(one for one in METHODS if one not in refused)

    def _current(self) -> LayerPlan:
        """Return the plan of the model as it is now."""
        if not self._plan.is_current():
            self._plan, self._failed = LayerPlan(self.model), {}
        return self._plan


def _without_padding(model: Any, along: list[Any]) -> list[Any]:
    """Return a direction that is 0 in the rows of a ``padding_idx``."""
    import torch

    layers = [one for one in model.modules() if any(True for _ in one.parameters(recurse=False))]
    place = {id(one): number for number, one in enumerate(model.parameters())}
    found = list(along)
    for layer in layers:
        if getattr(layer, "scale_grad_by_freq", False):
            raise PriorityError("an Embedding divides its gradient (scale_grad_by_freq=True): use method='ghost'.")
        if isinstance(layer, torch.nn.Embedding) and layer.padding_idx is not None:
            if any(one.weight is layer.weight for one in layers if one is not layer and hasattr(one, "weight")):
                raise PriorityError("an Embedding with padding_idx shares its weight: use method='ghost'.")
            found[place[id(layer.weight)]] = kept = found[place[id(layer.weight)]].clone()
            kept[layer.padding_idx] = 0
    return found


@contextmanager
def _eagerly() -> Iterator[None]:
    """Run what torch.compile has made without it: what it made knows no hooks."""
    if "torch._dynamo.eval_frame" not in sys.modules:
        yield
        return
    import torch

    with torch.compiler.set_stance("force_eager"):
        yield


def _forward_mode(of: Losses, parameters: dict[str, Any], along: list[Any], buffers: dict[str, Any]) -> tuple[Any, Any]:
    try:
        found, losses = along_by_jvp(of, parameters, along, buffers)
        if not bool(found.any()) and any(bool(one.any()) for one in along):
            raise PriorityError(
                "the losses do not change along the direction in forward-mode differentiation, as if the loss detached "
                "the outputs: return losses with their graph, or use method='finite_difference'."
            )
        return found, losses
    except PriorityError:
        raise
    except RuntimeError as error:  # NotImplementedError is one
        raise PriorityError(
            f"forward-mode differentiation fails in this model ({str(error).partition(chr(10))[0]:.200}): take "
            "method='finite_difference', or 'ghost' where all layers are known."
        ) from error
