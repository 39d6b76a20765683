"""`PrioritySource`: the backward pass of a step that computes priorities, too."""

from __future__ import annotations

from typing import Any, NamedTuple

from looptap.streams.preserving.random_state import RandomState
from looptap.training.prioritized.exact_priorities import ExactPriorities, PriorityError
from looptap.training.prioritized.ghost_products import GhostPass
from looptap.training.prioritized.layer_calls import ModelHook, learns_static_graph
from looptap.training.prioritized.layer_plan import why_compiled
from looptap.training.prioritized.methods.published import Published
from looptap.training.sampling.per_example import ReducedLoss, criterion_of
from looptap.training.sampling.permutation_walk import Bools, Floats

MAX_LOSS_DIFFERENCE_SHARE = 0.05
"""Of the losses of a step, up to which those of a pass of its own are the same: precisions differ."""

_OTHER_LOSS = (
    "The losses given to backward() differ from those of loss=, from which priorities come: pass Prioritized the loss "
    "that you train by, such as loss=torch.nn.CrossEntropyLoss(label_smoothing=0.1)."
)


class PriorityStep(NamedTuple):
    """What a backward pass found besides ``.grad``."""

    gradients: list[Any] | None
    """The mean gradient that feeds gbar, by parameter; None: unknown, or not finite."""
    priorities: Floats | None
    """gbar . g of each example; None: not computed."""
    why: str
    """What is missing, and why; empty if nothing is."""


