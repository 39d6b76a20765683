"""Priorities and the ordinary gradient in one backward pass.

Gradients of single examples are not formed, as in Goodfellow 2015 (arXiv:1510.01799) and Li et al. 2022
(arXiv:2110.05679).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from types import TracebackType
from typing import Any, Self
from weakref import WeakSet

from looptap.training.prioritized.layer_calls import LayerCall, ModelHook, learns_static_graph, projections
from looptap.training.prioritized.layer_plan import (
    LayerPlan,
    PlannedLayer,
    PriorityError,
    checked_losses,
    checked_model,
    why_compiled,
    why_not,
)

__all__ = ["GhostPass", "PriorityError", "why_not"]

CHECK_FACTOR = 1e-3
"""Of the norm of direction times gradient: how far a checked priority may be off in float32."""
HALF_CHECK_FACTOR = 0.1
"""The same where layers run in 16 bits."""

_REENTRANT = (
    "{} ran without gradients, as in a reentrant checkpoint: pass use_reentrant=False to torch.utils.checkpoint; if it "
    "is not to be trained, call requires_grad_(False) on it."
)


class GhostPass:
    """A context around a batch's forward and backward pass, on the layers' hooks.

    ``model`` is the module inside all wrappers. ``direction`` has one tensor for each of ``model.parameters()``, of its
    shape (None: zero). Forward and `backward` both belong into the context, and a model may be called several times in
    it (its layers, too). The first dimension of all layers' inputs is the batch, or a multiple of it in the same order
    if the first batch is checked. The context may stay open over many steps, and follows a direction that changes in
    place; other backward passes in it are none of its concern.

    The gradient is that of a plain pass to the last bit.

    Supported are Linear, Conv1d to Conv3d, Embedding, LayerNorm, RMSNorm, GroupNorm, PReLU, MultiheadAttention where it
    is plain self-attention, and BatchNorm in evaluation mode, in any model; dropout, shared weights, autocast, a
    GradScaler, DistributedDataParallel, and `torch.utils.checkpoint`. In a loop take `ExactPriorities.ghost_pass`: it
    looks for the layers once.

    Raises PriorityError at construction for a model with other layers, or with BatchNorm in training mode. One that is
    raised after a backward pass leaves the gradients as they are without.

    >>> import torch
    >>> model = torch.nn.Linear(2, 1, bias=False)
    >>> x, y = torch.tensor([[1.0, 0.0], [0.0, 2.0]]), torch.zeros(2, 1)
    >>> with torch.no_grad():
    ...     weight = model.weight.fill_(1.0)
    >>> with GhostPass(model, [torch.ones(1, 2)]) as ghost:
    ...     ghost.backward((model(x) - y).square().sum(1))
    >>> print(ghost.priorities, model.weight.grad)
    tensor([2., 8.]) tensor([[1., 4.]])
    """

    def __init__(
        self, model: Any, direction: Sequence[Any], *, check: bool = False, plan: LayerPlan | None = None
    ) -> None:
        if plan is None and (why := why_compiled(model)):
            raise PriorityError(why)
        self._plan = plan = plan or LayerPlan(checked_model(model))
        if plan.why:
            raise PriorityError(plan.why)
        self.priorities: Any = None
        """(n,) gbar · g_i, in units of loss times gbar / parameter, after `backward`."""
        self._along = plan.matched(direction)
        self._check = check
        self._handles: list[Any] = []
        self._calls: WeakSet[LayerCall] = WeakSet()
        """Those whose gradients have not come; each lives as long as its graph."""
        self._tapped: set[Any] = set()
        self._silent: set[Any] = set()
        """Layers that ran without gradients."""
        self._products: list[Any] = []
        self._failure: Exception | None = None
        self._refusal: Exception | None = None
        """Why a forward pass cannot be followed."""
        self._n = 0
        self._acts = self._retained = self._half = False

    def _clear(self) -> None:
        """Forget all shares."""
        self._products, self._failure, self._n = [], None, 0
        self._acts = self._retained = self._half = False

    def __enter__(self) -> Self:
        for one in self._plan.layers:
            hook = ModelHook(partial(self._tap, one))
            self._handles.append(one.layer.register_forward_hook(hook, with_kwargs=True, prepend=True))
        for layer, parts in self._plan.attentions:
            hook = ModelHook(partial(self._tap_attention, parts))
            self._handles.append(layer.register_forward_hook(hook, with_kwargs=True, prepend=True))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        for call in [*self._calls]:
            self._drop(call)
        self._clear()

    def backward(self, losses: Any, *, scale: float = 1.0) -> None:
        """Run ``losses.mean().backward()``, and set `priorities`.

        ``losses`` are those of single examples, (n,), of a forward pass in this context. ``scale`` is a GradScaler's.
        Gradients accumulate in ``.grad`` as ever.
        """
        mean = self.mean(losses)
        (mean if scale == 1.0 else mean * scale).backward()
        self.finish(scale)

    def mean(self, losses: Any) -> Any:
        """Return ``losses.mean()``, for a loop that calls backward itself.

        `finish` follows on that: ``scaler.scale(ghost.mean(losses)).backward(); ghost.finish(scaler.get_scale())``.
        """
        n = len(checked_losses(losses))
        if not self._tapped:
            raise PriorityError(
                f"the layers saw 0 examples, the losses are of {n}. Call the model inside this context, and itself "
                "rather than what torch.compile makes of it; or use method='jvp'."
            )
        self._clear()
        self._n = n
        refusal, self._refusal = self._refusal, None
        if refusal is not None:
            raise _as_priority_error(refusal)
        if self._check and not learns_static_graph(losses):
            self._compare(losses)
        self._acts = True
        return losses.mean()

    def finish(self, scale: float = 1.0) -> None:
        """Set `priorities` after a backward pass of `mean` times ``scale``."""
        products, failure, n = self._products, self._failure, self._n
        self._clear()
        if failure is not None:
            raise _as_priority_error(failure)
        if not products:
            raise PriorityError(f"the layers saw 0 examples, the losses are of {n}. Use method='jvp'.")
        self.priorities = _total(products).mul_(n / scale)

    def gradients(self, losses: Any) -> list[Any]:
        """Return the gradients of the mean loss, by trained parameter.

        None where there is none. Like `backward`, without a change of any ``.grad``.
        """
        import torch

        self._refuse_reentrant()
        found = torch.autograd.grad(self.mean(losses), self._plan.trained, allow_unused=True)
        self.finish()
        return list(found)

    # ------------------------------------------------------------ hooks

    def _tap(self, planned: PlannedLayer, layer: Any, args: Any, named: Any, output: Any) -> None:
        """Note a call of a layer."""
        if not output.requires_grad:
            self._silent.add(layer)
            return
        self._tapped.add(layer)
        x = args[0] if args else named["input"]
        # An in-place layer that follows gives a view a new node; that of its base stays.
        base = getattr(output, "_base", None)
        made = output if base is None else base
        self._expect(made.grad_fn, LayerCall(planned, x, output.shape, made.output_nr))

    def _tap_attention(self, parts: list[PlannedLayer], layer: Any, args: Any, named: Any, output: Any) -> None:
        """Note the projections of a MultiheadAttention; does not raise."""
        if not output[0].requires_grad:
            self._silent.add(layer)
            return
        self._tapped.add(layer)
        try:
            for node, call in projections(parts, layer, args[0] if args else named["query"], output[0]):
                self._expect(node, call)
        except Exception as error:
            self._refusal = error

    def _expect(self, node: Any, call: LayerCall) -> None:
        self._calls.add(call)
        node.register_prehook(partial(self._add, call))

    def _add(self, call: LayerCall, gradients: Any) -> None:
        """Add a layer's share; called in the backward pass, into which it never raises."""
        import torch

        g = gradients[call.place]
        if not self._acts or g is None or call.x is None or self._failure is not None:
            return
        try:
            if torch.is_grad_enabled() or torch.is_autocast_enabled(g.device.type):
                with torch.no_grad(), torch.autocast(g.device.type, enabled=False):
                    self._share(call, g)
            else:
                self._share(call, g)
        except Exception as error:
            self._failure = error
        if not self._retained:
            self._drop(call)

    def _drop(self, call: LayerCall) -> None:
        """Let a layer's input go, although the graph lives on."""
        call.x = None
        self._calls.discard(call)

    def _share(self, call: LayerCall, g: Any) -> None:
        import torch

        planned = call.planned
        x, g = call.pair(g)
        weight, bias = (None if place is None else self._along[place] for place in (planned.weight, planned.bias))
        if g.dtype != torch.float32:
            self._half |= g.element_size() < 4
            g = g.float() if g.dtype == torch.float16 else g  # products with gbar leave the range of float16
        if x.dtype != g.dtype and x.is_floating_point():
            x = x.to(g.dtype)
        weight, bias = (one if one is None or one.dtype == g.dtype else one.to(g.dtype) for one in (weight, bias))
        self._accept(planned.layer, planned.rule(planned.layer, x, g, weight, bias))

    def _accept(self, layer: Any, found: Any) -> None:
        """Add a layer's share of the priorities."""
        if len(found) != self._n:
            if self._retained:
                self._plan.folded.add(layer)
            if layer not in self._plan.folded or len(found) % self._n:
                raise PriorityError(
                    f"the first dimension of a {type(layer).__name__} is {len(found)}, the losses are of "
                    f"{self._n} examples: it must be the batch in all of them. Use method='jvp'."
                )
            found = found.view(self._n, -1).sum(1)
        self._products.append(found)

    # ------------------------------------------------------------ check

    def _compare(self, losses: Any) -> None:
        """Compare the layers' products along a random direction with true gradients.

        Two more backward passes, of the sum of the losses for the products and of a sum with different weights for the
        gradient: a parameter that no layer accounts for shows, and so does a share of the wrong example. Random numbers
        and each ``.grad`` of the job stay as they are.
        """
        import torch

        self._refuse_reentrant()
        along, self._along = self._along, self._plan.random_direction()
        self._acts = self._retained = True
        n = self._n
        try:
            torch.autograd.grad(losses.sum(), self._plan.trained, retain_graph=True, allow_unused=True)
            self._acts = False
            weights = torch.linspace(-1, 1, n, dtype=losses.dtype, device=losses.device)
            found = torch.autograd.grad(losses @ weights, self._plan.trained, retain_graph=True, allow_unused=True)
        except RuntimeError as error:
            if "use_reentrant" not in str(error):
                raise
            raise PriorityError(_REENTRANT.format("A layer")) from error
        finally:
            direction, self._along = self._along, along
        products, failure, half = self._products, self._failure, self._half
        self._clear()
        self._n = n
        if failure is not None:
            raise _as_priority_error(failure)
        pairs = [
            (g.float(), direction[place].float())
            for g, place in zip(found, self._plan.places, strict=True)
            if g is not None
        ]
        true = sum(float((g * along).sum()) for g, along in pairs)
        shares = _total(products) * weights if products else losses.new_zeros(n)
        size = float(shares.norm()) + sum(float(g.square().sum()) for g, _ in pairs) ** 0.5
        total = float(shares.sum())
        if not math.isfinite(total - true) or size == 0:
            return  # an overflow, or nothing to compare: the next batch shows it
        if abs(total - true) > (HALF_CHECK_FACTOR if half else CHECK_FACTOR) * size:
            raise PriorityError(
                f"the layers' hooks account for {total:.4g} of a change of the losses by {true:.4g}: parameters are "
                "used outside of their layers, examples are mixed, or the batch is not the first dimension of each "
                "layer. Use method='jvp'."
            )
        self._check, self._plan.checked = False, True

    def _refuse_reentrant(self) -> None:
        """Raise for layers in a nested backward pass, which only `backward` starts."""
        for layer in self._silent - self._tapped:
            raise PriorityError(_REENTRANT.format(type(layer).__name__))


def _as_priority_error(failure: Exception) -> PriorityError:
    if isinstance(failure, PriorityError):
        return failure
    found = PriorityError(f"the hook of a layer failed ({type(failure).__name__}: {failure}): use method='jvp'.")
    found.__cause__ = failure
    return found


def _total(shares: list[Any]) -> Any:
    """Return the sum of tensors (n,), which may be on several devices."""
    import torch

    try:
        return torch.stack(shares).sum(0)
    except RuntimeError:
        return torch.stack([one.to(shares[0].device) for one in shares]).sum(0)
