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
from looptap.streams.harmless.checked_code import call
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
from looptap.streams.harmless.watch import note
from looptap.streams.preserving.module_state import CONTAINERS, MOST_BYTES, MOST_ITEMS, kind_of, unwrapped

_HOOKS = (
    "_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks", "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called", "_forward_pre_hooks_with_kwargs",
)


def run(model: Any, given: Any, named: Any) -> Any:
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
            inputs, words = [copying.value(one) for one in given], {k: copying.value(v) for k, v in named.items()}
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


class _Copying:
    """One pass over the modules of a model and its inputs.

    The copy shares the parameters, or has aliases of them for gradients.
    """

    def __init__(self, gradient: bool, train: bool) -> None:
        self._torch: Any = sys.modules["torch"]
        self._gradient, self._train, self._bytes = gradient, train, 0
        self.shares_leaves = False
        """Whether a leaf that requires a gradient is not copied."""
        self._made: dict[int, Any] = {}
        self._structure = self._torch.nn.Module.__annotations__
        self._kept: list[Any] = []  # the originals, so that no identity is taken twice

    def module(self, original: Any, path: str) -> Any:
        type_of(original)
        original = unwrapped(original)
        known = self._made.get(id(original))
        if known is not None:
            return known
        kind = kind_of(type_of(original))
        if kind.script:
            raise Refusal(f"{path or 'the model'} is TorchScript, whose code cannot be checked")
        self._admit(path, original, kind.sharded)
        for name in ("__call__", "__del__", "__getattribute__"):
            if of_class(type_of(original), name) is not of_class(self._torch.nn.Module, name):
                raise Refusal(f"{type_of(original).__qualname__}.{name} is not known to be harmless")
        for name in ("_parameters", "_buffers", "_modules"):
            if type(original.__dict__[name]) not in (dict, OrderedDict):
                raise Refusal(f"{name} of {type_of(original).__qualname__} is not known to be harmless")
        made: Any = object.__new__(type_of(original))
        self._made[id(original)] = made
        self._kept.append(original)
        current().copies[id(made)] = (made, original)
        attributes = {
            name: self.value(one) if name not in self._structure else one.copy() if type(one) in CONTAINERS else one
            for name, one in original.__dict__.items()
        }
        for name in _HOOKS:
            attributes[name] = OrderedDict(
                (key, one) for key, one in attributes.get(name, {}).items() if _of_torch(one)
            )
        attributes["training"] = self._train and original.training
        attributes["_parameters"] = {name: self._parameter(one) for name, one in original._parameters.items()}
        attributes["_buffers"] = {name: self._tensor(one) for name, one in original._buffers.items()}
        attributes["_modules"] = {
            name: None if child is None else self.module(child, f"{path}.{name}".lstrip("."))
            for name, child in original._modules.items()
        }
        made.__dict__.update(attributes)
        own = [made.__dict__, *(one for name, one in attributes.items() if name in self._structure)]
        current().own.update({id(one): one for one in own if type(one) in CONTAINERS})
        return made

    def value(self, value: Any, depth: int = 0) -> Any:
        """Return a copy of what a module holds and may change."""
        known = self._made.get(id(value))
        if known is not None:
            return known
        kind = type_of(value)
        if kind is self._torch.nn.Parameter:
            return self._parameter(value)
        if kind is self._torch.Tensor:
            return self._tensor(value)
        if issubclass(kind, self._torch.nn.Module) and not kind_of(kind).script:
            return self.module(value, kind.__name__)
        if kind in CONTAINERS and len(value) <= MOST_ITEMS and depth < 10:
            return self._container(value, depth)
        if kind is tuple and len(value) <= MOST_ITEMS and depth < 10:
            return tuple(self.value(one, depth + 1) for one in value)
        if kind is types.MethodType and id(value.__self__) in self._made:
            return types.MethodType(value.__func__, self._made[id(value.__self__)])
        if kind is self._torch.Generator:
            made = self._torch.Generator(device=value.device)
            made.set_state(value.get_state())
            current().own[id(made)] = current().own[made._cdata] = made  # operators get it as another object of Python
            return made
        return self._object(value, depth) if depth < 3 else value

    def _object(self, value: Any, depth: int) -> Any:
        """Return a copy of plain settings; any other object stays shared."""
        held = attributes_of(value)
        if not is_copyable(type_of(value)) or not all(map(_is_data, held.values())):
            return value
        made: Any = object.__new__(type_of(value))
        self._made[id(value)] = made
        self._kept.append(value)
        current().own[id(made)] = made
        object.__getattribute__(made, "__dict__").update({k: self.value(v, depth + 1) for k, v in held.items()})
        return made

    def _container(self, value: Any, depth: int) -> Any:
        made = self._made[id(value)] = value.copy()
        self._kept.append(value)
        current().own[id(made)] = made
        if is_a(value, dict):
            for key, one in value.items():
                made[key] = self.value(one, depth + 1)
        elif not is_a(value, set):
            for place, one in enumerate(value):
                made[place] = self.value(one, depth + 1)
        return made

    def _parameter(self, parameter: Any) -> Any:
        if parameter is None or not self._gradient:
            return parameter
        alias = self._made.get(id(parameter))
        if alias is None:
            alias = self._made[id(parameter)] = parameter.detach().requires_grad_(parameter.requires_grad)
            self._kept.append(parameter)
        return alias

    def _tensor(self, tensor: Any) -> Any:
        if tensor is None or type(tensor) is not self._torch.Tensor:
            return tensor
        known = self._made.get(id(tensor))
        if known is not None:
            return known
        if self.shares_leaves and tensor.is_leaf and tensor.requires_grad:
            return tensor
        if self._bytes + tensor.nbytes > MOST_BYTES:
            return tensor  # shared: a write to it is refused
        self._bytes += tensor.nbytes
        made = self._made[id(tensor)] = tensor.detach().clone()
        self._kept.append(tensor)
        note(made, tensor)
        return made

    def _admit(self, path: str, module: Any, sharded: bool) -> None:
        """Refuse a module that cannot run by itself, or not yet."""
        where = f"in {path!r} " if path else ""
        for name, parameter in module._parameters.items():
            if parameter is None or type(parameter) is self._torch.nn.Parameter:
                continue
            if self._torch.nn.parameter.is_lazy(parameter):
                raise _refused(f"{where}{name!r} does not exist before the first forward pass: query it after that")
            if hasattr(parameter, "to_local"):
                raise _refused(f"{where}{name!r} is sharded, and to gather it all ranks would have to meet")
        if sharded:
            raise _refused(
                f"{where}{type_of(module).__name__} holds a shard of its parameters, and to gather it all ranks would "
                "have to meet"
            )


def _is_data(value: Any) -> bool:
    if type_of(value) in CONTAINERS and len(value) > MOST_ITEMS:
        return False
    return is_plain(value) or is_copyable(type_of(value)) or is_a(value, enum.Enum)


def _refused(reason: str) -> QueryError:
    return QueryError(f"the model cannot be run by a query: {reason}.")


def forward(module: Any, *given: Any, **named: Any) -> Any:
    """Return what ``forward`` of a copied module gives."""
    for hook in module._forward_pre_hooks.values():  # of torch's own: they compute a weight
        call(hook, module, given)
    own = module.__dict__.get("forward")
    if own is not None:
        return call(own, *given, **named)
    return call(of_class(type_of(module), "forward"), module, *given, **named)


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
    return call(forward.__func__, *context, *inputs, **named)


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
