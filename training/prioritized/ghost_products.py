"""Priorities, gradient norms and the ordinary gradient in one backward pass.

Gradients of single examples are not formed, as in Goodfellow 2015 (arXiv:1510.01799) and Li et al. 2022
(arXiv:2110.05679).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from types import TracebackType
from typing import Any, Self

from looptap.training.prioritized.gradient_norms import squares_of
from looptap.training.prioritized.layer_rules import LayerRule, mixes_examples, rule_of, trained


class PriorityError(ValueError):
    """Priorities that cannot be computed in this way; the text says in which."""


CHECK_FACTOR = 1e-3
"""Of the norm of direction times gradient: how far a checked priority may be off in float32."""
HALF_CHECK_FACTOR = 0.1
"""The same where layers run in 16 bits."""


_REENTRANT = (
    "{} ran without gradients, as in a reentrant checkpoint: give use_reentrant=False to torch.utils.checkpoint; if it "
    "is not to be trained, call requires_grad_(False) on it."
)


class GhostPass:
    """A context around a batch's forward and backward pass, on the layers' hooks.

    ``model`` is the module inside all wrappers. ``direction`` has one tensor for each of ``model.parameters()``, of its
    shape (None: zero). Forward and `backward` both belong into the context, a model may be called several times in it
    (its layers, too), and the first dimension of all layers' inputs is the batch. The context may stay open over many
    steps, and follows a direction that changes in place; other backward passes in it are none of its concern.

    Supported are Linear, Conv1d, Conv2d, Embedding, LayerNorm, GroupNorm, and BatchNorm in evaluation mode, in any
    model; dropout, shared weights, autocast, and `torch.utils.checkpoint`.

    Raises PriorityError at construction for a model with other layers, or with BatchNorm in training mode.

    >>> import torch
    >>> model = torch.nn.Linear(2, 1, bias=False)
    >>> x, y = torch.tensor([[1.0, 0.0], [0.0, 2.0]]), torch.zeros(2, 1)
    >>> with torch.no_grad():
    ...     weight = model.weight.fill_(1.0)
    >>> with GhostPass(model, [torch.ones(1, 2)], norms=True) as ghost:
    ...     ghost.backward((model(x) - y).square().sum(1))
    >>> print(ghost.priorities, ghost.norms, model.weight.grad)
    tensor([2., 8.]) tensor([2., 8.]) tensor([[1., 4.]])
    """

    def __init__(self, model: Any, direction: Sequence[Any], *, norms: bool = False, check: bool = False) -> None:
        if why := why_not(model):
            raise PriorityError(why)
        self.priorities: Any = None
        """(n,) gbar · g_i, in units of loss times gbar / parameter, after `backward`."""
        self.norms: Any = None
        """(n,) norms of g_i over all parameters that are trained, after `backward`, if asked for."""
        self._check = check
        self._wants_norms = norms
        parameters = list(model.parameters())
        self._along = {id(p): along for p, along in zip(parameters, matched(model, direction), strict=True)}
        self._parameters = [p for p in parameters if p.requires_grad]
        self._layers = [(layer, rule) for layer in model.modules() if trained(layer) and (rule := rule_of(layer))]
        owners = Counter(id(one) for layer, _ in self._layers for one in trained(layer).values())
        self._shared = {each for each, count in owners.items() if count > 1}
        self._calls: Counter[int] = Counter()
        self._handles: list[Any] = []
        self._acts = False  # in its own backward passes only: any other is the loop's
        self._failure: Exception | None = None  # of a hook, raised once the gradient is complete
        self._tapped: set[Any] = set()
        self._silent: set[Any] = set()
        """Layers that ran without gradients."""
        self._n = 0
        self._products: Any = 0.0
        self._squares: Any = 0.0
        self._uses: dict[int, list[Any]] = defaultdict(list)
        self._half = False

    def __enter__(self) -> Self:
        for layer, rule in self._layers:
            self._handles.append(layer.register_forward_hook(partial(self._tap, rule), with_kwargs=True))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def backward(self, losses: Any, *, scale: float = 1.0) -> None:
        """Run ``(losses.mean() * scale).backward()``, and set `priorities` and `norms`.

        ``losses`` are those of single examples, (n,), of a forward pass in this context; ``scale`` is for a
        GradScaler's. Gradients accumulate in ``.grad`` as ever.
        """
        weight = scale / len(checked_losses(losses))
        expected = self._expected(losses) if self._check else None
        with self._acting():
            (losses.sum() * weight).backward()
        self._finish(len(losses), weight, expected)

    def gradients(self, losses: Any) -> list[Any]:
        """Return the gradients of the mean loss by parameter, None where there is none.

        Like `backward`, without a change of any ``.grad``.
        """
        import torch

        weight = 1.0 / len(checked_losses(losses))
        self._refuse_reentrant()
        expected = self._expected(losses) if self._check else None
        with self._acting():
            found = torch.autograd.grad(losses.sum() * weight, self._parameters, allow_unused=True)
        self._finish(len(losses), weight, expected)
        return list(found)

    # ------------------------------------------------------------ hooks

    @contextmanager
    def _acting(self) -> Iterator[None]:
        self._products = self._squares = 0.0
        self._n, self._failure, self._half = 0, None, False
        self._uses.clear()
        self._acts = True
        try:
            yield
        finally:
            self._acts = False

    def _tap(self, rule: LayerRule, layer: Any, args: Any, named: Any, output: Any) -> None:
        for one in trained(layer).values():
            self._calls[id(one)] += 1
        (self._tapped if output.requires_grad else self._silent).add(layer)
        if output.requires_grad:
            held = _holder().apply(args[0] if args else named["input"], _one_that_requires_grad())
            # An in-place layer that follows gives a view a new node; that of its base stays.
            base = getattr(output, "_base", None)
            made = output if base is None else base
            add = partial(self._add, rule, layer, held.grad_fn, made.output_nr, output.shape)
            made.grad_fn.register_prehook(add)

    def _add(self, rule: LayerRule, layer: Any, held: Any, place: int, shape: Any, gradients: Any) -> None:
        """Add a layer's share; called in the backward pass, which it does not end."""
        if self._acts and gradients[place] is not None and self._failure is None:
            try:
                self._add_share(rule, layer, held, gradients[place].reshape(shape))
            except Exception as error:
                self._failure = error

    def _add_share(self, rule: LayerRule, layer: Any, held: Any, g: Any) -> None:
        import torch

        (x,) = held.saved_tensors
        with torch.no_grad(), torch.autocast(g.device.type, enabled=False):
            self._n = self._n or len(g)
            if len(g) != self._n:
                raise PriorityError(
                    f"the first dimension of a {type(layer).__name__} is {len(g)}, of another layer {self._n}: it must "
                    "be the batch in all of them. Take method='jvp'."
                )
            if x.is_floating_point() and x.dtype != g.dtype:
                x = x.to(g.dtype)
            weight = None if layer.weight is None else self._along[id(layer.weight)].to(g.dtype)
            bias = None if getattr(layer, "bias", None) is None else self._along[id(layer.bias)].to(g.dtype)
            self._half |= g.element_size() < 4
            self._products = self._products + rule.products(layer, x, g, weight, bias)
            if self._wants_norms:
                self._add_norms(rule, layer, x, g)

    def _add_norms(self, rule: LayerRule, layer: Any, x: Any, g: Any) -> None:
        for name, found in rule.gradients(layer, x, g):
            parameter = getattr(layer, name)
            if not parameter.requires_grad:
                continue
            if self._calls[id(parameter)] == 1 and id(parameter) not in self._shared:
                self._squares = self._squares + squares_of([found])
            else:
                self._uses[id(parameter)].append(found)

    def _finish(self, n: int, weight: float, expected: Any) -> None:
        if self._failure is not None:
            raise self._failure
        if self._n != n:
            raise PriorityError(
                f"the layers saw {self._n} examples, the losses are of {n}. Call the model inside this context, and "
                "itself rather than what torch.compile or a wrapper makes of it; or take method='jvp'."
            )
        self.priorities = self._products / weight
        if self._wants_norms:
            for uses in self._uses.values():
                self._squares = self._squares + squares_of(uses)
            self._uses.clear()
            self.norms = self._squares.sqrt() / abs(weight)
        if expected is not None:
            self._compare(*expected)

    # ------------------------------------------------------------ check

    def _expected(self, losses: Any) -> tuple[Any, Any]:
        """Return the first example's priority by its own gradient, and its scale."""
        import torch

        self._refuse_reentrant()
        try:
            found = torch.autograd.grad(losses[0], self._parameters, retain_graph=True, allow_unused=True)
        except RuntimeError as error:
            if "use_reentrant" not in str(error):
                raise
            raise PriorityError(_REENTRANT.format("A layer")) from error
        pairs = [(g, self._along[id(p)]) for p, g in zip(self._parameters, found, strict=True) if g is not None]
        product = sum(float((g.float() * along).sum()) for g, along in pairs)
        square = sum(float(g.float().square().sum()) for g, _ in pairs)
        length = sum(float(along.float().square().sum()) for _, along in pairs)
        return product, (square * length) ** 0.5

    def _refuse_reentrant(self) -> None:
        """Raise for layers in a nested backward pass, which only `backward` starts."""
        for layer in self._silent - self._tapped:
            raise PriorityError(_REENTRANT.format(type(layer).__name__))

    def _compare(self, product: float, size: float) -> None:
        found = float(self.priorities[0])
        if not abs(found - product) <= (HALF_CHECK_FACTOR if self._half else CHECK_FACTOR) * size:
            raise PriorityError(
                f"the first example's priority is {found:.4g} by the layers' hooks, {product:.4g} by its own gradient: "
                "parameters are used outside of their layers, examples are mixed, or the batch is not the first "
                "dimension of each layer. Take method='jvp'."
            )