class PrioritySource:
    """Computes the gradients and priorities of a model's batches.

    While it is `open`, hooks of the layers watch forward passes, from one of the model up to the `step`. ``exact`` is a
    way of `ExactPriorities` or "auto": hooks, else a finite difference. Raises PriorityError for a model that the way
    cannot treat.
    """

    def __init__(self, model: Any, loss: Any, exact: str) -> None:
        self._criterion = criterion_of(loss)
        self._exact = ExactPriorities(model, self._losses, method=exact)
        self.model = self._exact.model
        """The module inside all wrappers."""
        self._compiled = why_compiled(model)
        self._handle: Any = None
        self._ghost: GhostPass | None = None
        self._why = ""  # the hooks cannot be used
        self._found: Any = None  # the priorities of the present step
        self._missing = ""  # what is missing in it
        self._uses_hooks = False
        self._learns = True  # DDP may have to see its static graph yet
        self._random: RandomState | None = None  # with which the loop's forward pass began

    @property
    def way(self) -> str:
        """How priorities are computed: one of the ways of `ExactPriorities`."""
        return self._exact.method

    def open(self, direction: list[Any]) -> None:
        """Watch forward passes for priorities along ``direction``.

        It may change in place.
        """
        self.close()
        self._why, self._uses_hooks = self._exact.refused.get("ghost", self._compiled), self.way == "ghost"
        if self._compiled:  # a hook would be compiled, too
            return
        hook = ModelHook(lambda module, given: self._watch(direction))
        self._handle = self.model.register_forward_pre_hook(hook)

    def close(self) -> None:
        """Take the hooks off the model."""
        if self._handle is not None:
            self._handle.remove()
        self._handle = None
        self._unwatch()

    def _watch(self, direction: list[Any]) -> None:
        """Open a pass at the first forward pass of a step. Does not raise."""
        import torch

        if self._ghost is not None or self._random is not None or not torch.is_grad_enabled():
            return
        try:
            if self._uses_hooks and not self._why:
                self._ghost = self._exact.ghost_pass(direction).__enter__()
            else:
                self._random = RandomState()
        except PriorityError as error:
            self._why = str(error)
        except Exception as error:  # it runs inside the loop's forward pass
            self._why = f"Hooks failed: {error}"

    def _unwatch(self) -> None:
        if self._ghost is not None:
            self._ghost.__exit__(None, None, None)
        self._ghost = self._random = None

    def step(
        self,
        method: Published,
        direction: list[Any],
        losses: Any,
        renewed: Bools,
        scale: float,
        inputs: Any,
        targets: Any,
    ) -> PriorityStep:
        """Set ``.grad`` as ``method`` wants it; return what else was found.

        Raises only what a plain backward pass raises.
        """
        import torch

        self._found, self._missing = None, ""
        trained = [one for one in self.model.parameters() if one.requires_grad]
        first, second = method.initial_pass == 0, method.initial_pass == 1
        mask = torch.from_numpy(renewed).to(losses.device)
        if self._ghost is None and not first:
            self._without_hooks(direction, losses, inputs, targets)
        before = [None if one.grad is None else one.grad.clone() for one in trained]
        apart: Any = None
        if not (first or second) and (method.separate or method.from_renewed):
            apart = self._apart(losses, ~mask if method.separate else mask, trained)
        self._backward(losses, scale, priorities=not first)
        self._unwatch()
        own: Any = [_added(one.grad, old, scale) for one, old in zip(trained, before, strict=True)]
        if first or second:
            own = None if second else own
            for one in trained:
                one.grad = None
        elif apart is not None and method.separate:
            for one, old, new in zip(trained, before, apart, strict=True):
                one.grad = old if new is None else new * scale if old is None else old + new * scale
        elif apart is not None:
            own = apart
        return PriorityStep(self._matched(trained, own), self._numbers(), self._missing)

    # ------------------------------------------------------------ inside

    def _apart(self, losses: Any, part: Any, trained: list[Any]) -> Any:
        """Return the gradients of the mean of a part; None: take all of it."""
        import torch

        if not bool(part.any()) or bool(part.all()):
            return None
        self._learns = self._learns and learns_static_graph(losses)
        if self._learns:
            return None
        try:
            return torch.autograd.grad(losses[part].mean(), trained, retain_graph=True, allow_unused=True)
        except RuntimeError as error:  # of a reentrant checkpoint, for one
            self._missing = f"The gradient of a part of the batch failed, and that of all is taken: {error!s:.200}"
            return None

    def _backward(self, losses: Any, scale: float, *, priorities: bool) -> None:
        """Run the backward pass of the mean, with priorities if hooks can."""
        ghost, mean = self._ghost if priorities else None, None
        if ghost is not None:
            try:
                mean = ghost.mean(losses)
            except PriorityError as error:
                self._why = self._missing = str(error)
        ((losses.mean() if mean is None else mean) * scale).backward()
        if ghost is not None and mean is not None:
            try:
                ghost.finish(scale)
                self._found = ghost.priorities
            except PriorityError as error:
                self._why = self._missing = str(error)

    def _without_hooks(self, direction: list[Any], losses: Any, inputs: Any, targets: Any) -> None:
        if inputs is None or targets is None:
            why = f"{self._why} " if self._why else ""
            self._missing = (
                f"{why}Priorities come by {self.way}: pass inputs= and targets= to backward(). Without them, examples "
                "come in turn."
            )
            return
        after = RandomState()
        try:
            if self._random is not None:
                self._random.put_back()  # the dropout of the loop's own pass
            found = self._exact(inputs, targets, direction)
            self._found = found.priorities
            self._missing = _OTHER_LOSS if self._random and _differ(found.losses, losses.detach()) else ""
        except Exception as error:  # of the model, in another forward pass than that of the loop
            self._missing = f"Priorities by {self.way} failed: {error}"
        finally:
            after.put_back()

    def _losses(self, outputs: Any, targets: Any) -> Any:
        if isinstance(self._criterion, ReducedLoss):
            return self._criterion.single(outputs, targets)
        found: Any = self._criterion(outputs, targets)
        return found[0] if isinstance(found, tuple) else found

    def _matched(self, trained: list[Any], own: Any) -> list[Any] | None:
        """Return gradients for all parameters; None: there are none, or not finite ones."""
        import torch

        if own is None:
            return None
        known = [one.coalesce().values() if one.is_sparse else one for one in own if one is not None]
        if known and not bool(torch.stack([*torch._foreach_norm(known)]).isfinite().all()):
            self._missing = "Gradients that are not finite: the average gradient stays as it was."
            return None
        by = {id(one): gradient for one, gradient in zip(trained, own, strict=True)}
        return [by.get(id(one)) for one in self.model.parameters()]

    def _numbers(self) -> Floats | None:
        """Return the priorities as an array; the next draw waits for them."""
        if self._found is None:
            return None
        found: Floats = self._found.detach().float().cpu().numpy()
        return found


def _added(gradient: Any, before: Any, scale: float) -> Any:
    """Return what a backward pass has added to a ``.grad``, without the scale.

    None: nothing.
    """
    if gradient is None:
        return None
    if before is not None and not gradient.is_sparse and not before.is_sparse and gradient.equal(before):
        return None
    added = gradient if before is None else gradient - before
    return added if scale == 1.0 else added / scale


def _differ(losses: Any, others: Any) -> bool:
    """Return True if losses are not the same up to precision."""
    return bool((losses - others).norm() > MAX_LOSS_DIFFERENCE_SHARE * others.norm())
