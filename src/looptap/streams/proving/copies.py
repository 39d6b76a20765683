"""Run a model of the job on a copy: shared parameters, everything else its own.

The copy is in evaluation mode unless training mode is asked for. Its modules have no hooks of the job, and buffers and
plain attributes of their own. Their `forward` is followed by its source, also that of torch and of other libraries.
"""

from __future__ import annotations

import contextvars
import enum
import sys
import types
from collections import OrderedDict
from contextlib import nullcontext
from typing import Any

from looptap.streams.errors import QueryError
from looptap.streams.harmless.checked_code import checked_call
from looptap.streams.harmless.checked_evaluation import current
from looptap.streams.harmless.plain import (
    attributes_of,
    is_a,
    is_copyable,
    is_plain,
    module_of,
    of_class,
    order_of,
    type_of,
)
from looptap.streams.harmless.refusal import Refusal
from looptap.streams.harmless.watch import note_storages
from looptap.streams.preserving.module_state import HOOKS, MOST_ITEMS, StateCopier, is_container, module_kind, unwrapped


def run_copy(model: Any, given: Any, named: Any) -> Any:
    """Return what ``model(…)`` gives, on a copy unless it is one."""
    if id(model) in current().copies:
        return forward(model, *given, **named)
    return on_copy(model, given, named)


def on_copy(model: Any, given: Any, named: Any, *, gradient: bool = False, train: bool = False) -> Any:
    """Return the output of a copy of ``model`` for copies of the inputs."""

    torch: Any = sys.modules["torch"]
    if gradient and torch._C._autograd._top_saved_tensors_default_hooks(False) is not None:
        raise Refusal("a hook of the job sees what is saved for the backward pass")

    def ask() -> Any:
        with torch.inference_mode(False) if gradient else nullcontext():  # what is copied in it has no gradients
            copying = _Copying(gradient, train)
            asked = copying.module(model, "")
            copying.shares_leaves = gradient  # the gradient of an input may be what is asked for
            inputs, words = [copying.copied(one) for one in given], {k: copying.copied(v) for k, v in named.items()}
            try:
                with torch.set_grad_enabled(gradient):
                    return forward(asked, *inputs, **words)
            except RuntimeError as error:
                _explain_devices(asked, [*inputs, *words.values()], error)
                raise

    evaluation = current()
    evaluation.keep_modes()
    evaluation.on_copies.append(type(model).__name__)
    outermost = not evaluation.in_own_context
    evaluation.in_own_context = True
    try:
        return contextvars.copy_context().run(ask)
    finally:
        evaluation.in_own_context = not outermost


class _Copying(StateCopier):
    """One pass over the modules of a model and its inputs.

    The copy shares the parameters, or has aliases of them for gradients.
    """

    def __init__(self, gradient: bool, train: bool) -> None:
        super().__init__()
        self._gradient, self._train = gradient, train
        self.shares_leaves = False
        """Whether a leaf that requires a gradient is not copied."""

    def keep(self, original: Any, made: Any) -> Any:
        """Note a copy, which the evaluation may change."""
        if type(made) is self.torch.Tensor:
            note_storages(made, original)
        else:
            current().own[id(made)] = made
        if type(made) is self.torch.Generator:
            current().own[made._cdata] = made  # operators get it as another object of Python
        return super().keep(original, made)

    def module(self, original: Any, path: str) -> Any:
        """Return a copy of a module and of all below it."""
        type_of(original)
        original = unwrapped(original)
        if id(original) in self.made:
            return self.made[id(original)][1]
        self._admit(path, original)
        made: Any = object.__new__(type_of(original))
        self.made[id(original)] = original, made
        current().copies[id(made)] = (made, original)
        attributes = self.attributes(original)
        for name in HOOKS:
            attributes[name] = OrderedDict(
                (key, one) for key, one in attributes.get(name, {}).items() if _of_torch(one)
            )
        attributes["training"] = self._train and original.training
        attributes["_parameters"] = {name: self.copied(one) for name, one in original._parameters.items()}
        attributes["_modules"] = {
            name: None if child is None else self.module(child, f"{path}.{name}".lstrip("."))
            for name, child in original._modules.items()
        }
        made.__dict__.update(attributes)
        own = [made.__dict__, *(one for name, one in attributes.items() if name in self.structure)]
        current().own.update({id(one): one for one in own if is_container(one)})
        return made

    def other(self, value: Any, depth: int) -> Any:
        """Return a copy of a module, a method of one, or settings; others as they are."""
        kind = type(value)
        if issubclass(kind, self.torch.nn.Module) and not module_kind(type_of(value)).script:
            return self.module(value, kind.__name__)
        if kind is types.MethodType and id(value.__self__) in self.made:
            return types.MethodType(value.__func__, self.made[id(value.__self__)][1])
        held = attributes_of(value)
        if depth > 2 or not is_copyable(kind) or not all(map(_is_data, held.values())):
            return value
        made: Any = self.keep(value, object.__new__(kind))
        object.__getattribute__(made, "__dict__").update({k: self.copied(v, depth + 1) for k, v in held.items()})
        return made

    def parameter(self, parameter: Any) -> Any:
        """Return the parameter, or an alias of it that gets a gradient of its own."""
        if not self._gradient or type(parameter) is not self.torch.nn.Parameter:
            return parameter
        return super().keep(parameter, parameter.detach().requires_grad_(parameter.requires_grad))

    def tensor(self, tensor: Any) -> Any:
        """Return a copy of a plain tensor; a write to any other is refused."""
        shares = self.shares_leaves and tensor.is_leaf and tensor.requires_grad
        return tensor if shares or type(tensor) is not self.torch.Tensor else super().tensor(tensor)

    def _admit(self, path: str, module: Any) -> None:
        """Refuse a module that cannot run alone or yet, or that computes its parts."""
        kind, where = module_kind(type_of(module)), f"in {path!r} " if path else ""
        if kind.script:
            raise Refusal(f"{path or 'the model'} is TorchScript, whose code cannot be checked")
        for name, parameter in module._parameters.items():
            if parameter is None or type(parameter) is self.torch.nn.Parameter:
                continue
            if self.torch.nn.parameter.is_lazy(parameter):
                raise _refused(f"{where}{name!r} does not exist before the first forward pass: query it after that")
            if hasattr(parameter, "to_local"):
                raise _refused(f"{where}{name!r} is sharded, and to gather it all ranks would have to meet")
        if kind.sharded:
            raise _refused(
                f"{where}{type_of(module).__name__} holds a shard of its parameters, and to gather it all ranks would "
                "have to meet"
            )
        for name in ("__call__", "__del__", "__getattribute__"):
            if of_class(type_of(module), name) is not of_class(self.torch.nn.Module, name):
                raise Refusal(f"{type_of(module).__qualname__}.{name} is not known to be harmless")
        for name in ("_parameters", "_buffers", "_modules"):
            if type(module.__dict__[name]) not in (dict, OrderedDict):
                raise Refusal(f"{name} of {type_of(module).__qualname__} is not known to be harmless")