def why_not(model: Any) -> str:
    """Return why hooks cannot compute a model's priorities; "": they can."""
    for path, layer in model.named_modules():
        name = f"{type(layer).__name__} {path!r}"
        if mixes_examples(layer):
            return (
                f"{name} is in training mode, where an example's loss depends on the others: take "
                "method='finite_difference', or call model.eval()."
            )
        if trained(layer) and rule_of(layer) is None:
            return f"{name} has parameters that no hook knows: take method='jvp' or 'finite_difference'."
    return ""


def matched(model: Any, direction: Sequence[Any]) -> list[Any]:
    """Return a direction as one detached tensor for each of the model's parameters.

    Raises PriorityError for another number or shape of tensors.
    """
    import torch

    named, given = list(model.named_parameters()), list(direction)
    if len(named) != len(given):
        raise PriorityError(f"direction has {len(given)} tensors; the model has {len(named)} parameters.")
    for (name, parameter), along in zip(named, given, strict=True):
        if along is not None and along.shape != parameter.shape:
            raise PriorityError(f"direction is of {tuple(along.shape)} for {name!r} of {tuple(parameter.shape)}.")
    return [
        torch.zeros_like(parameter) if along is None or not parameter.requires_grad else along.detach()
        for (_, parameter), along in zip(named, given, strict=True)
    ]


def checked_losses(losses: Any) -> Any:
    """Return losses that are one for each example; raises PriorityError."""
    if losses.ndim != 1:
        raise PriorityError(
            f"losses of shape {tuple(losses.shape)} must be (n,), one for each example: take reduction='none', and the "
            "mean over other dimensions."
        )
    return losses


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