def _is_data(value: Any) -> bool:
    if is_container(value) and len(value) > MOST_ITEMS:
        return False
    return is_plain(value) or is_copyable(type(value)) or is_a(value, enum.Enum)


def _refused(reason: str) -> QueryError:
    return QueryError(f"the model cannot be run by a query: {reason}.")


def forward(module: Any, *given: Any, **named: Any) -> Any:
    """Return what ``forward`` of a copied module gives."""
    for hook in module._forward_pre_hooks.values():  # of torch's own: they compute a weight
        checked_call(hook, module, given)
    own = module.__dict__.get("forward")
    if own is not None:
        return checked_call(own, *given, **named)
    return checked_call(of_class(type_of(module), "forward"), module, *given, **named)


class _Context:
    """What a `torch.autograd.Function` gets where no graph is recorded."""

    def __init__(self, count: int) -> None:
        self.needs_input_grad = (False,) * count

    def _nothing(self, *given: Any, **named: Any) -> None:
        """Do nothing: what it would note is for the backward pass."""

    save_for_backward = save_for_forward = mark_dirty = mark_non_differentiable = set_materialize_grads = _nothing


def applied(f: Any, given: Any, named: Any) -> Any:
    """Return what the forward pass of a `torch.autograd.Function` gives."""
    owner, *inputs = given
    if sys.modules["torch"].is_grad_enabled():
        raise Refusal(f"the graph of {owner.__qualname__} is not known to be harmless")
    forward = of_class(owner, "forward")
    if type(forward) is not staticmethod:
        raise Refusal(f"{owner.__qualname__}.forward is not known to be harmless")
    separate = of_class(owner, "setup_context") is not of_class(sys.modules["torch"].autograd.Function, "setup_context")
    context = () if separate else (_Context(len(inputs)),)
    current().own.update({id(one): one for one in context})
    return checked_call(forward.__func__, *context, *inputs, **named)


def _of_torch(hook: Any) -> bool:
    return any(module_of(one).startswith("torch.nn.utils") for one in (hook, *order_of(type_of(hook))))


def _explain_devices(model: Any, inputs: list[Any], error: RuntimeError) -> None:
    torch = sys.modules["torch"]
    devices = {one.device for one in inputs if isinstance(one, torch.Tensor)}
    own = {tensor.device for tensor in (*model.parameters(), *model.buffers())}
    if own and not devices <= own:
        shown, wrong = (", ".join(sorted(map(str, found))) for found in (own, devices - own))
        raise QueryError(
            f"the model is on {shown} and its input on {wrong}.", hint=f"Ask with x.to({shown!r})."
        ) from error
